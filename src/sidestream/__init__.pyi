"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.agent.agent import (
    Agent as Agent,
)
from sidestream.agent.chat import (
    Chat as Chat,
)
from sidestream.agent.embeddings import (
    cosine_similarity as cosine_similarity,
)
from sidestream.agent.hooks import Hooks as Hooks
from sidestream.agent.services import (
    open_index as open_index,
)
from sidestream.errors import (
    AuthenticationError as AuthenticationError,
    Blocked as Blocked,
    ConfigurationError as ConfigurationError,
    ConnectError as ConnectError,
    ContextOverflowError as ContextOverflowError,
    LimitError as LimitError,
    MissingKeyError as MissingKeyError,
    NotHostedError as NotHostedError,
    ProviderError as ProviderError,
    RateLimitedError as RateLimitedError,
    RunError as RunError,
    SidestreamError as SidestreamError,
    StreamTimeoutError as StreamTimeoutError,
    UnsupportedError as UnsupportedError,
)
from sidestream.limits import (
    Limits as Limits,
)
from sidestream.mcp import (
    MCPConfig as MCPConfig,
    MCPServer as MCPServer,
    load_mcp_config as load_mcp_config,
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
    ToolResultPart as ToolResultPart,
)
from sidestream.output import (
    OutputError as OutputError,
    OutputType as OutputType,
    output_type as output_type,
)
from sidestream.parts import (
    File as File,
    Preview as Preview,
    Source as Source,
    StreamPart as StreamPart,
    ToolResult as ToolResult,
    Usage as Usage,
    part_from_json as part_from_json,
)
from sidestream.prices.price import (
    Price as Price,
)
from sidestream.protocols.sse import (
    SSE_HEADERS as SSE_HEADERS,
    sse as sse,
)
from sidestream.providers.anthropic.options import (
    AnthropicOptions as AnthropicOptions,
)
from sidestream.providers.google import (
    GoogleOptions as GoogleOptions,
)
from sidestream.providers.model_settings import (
    ModelSettings as ModelSettings,
)
from sidestream.providers.openai.chat.options import (
    OpenAIChatOptions as OpenAIChatOptions,
)
from sidestream.providers.openai.responses.options import (
    OpenAIResponsesOptions as OpenAIResponsesOptions,
)
from sidestream.providers.registry import (
    caps_of as caps_of,
)
from sidestream.results.citations import (
    Citations as Citations,
)
from sidestream.results.results import (
    ChatResult as ChatResult,
)
from sidestream.results.tool_runs import (
    ToolRun as ToolRun,
)
from sidestream.run.blocking import (
    SyncRun as SyncRun,
)
from sidestream.run.context import (
    Context as Context,
)
from sidestream.run.run import (
    Run as Run,
)
from sidestream.run.system import (
    RunContext as RunContext,
)
from sidestream.store.log.conversation import (
    Conversation as Conversation,
)
from sidestream.store.opening import (
    open_store as open_store,
)
from sidestream.store.protocol import (
    Store as Store,
)
from sidestream.tools.approvals import (
    ApprovalError as ApprovalError,
    Decision as Decision,
    PendingApproval as PendingApproval,
)
from sidestream.tools.configs import (
    Comparison as Comparison,
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
    Memory as Memory,
    ProgrammaticToolCalling as ProgrammaticToolCalling,
    RemoteMCP as RemoteMCP,
    ServerSideTool as ServerSideTool,
    Shell as Shell,
    ToolSearch as ToolSearch,
    WebFetch as WebFetch,
    WebSearch as WebSearch,
    XSearch as XSearch,
)
from sidestream.tools.tool import (
    ExternalTool as ExternalTool,
    Tool as Tool,
    ToolContext as ToolContext,
    ToolError as ToolError,
    tool as tool,
)
from sidestream.turn.state import (
    RunState as RunState,
)
from sidestream.wire.limiter import (
    Limiter as Limiter,
)

__version__: str
