"""The settings of an agent, and what one call can change."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from msgspec.structs import replace

from sidestream.configs import config_fields
from sidestream.limits import Limits
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage, MessagePart
from sidestream.providers.calls import Transport
from sidestream.providers.model_settings import ModelSettings, Stop, Thinking
from sidestream.providers.protocol import Settings
from sidestream.run.context import Context
from sidestream.run.results import ResultMetadata
from sidestream.tools.approvals import Policy
from sidestream.tools.server_side import ServerSideTool
from sidestream.tools.tool import Tool
from sidestream.tools.toolset import Toolset

if TYPE_CHECKING:
    from aiohttp import ClientSession

Prompt = str | ChatMessage | Sequence[str | MessagePart]
Tools = Iterable[Tool | Toolset | Callable[..., Any]]


Function = TypeVar("Function", bound=Callable[..., Any])


class PortableSettings(TypedDict, total=False):
    """Settings that mean the same at every provider; each maps them to its own parameters.

    None, or left out, is the provider's default. A provider that has no such parameter raises UnsupportedError, or
    warns with `unsupported="warn"`.
    """

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    """Of one answer. `Limits.max_total_tokens` bounds a whole run."""
    stop: Stop | None
    """Texts at which the model stops."""
    seed: int | None
    thinking: Thinking | None
    """`off`, `on`, `low`, `medium`, `high`, or a budget in tokens."""
    cache: bool | None
    """Prompt caching, where the provider has a switch for it."""
    unsupported: Literal["raise", "warn"]
    """What to do with a setting that the provider does not have."""


class CommonSettings(PortableSettings, total=False):
    """What an agent has and one call can change."""

    tools: Tools
    server_side_tools: Iterable[ServerSideTool]
    system: str | None
    options: Any
    """The provider's own options, e.g. `OpenAIResponsesOptions`."""
    approval: Policy
    limits: Limits
    context: Context | None
    """Keeps long conversations within the model's context window."""


class AgentSettings(CommonSettings, total=False):
    """The settings of an agent, besides its model and its output type."""

    api_key: str | None
    base_url: str | None
    headers: Mapping[str, str] | None
    auth: Callable[[], Mapping[str, str]] | None
    transport: Transport | None
    session: "ClientSession | None"
    message_metadata: MessageMetadata
    result_metadata: ResultMetadata


class CallSettings(CommonSettings, total=False):
    """What one call can change, for that call only."""

    history: Iterable[ChatMessage]
    stream: bool


def provider_settings(given: AgentSettings) -> Settings:
    """Where and as whom to call the provider."""
    return Settings(
        api_key=given.get("api_key"),
        base_url=given.get("base_url"),
        headers=dict(given.get("headers") or {}),
        auth=given.get("auth"),
    )


def model_settings(given: Mapping[str, Any], base: ModelSettings) -> ModelSettings:
    """The portable settings: those given, over those of `base`. Raises ConfigurationError for invalid ones."""
    set_here: dict[str, Any] = {name: given[name] for name in config_fields(ModelSettings) if name in given}
    return replace(base, **set_here) if set_here else base


def refuse_unknown(given: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an unknown setting."""
    names = known.__annotations__
    unknown = given.keys() - names.keys()
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}; known: {', '.join(names)}")


def shows_settings(settings: type) -> Callable[[Function], Function]:
    """Lists the settings one by one in the signature of a function that takes them as `**keywords`, for `help()`."""

    def with_signature(function: Function) -> Function:
        plain = inspect.signature(function)
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in settings.__annotations__.items()
        ]
        kept = [parameter for parameter in plain.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        setattr(function, "__signature__", plain.replace(parameters=[*kept, *listed]))  # noqa: B010
        return function

    return with_signature
