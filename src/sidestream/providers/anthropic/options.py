"""Options and server-side tools that only Anthropic has."""

from collections.abc import Sequence, Set
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, field

from sidestream.errors import ConfigurationError
from sidestream.providers.shared.hosting import check_tool_configs, configured_tools, fields_of_tools, split_servers
from sidestream.tools.configs import Config
from sidestream.tools.server_side import (
    Callers,
    CodeInterpreter,
    ComputerUse,
    Count,
    LocalShell,
    Memory as Memory,
    RemoteMCP,
    ServerSideTool,
    ToolSearch,
    WebFetch,
    WebSearch,
)

CLIENT_NAMES = ("memory", "bash", "str_replace_based_edit_tool", "str_replace_editor", "computer")
"""Names of the provider's tools that the client runs."""


class TextEditor(ServerSideTool, frozen=True, kw_only=True):
    """A tool to view and edit files. Your `text_editor` tool carries it out."""

    key = "text_editor"

    max_characters: Count | None = None
    version: str | None = None

    @property
    def client_call(self) -> str | None:
        return self.key


class Browser(ServerSideTool, frozen=True, kw_only=True):
    """A browser that the model controls. Your `browser` tool carries out its actions."""

    key = "browser"

    enable: tuple[str, ...] = ()
    """Members to enable that are off by default: `file_upload`, `read_console`, `read_network`, `javascript_exec`."""
    disable: tuple[str, ...] = ()
    """Members to hide from the model."""
    defer_loading: bool = False
    version: str | None = None

    @property
    def client_call(self) -> str | None:
        return self.key


class Advisor(ServerSideTool, frozen=True, kw_only=True):
    """A stronger model that the model may consult."""

    key = "advisor"
    needs = 'a model, e.g. Advisor(model="claude-opus-5-5")'

    model: str
    max_uses: Count | None = None
    max_tokens: Count | None = None
    version: str | None = None


class AnthropicTool(ServerSideTool, frozen=True, kw_only=True):
    """A tool that is sent unchanged by its type, for versions and fields that are newer than this library."""

    key = "anthropic"
    needs = 'a type, e.g. AnthropicTool(type="web_search_20260318", name="web_search")'

    type: str
    name: str | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of the tool."""
    betas: tuple[str, ...] = ()
    """Beta headers that the tool needs."""

    @property
    def client_call(self) -> str | None:
        for toolset in (ComputerUse, Browser):
            if self.type.startswith(f"{toolset.key.partition('_')[0]}_toolset"):
                return toolset.key
        return self.name if self.name in CLIENT_NAMES else None


DEFAULT_MAX_TOKENS = 4096

Texts = dict[str, str]
Lifetime = Literal["5m", "1h"]


class AnthropicServerSideTool(StrEnum):
    """Tools that can be enabled by name. The values are the portable keys."""

    WEB_SEARCH = "web_search"
    WEB_FETCH = "web_fetch"
    CODE_INTERPRETER = "code_interpreter"
    TOOL_SEARCH = "tool_search"
    MCP = "mcp"
    MEMORY = "memory"
    COMPUTER_USE = "computer_use"
    LOCAL_SHELL = "local_shell"
    TEXT_EDITOR = "text_editor"
    BROWSER = "browser"
    ADVISOR = "advisor"


KINDS: dict[AnthropicServerSideTool, type[ServerSideTool]] = {
    AnthropicServerSideTool.WEB_SEARCH: WebSearch,
    AnthropicServerSideTool.WEB_FETCH: WebFetch,
    AnthropicServerSideTool.CODE_INTERPRETER: CodeInterpreter,
    AnthropicServerSideTool.TOOL_SEARCH: ToolSearch,
    AnthropicServerSideTool.MCP: RemoteMCP,
    AnthropicServerSideTool.MEMORY: Memory,
    AnthropicServerSideTool.COMPUTER_USE: ComputerUse,
    AnthropicServerSideTool.LOCAL_SHELL: LocalShell,
    AnthropicServerSideTool.TEXT_EDITOR: TextEditor,
    AnthropicServerSideTool.BROWSER: Browser,
    AnthropicServerSideTool.ADVISOR: Advisor,
}
"""Name → the tool that it enables."""


class AnthropicThinking(Config, frozen=True, kw_only=True):
    """Thinking mode and visibility."""

    type: Literal["adaptive", "enabled", "disabled", "between_tools"] = "adaptive"
    budget_tokens: Annotated[int, Meta(ge=1024)] | None = None
    """Maximum tokens for `enabled` thinking. They are added to the default of `max_tokens`."""
    display: Literal["summarized", "omitted", "updates"] | None = None
    prefix_mismatch: Literal["error", "drop_block"] | None = None
    """Handling of a thinking block from another conversation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ConfigurationError(
                'AnthropicThinking(type="enabled") requires budget_tokens, which no other type accepts'
            )


