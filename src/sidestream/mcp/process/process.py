"""The child process of a local server and its descendants: starting, signalling and stopping them.

Stopping is a ladder with bounded steps: close its input, send SIGTERM to its process tree, then SIGKILL.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import weakref
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self

from sidestream.logs import get_logger
from sidestream.mcp.process import supervisor
from sidestream.text.redaction import redact

_log = get_logger(__name__)
_POLL_S = 0.02


class ServerProtocol(SubprocessStreamProtocol):
    """Reports when the process has exited. `Process.wait` would also wait for others that hold its pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_CHUNK_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ProcessTree(Protocol):
    """A server's processes.

    `terminate` and `kill` never raise, even if all processes have ended, and may be called from any thread.
    """

    def terminate(self) -> None:
        """Send SIGTERM to every process."""
        ...

    def kill(self) -> None:
        """Kill every process."""
        ...

    async def wait_gone(self) -> None:
        """Wait until all descendants have ended. The server itself may not be reaped yet."""
        ...

    def close(self) -> None:
        """Release resources and kill remaining processes."""
        ...


async def start_tree(
    program: str, args: Sequence[str], *, env: Mapping[str, str], cwd: str | None
) -> tuple[asyncio.SubprocessTransport, ServerProtocol, ProcessTree]:
    """Start the program in a separate session, with three pipes.

    The transport's process exits when the server exits, with the same status. Raises OSError if the program cannot be
    started.
    """
    pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
    options: dict[str, Any] = {"env": env, "cwd": cwd, "start_new_session": True, **pipes}
    if _can_supervise():
        started = await _start_supervised(program, args, options)
        if started is not None:
            return started
        _log.info("MCP servers cannot be supervised on this system: processes that leave their group can outlive them")
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
    """Start the program under the supervisor, or return None if the supervisor does not work here.

    Raises OSError if the program cannot be started.
    """
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
        # Closing would not suffice: a fork of this process may hold the socket too.
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
                while True:  # no event reports the end of a group
                    os.killpg(self._leader, 0)
                    await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        self.kill()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._leader, number) if sys.platform == "win32" else os.killpg(self._leader, number)


# fmt: off
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)
# fmt: on
"""Variables that a server inherits: enough to find programs and folders, but no credentials."""

STDERR_BYTES = 4096
"""Bytes of the end of stderr that are kept for error messages."""

_INPUT_CLOSED_S = 1.5
_TERMINATED_S = 1.5
_KILLED_S = 1.0
"""Seconds per step of the ladder, 4 in all."""
_CHUNK_BYTES = 64 * 1024


def child_environment(allowed: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: the inherited variables, the additionally allowed names, and the given values."""
    names = (*INHERITED, *allowed)
    # A value starting with `()` is a function exported by an old shell: code, not data.
    return {name: os.environ[name] for name in names if not os.environ.get(name, "()").startswith("()")} | dict(given)


class ServerProcess:
    """A running child with its three pipes."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: ServerProtocol, tree: ProcessTree) -> None:
        assert protocol.stdin is not None
        assert protocol.stdout is not None
        assert protocol.stderr is not None
        self.pid = transport.get_pid()
        self.stdin = protocol.stdin
        self.stdout = protocol.stdout
        self.exited = protocol.exited
        self._transport = transport
        self._stderr = protocol.stderr
        self._tail = bytearray()
        self._reading = asyncio.create_task(self._read_stderr(), name=f"mcp-stderr-{self.pid}")
        self._tree = tree
        # Also runs when Python exits.
        self._last_resort = weakref.finalize(self, _kill_tree, self._tree, os.getpid())

    @classmethod
    async def start(cls, command: str, args: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None) -> Self:
        """Start the command in a separate session.

        Raises OSError if it cannot be started.
        """
        _check_folder(cwd)
        return cls(*await start_tree(_program(command, env), args, env=env, cwd=cwd))

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode()

    @property
    def stderr(self) -> str:
        """End of its stderr, without secrets."""
        return redact(self._tail.decode("utf-8", "replace"))[-STDERR_BYTES:].strip()

    async def stop(self) -> None:
        """Stop the process tree with the ladder, in at most 4 seconds.

        If cancelled, it kills the tree at once, and still waits until the tree has ended.
        """
        try:
            self.stdin.close()
            if not await self._is_gone(_INPUT_CLOSED_S):
                self._tree.terminate()
                await self._is_gone(_TERMINATED_S)
        finally:
            self.kill()
            try:
                await self._is_gone(_KILLED_S)  # a killed process takes time to release memory
            finally:
                self._reading.cancel()
                self._tree.close()
                with suppress(PermissionError):  # the child runs as another user
                    self._transport.close()

    def kill(self) -> None:
        """Kill the tree at once, unless already done. Callable from any thread, and without its event loop."""
        self._last_resort()

    async def _is_gone(self, within_s: float) -> bool:
        """Return whether the tree ends in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.exited.wait()
                await self._tree.wait_gone()
                return True
        return False

    async def _read_stderr(self) -> None:
        while chunk := await self._stderr.read(_CHUNK_BYTES):
            self._tail += chunk
            del self._tail[: -2 * STDERR_BYTES]
            await asyncio.sleep(0)  # a flood must not starve other tasks


def _check_folder(cwd: str | None) -> None:
    if cwd is not None and not os.path.isdir(cwd):
        raise NotADirectoryError(f"folder {cwd!r} does not exist")


def _program(command: str, env: Mapping[str, str]) -> str:
    """Find the command on the child's PATH.

    On Windows this also finds `npx.cmd` and the like.
    """
    if os.path.dirname(command):
        return command
    found = shutil.which(command, path=env.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"{command!r} not found on PATH")
    return found


def _kill_tree(tree: ProcessTree, owner: int) -> None:
    # A forked copy of this process must not kill its parent's servers.
    if os.getpid() == owner:
        tree.kill()
