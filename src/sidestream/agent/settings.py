"""The settings of an agent, and those that one call can change."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from sidestream.errors import ConfigurationError
from sidestream.providers.model_settings import ModelSettings
from sidestream.providers.protocol import MapsSettings, Settings
from sidestream.text.redaction import Secret, hidden, hidden_url
from sidestream.tools.configs import Config, defaults_of, levels_of, merged_configs, without_tools
from sidestream.tools.context import DepsT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from functools import partial

    from aiohttp import ClientSession

    from sidestream.agent.hooks import Hooks
    from sidestream.agent.placement import Servers
    from sidestream.limits import Limits
    from sidestream.messages.fold import MessageMetadata
    from sidestream.messages.message import ChatMessage
    from sidestream.prices.price import Price
    from sidestream.providers.model_settings import Stop, Thinking
    from sidestream.providers.protocol import ChatModel
    from sidestream.results.results import ResultMetadata
    from sidestream.run.context import Context
    from sidestream.run.settings import EvidenceCheck, ToolErrors
    from sidestream.run.system import System
    from sidestream.telemetry.settings import Telemetry
    from sidestream.tools.approvals import Policy
    from sidestream.tools.server_side import ServerSideTool
    from sidestream.tools.tool import ExternalTool, Tool
    from sidestream.tools.toolset import Toolset
    from sidestream.transport.calls import Auth, Transport
    from sidestream.wire.limiter import Limiter

TransportName = Literal["http", "websocket"]
Tools: TypeAlias = "Iterable[Tool | ExternalTool | Toolset | Callable[..., Any]]"


class ToolFunction(Protocol):
    """A function or method. An object with `__call__`, which is not one, needs `Tool.from_function`.

    Every callable is a `Callable`, a `Tool[Other]` too, so type checkers would accept tools for other dependencies.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...  # Functions have it, tools do not.


TypedTool: TypeAlias = "Tool[DepsT] | ExternalTool | Toolset | ToolFunction | partial[Any]"
"""Tool of an agent whose tools get `deps` of this type."""


Function = TypeVar("Function", bound=Callable[..., Any])


class PortableSettings(TypedDict, total=False):
    """Settings that mean the same at every provider, which maps them to its own parameters.

    None, or omitting a setting, means the provider's default. A provider without such a parameter raises
    UnsupportedError, or warns with `unsupported="warn"`.
    """

    temperature: float | None
    """Sampling temperature."""
    top_p: float | None
    """Share of probability mass to sample from."""
    max_tokens: int | None
    """Maximum tokens of one answer. `Limits.max_total_tokens` limits a whole run."""
    stop: Stop | None
    """Strings at which the model stops."""
    seed: int | None
    """Seed for more repeatable answers."""
    thinking: Thinking | None
    """`off`, `on`, `low`, `medium`, `high`, or a budget in tokens."""
    cache: bool | None
    """Prompt caching, where the provider has a switch for it."""
    tool_choice: str | None
    """`auto`, `required`, or the name of the function that the model must call first."""
    unsupported: Literal["raise", "warn"]
    """How to treat a setting that the provider does not have."""


class CommonSettings(PortableSettings, total=False):
    """Settings of an agent that one call can change."""

    tools: Tools
    """Functions, tools, toolsets and MCP servers that run here."""
    server_side_tools: Iterable[ServerSideTool]
    """Tools that the provider runs, or this machine where it has none."""
    system: System | None
    """Text, or a function that returns it for each request, such as `def system(context: RunContext) -> str`."""
    options: Any
    """The provider's own options, such as `OpenAIResponsesOptions`."""
    approval: Policy | None
    """Policy for calls that need approval."""
    limits: Limits
    """Limits of each run."""
    tool_errors: ToolErrors
    """`report`, the default, sends the type of a tool's unexpected exception to the model. `raise` ends the run and
    raises the exception itself."""
    context: Context | None
    """Settings that keep long conversations within the model's context window."""
    evidence: EvidenceCheck | None
    """Check of hosted citations at the end of each answer. None, the default, leaves them unchecked until you ask."""