class TaskBudget(Config, frozen=True, kw_only=True):
    """The maximum tokens that a task may use over all its requests."""

    total: Count
    remaining: int | None = None


class ClearToolUses(Config, frozen=True, kw_only=True, tag="clear_tool_uses_20250919"):
    """Removal of old tool results from the context when it grows."""

    trigger: dict[str, Any] | None = None
    keep: dict[str, Any] | None = None
    clear_at_least: dict[str, Any] | None = None
    clear_tool_inputs: bool | Sequence[str] | None = None
    exclude_tools: Sequence[str] = ()


class ClearThinking(Config, frozen=True, kw_only=True, tag="clear_thinking_20251015"):
    """Removal of old thinking from the context. `keep` is `all`, or the number of turns whose thinking stays."""

    keep: Literal["all"] | Count | None = None


class Compact(Config, frozen=True, kw_only=True, tag="compact_20260112"):
    """A summary that the server makes when the conversation exceeds `trigger_tokens`."""

    trigger_tokens: Count | None = None
    pause_after_compaction: bool | None = None
    instructions: str | None = None


class Compaction(Config, frozen=True, kw_only=True):
    """A request for a summary of the conversation and nothing else."""

    instructions: str | None = None


class Skill(Config, frozen=True, kw_only=True):
    """A skill that is loaded into the sandbox."""

    id: str
    type: Literal["anthropic", "custom"] = "anthropic"
    version: str | None = None


class AnthropicFunctionOptions(Config, frozen=True, kw_only=True):
    """Options for one client tool that only this provider has."""

    defer_loading: bool = False
    """Whether the model loads the definition by tool search only."""
    allowed_callers: Callers = ()
    """Callers that may call the function: the model, programs, or both."""
    eager_input_streaming: bool | None = None
    """Whether input arrives before it is valid JSON. None means the API's default."""
    input_examples: Sequence[dict[str, Any]] = ()
    """Example inputs that the model sees."""


