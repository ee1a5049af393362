"""Sidestream: agents whose tools run on the provider's side, with everything those tools report.

    from sidestream import Agent, WebSearch

    agent = Agent("openai-responses", server_side_tools=[WebSearch()])
    result = await agent.send("What happened today?")

Names are imported when they are first used: `import sidestream` loads msgspec and the standard library only.
"""

from sidestream.lazy import lazy_names
from sidestream.version import __version__ as __version__

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "agent.agent": "Agent",
        "agent.chat": "Chat",
        "agent.embeddings": "cosine_similarity",
        "agent.services": "open_index",
        "agent.media": "MediaResult",
        "errors": (
            "AuthenticationError BlobError ConfigurationError ConflictError ConnectError ContextOverflowError "
            "DocumentError FetchError GrammarError LimitError MissingExtraError MissingKeyError NewerSchemaError "
            "NoOutputError NotHostedError OutputInvalidError ProtocolError ProviderError RateLimitedError RunError "
            "SearchError SidestreamError SignInError SteerError StoreError StreamTimeoutError StreamTruncatedError "
            "ToolRaisedError ToolServerError UnknownProviderError UnsupportedError"
        ),
        "limits": "Limits",
        "mcp": "MCPConfig MCPServer load_mcp_config",
        "messages.message": (
            "ApprovalPart ChatMessage DataPart LinkPart MessagePart TextPart ThinkingPart ToolCallPart ToolPart "
            "ToolResultPart messages_from_json messages_to_json strip_metadata"
        ),
        "messages.repair": "Problem repair_history validate_history",
        "output": "OutputError OutputType output_type",
        "prices.price": "Price",
        "prices.pricing": "PriceTable price_table",
        "providers.capabilities": "Capabilities",
        "providers.embedding": "EmbeddingsResult",
        "providers.anthropic.options": (
            "AnthropicFunctionOptions AnthropicOptions AnthropicServerSideTool AnthropicThinking ClearThinking "
            "ClearToolUses Compact Compaction Skill TaskBudget Advisor AnthropicTool Browser TextEditor"
        ),
        "providers.google": (
            "GoogleAllowedDomain GoogleBearerCredential GoogleComputerUse GoogleEmbeddingOptions GoogleEnvironment "
            "GoogleEnvironmentSource GoogleFileSearch GoogleFunctionOptions GoogleImageOutput "
            "GoogleInteractionsOptions GoogleMaps GoogleOAuthCredential GoogleOptions GoogleSafetySetting GoogleSearch "
            "GoogleServerSideTool GoogleThinking GoogleVariableCredential"
        ),
        "providers.model_settings": "ModelSettings",
        "providers.openai.account": "Moderation OpenAIEmbeddingOptions",
        "providers.openai.chat.options": "AudioOutput ChatPromptCache OpenAIChatOptions",
        "providers.openai.responses.options": (
            "AccessPrograms ContextManagement ImageContext OpenAIFunctionOptions OpenAIResponsesOptions "
            "OpenAIServerSideTool PromptCache PromptTemplate Reasoning ToolNamespace"
        ),
        "replay.capture": "RecordingTransport",
        "replay.recording": "Recording",
        "replay.transport": "ReplayTransport",
        "providers.registry": "caps_of find_provider register_provider",
        "providers.transfers": "StoredFile",
        "run.blocking": "SyncRun",
        "run.context": "Context",
        "run.run": "Run",
        "results.citations": "Citations CitedSource CitedText",
        "results.content": "Link",
        "results.results": "ChatResult",
        "run.system": "RunContext",
        "results.tool_runs": "ToolRun ToolStage",
        "results.tool_text": "ToolText",
        "results.typed_results": (
            "CodeInterpreterResult FileSearchResult ImageGenerationResult MCPResult FoundHit ShellResult "
            "ToolSearchResult TypedResult WebFetchResult WebSearchResult"
        ),
        "store.log.conversation": "Conversation",
        "store.opening": "open_store",
        "store.protocol": "Store",
        "stream.parts": (
            "Custom Error File Finish FinishReason InputUsage OutputUsage Raw ReasoningDelta ReasoningEnd "
            "ReasoningStart ResponseMetadata Source Steer StepFinish StepStart StreamPart StreamStart TextDelta "
            "TextEnd TextStart ToolApprovalRequest ToolCall ToolEvent ToolInputDelta ToolInputEnd ToolInputStart "
            "Preview ToolResult Usage part_from_json preview_of"
        ),
        "tools.approvals": "ApprovalError Decision PendingApproval Question",
        "tools.grants": "Grant",
        "tools.server_side": (
            "ApplyPatch CodeInterpreter Combination Comparison ComputerUse CustomTool DomainSecret FileSearch "
            "HybridSearch ImageGeneration InlineSkill LocalShell LocalSkill Location MCPApproval Memory Network "
            "ProgrammaticToolCalling RemoteMCP ServerSideTool Shell SkillReference Svg ToolFilter ToolSearch "
            "WebFetch WebSearch XSearch"
        ),
        "tools.outcome": "ToolWarning",
        "tools.tool": "ExternalTool Tool ToolContext ToolError tool",
        "wire.http": "HttpTransport",
        "wire.limiter": "Limiter",
        "wire.socket.transport": "WebSocketTransport",
        "protocols.sse": "SSE_HEADERS sse",
        "turn.state": "RunState TURN_STATUSES TurnStatus",
    },
)