class AgentSettings(CommonSettings, total=False):
    """The settings of an agent, besides its model and its output type."""

    models: Sequence[str | ChatModel]
    """Models to use instead of one. The first is called, and the next one if it fails before any output."""
    prices: Mapping[str, Price] | None
    """Prices by model, as `PROVIDER:MODEL`, for models with an unknown or different price."""
    api_key: str | None
    """API key. None means the provider's variable."""
    base_url: str | None
    """Base URL. None means the provider's variable or its own."""
    headers: Mapping[str, str] | None
    """HTTP headers to add to every request."""
    auth: Auth | None
    """Function that returns the headers that authenticate a request."""
    transport: Transport | TransportName | None
    """`"websocket"` where the provider supports it, `"http"`, or a custom transport."""
    session: ClientSession | None
    """Session of aiohttp to use."""
    limiter: Limiter | None
    """Limiter, shared by agents that should keep a provider's limits together."""
    message_metadata: MessageMetadata
    """What messages keep of the provider's data."""
    result_metadata: ResultMetadata
    """What the metadata of results holds."""
    mcp: Servers
    """MCP servers besides the tools, given as the path of an `mcp.json`, or as `MCPServer` and `RemoteMCP` objects."""
    hooks: Sequence[Hooks]
    """What the program does at fixed points of every run, in this order."""
    telemetry: Telemetry | bool
    """Spans and metrics. True, the default, enables them if the program has configured OpenTelemetry; False disables
    them."""


class CallSettings(CommonSettings, Generic[DepsT], total=False):
    """Settings that one call can change, for that call only."""

    history: Iterable[ChatMessage]
    """Messages before the prompt."""
    deps: DepsT
    """Value for tools (`context.deps`), policies and the system prompt. Never stored, never sent."""
    stream: bool
    """Whether the answer is streamed."""


def provider_settings(given: AgentSettings) -> Settings:
    """Return the provider's URL and credentials among the settings."""
    return Settings(
        api_key=given.get("api_key"),
        base_url=given.get("base_url"),
        headers=hidden(given.get("headers") or {}),
        auth=given.get("auth"),
    )


def hide_secrets(given: AgentSettings) -> None:
    """Wrap the secrets among the settings, so that their repr, for example in a traceback with locals, hides them."""
    if isinstance(key := given.get("api_key"), str):
        given["api_key"] = Secret(key)
    if headers := given.get("headers"):
        given["headers"] = hidden(headers)
    if isinstance(url := given.get("base_url"), str):
        given["base_url"] = hidden_url(url)


def model_settings(given: Mapping[str, Any]) -> ModelSettings:
    """Return the portable settings among those given. Raises ConfigurationError for invalid ones."""
    return ModelSettings(**{name: given[name] for name in defaults_of(ModelSettings) if name in given})


def call_settings(base: ModelSettings, call: Mapping[str, Any], model: ChatModel) -> tuple[ModelSettings, list[str]]:
    """Merge a call's portable settings into the agent's.

    Returns the settings, and warnings for unsupported ones.
    """
    given = call.keys() & defaults_of(ModelSettings).keys()
    settings = merged_configs(base, model_settings(call)) if given else base
    if not levels_of(settings):
        return settings, []
    from sidestream.providers.shared.settings_mapping import supported_settings

    supported = model.portable_settings if isinstance(model, MapsSettings) else frozenset[str]()
    return supported_settings(settings, supported, f"{model.provider}:{model.name}".rstrip(":"))


