"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.agent.agent import Agent as Agent
from sidestream.agent.chat import Chat as Chat
from sidestream.agent.embeddings import cosine_similarity as cosine_similarity
from sidestream.agent.media import MediaResult as MediaResult
from sidestream.agent.services import open_index as open_index
from sidestream.errors import (
    AuthenticationError as AuthenticationError,
    BlobError as BlobError,
    ConfigurationError as ConfigurationError,
    ConflictError as ConflictError,
    ConnectError as ConnectError,
    ContextOverflowError as ContextOverflowError,
    DocumentError as DocumentError,
    FetchError as FetchError,
    GrammarError as GrammarError,
    LimitError as LimitError,
    MissingExtraError as MissingExtraError,
    MissingKeyError as MissingKeyError,
    NewerSchemaError as NewerSchemaError,
    NoOutputError as NoOutputError,
    NotHostedError as NotHostedError,
    OutputInvalidError as OutputInvalidError,
    ProtocolError as ProtocolError,
    ProviderError as ProviderError,
    RateLimitedError as RateLimitedError,
    RunError as RunError,
    SearchError as SearchError,
    SidestreamError as SidestreamError,
    SignInError as SignInError,
    SteerError as SteerError,
    StoreError as StoreError,
    StreamTimeoutError as StreamTimeoutError,
    StreamTruncatedError as StreamTruncatedError,
    ToolRaisedError as ToolRaisedError,
    ToolServerError as ToolServerError,
    UnknownProviderError as UnknownProviderError,
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
from sidestream.prices.price import Price as Price
from sidestream.prices.pricing import PriceTable as PriceTable, price_table as price_table
from sidestream.protocols.sse import SSE_HEADERS as SSE_HEADERS, sse as sse
from sidestream.providers.anthropic.options import (
    Advisor as Advisor,
    AnthropicFunctionOptions as AnthropicFunctionOptions,
    AnthropicOptions as AnthropicOptions,
    AnthropicServerSideTool as AnthropicServerSideTool,
    AnthropicThinking as AnthropicThinking,
    AnthropicTool as AnthropicTool,
    Browser as Browser,
    ClearThinking as ClearThinking,
    ClearToolUses as ClearToolUses,
    Compact as Compact,
    Compaction as Compaction,
    Skill as Skill,
    TaskBudget as TaskBudget,
    TextEditor as TextEditor,
)
from sidestream.providers.capabilities import Capabilities as Capabilities
from sidestream.providers.embedding import EmbeddingsResult as EmbeddingsResult
from sidestream.providers.google import (
    GoogleAllowedDomain as GoogleAllowedDomain,
    GoogleBearerCredential as GoogleBearerCredential,
    GoogleComputerUse as GoogleComputerUse,
    GoogleEmbeddingOptions as GoogleEmbeddingOptions,
    GoogleEnvironment as GoogleEnvironment,
    GoogleEnvironmentSource as GoogleEnvironmentSource,
    GoogleFileSearch as GoogleFileSearch,
    GoogleFunctionOptions as GoogleFunctionOptions,
    GoogleImageOutput as GoogleImageOutput,
    GoogleInteractionsOptions as GoogleInteractionsOptions,
    GoogleMaps as GoogleMaps,
    GoogleOAuthCredential as GoogleOAuthCredential,
    GoogleOptions as GoogleOptions,
    GoogleSafetySetting as GoogleSafetySetting,
    GoogleSearch as GoogleSearch,
    GoogleServerSideTool as GoogleServerSideTool,
    GoogleThinking as GoogleThinking,
    GoogleVariableCredential as GoogleVariableCredential,
)
from sidestream.providers.model_settings import (
    ModelSettings as ModelSettings,
)
from sidestream.providers.openai.account import (
    Moderation as Moderation,
    OpenAIEmbeddingOptions as OpenAIEmbeddingOptions,
)
from sidestream.providers.openai.chat.options import (
    AudioOutput as AudioOutput,
    ChatPromptCache as ChatPromptCache,
    OpenAIChatOptions as OpenAIChatOptions,
)
from sidestream.providers.openai.responses.options import (
    AccessPrograms as AccessPrograms,
    ContextManagement as ContextManagement,
    ImageContext as ImageContext,
    OpenAIFunctionOptions as OpenAIFunctionOptions,
    OpenAIResponsesOptions as OpenAIResponsesOptions,
    OpenAIServerSideTool as OpenAIServerSideTool,
    PromptCache as PromptCache,
    PromptTemplate as PromptTemplate,
    Reasoning as Reasoning,
    ToolNamespace as ToolNamespace,
)
from sidestream.providers.registry import (
    caps_of as caps_of,
    find_provider as find_provider,
    register_provider as register_provider,
)
from sidestream.providers.transfers import StoredFile as StoredFile
from sidestream.replay.capture import (
    RecordingTransport as RecordingTransport,
)
from sidestream.replay.recording import (
    Recording as Recording,
)
from sidestream.replay.transport import (
    ReplayTransport as ReplayTransport,
)
from sidestream.results.citations import Citations as Citations, CitedSource as CitedSource, CitedText as CitedText
from sidestream.results.content import Link as Link
from sidestream.results.results import ChatResult as ChatResult
from sidestream.results.tool_runs import ToolRun as ToolRun, ToolStage as ToolStage
from sidestream.results.tool_text import ToolText as ToolText
from sidestream.results.typed_results import (
    CodeInterpreterResult as CodeInterpreterResult,
    FileSearchResult as FileSearchResult,
    FoundHit as FoundHit,
    ImageGenerationResult as ImageGenerationResult,
    MCPResult as MCPResult,
    ShellResult as ShellResult,
    ToolSearchResult as ToolSearchResult,
    TypedResult as TypedResult,
    WebFetchResult as WebFetchResult,
    WebSearchResult as WebSearchResult,
)
from sidestream.run.blocking import SyncRun as SyncRun
from sidestream.run.context import Context as Context
from sidestream.run.run import Run as Run
from sidestream.run.system import RunContext as RunContext
from sidestream.store.log.conversation import Conversation as Conversation
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
    Preview as Preview,
    Raw as Raw,
    ReasoningDelta as ReasoningDelta,
    ReasoningEnd as ReasoningEnd,
    ReasoningStart as ReasoningStart,
    ResponseMetadata as ResponseMetadata,
    Source as Source,
    Steer as Steer,
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
    preview_of as preview_of,
)
from sidestream.tools.approvals import (
    ApprovalError as ApprovalError,
    Decision as Decision,
    PendingApproval as PendingApproval,
    Question as Question,
)
from sidestream.tools.grants import Grant as Grant
from sidestream.tools.outcome import ToolWarning as ToolWarning
from sidestream.tools.server_side import (
    ApplyPatch as ApplyPatch,
    CodeInterpreter as CodeInterpreter,
    Combination as Combination,
    Comparison as Comparison,
    ComputerUse as ComputerUse,
    CustomTool as CustomTool,
    DomainSecret as DomainSecret,
    FileSearch as FileSearch,
    HybridSearch as HybridSearch,
    ImageGeneration as ImageGeneration,
    InlineSkill as InlineSkill,
    LocalShell as LocalShell,
    LocalSkill as LocalSkill,
    Location as Location,
    MCPApproval as MCPApproval,
    Memory as Memory,
    Network as Network,
    ProgrammaticToolCalling as ProgrammaticToolCalling,
    RemoteMCP as RemoteMCP,
    ServerSideTool as ServerSideTool,
    Shell as Shell,
    SkillReference as SkillReference,
    Svg as Svg,
    ToolFilter as ToolFilter,
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
from sidestream.turn.state import TURN_STATUSES as TURN_STATUSES, RunState as RunState, TurnStatus as TurnStatus
from sidestream.version import __version__ as __version__
from sidestream.wire.http import (
    HttpTransport as HttpTransport,
)
from sidestream.wire.limiter import Limiter as Limiter
from sidestream.wire.socket.transport import WebSocketTransport as WebSocketTransport
