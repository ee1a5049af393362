"""Sidestream: agents whose tools run on the provider's side, with nothing of what those tools do lost.

    from sidestream import Agent, WebSearch

    agent = Agent("openai-responses", server_side_tools=[WebSearch()])
    result = await agent.send("What happened today?")

Names are imported when they are first used: `import sidestream` loads msgspec and the standard library only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream.agent import (
        Agent as Agent,
    )
    from sidestream.errors import (
        AuthenticationError as AuthenticationError,
    )
    from sidestream.errors import (
        ConfigurationError as ConfigurationError,
    )
    from sidestream.errors import (
        ConnectError as ConnectError,
    )
    from sidestream.errors import (
        GrammarError as GrammarError,
    )
    from sidestream.errors import (
        LimitError as LimitError,
    )
    from sidestream.errors import (
        MissingExtraError as MissingExtraError,
    )
    from sidestream.errors import (
        MissingKeyError as MissingKeyError,
    )
    from sidestream.errors import (
        ProtocolError as ProtocolError,
    )
    from sidestream.errors import (
        ProviderError as ProviderError,
    )
    from sidestream.errors import (
        RateLimitedError as RateLimitedError,
    )
    from sidestream.errors import (
        RunError as RunError,
    )
    from sidestream.errors import (
        SidestreamError as SidestreamError,
    )
    from sidestream.errors import (
        StreamTimeoutError as StreamTimeoutError,
    )
    from sidestream.errors import (
        StreamTruncatedError as StreamTruncatedError,
    )
    from sidestream.errors import (
        UnknownProviderError as UnknownProviderError,
    )
    from sidestream.errors import (
        UnsupportedError as UnsupportedError,
    )
    from sidestream.limits import (
        Limits as Limits,
    )
    from sidestream.messages import (
        ChatMessage as ChatMessage,
    )
    from sidestream.messages import (
        DataPart as DataPart,
    )
    from sidestream.messages import (
        LinkPart as LinkPart,
    )
    from sidestream.messages import (
        MessagePart as MessagePart,
    )
    from sidestream.messages import (
        TextPart as TextPart,
    )
    from sidestream.messages import (
        ThinkingPart as ThinkingPart,
    )
    from sidestream.messages import (
        ToolCallPart as ToolCallPart,
    )
    from sidestream.messages import (
        ToolPart as ToolPart,
    )
    from sidestream.messages import (
        ToolResultPart as ToolResultPart,
    )
    from sidestream.messages import (
        messages_from_json as messages_from_json,
    )
    from sidestream.messages import (
        messages_to_json as messages_to_json,
    )
    from sidestream.messages import (
        strip_metadata as strip_metadata,
    )
    from sidestream.models import (
        register_provider as register_provider,
    )
    from sidestream.parts import (
        Custom as Custom,
    )
    from sidestream.parts import (
        Error as Error,
    )
    from sidestream.parts import (
        File as File,
    )
    from sidestream.parts import (
        Finish as Finish,
    )
    from sidestream.parts import (
        FinishReason as FinishReason,
    )
    from sidestream.parts import (
        InputUsage as InputUsage,
    )
    from sidestream.parts import (
        OutputUsage as OutputUsage,
    )
    from sidestream.parts import (
        Raw as Raw,
    )
    from sidestream.parts import (
        ReasoningDelta as ReasoningDelta,
    )
    from sidestream.parts import (
        ReasoningEnd as ReasoningEnd,
    )
    from sidestream.parts import (
        ReasoningStart as ReasoningStart,
    )
    from sidestream.parts import (
        ResponseMetadata as ResponseMetadata,
    )
    from sidestream.parts import (
        Source as Source,
    )
    from sidestream.parts import (
        StepFinish as StepFinish,
    )
    from sidestream.parts import (
        StepStart as StepStart,
    )
    from sidestream.parts import (
        StreamPart as StreamPart,
    )
    from sidestream.parts import (
        StreamStart as StreamStart,
    )
    from sidestream.parts import (
        TextDelta as TextDelta,
    )
    from sidestream.parts import (
        TextEnd as TextEnd,
    )
    from sidestream.parts import (
        TextStart as TextStart,
    )
    from sidestream.parts import (
        ToolApprovalRequest as ToolApprovalRequest,
    )
    from sidestream.parts import (
        ToolCall as ToolCall,
    )
    from sidestream.parts import (
        ToolEvent as ToolEvent,
    )
    from sidestream.parts import (
        ToolInputDelta as ToolInputDelta,
    )
    from sidestream.parts import (
        ToolInputEnd as ToolInputEnd,
    )
    from sidestream.parts import (
        ToolInputStart as ToolInputStart,
    )
    from sidestream.parts import (
        ToolResult as ToolResult,
    )
    from sidestream.parts import (
        Usage as Usage,
    )
    from sidestream.parts import (
        decode_part as decode_part,
    )
    from sidestream.parts import (
        encode_part as encode_part,
    )
    from sidestream.providers.openai_responses.options import (
        OpenAIResponsesOptions as OpenAIResponsesOptions,
    )
    from sidestream.providers.openai_responses.options import (
        OpenAIServerSideTool as OpenAIServerSideTool,
    )
    from sidestream.results import (
        ChatResult as ChatResult,
    )
    from sidestream.run import (
        Run as Run,
    )
    from sidestream.server_tools import (
        ApplyPatch as ApplyPatch,
    )
    from sidestream.server_tools import (
        CodeInterpreter as CodeInterpreter,
    )
    from sidestream.server_tools import (
        ComputerUse as ComputerUse,
    )
    from sidestream.server_tools import (
        CustomTool as CustomTool,
    )
    from sidestream.server_tools import (
        FileSearch as FileSearch,
    )
    from sidestream.server_tools import (
        ImageGeneration as ImageGeneration,
    )
    from sidestream.server_tools import (
        LocalShell as LocalShell,
    )
    from sidestream.server_tools import (
        Location as Location,
    )
    from sidestream.server_tools import (
        ProgrammaticToolCalling as ProgrammaticToolCalling,
    )
    from sidestream.server_tools import (
        RemoteMCP as RemoteMCP,
    )
    from sidestream.server_tools import (
        ServerTool as ServerTool,
    )
    from sidestream.server_tools import (
        Shell as Shell,
    )
    from sidestream.server_tools import (
        ToolSearch as ToolSearch,
    )
    from sidestream.server_tools import (
        WebFetch as WebFetch,
    )
    from sidestream.server_tools import (
        WebSearch as WebSearch,
    )
    from sidestream.tools import (
        Tool as Tool,
    )
    from sidestream.tools import (
        ToolContext as ToolContext,
    )
    from sidestream.tools import (
        ToolError as ToolError,
    )
    from sidestream.tools import (
        tool as tool,
    )

__version__ = "0.1.0.dev0"

_HOMES = {
    "agent": "Agent",
    "errors": (
        "AuthenticationError ConfigurationError ConnectError GrammarError LimitError MissingExtraError MissingKeyError "
        "ProtocolError ProviderError RateLimitedError RunError SidestreamError StreamTimeoutError StreamTruncatedError "
        "UnknownProviderError UnsupportedError"
    ),
    "limits": "Limits",
    "messages": (
        "ChatMessage DataPart LinkPart MessagePart TextPart ThinkingPart ToolCallPart ToolPart ToolResultPart "
        "messages_from_json messages_to_json strip_metadata"
    ),
    "models": "register_provider",
    "parts": (
        "Custom Error File Finish FinishReason InputUsage OutputUsage Raw ReasoningDelta ReasoningEnd ReasoningStart "
        "ResponseMetadata Source StepFinish StepStart StreamPart StreamStart TextDelta TextEnd TextStart "
        "ToolApprovalRequest ToolCall ToolEvent ToolInputDelta ToolInputEnd ToolInputStart ToolResult Usage decode_part "
        "encode_part"
    ),
    "providers.openai_responses.options": "OpenAIResponsesOptions OpenAIServerSideTool",
    "results": "ChatResult",
    "run": "Run",
    "server_tools": (
        "ApplyPatch CodeInterpreter ComputerUse CustomTool FileSearch ImageGeneration LocalShell Location "
        "ProgrammaticToolCalling RemoteMCP ServerTool Shell ToolSearch WebFetch WebSearch"
    ),
    "tools": "Tool ToolContext ToolError tool",
}
"""Module → the public names that live in it; type checkers read the same from the imports above."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'sidestream' has no attribute {name!r}")
    value = getattr(import_module(f"sidestream.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
