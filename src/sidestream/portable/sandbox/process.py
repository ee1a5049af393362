"""A container as a process: frames to its kernel, its output, its program's tool calls, and its end."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.files.saving import safe_name
from sidestream.limits import SandboxLimits
from sidestream.logs import get_logger
from sidestream.portable.sandbox import port, processes
from sidestream.portable.sandbox.frames import (
    CHUNK_BYTES,
    MAX_HEADER_BYTES,
    EndedError,
    Found,
    OutputText,
    checked_sizes,
)
from sidestream.portable.sandbox.launch import Started

Send = Callable[[bytes, bytes], Awaitable[None]]
"""Sends the number of a call and its answer into the container. Raises EndedError if the container has ended."""


class Calls:
    """The tool calls of one program. They are unchecked input, since code inside can write its own frames."""

    def __init__(self, limits: SandboxLimits, call_tool: port.CallTool, send: Send) -> None:
        self._limits = limits
        self._call_tool = call_tool
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._made = 0
        self._working = 0
        """Calls whose tools are running."""
        self._waited_s = self._waits_since = 0.0
        self._writing = asyncio.Lock()
        self.pending: dict[asyncio.Task[None], int] = {}
        """Calls whose answers have not been read yet → bytes of their arguments."""

    @property
    def shares(self) -> tuple[int, int]:
        """Pending calls and argument bytes that the kernel stays within.

        They are half of the limits, since this side may not know yet that the kernel has read an answer.
        """
        return self._limits.pending_calls // 2, self._limits.argument_bytes // 2

    @property
    def waited_s(self) -> float:
        """Seconds in which at least one tool was running. Unread answers do not count."""
        return self._waited_s + (self._clock() - self._waits_since if self._working else 0.0)

    def begin(self, number: bytes, name: bytes, arguments: bytes) -> None:
        """Start answering a call.

        Raises EndedError if the program exceeds its limits.
        """
        self._made += 1
        limits = self._limits
        if (
            self._made > limits.calls
            or len(self.pending) >= limits.pending_calls
            or sum(self.pending.values()) + len(arguments) > limits.argument_bytes
        ):
            raise EndedError("flood")
        answering = asyncio.create_task(self._answer(number, name, arguments))
        self.pending[answering] = len(arguments)
        answering.add_done_callback(self.pending.pop)

    async def cancel(self) -> None:
        """Cancel the calls that the program has not waited for."""
        left = list(self.pending)
        for answering in left:
            answering.cancel()
        if left:
            await asyncio.wait(left)

    async def _answer(self, number: bytes, name: bytes, arguments: bytes) -> None:
        try:
            given = None if jsontext.is_too_deep(arguments) else jsontext.loads(arguments)
        except ValueError:
            given = None
        self._waits_since = self._waits_since if self._working else self._clock()
        self._working += 1
        try:
            answer = await self._call_tool(name.decode("utf-8", "replace"), given)
        finally:
            self._waited_s = self.waited_s
            self._waits_since = self._clock()
            self._working -= 1
        try:
            # One after the other, so that only one answer is in memory as bytes.
            async with self._writing:
                await self._send(number, msgspec.json.encode(answer))
        except EndedError:
            return


_log = get_logger(__name__)
_GRACE_S = 5.0
"""Seconds after a command's own limit at which the container is killed, if the kernel has not reported the end."""
_TICK_S = 0.25
"""Seconds between checks of what code does while tools work for it."""
_RESTLESS = "its processes could not be stopped after the call, so the container was ended"


