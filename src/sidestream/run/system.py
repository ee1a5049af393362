"""System prompts, given as text or as a function that returns it for each request."""

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    DepsT = _TypeVar("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")


class RunContext(Struct, Generic[DepsT], frozen=True, kw_only=True):
    """The request that a system prompt is for. `RunContext[MyDeps]` types `deps`."""

    deps: DepsT
    """The call's `deps`, or None."""
    provider: str
    model: str
    messages: tuple[ChatMessage, ...]
    """Conversation to send."""
    step: int
    """Number of model calls that the run has made before this one."""
    run_id: str


SystemText = str | None | Awaitable[str | None]
System = str | Callable[[], SystemText] | Callable[[RunContext[Any]], SystemText]
"""Text, or a sync or async function that takes no argument or a `RunContext`."""


def check_system(system: object) -> None:
    """Raise ConfigurationError if a value cannot be a system prompt."""
    if system is None or isinstance(system, str):
        return
    if not callable(system):
        raise ConfigurationError(f"system must be text or a function that returns it, not {type(system).__name__}")
    _takes_context(system)


async def system_text(system: System | None, context: Callable[[], RunContext[Any]]) -> str | None:
    """Return the text for one request. Raises ConfigurationError if the function fails or does not return text."""
    if system is None or isinstance(system, str):
        return system
    function = cast("Callable[..., SystemText]", system)
    arguments = (context(),) if _takes_context(system) else ()
    try:
        found = function(*arguments)
        text = await found if inspect.isawaitable(found) else found
    except Exception as error:
        problem = f"raised {type(error).__name__}: {error}"
        raise ConfigurationError(f"the system prompt function {_name(system)} {problem}") from error
    if text is not None and not isinstance(cast("object", text), str):
        raise ConfigurationError(
            f"the system prompt function {_name(system)} returned {type(text).__name__}; it must return text or None"
        )
    return text


def extended(system: System | None, instruction: str | None) -> System | None:
    """Append an instruction to the system prompt."""
    if not instruction or not system:
        return system or instruction or None
    if isinstance(system, str):
        return f"{system}\n\n{instruction}"

    async def both(context: RunContext[Any]) -> str:
        text = await system_text(system, lambda: context)
        return f"{text}\n\n{instruction}" if text else instruction

    return both


def _takes_context(function: Callable[..., Any]) -> bool:
    """Return whether the function takes one argument instead of none. Raises ConfigurationError for any other."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"system: cannot read the signature of {_name(function)}; wrap it in a function"
        ) from error
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(required) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in required):
        raise ConfigurationError(
            f"system: {_name(function)} must take no argument, or one, which is the RunContext; "
            "bind others with functools.partial"
        )
    return bool(required)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
