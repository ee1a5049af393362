"""Execution of a tool's function: in the event loop or a thread, with a timeout, progress and typed failures.

No exception of a function escapes. It becomes a result that the model can act on.
"""

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, closing, suppress
from functools import partial
from types import FunctionType
from typing import Any, Generic, Never, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.logs import get_logger
from sidestream.parts import File, Json, ToolResult, part_from_json
from sidestream.tools.arguments import ArgumentBinder, ArgumentBinding, InvalidArgumentsError
from sidestream.tools.context import Emitted, ToolContext
from sidestream.tools.outcome import Fault, ToolError, ToolOutcome
from sidestream.tools.results import NotJsonError, clean, cut, json_value
from sidestream.tools.signature import routine_of

IDLE_S = 2.0
"""Seconds that an idle thread waits for its next job."""
GRACE_S = 0.0001
"""Seconds that the event loop waits for a function if no other one is running. Most return at once, and waking up the
event loop costs more than running them."""


class _Pool:
    """The process-wide pool of tool threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []
        self.running = 0
        """Number of running functions."""

    def forget(self) -> None:
        """Reset the pool in a forked process, which has none of its parent's threads."""
        self.idle.clear()
        self.running = 0


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.forget)


class _Worker:
    def __init__(self) -> None:
        from queue import SimpleQueue

        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="sidestream-tool", daemon=True).start()

    def _run(self) -> None:
        from queue import Empty

        while True:
            try:
                job = self.jobs.get(timeout=IDLE_S)
            except Empty:
                with _pool.lock:
                    if self in _pool.idle:
                        _pool.idle.remove(self)
                        return
                continue  # `in_thread` has just taken it from the list: its job follows.
            job()
            del job
            with _pool.lock:
                _pool.running -= 1
                _pool.idle.append(self)


class _Handover:
    """A slot through which a thread passes a value to the event loop while the loop waits for it."""

    __slots__ = ("_is_awaited", "_left", "_values")

    def __init__(self, *, is_awaited: bool) -> None:
        self._is_awaited = is_awaited
        self._values: list[object] = []
        self._left = threading.Lock()
        """Held until a value is stored."""
        self._left.acquire()

    def leave(self, value: object) -> bool:
        """Store the value, called by the thread. Return False if the event loop no longer waits for it."""
        with _pool.lock:
            if self._is_awaited:
                self._values.append(value)
        if self._is_awaited:
            self._left.release()
        return self._is_awaited

    def wait(self) -> list[object]:
        """Wait briefly for the value, called by the event loop.

        Returns an empty list if it takes longer than `GRACE_S`; the thread must then deliver the value otherwise.
        """
        if self._is_awaited and not self._left.acquire(timeout=GRACE_S):
            with _pool.lock:
                self._is_awaited = bool(self._values)
        return self._values


async def in_thread(work: Callable[[], object], name: str, until_s: float) -> object:
    """Run `work` in a thread and return its result, or `_TOO_LATE` at this time of the event loop.

    `work` must not raise. If the wait is cancelled, the thread still completes the work.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    variables = contextvars.copy_context()
    with _pool.lock:
        worker = _pool.idle.pop() if _pool.idle else None
        handover = _Handover(is_awaited=_pool.running == 0 and worker is not None)
        _pool.running += 1

    def job() -> None:
        threading.current_thread().name = f"sidestream-tool-{name}"
        value = variables.run(work)
        if not handover.leave(value):
            with suppress(RuntimeError):  # the loop has closed: the result has no receiver
                loop.call_soon_threadsafe(settle, future, value)

    (worker or _Worker()).jobs.put(job)
    for value in handover.wait():
        try:
            await asyncio.sleep(0)  # What the function has already passed to the event loop comes first.
        except BaseException:
            future.cancel()
            settle(future, value)
            raise
        return value
    # The future never raises, so avoid `asyncio.wait`, which costs about as much as the thread.
    timer = loop.call_at(until_s, settle, future, _TOO_LATE)
    try:
        return await future
    finally:
        timer.cancel()


def settle(future: "asyncio.Future[object]", value: object) -> None:
    """Set the future's result unless it is done. An unused coroutine is closed."""
    if not future.done():
        future.set_result(value)
    elif inspect.iscoroutine(value):
        value.close()


T = TypeVar("T")

_STOP_GRACE_S = 1.0
"""Seconds that a cancelled tool may take to clean up before its call ends without it."""

_TOO_LATE = object()