class ProcessContainer:
    """A kernel behind pipes. Its frames are checked, since code inside can send anything."""

    def __init__(self, identity: str, started: Started, limits: SandboxLimits, folder: str = port.FOLDER) -> None:
        self.id = identity
        self._folder = folder
        self._process = started.process
        self._frames = started.frames
        self._frames_end = started.frames_end
        self._logs = started.logs
        self._limits = limits
        self._sink: OutputText | None = None
        self._flooded = asyncio.Event()
        self._is_resting = False
        self.on_end: list[Callable[[], None]] = []
        self.stop: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Ends what does not end with the process, if the backend needs that."""
        self.inner: int | None = None
        """Pidfd of the first process inside, if the backend reports it."""
        self.pause: Callable[[bool], Coroutine[Any, Any, bool]] = self._pause
        """Stops all processes inside, or continues them. Returns False if they cannot be stopped."""
        asyncio.get_running_loop().add_reader(self._logs, self._read_logs)

    @property
    def pid(self) -> int:
        """Id of the process that was started."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def ready(self) -> None:
        """Wait for the kernel.

        Raises SandboxError, with the backend's output, if it does not start.
        """
        self._sink = sink = OutputText(CHUNK_BYTES, lambda text: None)
        try:
            async with asyncio.timeout(self._limits.start_s):
                kind, _ = await self._receive()
        except BaseException as error:
            await self.kill()
            if not isinstance(error, TimeoutError | EndedError):
                raise
            self._drain()
            reason = sink.end().strip() or ("no answer" if isinstance(error, TimeoutError) else "no output")
            raise port.SandboxError(reason) from None
        finally:
            self._sink = None
        if kind != "ready":
            await self.kill()
            raise port.SandboxError("the kernel does not speak the protocol")

    async def run(
        self, code: str, on_output: port.OnOutput, *, tools: Sequence[str] = (), call_tool: port.CallTool | None = None
    ) -> port.CellOutcome:
        limits = self._limits
        sink = OutputText(limits.log_bytes, on_output)
        found = Found(limits, self._folder)
        calls = Calls(limits, call_tool, partial(self._send, "answer")) if call_tool is not None else None

        async def work() -> port.Ending:
            if tools and calls is not None:
                await self._send("tools", " ".join(tools).encode(), *(str(share).encode() for share in calls.shares))
            await self._send("cell", code.encode("utf-8", "replace"))
            while True:
                kind, payloads = await self._receive()
                if kind == "done":
                    return "completed" if payloads == [b"ok"] else "raised"
                if kind == "call" and calls is not None:
                    calls.begin(*payloads)
                else:
                    found.add(kind, payloads)

        ending, notes = await self._attended(work, sink, limits.cell_s, calls)
        return port.CellOutcome(
            ending=ending,
            logs=sink.end(),
            images=tuple(found.images),
            files=tuple(found.files),
            notes=(*found.all_notes(), *notes),
        )

    async def command(
        self, command: str, on_output: port.OnStreams, *, timeout_s: float | None = None
    ) -> port.CommandOutcome:
        seconds = min(timeout_s or self._limits.cell_s, self._limits.cell_s)
        out = OutputText(self._limits.log_bytes, lambda text: on_output(text, ""))
        err = OutputText(self._limits.log_bytes, lambda text: on_output("", text))
        found = Found(self._limits, self._folder)
        code: list[int] = []

        async def work() -> port.Ending:
            await self._send("shell", command.encode("utf-8", "replace"), str(seconds).encode())
            ending: port.Ending = "completed"
            while True:
                kind, payloads = await self._receive()
                if kind in ("out", "err") and len(payloads) == 1:
                    (out if kind == "out" else err).feed(payloads[0])
                    if out.total + err.total > self._limits.output_bytes:
                        raise EndedError("output")
                elif kind == "exit":
                    with suppress(ValueError):
                        code.append(int(payloads[0]) if payloads else 0)
                    ending = "timeout" if payloads == [b"timeout"] else "completed"
                    await self._send("deliver")
                elif kind == "done":
                    return ending
                else:
                    found.add(kind, payloads)

        ending, notes = await self._attended(work, OutputText(0, lambda text: None), seconds + _GRACE_S)
        return port.CommandOutcome(
            ending=ending,
            stdout=out.end(),
            stderr=err.end(),
            exit_code=code[0] if code else None,
            files=tuple(found.files),
            notes=(*found.all_notes(), *notes),
        )

    async def put(self, files: Sequence[port.CodeFile]) -> None:
        rests = self._is_resting
        for file in files:
            try:
                async with asyncio.timeout(self._limits.start_s):
                    await self._wake()
                    await self._send("put", safe_name(file.name, None).encode(), file.data)
                    kind, payloads = await self._receive()
            except BaseException as error:
                await self.kill()
                if not isinstance(error, TimeoutError | EndedError):
                    raise
                raise port.SandboxError("the container ended while files were put into it") from None
            if kind != "done" or payloads != [b"ok"]:
                reason = payloads[0][:200].decode("utf-8", "replace") if payloads else "no answer"
                raise port.SandboxError(f"the file {file.name!r} does not fit into the container: {reason}")
        if files and rests:
            await self._rest()

    async def kill(self) -> None:
        if self.is_alive:
            # The backend's process leads a separate group; processes inside die with their first one.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._frames_end.close()
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.transport.abort()
        await self._process.wait()
        await self._inner_gone()
        stop, self.stop = self.stop, None
        if stop is not None:
            await stop()
        self._close()

    async def _inner_gone(self) -> None:
        """Wait for the first process inside, which ends after all others inside."""
        descriptor, self.inner = self.inner, None
        if descriptor is None:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        try:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            loop.add_reader(descriptor, gone.set)
            async with asyncio.timeout(_GRACE_S):
                await gone.wait()
        except TimeoutError:
            _log.warning("container %s: a process does not end", self.id)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _close(self) -> None:
        if self._logs >= 0:
            self._drain()
            asyncio.get_running_loop().remove_reader(self._logs)
            os.close(self._logs)
            self._logs = -1
        for end in self.on_end:
            end()
        self.on_end.clear()

    async def _attended(
        self,
        work: Callable[[], Coroutine[Any, Any, port.Ending]],
        sink: OutputText,
        seconds: float,
        calls: Calls | None = None,
    ) -> tuple[port.Ending, tuple[str, ...]]:
        """Run the work with its output in the sink, and return how it ended, with notes for the model.

        Any failure that makes it impossible to continue ends the container. Afterwards nothing runs inside until the
        next call.
        """
        self._sink = sink
        self._flooded.clear()
        await self._wake()
        working = asyncio.ensure_future(work())
        flooded = asyncio.ensure_future(self._flooded.wait())
        ending: port.Ending = "died"
        is_over = False
        try:
            done = await self._first_done({working, flooded}, seconds, calls)
            if working in done:
                ending = working.result()
                is_over = True
            else:
                ending = "output" if flooded in done else "timeout"
        except EndedError as ended:
            ending = ended.ending
        finally:
            for task in (working, flooded):
                task.cancel()
            await asyncio.wait({working, flooded})
            if calls is not None:
                await calls.cancel()
            if not is_over:
                await asyncio.shield(self.kill())
            else:
                self._drain()
            self._sink = None
        return ending, () if not is_over or await self._rest() else (_RESTLESS,)

    async def _first_done(
        self, tasks: "set[asyncio.Future[Any]]", seconds: float, calls: Calls | None
    ) -> "set[asyncio.Future[Any]]":
        """Return the tasks that finish first, or none after `seconds`.

        Time in which tools work for the code does not count, but time in which the code computes always does.
        """
        clock = asyncio.get_running_loop().time
        at, waited, activity = clock(), 0.0, processes.activity(self.pid) if calls else None
        done: set[asyncio.Future[Any]] = set()
        while not done and seconds > 0:
            pause = min(seconds, _TICK_S) if calls else seconds
            done, _ = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            elapsed, at = clock() - at, clock()
            idle = computed = 0.0
            if calls is not None:
                idle, waited = calls.waited_s - waited, calls.waited_s
                before, activity = activity, processes.activity(self.pid)
                if activity is not None and before is not None:
                    computed = elapsed if activity.is_running else activity.cpu_s - before.cpu_s
            seconds -= max(elapsed - idle, min(elapsed, computed))
        return done

    async def _wake(self) -> None:
        if self._is_resting:
            self._is_resting = False
            await self.pause(False)

    async def _rest(self) -> bool:
        """Stop all processes inside, or end the container. Return False if it had to end."""
        try:
            self._is_resting = await self.pause(True)
        finally:
            if not self._is_resting:  # also if cancelled
                await self.kill()
        return self._is_resting

    async def _pause(self, is_paused: bool) -> bool:
        # If the first process inside is known, the started one only waits for it.
        with_root = self.inner is None
        if is_paused:
            return await processes.stop(self.pid, with_root=with_root)
        processes.wake(self.pid, with_root=with_root)
        return True

    async def _send(self, kind: str, *payloads: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        header = " ".join([kind, *(str(len(payload)) for payload in payloads)])
        pipe.write(b"".join([header.encode(), b"\n", *payloads]))
        try:
            await pipe.drain()
        except OSError:
            raise EndedError("died") from None

    async def _receive(self) -> tuple[str, list[bytes]]:
        """Return the next frame.

        Raises EndedError at the end of the pipe, or if no kernel would send such a frame.
        """
        pipe = self._frames
        try:
            header = (await pipe.readline()).decode("ascii")
            if not header.endswith("\n") or len(header) > MAX_HEADER_BYTES:
                raise EndedError("died")
            kind, lengths = checked_sizes(header, self._limits)
            return kind, [await pipe.readexactly(length) for length in lengths]
        except (ValueError, OSError, asyncio.IncompleteReadError):
            raise EndedError("died") from None

    def _read_logs(self) -> None:
        """Read available output.

        Output between two calls is discarded, since it has no receiver.
        """
        try:
            data = os.read(self._logs, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._logs)
        elif self._sink is not None:
            self._sink.feed(data)
            if self._sink.total > self._limits.output_bytes:
                self._flooded.set()

    def _drain(self) -> None:
        """Read the rest of the pipe, i.e. everything printed before the last received frame."""
        with suppress(OSError):
            while self._logs >= 0 and (data := os.read(self._logs, CHUNK_BYTES)):
                if self._sink is None or self._sink.total > self._limits.output_bytes:
                    break
                self._sink.feed(data)