class AnthropicOptions(Config, frozen=True, kw_only=True):
    """Options for a request. Unset options are not sent, except `max_tokens`."""

    secrets = frozenset({"extra_headers", "fallback_credit_token"})
    tool_fields = fields_of_tools(AnthropicServerSideTool, "tool_configs")

    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    """Maximum output tokens. None means 4096. 0 only warms the cache."""
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Sampling temperature. For older models only, like `top_p` and `top_k`."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Probability mass of the tokens to sample from."""
    top_k: Count | None = None
    """Number of the most likely tokens to sample from."""
    stop_sequences: Sequence[str] = ()
    """Strings at which the answer ends."""
    user_id: str | None = None
    """Stable id of your user, e.g. a hash, to detect misuse."""
    thinking: AnthropicThinking | None = None
    """Reasoning mode, budget and visibility."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Effort of the model, in reasoning and in the answer."""
    task_budget: TaskBudget | None = None
    """Maximum tokens that the task may use over all its requests."""
    tool_choice: Literal["auto", "any", "none"] | dict[str, Any] | None = None
    """Choice of tools, or the API's own object, e.g. `{"type": "tool", "name": "get_weather"}`."""
    parallel_tool_calls: bool | None = None
    """Whether the model may call several tools at once."""
    prompt_cache: Lifetime | None = None
    """Cache lifetime of the system prompt, tools and history up to the last message."""
    cache_control: Lifetime | None = None
    """Cache lifetime when the server chooses what to cache."""
    service_tier: Literal["auto", "standard_only"] | None = None
    """Processing tier, which decides speed and price."""
    speed: Literal["standard", "fast"] | None = None
    """Speed of the answer, for models that have a fast mode."""
    inference_geo: str | None = None
    """Region in which the model runs."""
    previous_message_id: str | None = None
    """Id of the message whose request this one continues, for cache diagnostics."""
    context_management: Sequence[ClearToolUses | ClearThinking | Compact] = ()
    """What the server removes or summarises when the context grows."""
    compaction: Compaction | None = None
    """Request for a summary of the conversation, and nothing else."""
    fallbacks: Literal["default"] | Sequence[str | dict[str, Any]] = ()
    """Models that answer instead if the first refuses."""
    fallback_credit_token: str | None = None
    """Token from a refusal. A retry with another model then pays only cache reads for the cached prefix."""
    thread: str | None = None
    """Thread mode.

    `auto` lets the server hold the conversation, so that each request sends only new messages. `create` starts a thread
    with each request. A message id continues after that message. Not supported with caching, `context_management` or
    `fallbacks`."""
    skills: Sequence[Skill] = ()
    """Skills to load into the sandbox."""
    document_citations: bool = False
    """Whether the model may cite the documents in the conversation."""
    typed_output: Literal["native", "tool"] | None = None
    """Method to request typed output. None means natively if the model supports it."""
    inline_tools: bool | None = None
    """Whether tools that appear in mid-conversation are added there, which keeps the cache. None means yes if the model
    supports it and the server does not compact the conversation."""
    function_options: dict[str, AnthropicFunctionOptions] = field(default_factory=dict[str, AnthropicFunctionOptions])
    """Options per client tool, by tool name."""
    tool_versions: Texts = field(default_factory=Texts)
    """Versions by tool (`web_search`, `code_execution`, …). They override the model's defaults."""
    betas: Sequence[str] = ()
    """Beta headers to send besides those that the request's features need."""
    chooses_betas: bool = True
    """Whether to add the beta headers that the request's features need. If false, only `betas` are sent."""
    user_profile_id: str | None = None
    """User profile on whose behalf the request is made."""
    workspace_id: str | None = None
    """Workspace of the request. None means the key's."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields merged into the body last, for parameters that are newer than this class."""
    extra_headers: Texts = field(default_factory=Texts)
    """HTTP headers to add to requests."""

    server_side_tools: Set[AnthropicServerSideTool] = frozenset()
    """Tools to enable by name."""
    web_search_config: WebSearch | None = None
    """Settings of `web_search` when it is enabled by name."""
    web_fetch_config: WebFetch | None = None
    """Settings of `web_fetch` when it is enabled by name."""
    code_interpreter_config: CodeInterpreter | None = None
    """Settings of `code_interpreter` when it is enabled by name."""
    tool_search_config: ToolSearch | None = None
    """Settings of `tool_search` when it is enabled by name."""
    mcp_config: Sequence[RemoteMCP] | RemoteMCP | None = None
    """Settings of `mcp` when it is enabled by name."""
    memory_config: Memory | None = None
    """Settings of `memory` when it is enabled by name."""
    computer_use_config: ComputerUse | None = None
    """Settings of `computer_use` when it is enabled by name."""
    text_editor_config: TextEditor | None = None
    """Settings of `text_editor` when it is enabled by name."""
    browser_config: Browser | None = None
    """Settings of `browser` when it is enabled by name."""
    advisor_config: Advisor | None = None
    """Settings of `advisor` when it is enabled by name."""
    tool_configs: Sequence[AnthropicTool] = ()
    """Explicit entries, sent unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tool_configs(self, AnthropicServerSideTool)

    def split_servers(self) -> tuple[Self, tuple[RemoteMCP, ...]]:
        """Return these options without their MCP servers, and the servers."""
        return split_servers(self, AnthropicServerSideTool.MCP)


def tools_of(options: AnthropicOptions) -> tuple[ServerSideTool, ...]:
    """Return the tools that `server_side_tools` enables, and the explicit entries."""
    return (*configured_tools(options, AnthropicServerSideTool, KINDS), *options.tool_configs)
