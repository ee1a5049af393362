"""OpenAI Responses options, the mapping of portable settings to them, dialects of servers, and the decoding context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct, field

from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.providers.openai.account import Moderation
from sidestream.providers.openai.model_families import cache_mode, effort_of
from sidestream.providers.shared import decoding
from sidestream.providers.shared.hosting import check_tool_configs, configured_tools, fields_of_tools, split_servers
from sidestream.providers.shared.settings_mapping import TOOL_CHOICES, Row, Target, as_option
from sidestream.tools import server_side
from sidestream.tools.configs import Config, Effort

Texts = dict[str, str]


class OpenAIServerSideTool(StrEnum):
    """Tools that can be enabled by name. The values are the portable keys."""

    WEB_SEARCH = "web_search"
    IMAGE_GENERATION = "image_generation"
    FILE_SEARCH = "file_search"
    CODE_INTERPRETER = "code_interpreter"
    COMPUTER_USE = "computer_use"
    MCP = "mcp"
    LOCAL_SHELL = "local_shell"
    SHELL = "shell"
    APPLY_PATCH = "apply_patch"
    TOOL_SEARCH = "tool_search"
    PROGRAMMATIC_TOOL_CALLING = "programmatic_tool_calling"
    CUSTOM = "custom"


class Reasoning(Config, frozen=True, kw_only=True):
    """Settings of the model's reasoning and its summaries."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None
    """`standard`, `pro`, or a newer model's mode."""


class PromptCache(Config, frozen=True, kw_only=True):
    """Settings of prompt caching."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ContextManagement(Config, frozen=True, kw_only=True):
    """Settings of compaction by the server, which starts above `compact_threshold` tokens."""

    type: str = "compaction"
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


class ImageContext(Config, frozen=True, kw_only=True):
    """Settings of images in the context."""

    context_compression: Literal["auto", "enabled", "disabled"]


class AccessPrograms(Config, frozen=True, kw_only=True):
    """Access programs of the organisation."""

    cyber: Literal["standard", "daybreak_blue", "daybreak_red"]


class PromptTemplate(Config, frozen=True, kw_only=True):
    """A prompt template stored on the server."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class OpenAIFunctionOptions(Config, frozen=True, kw_only=True):
    """Options of one client tool that are specific to this provider."""

    defer_loading: bool = False
    """Whether the model loads the definition by tool search only."""
    asynchronous: bool = False
    """Whether the model may go on before the result arrives."""
    allowed_callers: server_side.Callers = ()
    """Callers that may call the function: the model, programs, or both."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the result, for programs that call the function."""


class ToolNamespace(Config, frozen=True, kw_only=True):
    """A group of client tools that the model finds and loads together."""

    name: str
    """Name of the group, the prefix of its tools."""
    description: str
    """Text by which the model finds the group."""
    tools: Annotated[Sequence[str], Meta(min_length=1, description="a list of client tool names")]
    """Names of the client tools in the group."""