_log = get_logger(__name__)
_stragglers: set["asyncio.Future[Any]"] = set()


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether the function must be called in the event loop."""
    if type(function) is FunctionType and not function.__dict__:  # A fast path for most functions.
        return bool(function.__code__.co_flags & _ASYNC)
    routine = routine_of(function)
    return inspect.iscoroutinefunction(routine) or inspect.isasyncgenfunction(routine)


_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ERROR_NAMES: dict[type[BaseException], str] = {NotJsonError: "TypeError", InvalidArgumentsError: "InvalidArguments"}


class ToolExecution(Struct, frozen=True):
    """Executes the calls to one tool."""

    name: str
    function: Callable[..., Any]
    bind: ArgumentBinder
    timeout_s: float
    max_bytes: int

    async def run(self, arguments: object, context: ToolContext) -> ToolOutcome:
        """Validate the arguments and call the function. Raises only CancelledError, if cancelled."""
        progress = _Progress(context.progress, self.max_bytes)
        relays: tuple[_Relay[Any], ...] = (progress,)
        bind = self.bind
        try:
            if isinstance(bind, ArgumentBinding) and not bind.contexts:
                keywords = bind(arguments, context)
            else:
                emit = _Emit(context.emit)
                relays = (progress, emit)
                keywords = bind(arguments, replace(context, progress=progress, emit=emit))
        except BaseException as error:
            return self._failure(error)
        until_s = progress.loop.time() + self.timeout_s
        begin: Callable[[], object] = partial(self.function, **keywords)
        try:
            if not _is_async(self.function):
                called = await in_thread(partial(self._call_sync, begin, progress), self.name, until_s)
                if called is _TOO_LATE:
                    return self._timed_out()
                if isinstance(called, ToolOutcome):
                    return called
                begin = partial(_given, called)
            # A separate task distinguishes a tool that raises CancelledError from a cancelled run.
            return await self._ended(asyncio.create_task(self._call(begin, progress)), until_s, relays)
        finally:
            _close(relays)

    async def _ended(self, work: "asyncio.Future[Any]", until_s: float, relays: "Iterable[_Relay[Any]]") -> Any:
        """Wait for the task and return its outcome, or a failure if it times out or cancels itself."""
        try:
            done, _ = await asyncio.wait({work}, timeout=max(until_s - asyncio.get_running_loop().time(), 0))
        finally:
            if not work.done():
                _close(relays)
                await _stop(work)
        if not done:
            return self._timed_out()
        return ToolOutcome.failure("CancelledError") if work.cancelled() else work.result()

    def _timed_out(self) -> ToolOutcome:
        return ToolOutcome.failure("TimeoutError", f"{self.name} gave no result within {self.timeout_s:g} seconds.")

    async def _call(self, begin: Callable[[], object], progress: "_Progress") -> ToolOutcome:
        try:
            value = begin()
            if inspect.isawaitable(value):
                value = await value
            if inspect.isasyncgen(value):
                value = await _last_of_async(value, progress)
            return value if isinstance(value, ToolOutcome) else ToolOutcome(json_value(value, self.max_bytes))
        except BaseException as error:
            return self._failure(error)

    def _call_sync(self, begin: Callable[[], object], progress: "_Progress") -> object:
        """Call the function and return its outcome.

        A sync wrapper may return a coroutine or async generator, which the event loop must run.
        """
        try:
            value = begin()
            if inspect.isgenerator(value):
                value = _last_of(value, progress)
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return value
            return ToolOutcome(json_value(value, self.max_bytes))
        except BaseException as error:
            return self._failure(error)

    def _failure(self, error: BaseException) -> ToolOutcome:
        kind = _ERROR_NAMES.get(type(error), type(error).__name__)
        fault: Fault | None = None
        if not isinstance(error, ToolError | InvalidArgumentsError | asyncio.CancelledError):
            fault = Fault.of(self.name, error, routine_of(self.function))
            # Logged as text, since `exc_info` would carry the locals of the tool's frames into every formatter.
            _log.error("tool %s raised %s", self.name, kind, exc_info=error)
        if isinstance(error, ToolError | InvalidArgumentsError | NotJsonError):
            with suppress(Exception):  # a subclass whose message cannot be formatted
                message = cut(clean(str(error)), self.max_bytes - len(kind) - 32)
                return ToolOutcome.failure(kind, message, error, fault=fault)
        return ToolOutcome.failure(kind, exception=error, fault=fault)


class _Relay(Generic[T]):
    """Passes values from any thread to the event loop until the call has ended."""

    def __init__(self, report: Callable[[T], None]) -> None:
        self.is_open = True
        self._report = report
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, value: T) -> None:
        if threading.get_ident() == self._thread:
            self._deliver(value)
        else:
            with suppress(RuntimeError):  # the loop has closed: the value has no receiver
                self.loop.call_soon_threadsafe(self._deliver, value)

    def _deliver(self, value: T) -> None:
        if self.is_open:
            self._report(value)


class _Progress(_Relay[Any]):
    """Relays progress as JSON."""

    def __init__(self, report: Callable[[Json], None], max_bytes: int) -> None:
        super().__init__(report)
        self._max_bytes = max_bytes

    def __call__(self, value: Any) -> None:
        super().__call__(json_value(value, self._max_bytes))


class _Emit(_Relay[Emitted]):
    """Relays parts. Rejects parts that a tool must not emit, at the point of the call."""

    def __call__(self, value: Emitted) -> None:
        if not isinstance(value, Emitted) or (isinstance(value, ToolResult) and not value.preliminary):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a tool must not emit {type(value).__name__}: its result is what its function returns")
        try:
            _check(value)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise TypeError(f"a tool must emit values that have a JSON form: {error}") from error
        super().__call__(value)


def _check(part: Emitted) -> None:
    """Raise an exception unless the part survives a round trip through JSON.

    Its fields are not checked when it is created.
    """
    if isinstance(part, File) and isinstance(part.data, bytes):
        part = replace(part, data=None)
    text = part.to_json()
    if jsontext.is_too_deep(text):
        raise ValueError(f"it nests deeper than {jsontext.MAX_DEPTH} levels")
    part_from_json(text)


def _close(relays: Iterable[_Relay[Any]]) -> None:
    for relay in relays:
        relay.is_open = False


async def _stop(work: "asyncio.Future[Any]") -> None:
    # It may ignore the cancellation. The loop holds tasks weakly, so keep a reference until it ends.
    _stragglers.add(work)
    work.add_done_callback(_stragglers.discard)
    work.cancel()
    await asyncio.wait({work}, timeout=_STOP_GRACE_S)


def _given(value: object) -> object:
    return value


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
