"""Sidestream: agents whose tools run on the provider's side, with nothing of what those tools do lost.

    from sidestream import Agent, WebSearch

    agent = Agent("openai-responses", server_side_tools=[WebSearch()])
    result = await agent.send("What happened today?")

Names are imported when they are first used: `import sidestream` loads msgspec and the standard library only.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names
from sidestream.version import __version__ as __version__

if TYPE_CHECKING:
    from sidestream.agent.agent import Agent as Agent
    from sidestream.agent.chat import Chat as Chat
    from sidestream.agent.embeddings import cosine_similarity as cosine_similarity
    from sidestream.agent.media import MediaResult as MediaResult
    from sidestream.errors import (
        AuthenticationError as AuthenticationError,
        BlobError as BlobError,
        ConfigurationError as ConfigurationError,
        ConflictError as ConflictError,
        ConnectError as ConnectError,
        GrammarError as GrammarError,
        LimitError as LimitError,
        MissingExtraError as MissingExtraError,
        MissingKeyError as MissingKeyError,
        NewerSchemaError as NewerSchemaError,
        OutputInvalidError as OutputInvalidError,
        ProtocolError as ProtocolError,
        ProviderError as ProviderError,
        RateLimitedError as RateLimitedError,
        RunError as RunError,
        SidestreamError as SidestreamError,
        StoreError as StoreError,
        StreamTimeoutError as StreamTimeoutError,
        StreamTruncatedError as StreamTruncatedError,
        ToolServerError as ToolServerError,
        UnknownProviderError as UnknownProviderError,
        UnsupportedError as UnsupportedError,
    )
    from sidestream.limits import (
        Limits as Limits,
    )
    from sidestream.mcp import (
        MCPServer as MCPServer,
        mcp_servers as mcp_servers,
    )
    from sidestream.messages.message import (
        ApprovalPart as ApprovalPart,
        ChatMessage as ChatMessage,
        DataPart as DataPart,
        LinkPart as LinkPart,
        MessagePart as MessagePart,
        TextPart as TextPart,
        ThinkingPart as ThinkingPart,
        ToolCallPart as ToolCallPart,
        ToolPart as ToolPart,
        ToolResultPart as ToolResultPart,
        messages_from_json as messages_from_json,
        messages_to_json as messages_to_json,
        strip_metadata as strip_metadata,
    )
    from sidestream.messages.repair import (
        Problem as Problem,
        repair_history as repair_history,
        validate_history as validate_history,
    )
    from sidestream.output import (
        OutputError as OutputError,
        OutputType as OutputType,
        output_type as output_type,
    )
    from sidestream.providers.anthropic.options import (
        AnthropicOptions as AnthropicOptions,
        AnthropicServerSideTool as AnthropicServerSideTool,
    )
    from sidestream.providers.capabilities import Capabilities as Capabilities, caps_of as caps_of
    from sidestream.providers.embedding import EmbeddingsResult as EmbeddingsResult
    from sidestream.providers.google import (
        GoogleComputerUse as GoogleComputerUse,
        GoogleEmbeddingOptions as GoogleEmbeddingOptions,
        GoogleFileSearch as GoogleFileSearch,
        GoogleInteractionsOptions as GoogleInteractionsOptions,
        GoogleMaps as GoogleMaps,
        GoogleOptions as GoogleOptions,
        GoogleSearch as GoogleSearch,
        GoogleServerSideTool as GoogleServerSideTool,
    )
    from sidestream.providers.openai import OpenAIEmbeddingOptions as OpenAIEmbeddingOptions
    from sidestream.providers.openai_chat.options import (
        OpenAIChatOptions as OpenAIChatOptions,
    )
    from sidestream.providers.openai_responses.options import (
        OpenAIResponsesOptions as OpenAIResponsesOptions,
        OpenAIServerSideTool as OpenAIServerSideTool,
    )
    from sidestream.providers.registry import register_provider as register_provider
    from sidestream.run.citations import Citations as Citations, CitedSource as CitedSource, CitedText as CitedText
    from sidestream.run.content import Link as Link
    from sidestream.run.results import ChatResult as ChatResult
    from sidestream.run.run import Run as Run
    from sidestream.run.tool_runs import ToolRun as ToolRun, ToolStage as ToolStage
    from sidestream.store.conversation import (
        Conversation as Conversation,
    )
    from sidestream.store.opening import open_store as open_store
    from sidestream.store.protocol import Store as Store
    from sidestream.stream.parts import (
        Custom as Custom,
        Error as Error,
        File as File,
        Finish as Finish,
        FinishReason as FinishReason,
        InputUsage as InputUsage,
        OutputUsage as OutputUsage,
        Raw as Raw,
        ReasoningDelta as ReasoningDelta,
        ReasoningEnd as ReasoningEnd,
        ReasoningStart as ReasoningStart,
        ResponseMetadata as ResponseMetadata,
        Source as Source,
        StepFinish as StepFinish,
        StepStart as StepStart,
        StreamPart as StreamPart,
        StreamStart as StreamStart,
        TextDelta as TextDelta,
        TextEnd as TextEnd,
        TextStart as TextStart,
        ToolApprovalRequest as ToolApprovalRequest,
        ToolCall as ToolCall,
        ToolEvent as ToolEvent,
        ToolInputDelta as ToolInputDelta,
        ToolInputEnd as ToolInputEnd,
        ToolInputStart as ToolInputStart,
        ToolResult as ToolResult,
        Usage as Usage,
        part_from_json as part_from_json,
    )
    from sidestream.stream.previews import Preview as Preview, preview_of as preview_of
    from sidestream.tools.approvals import (
        ApprovalError as ApprovalError,
        Decision as Decision,
        PendingApproval as PendingApproval,
        Question as Question,
    )
    from sidestream.tools.server_side import (
        ApplyPatch as ApplyPatch,
        CodeInterpreter as CodeInterpreter,
        ComputerUse as ComputerUse,
        CustomTool as CustomTool,
        FileSearch as FileSearch,
        ImageGeneration as ImageGeneration,
        LocalShell as LocalShell,
        Location as Location,
        MCPApproval as MCPApproval,
        ProgrammaticToolCalling as ProgrammaticToolCalling,
        RemoteMCP as RemoteMCP,
        ServerSideTool as ServerSideTool,
        Shell as Shell,
        ToolFilter as ToolFilter,
        ToolSearch as ToolSearch,
        WebFetch as WebFetch,
        WebSearch as WebSearch,
    )
    from sidestream.tools.tool import Tool as Tool, ToolContext as ToolContext, ToolError as ToolError, tool as tool
    from sidestream.turn.state import RunState as RunState
    from sidestream.wire.http import (
        HttpTransport as HttpTransport,
    )

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "agent.agent": "Agent",
        "agent.chat": "Chat",
        "agent.embeddings": "cosine_similarity",
        "agent.media": "MediaResult",
        "errors": (
            "AuthenticationError BlobError ConfigurationError ConflictError ConnectError GrammarError LimitError "
            "MissingExtraError MissingKeyError NewerSchemaError OutputInvalidError ProtocolError ProviderError "
            "RateLimitedError RunError SidestreamError StoreError StreamTimeoutError StreamTruncatedError "
            "ToolServerError UnknownProviderError UnsupportedError"
        ),
        "limits": "Limits",
        "mcp": "MCPServer mcp_servers",
        "messages.message": (
            "ApprovalPart ChatMessage DataPart LinkPart MessagePart TextPart ThinkingPart ToolCallPart ToolPart "
            "ToolResultPart messages_from_json messages_to_json strip_metadata"
        ),
        "messages.repair": "Problem repair_history validate_history",
        "output": "OutputError OutputType output_type",
        "providers.anthropic.options": "AnthropicOptions AnthropicServerSideTool",
        "providers.capabilities": "Capabilities caps_of",
        "providers.embedding": "EmbeddingsResult",
        "providers.google": (
            "GoogleComputerUse GoogleEmbeddingOptions GoogleFileSearch GoogleInteractionsOptions GoogleMaps "
            "GoogleOptions GoogleSearch GoogleServerSideTool"
        ),
        "providers.openai_chat.options": "OpenAIChatOptions",
        "providers.openai": "OpenAIEmbeddingOptions",
        "providers.openai_responses.options": "OpenAIResponsesOptions OpenAIServerSideTool",
        "providers.registry": "register_provider",
        "run.run": "Run",
        "run.citations": "Citations CitedSource CitedText",
        "run.content": "Link",
        "run.results": "ChatResult",
        "run.tool_runs": "ToolRun ToolStage",
        "store.conversation": "Conversation",
        "store.opening": "open_store",
        "store.protocol": "Store",
        "stream.parts": (
            "Custom Error File Finish FinishReason InputUsage OutputUsage Raw ReasoningDelta ReasoningEnd "
            "ReasoningStart ResponseMetadata Source StepFinish StepStart StreamPart StreamStart TextDelta TextEnd "
            "TextStart ToolApprovalRequest ToolCall ToolEvent ToolInputDelta ToolInputEnd ToolInputStart ToolResult "
            "Usage part_from_json"
        ),
        "stream.previews": "Preview preview_of",
        "tools.approvals": "ApprovalError Decision PendingApproval Question",
        "tools.server_side": (
            "ApplyPatch CodeInterpreter ComputerUse CustomTool FileSearch ImageGeneration LocalShell Location "
            "MCPApproval ProgrammaticToolCalling RemoteMCP ServerSideTool Shell ToolFilter ToolSearch WebFetch "
            "WebSearch"
        ),
        "tools.tool": "Tool ToolContext ToolError tool",
        "wire.http": "HttpTransport",
        "turn.state": "RunState",
    },
)
