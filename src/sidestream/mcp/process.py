"""The child process of a local server: what it inherits, what it prints on stderr, and how it ends.

The end is a ladder with bounded steps: its input is closed, its process tree gets SIGTERM, then SIGKILL. The tree is
the child's process group, and on Linux also whatever has left the group but still carries the child's mark.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import weakref
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from sidestream.redaction import redact

# fmt: off
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)
# fmt: on
"""The variables that a server gets from us: enough to find programs and folders, nothing that opens a door."""

STDERR_BYTES = 4096
"""How much of the end of stderr is kept for error messages."""

_INPUT_CLOSED_S = 1.5
_TERMINATED_S = 1.5
_KILLED_S = 1.0
"""The steps of the ladder: 4 seconds in all."""
_POLL_S = 0.02
_CHUNK_BYTES = 64 * 1024
_ON_WINDOWS = sys.platform == "win32"


def child_environment(allowed: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the allow-list, the names that were allowed besides, and what was given."""
    names = (*INHERITED, *allowed)
    # A value that begins so is a function exported by an old shell: code, not data.
    return {name: os.environ[name] for name in names if not os.environ.get(name, "()").startswith("()")} | dict(given)


class _Protocol(SubprocessStreamProtocol):
    """Says when the process is over. `Process.wait` would also wait for whoever else holds its pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_CHUNK_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ServerProcess:
    """A running child with its three pipes."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol, mark: str) -> None:
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
        self._tree = _Tree(self.pid, mark.encode())
        # Also runs when Python exits.
        self._last_resort = weakref.finalize(self, _kill_tree, self._tree, os.getpid())

    @classmethod
    async def start(cls, command: str, args: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None) -> Self:
        """Starts the command in a session of its own. Raises OSError."""
        _check_folder(cwd)
        mark = f"SIDESTREAM_MCP_{secrets.token_hex(8)}"
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            _program(command, env),
            *args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**env, mark: "1"},
            cwd=cwd,
            start_new_session=True,
        )
        return cls(transport, protocol, mark)

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode()

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr, without secrets."""
        return redact(self._tail.decode("utf-8", "replace"))[-STDERR_BYTES:].strip()

    async def stop(self) -> None:
        """Climbs the ladder until nothing is left, in at most 4 seconds.

        If it is cancelled, it kills the tree at once, and still waits until the tree is gone.
        """
        try:
            self.stdin.close()
            if not await self._exits(_INPUT_CLOSED_S) or self._tree.members():
                self._tree.signal(signal.SIGTERM)
                await self._is_gone(_TERMINATED_S)
        finally:
            self.kill()
            try:
                await self._is_gone(_KILLED_S, again=_KILL)  # even a killed process takes its time to release memory
            finally:
                self._reading.cancel()
                with suppress(PermissionError):  # a child with another user's rights
                    self._transport.close()

    def kill(self) -> None:
        """Ends the tree at once, if that has not been done; from any thread, and without its event loop."""
        self._last_resort()

    async def _exits(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.exited.wait()
        return self.exited.is_set()

    async def _is_gone(self, within_s: float, *, again: int | None = None) -> bool:
        """Whether the tree ends in time. What is left gets the signal `again`: it may be younger than the last one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.exited.wait()
                while self._tree.members():  # nothing reports the end of another's child
                    if again is not None:
                        self._tree.signal(again)
                    await asyncio.sleep(_POLL_S)
                return True
        return False

    async def _read_stderr(self) -> None:
        while chunk := await self._stderr.read(_CHUNK_BYTES):
            self._tail += chunk
            del self._tail[: -2 * STDERR_BYTES]
            await asyncio.sleep(0)  # a flood must leave room for others


_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def _check_folder(cwd: str | None) -> None:
    if cwd is not None and not os.path.isdir(cwd):
        raise NotADirectoryError(f"there is no folder {cwd!r}")


def _program(command: str, env: Mapping[str, str]) -> str:
    """The command as found on the child's PATH, which on Windows also knows `npx.cmd` and the like."""
    if os.path.dirname(command):
        return command
    found = shutil.which(command, path=env.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"no program {command!r} on the PATH")
    return found


class _Tree:
    """The processes of a child: its group and, where /proc shows them, those that carry its mark."""

    def __init__(self, group: int, mark: bytes) -> None:
        self._group = group
        self._mark = mark
        self._known: set[tuple[int, bytes]] = set()
        """Pid and start time of every member seen: one that is being killed loses its mark before it is gone."""

    def signal(self, number: int) -> None:
        for member in self.members():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member, number)
        if not _ON_WINDOWS:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)

    def members(self) -> list[int]:
        """The live processes. Those that only wait to be reaped do not count."""
        if _ON_WINDOWS or not os.path.isdir("/proc/self"):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._group, 0) if _ON_WINDOWS else os.killpg(self._group, 0)
                return [self._group]
            return []
        found: list[int] = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    if self._has(int(name)):
                        found.append(int(name))
        return found

    def _has(self, pid: int) -> bool:
        """Raises OSError where the process has ended."""
        # proc_pid_stat(5): after the name come the state, the parent, the group and, 17 fields on, the start time.
        status = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split(None, 20)
        identity = (pid, status[19])
        is_ours = (
            int(status[2]) == self._group
            or identity in self._known
            or self._mark in Path(f"/proc/{pid}/environ").read_bytes()
        )
        if is_ours:
            self._known.add(identity)
        return is_ours and status[0] not in (b"Z", b"X")


def _kill_tree(tree: _Tree, owner: int) -> None:
    # A forked copy of us must not end what is not its own.
    if os.getpid() == owner:
        tree.signal(_KILL)
