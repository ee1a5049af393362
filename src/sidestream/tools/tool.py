"""Client tools: typed Python functions that a model can call.

A tool's schema comes from the function's signature and docstring. Running one never raises: what goes wrong
becomes a result that the model can act on. pydantic and griffe are loaded when the first tool is made.
"""

import asyncio
import inspect
import logging
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, closing, suppress
from typing import Any, Never, Self, overload

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.stream.parts import Json
from sidestream.tools.approvals import Policy, Suspended, check_policy
from sidestream.tools.results import NotJsonError, clean, cut, json_value
from sidestream.tools.signature import Bind, InvalidArgumentsError, Schema, ToolContext, implementation, read_function
from sidestream.tools.threads import in_thread

__all__ = ["InvalidArgumentsError", "Tool", "ToolContext", "ToolError", "ToolOutcome", "as_tools", "tool"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_STOP_GRACE_S = 1.0
"""How long a cancelled tool may clean up before its call is over without it."""

_log = logging.getLogger(__name__)
_stragglers: set[asyncio.Task["ToolOutcome"]] = set()


class ToolError(Exception):
    """Raise it in a tool to tell the model what went wrong: of other exceptions it learns only the type."""


class ToolOutcome(Struct, frozen=True):
    """What a call came to: a JSON value, or `{"error": type, "message": ...}` with `is_error`.

    `exception` is what the tool raised, for logs and telemetry; it is never sent.
    """

    result: Json
    is_error: bool = False
    exception: BaseException | None = None
    suspended: Suspended | None = None
    """Set where the tool is an agent that waits for a person; then there is no result yet."""

    @classmethod
    def failure(cls, error: str, message: str | None = None, exception: BaseException | None = None) -> Self:
        """An error result; the message is for the model."""
        result = {"error": error} if message is None else {"error": error, "message": message}
        return cls(result, True, exception)


class Tool(Struct, frozen=True, eq=False, kw_only=True):
    """A function that a model can call, with its schema. Calling the tool calls the function.

    A sync function runs in a thread of its own, an async one in the event loop. A generator reports progress:
    each value that it yields is progress as soon as the next one comes; the last one is the result. If a sync
    generator returns a value, that is the result and all that it yields is progress.
    """

    name: str
    description: str
    parameters: Schema
    strict: bool = False
    """Whether the schema requires all properties and allows no others: a provider can enforce it."""
    timeout_s: float | None = None
    """None: `Limits.tool_timeout_s`."""
    approval: Policy | None = None
    """Whether a person is asked before it runs; None: the agent's policy."""
    is_sensitive: bool = False
    """True: never run unasked once the run has read from the open web."""
    is_open_world: bool = False
    """True: what it gives back may be written by strangers, like a page of the web."""
    server_label: str | None = None
    """The MCP server that runs it; None for a function."""
    pin: str | None = None
    """A digest of what the server says the tool is. A decision holds only for a tool that has not changed since."""
    function: Callable[..., Any]
    bind: Bind

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r} cannot be a tool's name: use 1 to 64 of a-z, A-Z, 0-9, '_' and '-', "
                'for example with Tool.from_function(function, name="...")'
            )
        if self.approval is not None:
            check_policy(self.approval)
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigurationError(f"tool {self.name!r}: timeout_s must be more than 0, not {self.timeout_s}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @classmethod
    def from_function(
        cls,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        strict: bool | None = None,
        approval: Policy | None = None,
        is_sensitive: bool = False,
    ) -> Self:
        """Makes a tool of a function, a bound method, a partial or an object with `__call__`.

        `strict=None` is strict where that changes nothing; `strict=True` makes every argument required.
        """
        if not callable(fn) or isinstance(fn, type):
            raise ConfigurationError(f"{fn!r} cannot be a tool: give a function, a method or an object with __call__")
        target = implementation(fn)
        label = name if name is not None else getattr(target, "__name__", type(target).__name__)
        if label == "<lambda>":
            raise ConfigurationError(
                "a lambda has no name to call it by: use a function made with def, or pass name=..."
            )
        read = read_function(fn, label, strict)
        return cls(
            name=label,
            description=read.description if description is None else description,
            parameters=read.parameters,
            strict=read.strict,
            timeout_s=timeout_s,
            approval=approval,
            is_sensitive=is_sensitive,
            function=fn,
            bind=read.bind,
        )

    async def run(self, arguments: object, context: ToolContext, limits: Limits = DEFAULT_LIMITS) -> ToolOutcome:
        """Checks the arguments and calls the function. Raises CancelledError when cancelled, else nothing.

        At the timeout a thread is left to end by itself, since none can be stopped. Python's exit does not
        wait for it.
        """
        timeout_s = limits.tool_timeout_s if self.timeout_s is None else self.timeout_s
        progress = _Progress(context.progress, limits.max_tool_result_bytes)
        context = msgspec.structs.replace(context, progress=progress)
        # A task of its own tells a tool that raises CancelledError from a run that is cancelled.
        task = asyncio.create_task(self._call(arguments, context, progress, limits.max_tool_result_bytes))
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        finally:
            progress.is_open = False
            if not task.done():
                await _stop(task)
        if not done:
            return ToolOutcome.failure("TimeoutError", f"{self.name} gave no result within {timeout_s:g} seconds.")
        return ToolOutcome.failure("CancelledError") if task.cancelled() else task.result()

    async def _call(
        self, arguments: object, context: ToolContext, progress: "_Progress", max_bytes: int
    ) -> ToolOutcome:
        try:
            keywords = self.bind(arguments, context)
            if _is_async(self.function):
                value = self.function(**keywords)
            else:
                value = await in_thread(lambda: self._call_sync(keywords, progress, max_bytes), self.name)
                if isinstance(value, ToolOutcome):
                    return value
            if inspect.isawaitable(value):
                value = await value
            if inspect.isasyncgen(value):
                value = await _last_of_async(value, progress)
            return value if isinstance(value, ToolOutcome) else ToolOutcome(json_value(value, max_bytes))
        except BaseException as error:
            return self._failed(error, max_bytes)

    def _call_sync(self, keywords: dict[str, Any], progress: "_Progress", max_bytes: int) -> object:
        """The outcome, or what must go on in the loop: a coroutine or async generator from a sync wrapper."""
        try:
            value = self.function(**keywords)
            if inspect.isgenerator(value):
                value = _last_of(value, progress)
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return value
            return ToolOutcome(json_value(value, max_bytes))
        except BaseException as error:
            return self._failed(error, max_bytes)

    def _failed(self, error: BaseException, max_bytes: int) -> ToolOutcome:
        kind = _KINDS.get(type(error), type(error).__name__)
        if isinstance(error, ToolError | InvalidArgumentsError | NotJsonError):
            with suppress(Exception):  # a subclass may fail to say its message
                return ToolOutcome.failure(kind, cut(clean(str(error)), max_bytes - len(kind) - 32), error)
        if not isinstance(error, asyncio.CancelledError):
            _log.warning("tool %s raised %s", self.name, kind, exc_info=error)
        return ToolOutcome.failure(kind, exception=error)


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    strict: bool | None = None,
    approval: Policy | None = None,
    is_sensitive: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    strict: bool | None = None,
    approval: Policy | None = None,
    is_sensitive: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of the function below: `@tool`, or `@tool(name=..., timeout_s=...)`."""

    def make(function: Callable[..., Any]) -> Tool:
        return Tool.from_function(
            function,
            name=name,
            description=description,
            timeout_s=timeout_s,
            strict=strict,
            approval=approval,
            is_sensitive=is_sensitive,
        )

    return make if fn is None else make(fn)


def as_tools(items: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by name; functions become tools. Raises ConfigurationError, also where two have one name."""
    tools: dict[str, Tool] = {}
    for item in items:
        made = item if isinstance(item, Tool) else Tool.from_function(item)
        if made.name in tools:
            raise ConfigurationError(f"two tools are called {made.name!r}: give one another name with name=...")
        tools[made.name] = made
    return tools


_KINDS: dict[type[BaseException], str] = {NotJsonError: "TypeError", InvalidArgumentsError: "InvalidArguments"}


class _Progress:
    """Carries progress from any thread to the event loop, until the call is over."""

    def __init__(self, report: Callable[[Json], None], max_bytes: int) -> None:
        self.is_open = True
        self._report = report
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, value: object) -> None:
        progress = json_value(value, self._max_bytes)
        if threading.get_ident() == self._thread:
            self._deliver(progress)
        else:
            with suppress(RuntimeError):  # the loop has closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._deliver, progress)

    def _deliver(self, progress: Json) -> None:
        if self.is_open:
            self._report(progress)


def _is_async(function: Callable[..., Any]) -> bool:
    target = implementation(function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


async def _stop(task: asyncio.Task[ToolOutcome]) -> None:
    # It may refuse to end. The loop holds tasks weakly, so it is kept here until it does.
    _stragglers.add(task)
    task.add_done_callback(_stragglers.discard)
    task.cancel()
    await asyncio.wait({task}, timeout=_STOP_GRACE_S)


_NOTHING = object()


def _last_of(values: Generator[object, Never, object], progress: _Progress) -> object:
    last = _NOTHING
    with closing(values):
        while progress.is_open:
            try:
                value, is_returned = next(values), False
            except StopIteration as stop:
                if stop.value is None:
                    break
                value, is_returned = stop.value, True
            if last is not _NOTHING:
                progress(last)
            last = value
            if is_returned:
                break
    return None if last is _NOTHING else last


async def _last_of_async(values: AsyncGenerator[object, Never], progress: _Progress) -> object:
    last = _NOTHING
    async with aclosing(values):
        async for value in values:
            if last is not _NOTHING:
                progress(last)
            last = value
    return None if last is _NOTHING else last
