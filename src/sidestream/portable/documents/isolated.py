"""Client of the document parser process, see `child`. One template serves all event loops of this process."""

import asyncio
import atexit
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec

from sidestream.errors import DocumentError, MissingExtraError
from sidestream.limits import MAX_PARSED_DOCUMENTS, MIB
from sidestream.portable.documents.child import ANSWER, FAILED, LATE, LENGTHS, ORDER_BYTES, Parsed, ParseRequest
from sidestream.portable.documents.document import LIBRARIES, Document, DocumentLimits

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "win32"
IDLE_S = 60.0
"""Seconds for which the template is kept after the last document. It takes some 30 MB."""
START_S = 30.0
"""Seconds that the process may take to start, besides the time for the document. A machine under load needs several."""
STOP_S = 3.0
"""Seconds that the template may take to end its processes and itself before it is killed."""
_OVERHEAD_BYTES = 32 * MIB
"""Maximum bytes of an answer besides the text, such as a page's links."""
_PROGRAM = (
    "import json, socket, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from sidestream.portable.documents import child; "
    "child.serve(socket.socket(fileno=int(sys.argv[2]))) if len(sys.argv) > 2 else child.serve_once()"
)
_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


async def read_isolated(
    kind: str, data: bytes, limits: DocumentLimits, *, charset: str | None = None, url: str | None = None
) -> Document:
    """Parse a document in another process.

    When this returns or raises, the process has ended or is being killed.
    """
    if not all(importlib.util.find_spec(library) for library in LIBRARIES.get(kind, ())):
        raise MissingExtraError("fetch", f"Reading {kind}")
    request = msgspec.msgpack.encode(
        ParseRequest(kind=_encodable(kind), charset=_encodable(charset or ""), url=_encodable(url or ""), limits=limits)
    )
    sent = LENGTHS.pack(len(request), len(data)) + request + data
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_PARSED_DOCUMENTS))
    async with slots:
        try:
            async with asyncio.timeout(limits.timeout_s + START_S):
                answer = await (_forked if CAN_FORK else _started)(kind, sent, limits)
        except TimeoutError:
            stop()
            answer = LATE
        except OSError as error:
            raise DocumentError(f"no process can be started to read it: {error.strerror}", "process") from error
    if isinstance(answer, int):
        raise _failure(answer, limits)
    try:
        return _document(msgspec.msgpack.decode(answer, type=Parsed))
    except msgspec.MsgspecError as error:
        raise _failure(FAILED, limits) from error


def _encodable(text: str) -> str:
    """Replace lone surrogates, which headers and URLs may hold."""
    return text.encode("utf-8", "replace").decode()


def _document(answer: Parsed) -> Document:
    if answer.document is None:
        raise DocumentError(answer.error, answer.reason)
    return answer.document


def _failure(status: int, limits: DocumentLimits) -> DocumentError:
    if status == LATE:
        return DocumentError(f"it takes too long to read: more than {limits.timeout_s:g} s", "timeout")
    if status == -getattr(signal, "SIGXCPU", 0):
        return DocumentError(f"it takes too long to read: more than {limits.cpu_s} s of CPU time", "timeout")
    if status == -getattr(signal, "SIGKILL", 0):
        return DocumentError("it needs too much memory to be read", "memory")
    return DocumentError(
        "its content ends the process that reads it: it is damaged, or needs too much memory", "damaged"
    )


async def _forked(kind: str, sent: bytes, limits: DocumentLimits) -> bytes | int:
    """Have the template start the process. Closing the connection, also by cancellation, kills it."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            _order(json.dumps({"kind": kind[:200], "timeout_s": limits.timeout_s}), theirs)
        with suppress(BrokenPipeError, ConnectionResetError):  # It has already ended, and reports how.
            await loop.sock_sendall(ours, sent)
        try:
            return await _answer(lambda size: loop.sock_recv(ours, size), limits)
        except ConnectionResetError:
            return FAILED
        finally:
            _expire(loop)


async def _started(kind: str, sent: bytes, limits: DocumentLimits) -> bytes | int:
    """Start a process for one document, where forking is not possible."""
    process = await asyncio.create_subprocess_exec(
        *_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limits.timeout_s):
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(sent)
                await process.stdin.drain()
            answer = await _answer(process.stdout.read, limits)
            return await process.wait() or FAILED if answer == FAILED else answer
    except TimeoutError:
        return LATE
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.communicate())


async def _answer(receive: Callable[[int], Awaitable[bytes]], limits: DocumentLimits) -> bytes | int:
    """Return the answer of a process, or a number that says how it ended without one."""
    received = bytearray()
    wanted = ANSWER.size
    most = limits.max_chars * 4 + _OVERHEAD_BYTES
    while len(received) < wanted:
        piece = await receive(1 << 18)
        if not piece:
            return FAILED
        received += piece
        if len(received) >= ANSWER.size and wanted == ANSWER.size:
            (length,) = ANSWER.unpack_from(received)
            if not 0 <= length <= most:
                return length if length < 0 else FAILED
            wanted += length
    return bytes(memoryview(received)[ANSWER.size : wanted])


class _Template:
    """The process from which the parser processes are forked. It exits when its owner closes the socket or exits."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.used = time.monotonic()
        self.timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self.control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_command(), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C must end the caller only, which then closes the socket.
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether it is running and was started by this process, since a fork must not share it."""
        return os.getpid() == self._owner and self._process.poll() is None

    def stop(self) -> None:
        """Stop it and the processes that it has started."""
        self.control.close()
        if os.getpid() != self._owner:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
            return
        self._process.kill()
        self._process.wait()


_lock = threading.Lock()
_shared: list[_Template] = []
"""Holds the template while it is running."""


def _order(order: str, connection: socket.socket) -> None:
    """Pass a connection to the template, starting the template if necessary."""
    with _lock:
        for template in [template for template in _shared if not template.is_usable]:
            _shared.remove(template)
            template.stop()
        if not _shared:
            _shared.append(_Template())
        _shared[0].used = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):  # It has just exited, which closes the connection.
            socket.send_fds(_shared[0].control, [order.encode().ljust(ORDER_BYTES)], [connection.fileno()])


def _expire(loop: asyncio.AbstractEventLoop) -> None:
    """Schedule the template to stop, unless it is used again."""
    with _lock:
        for template in _shared:
            if template.timer is not None and template.timer[0] is loop:
                template.timer[1].cancel()
            template.timer = loop, loop.call_later(IDLE_S, stop, IDLE_S)


def stop(idle_s: float = 0.0) -> None:
    """Stop the template unless it was used in the last `idle_s` seconds. The next document starts another one."""
    with _lock:
        for template in [template for template in _shared if time.monotonic() - template.used >= idle_s]:
            _shared.remove(template)
            template.stop()


atexit.register(stop)


def kept_descriptors() -> set[int]:
    """Return the descriptors that lead to the template, which are not leaks since it is kept for the next document."""
    return {template.control.fileno() for template in _shared}


def _command() -> list[str]:
    # The last entry finds this package if a hook imports it, as with some editable installs.
    path = [*(os.path.abspath(entry) for entry in sys.path), str(Path(__file__).resolve().parents[3])]
    return [sys.executable, "-P", "-c", _PROGRAM, json.dumps(path)]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")}
