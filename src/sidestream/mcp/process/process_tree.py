"""A server's process and all its descendants: how they start, how they are signalled, and when they are gone.

On Linux a supervisor adopts every descendant (`supervisor.py`). Elsewhere the tree is the server's process group, which
a descendant can leave, and on Windows the server's process alone.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from sidestream.logs import get_logger
from sidestream.mcp.process import supervisor

_log = get_logger(__name__)
_POLL_S = 0.02
_CHUNK_BYTES = 64 * 1024


class ServerProtocol(SubprocessStreamProtocol):
    """Says when the process is over. `Process.wait` would also wait for whoever else holds its pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_CHUNK_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ProcessTree(Protocol):
    """A server's processes. `terminate` and `kill` do not raise, may come from any thread, and when all are gone."""

    def terminate(self) -> None:
        """Sends SIGTERM to every process."""
        ...

    def kill(self) -> None:
        """Kills every process."""
        ...

    async def wait_gone(self) -> None:
        """Waits for the end of all descendants; the server itself may not be reaped yet."""
        ...

    def close(self) -> None:
        """Releases resources; kills what is left."""
        ...


async def start_tree(
    program: str, args: Sequence[str], *, env: Mapping[str, str], cwd: str | None
) -> tuple[asyncio.SubprocessTransport, ServerProtocol, ProcessTree]:
    """Starts the program in a session of its own, with three pipes. Raises OSError.

    The transport's process exits when the server exits, with the same status.
    """
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
    options: dict[str, Any] = {"env": env, "cwd": cwd, "start_new_session": True, **pipes}
    if _can_supervise():
        started = await _start_supervised(program, args, options)
        if started is not None:
            return started
        _log.info("MCP servers cannot be supervised here: a process that leaves their process group can outlive them")
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(ServerProtocol, program, *args, **options)
    return transport, protocol, _ProcessGroup(transport.get_pid())


def _can_supervise() -> bool:
    # The executable of a frozen or embedding program is not Python.
    is_python = os.path.basename(sys.executable or "").startswith(("python", "pypy")) and not hasattr(sys, "frozen")
    return sys.platform == "linux" and is_python and all(map(os.path.isfile, ("/proc/self/stat", supervisor.__file__)))


async def _start_supervised(
    program: str, args: Sequence[str], options: Mapping[str, Any]
) -> tuple[asyncio.SubprocessTransport, ServerProtocol, ProcessTree] | None:
    """None if the supervisor does not work here. Raises OSError if the program cannot be started."""
    loop = asyncio.get_running_loop()
    # UTF-8 mode passes any bytes in arguments through unchanged.
    python = [sys.executable, "-I", "-S", "-X", "utf8", supervisor.__file__]
    control, theirs = socket.socketpair()
    control.setblocking(False)
    tree = _SupervisedTree(control)
    command = [*python, str(theirs.fileno()), str(os.getpid()), program, *args]
    try:
        with theirs:
            transport, protocol = await loop.subprocess_exec(
                ServerProtocol, *command, pass_fds=[theirs.fileno()], **options
            )
    except BaseException as error:
        tree.close()
        if isinstance(error, OSError):
            return None
        raise
    answer = b""
    try:
        answer = await loop.sock_recv(control, 16)
    finally:
        if answer != b"0":
            tree.close()
            transport.close()
            await protocol.exited.wait()
    if not answer:
        return None
    if number := int(answer):
        raise OSError(number, os.strerror(number), program)
    return transport, protocol, tree


class _SupervisedTree:
    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def terminate(self) -> None:
        with suppress(OSError):
            self._control.send(supervisor.TERMINATE)

    def kill(self) -> None:
        # Closing would not do: a fork of this process may hold the socket too.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def wait_gone(self) -> None:
        with suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(self._control, 16):
                pass

    def close(self) -> None:
        self.kill()
        self._control.close()


class _ProcessGroup:
    def __init__(self, leader: int) -> None:
        self._leader = leader

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)

    async def wait_gone(self) -> None:
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                while True:  # nothing reports the end of a group
                    os.killpg(self._leader, 0)
                    await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        self.kill()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._leader, number) if sys.platform == "win32" else os.killpg(self._leader, number)