class OpenAIResponsesOptions(Config, frozen=True, kw_only=True):
    """Options of a request. Unset fields are not sent, unless noted otherwise.

    If `store` is unset, the server stores the response, which the session of a conversation needs.
    `previous_response_id` and `conversation` override the session found in the history.
    """

    secrets = frozenset({"extra_headers"})
    tool_fields = fields_of_tools(OpenAIServerSideTool)

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Sampling temperature. Higher values give more varied answers."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Probability mass of the tokens to sample from."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Number of the most likely tokens to return at each position, with log probabilities."""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum output tokens per response, reasoning included."""
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """Maximum calls to server-side tools per response."""
    parallel_tool_calls: bool | None = None
    """Whether the model may call several tools at once."""
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    """A mode, or the API's own object, e.g. `{"type": "function", "name": "get_weather"}`."""
    truncation: Literal["auto", "disabled"] | None = None
    """Whether to drop the oldest items (`auto`) when the context is too long, or to fail."""
    store: bool | None = None
    """Whether the provider stores the response."""
    previous_response_id: str | None = None
    """Response to continue, instead of the one in the history."""
    conversation: str | None = None
    """Conversation on the server to continue, instead of the session in the history."""
    include: Sequence[str] = ()
    """Values for `include` besides those that the tools need."""
    reasoning: Reasoning | None = None
    """Reasoning effort and summaries."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Length of answers."""
    json_object: bool = False
    """Whether the answer must be a JSON object. The input must contain the word JSON."""
    metadata: Annotated[Texts, Meta(max_length=16, description="at most 16 pairs of strings")] | None = None
    """Strings to attach to the response, by name."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    """Processing tier, which decides speed and price."""
    prompt_cache_key: str | None = None
    """Key that routes similar requests to the same cache."""
    prompt_cache_options: PromptCache | None = None
    """Settings of prompt caching."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    """Time for which cached prompts are kept."""
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    """Stable id of your user, e.g. a hash, to detect misuse."""
    user: str | None = None
    """Id of your user. `safety_identifier` and `prompt_cache_key` replace it."""
    context_management: Sequence[ContextManagement] = ()
    """What the server removes or summarises when the context grows."""
    background: bool | None = None
    """Whether the response is made in the background, so that it survives a disconnect."""
    moderation: Moderation | None = None
    """Moderation of input and output."""
    image: ImageContext | None = None
    """Settings of images in the context."""
    access_programs: AccessPrograms | None = None
    """Access programs of the organisation."""
    prompt: PromptTemplate | None = None
    """Prompt template stored on the server."""
    include_obfuscation: bool = False
    """Whether deltas are padded against traffic analysis. False by default, unlike the API's, since it costs bytes."""
    image_detail: Literal["auto", "low", "high", "original"] = "auto"
    """Level of detail at which the model sees input images."""
    function_options: dict[str, OpenAIFunctionOptions] = field(default_factory=dict[str, OpenAIFunctionOptions])
    """Options, by client tool name."""
    namespaces: Sequence[ToolNamespace] = ()
    """Groups of client tools that the model finds and loads together."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields merged into the body last, for parameters that are newer than this class."""
    extra_headers: Texts = field(default_factory=Texts)
    """HTTP headers to add to requests."""
    organization: str | None = None
    """Organisation to bill. None means the key's."""
    project: str | None = None
    """Project to bill. None means the key's."""

    server_side_tools: Set[OpenAIServerSideTool] = frozenset()
    """Tools to enable by name."""
    web_search_config: server_side.WebSearch | None = None
    """Settings of `web_search` when it is enabled by name."""
    image_generation_config: server_side.ImageGeneration | None = None
    """Settings of `image_generation` when it is enabled by name."""
    file_search_config: server_side.FileSearch | None = None
    """Settings of `file_search` when it is enabled by name."""
    code_interpreter_config: server_side.CodeInterpreter | None = None
    """Settings of `code_interpreter` when it is enabled by name."""
    computer_use_config: server_side.ComputerUse | None = None
    """Settings of `computer_use` when it is enabled by name."""
    mcp_config: Sequence[server_side.RemoteMCP] | server_side.RemoteMCP | None = None
    """Settings of `mcp` when it is enabled by name."""
    shell_config: server_side.Shell | None = None
    """Settings of `shell` when it is enabled by name."""
    apply_patch_config: server_side.ApplyPatch | None = None
    """Settings of `apply_patch` when it is enabled by name."""
    tool_search_config: server_side.ToolSearch | None = None
    """Settings of `tool_search` when it is enabled by name."""
    custom_config: Sequence[server_side.CustomTool] | server_side.CustomTool | None = None
    """Settings of `custom` when it is enabled by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.previous_response_id and self.conversation:
            raise ConfigurationError("previous_response_id and conversation are mutually exclusive; set one of them")
        check_tool_configs(self, OpenAIServerSideTool)

    def split_servers(self) -> tuple[Self, tuple[server_side.RemoteMCP, ...]]:
        """Return these options without their MCP servers, and the servers."""
        return split_servers(self, OpenAIServerSideTool.MCP)


def tools_of(options: OpenAIResponsesOptions) -> list[server_side.ServerSideTool]:
    """Return the tools that `server_side_tools` enables."""
    return configured_tools(options, OpenAIServerSideTool, server_side.TOOLS)


def _thinking(value: Any, target: Target) -> Mapping[str, Any]:
    effort: Any = effort_of(value, target)
    if effort is None:
        return {}
    return {"reasoning": Reasoning(effort=effort) if effort == "none" else Reasoning(effort=effort, summary="auto")}


def _cache(value: bool, target: Target) -> Mapping[str, Any]:
    mode: Any = cache_mode(value, target)
    return {"prompt_cache_options": PromptCache(mode=mode)}


def _tool_choice(value: str, target: Target) -> Mapping[str, Any]:
    return {"tool_choice": value if value in TOOL_CHOICES else {"type": "function", "name": value}}


SETTINGS: Mapping[str, Row] = {
    "temperature": as_option("temperature"),
    "top_p": as_option("top_p"),
    "max_tokens": as_option("max_output_tokens"),
    "thinking": _thinking,
    "cache": _cache,
    "tool_choice": _tool_choice,
}
"""Mappings of the portable settings. The API has no stop sequences and no seed."""


class ToolEncoding(Struct, frozen=True):
    """The encoder of one server-side tool, and the `include` values that its results need."""

    encode: Callable[[Any, str | None], JsonObject]
    """Takes the tool and the container to use, if any. Raises UnsupportedError for fields that are not supported."""
    include: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Fields that have no effect. If one is set, a warning says so."""