def call_options(base: Any, call: Mapping[str, Any]) -> Any:
    """Merge a call's options into the agent's, field by field.

    Raises ConfigurationError if they belong to different providers.
    """
    over = call.get("options")
    if "server_side_tools" in call and isinstance(base, Config):
        base = without_tools(base)  # The call defines its tools.
    if over is None:
        return base
    if isinstance(over, Config) and isinstance(base, Config | None):
        if base is not None and type(base) is not type(over):
            raise ConfigurationError(
                f"the call's options are {type(over).__name__}, but the agent's are {type(base).__name__}: they belong "
                "to different providers"
            )
        return merged_configs(base, over)
    return {**base, **over} if isinstance(base, dict) and isinstance(over, dict) else over  # pyright: ignore[reportUnknownVariableType]


SYNONYMS: Mapping[str, str] = {
    "instructions": "system",
    "functions": "tools",
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop_sequences": "stop",
    "reasoning": "thinking",
    "reasoning_effort": "thinking",
    "messages": "history",
}
"""Other libraries' names of a setting."""


def refuse_unknown(given: Mapping[str, Any], known: type) -> None:
    """Raise TypeError for an unknown setting, with a suggestion."""
    names = known.__annotations__
    if given.keys() <= names.keys():
        return
    import difflib

    unknown = sorted(given.keys() - names.keys())
    near = {name: difflib.get_close_matches(name, names, n=1) for name in unknown}
    meant = {name: SYNONYMS[name] if SYNONYMS.get(name) in names else next(iter(near[name]), None) for name in unknown}
    hints = [f"{name} (did you mean {other}?)" if other else name for name, other in meant.items()]
    raise TypeError(f"unknown settings: {', '.join(hints)}; known: {', '.join(names)}")


class _Text:
    """An object in a signature that is shown as this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_DOTS = _Text("...")
_MODULES = r"\b(?:\w+\.)+(?=\w)"


def shows_settings(settings: type) -> Callable[[Function], Function]:
    """List the settings in the signature of a function that takes them as `**keywords`, for `help()`.

    Types are shown as this module writes them, without module names.
    """

    def with_signature(function: Function) -> Function:
        vars(function)["__signature__"] = _LazySignature(function, settings)
        return function

    return with_signature


class _LazySignature(inspect.Signature):
    """A signature that is built on first access. All programs import agents, and few look at signatures."""

    __slots__ = ("_function", "_made", "_settings")

    def __init__(self, function: Callable[..., Any], settings: type) -> None:
        self._function = function
        self._settings = settings
        self._made: inspect.Signature | None = None

    # `inspect.Signature` keeps its arguments under these two names.
    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return self._whole().parameters

    @property
    def _return_annotation(self) -> Any:
        return self._whole().return_annotation

    def replace(self, **changes: Any) -> inspect.Signature:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a plain signature, as `inspect` does for bound methods."""
        return self._whole().replace(**changes)

    def _whole(self) -> inspect.Signature:
        if self._made is None:
            plain = inspect.signature(_bare(self._function))
            kept = [
                parameter.replace(annotation=_short(parameter.annotation))
                for parameter in plain.parameters.values()
                if parameter.kind is not parameter.VAR_KEYWORD
            ]
            parameters, returns = [*kept, *_listed(self._settings)], _short(plain.return_annotation)
            self._made = plain.replace(parameters=parameters, return_annotation=returns)
        return self._made


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the function without `__signature__`, which `inspect` would use instead of the function."""
    assert isinstance(function, FunctionType)
    bare = FunctionType(function.__code__, function.__globals__, argdefs=function.__defaults__)
    bare.__kwdefaults__, bare.__annotations__ = function.__kwdefaults__, function.__annotations__
    return bare


@cache
def _listed(settings: type) -> list[inspect.Parameter]:
    kinds = {name: kind.__forward_arg__ for name, kind in settings.__annotations__.items()}
    defaults = {name: None if kind.endswith("| None") else _DOTS for name, kind in kinds.items()}
    only = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, only, default=defaults[name], annotation=_Text(kinds[name])) for name in kinds]


def _short(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty or annotation is None:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Text(re.sub(_MODULES, "", text))
