"""Running a tool's function: in a thread or in the event loop, with a timeout, progress and typed failures.

Nothing that a function raises escapes: it becomes a result that the model can act on.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing, suppress
from typing import Any, Generic, Never, Self, TypeVar

import msgspec
from msgspec import Struct

from sidestream.logs import get_logger
from sidestream.stream.parts import Json, ToolResult
from sidestream.tools.approvals import Suspended
from sidestream.tools.arguments import ArgumentBinder, InvalidArgumentsError
from sidestream.tools.context import Emitted, ToolContext
from sidestream.tools.results import NotJsonError, clean, cut, json_value
from sidestream.tools.signature import routine_of
from sidestream.tools.threads import in_thread

T = TypeVar("T")

_STOP_GRACE_S = 1.0
"""How long a cancelled tool may clean up before its call ends without it."""

_log = get_logger(__name__)
_stragglers: set[asyncio.Task["ToolOutcome"]] = set()


class ToolError(Exception):
    """Raise it in a tool to send its message to the model, which sees only the type of other exceptions."""


class ToolOutcome(Struct, frozen=True):
    """The result of a call: a JSON value, or `{"error": type, "message": ...}` with `is_error`.

    `exception` is what the tool raised, for logs and telemetry; it is never sent.
    """

    result: Json
    is_error: bool = False
    exception: BaseException | None = None
    suspended: Suspended | None = None
    """Set if the tool waits for a person; there is no result yet."""

    @classmethod
    def failure(cls, error: str, message: str | None = None, exception: BaseException | None = None) -> Self:
        """An error result; the message is for the model."""
        result = {"error": error} if message is None else {"error": error, "message": message}
        return cls(result, True, exception)


_ERROR_NAMES: dict[type[BaseException], str] = {NotJsonError: "TypeError", InvalidArgumentsError: "InvalidArguments"}


class ToolExecution(Struct, frozen=True):
    """How the calls of one tool are executed."""

    name: str
    function: Callable[..., Any]
    bind: ArgumentBinder
    timeout_s: float
    max_bytes: int

    async def run(self, arguments: object, context: ToolContext) -> ToolOutcome:
        """Validates the arguments and calls the function. Raises CancelledError when cancelled, else nothing."""
        progress = _Progress(context.progress, self.max_bytes)
        emit = _Emit(context.emit)
        context = msgspec.structs.replace(context, progress=progress, emit=emit)
        # In a task of its own, so that a tool that raises CancelledError differs from a run that is cancelled.
        task = asyncio.create_task(self._call(arguments, context, progress))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.timeout_s)
        finally:
            progress.is_open = emit.is_open = False
            if not task.done():
                await _stop(task)
        if not done:
            return ToolOutcome.failure("TimeoutError", f"{self.name} gave no result within {self.timeout_s:g} seconds.")
        return ToolOutcome.failure("CancelledError") if task.cancelled() else task.result()

    async def _call(self, arguments: object, context: ToolContext, progress: "_Progress") -> ToolOutcome:
        try:
            keywords = self.bind(arguments, context)
            routine = routine_of(self.function)
            if inspect.iscoroutinefunction(routine) or inspect.isasyncgenfunction(routine):
                value = self.function(**keywords)
            else:
                value = await in_thread(lambda: self._call_sync(keywords, progress), self.name)
                if isinstance(value, ToolOutcome):
                    return value
            if inspect.isawaitable(value):
                value = await value
            if inspect.isasyncgen(value):
                value = await _last_of_async(value, progress)
            return value if isinstance(value, ToolOutcome) else ToolOutcome(json_value(value, self.max_bytes))
        except BaseException as error:
            return self._failure(error)

    def _call_sync(self, keywords: dict[str, Any], progress: "_Progress") -> object:
        """The outcome, or a coroutine or async generator from a sync wrapper, which the event loop must run."""
        try:
            value = self.function(**keywords)
            if inspect.isgenerator(value):
                value = _last_of(value, progress)
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return value
            return ToolOutcome(json_value(value, self.max_bytes))
        except BaseException as error:
            return self._failure(error)

    def _failure(self, error: BaseException) -> ToolOutcome:
        kind = _ERROR_NAMES.get(type(error), type(error).__name__)
        if isinstance(error, ToolError | InvalidArgumentsError | NotJsonError):
            with suppress(Exception):  # a subclass whose message cannot be formatted
                return ToolOutcome.failure(kind, cut(clean(str(error)), self.max_bytes - len(kind) - 32), error)
        if not isinstance(error, asyncio.CancelledError):
            # As text: `exc_info` would carry the locals of the tool's frames to whoever formats it.
            _log.warning("tool %s raised %s", self.name, kind, exc_info=error)
        return ToolOutcome.failure(kind, exception=error)


class _Relay(Generic[T]):
    """Passes values from any thread to the event loop, until the call is over."""

    def __init__(self, report: Callable[[T], None]) -> None:
        self.is_open = True
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, value: T) -> None:
        if threading.get_ident() == self._thread:
            self._deliver(value)
        else:
            with suppress(RuntimeError):  # the loop has closed: there is no receiver
                self._loop.call_soon_threadsafe(self._deliver, value)

    def _deliver(self, value: T) -> None:
        if self.is_open:
            self._report(value)


class _Progress(_Relay[Any]):
    """Passes progress on, as JSON."""

    def __init__(self, report: Callable[[Json], None], max_bytes: int) -> None:
        super().__init__(report)
        self._max_bytes = max_bytes

    def __call__(self, value: Any) -> None:
        super().__call__(json_value(value, self._max_bytes))


class _Emit(_Relay[Emitted]):
    """Passes parts on; refuses, where it is called, those that a tool must not emit."""

    def __call__(self, value: Emitted) -> None:
        if not isinstance(value, Emitted) or (isinstance(value, ToolResult) and not value.preliminary):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a tool must not emit {type(value).__name__}: its result is what its function returns")
        super().__call__(value)


async def _stop(task: asyncio.Task[ToolOutcome]) -> None:
    # It may ignore the cancellation. The loop holds tasks weakly, so a reference is kept until it ends.
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