class ResponsesDialect(Struct, frozen=True, kw_only=True):
    """A server's API, as it differs from OpenAI's."""

    name: str
    display_name: str
    tools: Mapping[type[server_side.ServerSideTool], ToolEncoding]
    """Encodings, by hosted tool."""
    settings: Mapping[str, Row]
    """Mappings of the portable settings that the API has."""
    lacks: frozenset[str] = frozenset()
    """Unsupported options, which are refused, and unsupported fields of a request, which are not sent."""
    stores: bool = True
    """Whether answers are stored by default, so that a session continues on the server."""
    keeps_instructions: bool = False
    """Whether the server keeps the instructions of a session, and refuses to be sent any."""
    has_containers: bool = True
    """Whether hosted code runs in a container that can be named and filled."""
    resends_raw: bool = False
    """Whether items must be resent verbatim, with their ids, rather than with the fields that OpenAI accepts."""
    runs_custom_calls: bool = False
    """Whether the server itself executes calls of custom tools that the request does not declare."""


ENCRYPTED = "reasoning.encrypted_content"
"""Value of `include` for encrypted reasoning."""
SESSION_KEY = "_responses_session"
"""Metadata key for the session of a stored response."""
REPLAY_KEY = "_responses_replay_session"
"""Metadata key for the items of a response that was not stored, which are resent."""
REPLAYED: dict[str, str] = {SESSION_KEY: "items", REPLAY_KEY: "items"}
"""Fields that only resending the whole history needs, by session key."""


PROVIDER_NAME = "openai-responses"
"""Key in the `provider_metadata` of parts, for all servers with this API."""


class ResponsesContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Request data for the decoder of a response."""

    provider: str = PROVIDER_NAME
    runs_custom_calls: bool = False
    """Whether the server itself executes calls of custom tools that the request does not declare."""
    store: bool = True
    has_encrypted: bool = False
    """Whether a stored response has encrypted reasoning, too."""
    hosted_shell: bool | None = None
    session_note: Mapping[str, Any] = {}
    """Fields for the session of the answer: the files of its container, and the digest of its instructions."""
    resends_raw: bool = False
    """Whether items must be resent verbatim."""
