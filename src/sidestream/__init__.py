"""Sidestream: agents whose tools run on the provider's side, with everything those tools report.

    from sidestream import Agent, WebSearch

    agent = Agent("openai-responses", server_side_tools=[WebSearch()])
    result = await agent.send("What happened today?")

Names are imported when they are first used: `import sidestream` loads msgspec and the standard library only.
"""

from sidestream.lazy import lazy_names

__version__ = "0.2.0"

__all__, _load, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "agent.agent": "Agent",
        "agent.chat": "Chat",
        "agent.embeddings": "cosine_similarity",
        "agent.hooks": "Hooks",
        "agent.services": "open_index",
        "errors": (
            "AuthenticationError Blocked ConfigurationError ConnectError ContextOverflowError LimitError "
            "MissingKeyError NotHostedError ProviderError RateLimitedError RunError SidestreamError "
            "StreamTimeoutError UnsupportedError"
        ),
        "limits": "Limits",
        "mcp": "MCPConfig MCPServer load_mcp_config",
        "messages.message": (
            "ApprovalPart ChatMessage DataPart LinkPart MessagePart TextPart ThinkingPart ToolCallPart ToolResultPart"
        ),
        "output": "OutputError OutputType output_type",
        "parts": "File Preview Source StreamPart ToolResult Usage part_from_json",
        "prices.price": "Price",
        "protocols.sse": "SSE_HEADERS sse",
        "providers.anthropic.options": "AnthropicOptions",
        "providers.google": "GoogleOptions",
        "providers.model_settings": "ModelSettings",
        "providers.openai.chat.options": "OpenAIChatOptions",
        "providers.openai.responses.options": "OpenAIResponsesOptions",
        "providers.registry": "caps_of",
        "results.citations": "Citations",
        "results.results": "ChatResult",
        "results.tool_runs": "ToolRun",
        "run.blocking": "SyncRun",
        "run.context": "Context",
        "run.run": "Run",
        "run.system": "RunContext",
        "store.log.conversation": "Conversation",
        "store.opening": "open_store",
        "store.protocol": "Store",
        "tools.approvals": "ApprovalError Decision PendingApproval",
        "tools.configs": "Comparison",
        "tools.server_side": (
            "ApplyPatch CodeInterpreter ComputerUse CustomTool FileSearch ImageGeneration LocalShell Location "
            "MCPApproval Memory ProgrammaticToolCalling RemoteMCP ServerSideTool Shell ToolSearch WebFetch "
            "WebSearch XSearch"
        ),
        "tools.tool": "ExternalTool Tool ToolContext ToolError tool",
        "turn.state": "RunState",
        "wire.limiter": "Limiter",
    },
)

_SUBJECTS = (
    "parts errors messages results tools providers providers.openai providers.anthropic providers.google testing wire"
)


def __getattr__(name: str) -> object:
    """Load a name, or one that a package has by subject, with a warning that says where it is."""
    try:
        return _load(name)
    except AttributeError:
        if not name[0].isupper():  # A module of this package.
            raise
        from importlib import import_module

        for subject in _SUBJECTS.split():
            package = import_module(f"{__name__}.{subject}")
            if name in package.__all__:
                import warnings

                message = f"import {name} from {package.__name__}, not from sidestream"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return getattr(package, name)
        raise
