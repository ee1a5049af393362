"""A container as a process of ours: frames to its kernel, its output, and its end. Runs in the thread of `worker`."""

import asyncio
import codecs
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.limits import SandboxLimits
from sidestream.logs import get_logger
from sidestream.portable.sandbox.port import (
    FOLDER,
    CallTool,
    CellOutcome,
    CodeFile,
    CommandOutcome,
    Ending,
    OnOutput,
    OnStreams,
    SandboxError,
)
from sidestream.saving import safe_name

_log = get_logger(__name__)
_CHUNK_BYTES = 1 << 16
_MAX_HEADER_BYTES = 256
_MAX_PAYLOADS = 3
_MAX_NAME_BYTES = 4096
_MAX_ARGUMENT_BYTES = 1 << 20
_GRACE_S = 5.0
"""A command has its own limit inside. If the kernel does not report the end by then, the container is killed."""


class _EndedError(Exception):
    """The container ended, or must: `ending` says why."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending: Ending = ending


class Text:
    """Output as text: the beginning is kept, all of it is counted, and what is kept is passed on."""

    def __init__(self, max_bytes: int, on_text: Callable[[str], None]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._left = max_bytes
        self._on_text = on_text
        self.total = 0

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        self.total += len(data)
        kept = data[: max(0, self._left)]
        self._left -= len(data)
        text = self._decoder.decode(kept, is_last)
        if text:
            self._pieces.append(text)
            self._on_text(text)

    def end(self) -> str:
        self.feed(b"", is_last=True)
        if self._left < 0:
            self._pieces.append(f"\n[cut: {-self._left} more bytes of output are not shown]\n")
        return "".join(self._pieces)


class ProcessContainer:
    """A kernel behind pipes. What it sends is checked: code inside can send anything."""

    def __init__(self, identity: str, process: Process, logs: int, limits: SandboxLimits, folder: str = FOLDER) -> None:
        self.id = identity
        self._folder = folder
        self._process = process
        self._logs = logs
        self._limits = limits
        self._sink: Text | None = None
        self._flooded = asyncio.Event()
        self._answers: set[asyncio.Task[None]] = set()
        self._waited_s = self._waits_since = 0.0
        self.on_end: list[Callable[[], None]] = []
        self.stop: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Ends what does not end with the process, if the backend has such."""
        self.inner: int | None = None
        """A pidfd of the first process inside, where the backend reports it."""
        asyncio.get_running_loop().add_reader(logs, self._read_logs)

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def ready(self) -> None:
        """Waits for the kernel. Raises SandboxError, with what the backend said, if it does not start."""
        self._sink = sink = Text(_CHUNK_BYTES, lambda text: None)
        try:
            async with asyncio.timeout(self._limits.start_s):
                kind, _ = await self._receive()
        except (TimeoutError, _EndedError) as error:
            await self.kill()
            self._drain()
            reason = sink.end().strip() or ("no answer" if isinstance(error, TimeoutError) else "no output")
            raise SandboxError(reason) from None
        finally:
            self._sink = None
        if kind != "ready":
            await self.kill()
            raise SandboxError("the kernel does not speak the protocol")

    async def run(
        self, code: str, on_output: OnOutput, *, tools: Sequence[str] = (), call_tool: CallTool | None = None
    ) -> CellOutcome:
        if tools and call_tool is not None:
            await self._send("tools", " ".join(tools).encode())
        sink = Text(self._limits.log_bytes, on_output)
        found = _Found(self._limits, self._folder)
        ending = await self._attended(lambda: self._cell(code, found, call_tool), sink, self._limits.cell_s)
        return CellOutcome(
            ending=ending,
            logs=sink.end(),
            images=tuple(found.images),
            files=tuple(found.files),
            notes=found.all_notes(),
        )

    async def _cell(self, code: str, found: "_Found", call_tool: CallTool | None) -> Ending:
        await self._send("cell", code.encode("utf-8", "replace"))
        while True:
            kind, payloads = await self._receive()
            if kind == "done":
                return "completed" if payloads == [b"ok"] else "raised"
            if kind == "call" and len(payloads) == 3 and call_tool is not None:
                answering = asyncio.create_task(self._answer(payloads, call_tool))
                self._waits_since = self._waits_since if self._answers else self._clock()
                self._answers.add(answering)
                answering.add_done_callback(self._answered)
            else:
                found.add(kind, payloads)

    async def command(self, command: str, on_output: OnStreams, *, timeout_s: float | None = None) -> CommandOutcome:
        seconds = min(timeout_s or self._limits.cell_s, self._limits.cell_s)
        out = Text(self._limits.log_bytes, lambda text: on_output(text, ""))
        err = Text(self._limits.log_bytes, lambda text: on_output("", text))
        found = _Found(self._limits, self._folder)
        code: list[int] = []

        async def work() -> Ending:
            await self._send("shell", command.encode("utf-8", "replace"), str(seconds).encode())
            ending: Ending = "completed"
            while True:
                kind, payloads = await self._receive()
                if kind in ("out", "err") and len(payloads) == 1:
                    (out if kind == "out" else err).feed(payloads[0])
                    if out.total + err.total > self._limits.output_bytes:
                        raise _EndedError("output")
                elif kind == "exit":
                    with suppress(ValueError):
                        code.append(int(payloads[0]) if payloads else 0)
                    ending = "timeout" if payloads == [b"timeout"] else "completed"
                    await self._send("deliver")
                elif kind == "done":
                    return ending
                else:
                    found.add(kind, payloads)

        ending = await self._attended(work, Text(0, lambda text: None), seconds + _GRACE_S)
        return CommandOutcome(
            ending=ending,
            stdout=out.end(),
            stderr=err.end(),
            exit_code=code[0] if code else None,
            files=tuple(found.files),
            notes=found.all_notes(),
        )

    async def put(self, files: Sequence[CodeFile]) -> None:
        for file in files:
            try:
                async with asyncio.timeout(self._limits.start_s):
                    await self._send("put", safe_name(file.name, None).encode(), file.data)
                    kind, payloads = await self._receive()
            except (TimeoutError, _EndedError):
                await self.kill()
                raise SandboxError("the container ended while files were put into it") from None
            if kind != "done" or payloads != [b"ok"]:
                reason = payloads[0][:200].decode("utf-8", "replace") if payloads else "no answer"
                raise SandboxError(f"the file {file.name!r} does not fit into the container: {reason}")

    async def kill(self) -> None:
        for answering in list(self._answers):
            answering.cancel()
        if self.is_alive:
            # The backend's process leads a group of its own; what is inside dies with its first process.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._inner_gone()
        stop, self.stop = self.stop, None
        if stop is not None:
            await stop()
        self._close()

    async def _inner_gone(self) -> None:
        """Waits for the first process inside, which ends after everything else inside."""
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
            _log.warning("a process of the container %s does not end", self.id)
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

    async def _attended(self, work: Callable[[], Coroutine[Any, Any, Ending]], sink: Text, seconds: float) -> Ending:
        """Runs the work with its output in the sink; whatever makes it impossible to continue ends the container."""
        self._sink = sink
        self._flooded.clear()
        working = asyncio.ensure_future(work())
        flooded = asyncio.ensure_future(self._flooded.wait())
        ending: Ending = "died"
        is_over = False
        try:
            done = await self._first_done({working, flooded}, seconds)
            if working in done:
                ending = working.result()
                is_over = True
            else:
                ending = "output" if flooded in done else "timeout"
        except _EndedError as ended:
            ending = ended.ending
        finally:
            for task in (working, flooded):
                task.cancel()
            await asyncio.wait({working, flooded})
            if not is_over:
                await asyncio.shield(self.kill())
            else:
                self._drain()
            self._sink = None
        return ending

    async def _first_done(self, tasks: "set[asyncio.Future[Any]]", seconds: float) -> "set[asyncio.Future[Any]]":
        """The tasks that are done first; none after some seconds. The clock stops while code waits for a tool."""
        began = self._clock()
        self._waited_s = 0.0
        done: set[asyncio.Future[Any]] = set()
        while not done and (left := began + seconds + self._waited() - self._clock()) > 0:
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return done

    def _waited(self) -> float:
        return self._waited_s + (self._clock() - self._waits_since if self._answers else 0.0)

    def _clock(self) -> float:
        return asyncio.get_running_loop().time()

    def _answered(self, answering: "asyncio.Task[None]") -> None:
        self._waited_s = self._waited()
        self._waits_since = self._clock()
        self._answers.discard(answering)

    async def _answer(self, payloads: list[bytes], call_tool: CallTool) -> None:
        number, name, arguments = payloads
        try:
            given = jsontext.loads(arguments)
        except ValueError:
            given = None
        answer = await call_tool(name.decode("utf-8", "replace"), given)
        with suppress(_EndedError):
            await self._send("answer", number, msgspec.json.encode(answer))

    async def _send(self, kind: str, *payloads: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        header = " ".join([kind, *(str(len(payload)) for payload in payloads)])
        pipe.write(b"".join([header.encode(), b"\n", *payloads]))
        try:
            await pipe.drain()
        except OSError:
            raise _EndedError("died") from None

    async def _receive(self) -> tuple[str, list[bytes]]:
        """The next frame. Raises _EndedError at the end of the pipe, and for what no kernel sends."""
        pipe = self._process.stdout
        assert pipe is not None
        try:
            header = (await pipe.readline()).decode("ascii")
            if not header.endswith("\n") or len(header) > _MAX_HEADER_BYTES:
                raise _EndedError("died")
            kind, *sizes = header.split()
            lengths = [int(size) for size in sizes]
            if len(lengths) > _MAX_PAYLOADS or not all(
                0 <= length <= self._limits.file_bytes + 1 for length in lengths
            ):
                raise _EndedError("died")
            return kind, [await pipe.readexactly(length) for length in lengths]
        except (ValueError, OSError, asyncio.IncompleteReadError):
            raise _EndedError("died") from None

    def _read_logs(self) -> None:
        """Some output has come. None is read between two calls, so that nobody is busy with what nobody reads."""
        try:
            data = os.read(self._logs, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._logs)
        elif self._sink is not None:
            self._sink.feed(data)
            if self._sink.total > self._limits.output_bytes:
                self._flooded.set()

    def _drain(self) -> None:
        """Reads what is in the pipe: everything that was printed before the frame that was received last."""
        with suppress(OSError):
            while self._logs >= 0 and (data := os.read(self._logs, _CHUNK_BYTES)):
                if self._sink is None or self._sink.total > self._limits.output_bytes:
                    break
                self._sink.feed(data)


class _Found:
    """Deliverables as they arrive, within the limits."""

    def __init__(self, limits: SandboxLimits, folder: str) -> None:
        self.images: list[bytes] = []
        self.files: list[CodeFile] = []
        self._limits = limits
        self._folder = folder
        self._notes: list[str] = []
        self._skipped = 0

    def add(self, kind: str, payloads: list[bytes]) -> None:
        is_full = len(self.images) + len(self.files) >= self._limits.files
        match kind, payloads:
            case "image", [data] if data.startswith(b"\x89PNG") and not is_full:
                self.images.append(data)
            case "file", [name, data] if len(data) <= self._limits.file_bytes and not is_full:
                path = name[:_MAX_NAME_BYTES].decode("utf-8", "replace")
                self.files.append(CodeFile(safe_name(path, None), data, f"{self._folder}/{path}"))
            case "skipped", [name, size] if len(self._notes) < 8:
                shown = safe_name(name[:_MAX_NAME_BYTES].decode("utf-8", "replace"), None)
                self._notes.append(f"{shown} ({size[:20].decode('ascii', 'replace')} bytes) was not delivered")
            case (("image" | "file" | "skipped"), _):
                self._skipped += 1
            case _:
                raise _EndedError("died")

    def all_notes(self) -> tuple[str, ...]:
        more = (f"{self._skipped} more files were not delivered",) if self._skipped else ()
        return (*self._notes, *more)
