"""Pydantic's Monty: an interpreter of a part of Python that makes no system call. For computation only: no files, no
packages, no shell; it works on every system."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from sidestream.lazy import outlast_threads
from sidestream.limits import SandboxLimits
from sidestream.portable.sandbox.launch import new_id
from sidestream.portable.sandbox.owned import owned
from sidestream.portable.sandbox.port import (
    CallTool,
    CellOutcome,
    CodeFile,
    CommandOutcome,
    Container,
    ContainerSpec,
    Ending,
    OnOutput,
    OnStreams,
    SandboxError,
)
from sidestream.portable.sandbox.process import Text

_GRACE_S = 2.0


class _Session(Protocol):
    async def feed_run(
        self, code: str, *, external_lookup: Mapping[str, Any], print_callback: Callable[[str, str], None]
    ) -> Any: ...


class Monty:
    """`CodeInterpreter(sandbox="monty")`."""

    name = "monty"

    async def start(self, spec: ContainerSpec) -> Container:
        if find_spec("pydantic_monty") is None:
            raise SandboxError('monty is not installed: pip install "sidestream[monty]"')
        if spec.workspace is not None:
            raise SandboxError('a workspace folder needs the sandbox "bubblewrap"')
        return await owned(lambda: _start(spec))


async def _start(spec: ContainerSpec) -> "MontyContainer":
    import pydantic_monty

    outlast_threads()
    limits: pydantic_monty.ResourceLimits = {
        "max_memory": spec.limits.memory_bytes,
        "max_feed_duration_secs": spec.limits.cell_s,
    }
    try:
        pool = pydantic_monty.AsyncMonty(min_processes=1, max_processes=1, request_timeout=None)
        await pool.__aenter__()
        session = pool.checkout(limits=limits)
        await session.__aenter__()
    except Exception as error:
        raise SandboxError(f"monty does not start: {error}") from error
    return MontyContainer(new_id(), pool, session, spec.limits)


class MontyContainer:
    """A session of one worker process."""

    def __init__(self, identity: str, pool: Any, session: Any, limits: SandboxLimits) -> None:
        self.id = identity
        self.is_alive = True
        self._pool = pool
        self._session: _Session = session
        self._limits = limits

    async def run(
        self, code: str, on_output: OnOutput, *, tools: Sequence[str] = (), call_tool: CallTool | None = None
    ) -> CellOutcome:
        import pydantic_monty

        sink = Text(self._limits.log_bytes, on_output)
        functions = {name: _function(name, call_tool) for name in tools} if call_tool is not None else {}
        ending: Ending = "completed"
        try:
            # The limit inside counts execution only: a program that waits for its tools may take longer.
            async with asyncio.timeout(None if functions else self._limits.cell_s + _GRACE_S):
                value = await self._session.feed_run(
                    code,
                    external_lookup=functions,
                    print_callback=lambda stream, text: sink.feed(text.encode("utf-8", "replace")),
                )
            if value is not None:
                sink.feed(f"{value!r}\n".encode("utf-8", "replace"))
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
        finally:
            # After a limit or a cancellation nothing is known about the heap.
            if ending not in ("completed", "raised"):
                await self.kill()
        return CellOutcome(ending=ending, logs=sink.end())

    async def command(self, command: str, on_output: OnStreams, *, timeout_s: float | None = None) -> CommandOutcome:
        raise SandboxError("monty runs Python only, no shell commands")

    async def put(self, files: Sequence[CodeFile]) -> None:
        if files:
            raise SandboxError("monty has no files")

    async def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            await self._pool.__aexit__(None, None, None)


def _function(name: str, call_tool: CallTool) -> Callable[..., Any]:
    async def call(*positional: Any, **arguments: Any) -> Any:
        if positional:
            raise TypeError(f"{name}() takes keyword arguments only")
        answer = await call_tool(name, arguments)
        if answer.is_error:
            raise RuntimeError(f"{name} failed: {answer.result}")
        return answer.result

    return call
