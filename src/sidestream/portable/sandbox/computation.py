"""Sandbox with Pydantic's Monty, an interpreter of a Python subset that makes no system calls.

For computation only: no files, no packages, no shell. It works on every system.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, cast

from sidestream import jsontext
from sidestream.lazy import outlast_threads
from sidestream.limits import SandboxLimits
from sidestream.portable.sandbox import port
from sidestream.portable.sandbox.frames import OutputText
from sidestream.portable.sandbox.launch import new_id
from sidestream.portable.sandbox.worker import owned

T = TypeVar("T")
_GRACE_S = 2.0
_PART_SIZE = 4
"""Characters counted for each part of a value, since visiting it takes time too."""


class _Session(Protocol):
    async def feed_run(
        self, code: str, *, external_lookup: Mapping[str, Any], print_callback: Callable[[str, str], None]
    ) -> Any: ...

    async def __aexit__(self, *error: object) -> object: ...


class Monty:
    """The sandbox of `CodeInterpreter(sandbox="monty")`."""

    name = "monty"

    async def start(self, spec: port.ContainerSpec) -> port.Container:
        if find_spec("pydantic_monty") is None:
            raise port.SandboxError('monty is not installed: pip install "sidestream[monty]"')
        if spec.workspace is not None:
            raise port.SandboxError('a workspace folder needs the sandbox "bubblewrap"')
        return await owned(lambda: _start(spec))


async def _start(spec: port.ContainerSpec) -> "MontyContainer":
    import pydantic_monty

    outlast_threads()
    limits: pydantic_monty.ResourceLimits = {
        "max_memory": spec.limits.memory_bytes,
        "max_feed_duration_secs": spec.limits.cell_s,
    }
    pool = pydantic_monty.AsyncMonty(min_processes=1, max_processes=1, request_timeout=None)
    try:
        await pool.__aenter__()
        session = pool.checkout(limits=limits)
        await session.__aenter__()
    except Exception as error:
        await pool.__aexit__(None, None, None)
        raise port.SandboxError(f"monty does not start: {error}") from error
    return MontyContainer(new_id(), pool, session, spec.limits)


class MontyContainer:
    """A container with one session of one worker process."""

    def __init__(self, identity: str, pool: Any, session: Any, limits: SandboxLimits) -> None:
        self.id = identity
        self.is_alive = True
        self._pool = pool
        self._session: _Session = session
        self._limits = limits
        self._is_idle = True
        """Whether the last program has ended by itself."""

    async def run(
        self, code: str, on_output: port.OnOutput, *, tools: Sequence[str] = (), call_tool: port.CallTool | None = None
    ) -> port.CellOutcome:
        import pydantic_monty

        self._is_idle = False
        sink = OutputText(self._limits.log_bytes, on_output)
        calls = _Calls(self._limits, call_tool) if call_tool is not None else None
        functions = {name: calls.function(name) for name in tools} if calls is not None else {}
        ending: port.Ending = "completed"

        flooded = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_print(stream: str, text: str) -> None:
            sink.feed(text.encode("utf-8", "replace"))
            if sink.total > self._limits.output_bytes:
                loop.call_soon_threadsafe(flooded.set)

        try:
            # The inner limit counts execution only: a program that waits for its tools may take longer.
            async with asyncio.timeout(None if functions else self._limits.cell_s + _GRACE_S):
                value = await _unless(
                    flooded, self._session.feed_run(code, external_lookup=functions, print_callback=on_print)
                )
            if value is not None:
                sink.feed(f"{_shown(value, self._limits.log_bytes)}\n".encode("utf-8", "replace"))
        except pydantic_monty.MontyCrashedError as error:
            ending = "timeout" if error.timed_out else "died"
        except TimeoutError:
            ending = "timeout"
        except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
            inner = error.exception()
            ending = "timeout" if isinstance(inner, TimeoutError) else "raised"
            sink.feed(f"{error.display()}\n".encode("utf-8", "replace"))
        except pydantic_monty.MontyError as error:
            ending = "raised"
            sink.feed(f"{error}\n".encode("utf-8", "replace"))
        except asyncio.CancelledError:
            await self.kill()
            raise
        if sink.total > self._limits.output_bytes:
            ending = "output"
        elif calls is not None and calls.is_flooded:
            ending = "flood"
        # The state of the heap is unknown after a limit.
        self._is_idle = ending in ("completed", "raised")
        if not self._is_idle:
            await self.kill()
        return port.CellOutcome(ending=ending, logs=sink.end())

    async def command(
        self, command: str, on_output: port.OnStreams, *, timeout_s: float | None = None
    ) -> port.CommandOutcome:
        raise port.SandboxError("monty runs Python only, no shell commands")

    async def put(self, files: Sequence[port.CodeFile]) -> None:
        if files:
            raise port.SandboxError("monty has no files")

    async def kill(self) -> None:
        import pydantic_monty

        if self.is_alive:
            self.is_alive = False
            pool, session = self._pool, self._session
            del self._pool, self._session  # they hold the pipes; others may still hold this object
            if self._is_idle:
                # Otherwise, the pool may leave the pipes of a worker open that has just started.
                with suppress(pydantic_monty.MontyError, TimeoutError):
                    async with asyncio.timeout(_GRACE_S):
                        await session.__aexit__(None, None, None)
            del session
            await pool.__aexit__(None, None, None)


async def _unless(stops: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of the work, or cancel it and return None if the event is set first."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stops.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()


class _Calls:
    """A program's tools as functions. Arguments are bounded before anything else processes them."""

    def __init__(self, limits: SandboxLimits, call_tool: port.CallTool) -> None:
        self._limits = limits
        self._call_tool = call_tool
        self._made = 0
        self._pending = 0
        self.is_flooded = False

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function for a tool."""

        async def call(*positional: Any, **arguments: Any) -> Any:
            if positional:
                raise TypeError(f"{name}() takes keyword arguments only")
            limits = self._limits
            share = limits.argument_bytes // 2
            size = _size(arguments, share, max_depth=jsontext.MAX_DEPTH)
            if size is None:
                raise ValueError(f"{name}() takes at most {share} bytes of arguments as JSON, not nested too deep")
            self._made += 1
            self.is_flooded = self._made > limits.calls or self._pending + size > limits.argument_bytes
            if self.is_flooded:
                raise RuntimeError("the program makes too many calls")
            self._pending += size
            try:
                answer = await self._call_tool(name, arguments)
            finally:
                self._pending -= size
            if answer.is_error:
                raise RuntimeError(f"{name} failed: {answer.result}")
            return answer.result

        return call


def _shown(value: Any, max_size: int) -> str:
    """Return a value's repr.

    Never raises: a value that is too large, or has no repr, is described.
    """
    size = _size(value, max_size)
    if size is not None:
        with suppress(ValueError, RecursionError):  # an integer with too many digits; lists nested too deeply
            return repr(value)
    return f"[a value of the type {type(value).__name__} that is too large to show: print a part of it]"


def _size(value: Any, max_size: int, *, max_depth: int = 1000) -> int | None:
    """Estimate the length of a value when written out, or return None if it exceeds the size or depth.

    A list that occurs a thousand times in a value is one object here, but a thousand copies in its text.
    """
    size, pending = 0, [(value, 0)]
    while pending:
        each, depth = pending.pop()
        parts: Collection[Any] = ()
        if isinstance(each, str | bytes):
            size += len(each)
        elif isinstance(each, int):
            size += each.bit_length() // 3
        elif isinstance(each, list | tuple | set | frozenset | dict):
            parts = cast("Collection[Any]", each)
        elif isinstance(attributes := getattr(each, "attributes", None), dict):  # an instance of a class
            parts = cast("Collection[Any]", attributes)
        size += _PART_SIZE * (1 + len(parts))
        if size > max_size or depth > max_depth:
            return None
        pending += [(part, depth + 1) for part in parts]
        if isinstance(parts, Mapping):
            pending += [(part, depth + 1) for part in cast("Mapping[Any, Any]", parts).values()]
    return size
