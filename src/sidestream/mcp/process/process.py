"""The child process of a local server: what it inherits, what it prints on stderr, and how it ends.

The end is a ladder with bounded steps: its input is closed, its process tree gets SIGTERM, then SIGKILL.
"""

import asyncio
import os
import shutil
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from sidestream.mcp.process.process_tree import ProcessTree, ServerProtocol, start_tree
from sidestream.text.redaction import redact

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
_CHUNK_BYTES = 64 * 1024


def child_environment(allowed: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the allow-list, the names that were allowed besides, and what was given."""
    names = (*INHERITED, *allowed)
    # A value that begins so is a function exported by an old shell: code, not data.
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
        """Starts the command in a session of its own. Raises OSError."""
        _check_folder(cwd)
        return cls(*await start_tree(_program(command, env), args, env=env, cwd=cwd))

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
            if not await self._is_gone(_INPUT_CLOSED_S):
                self._tree.terminate()
                await self._is_gone(_TERMINATED_S)
        finally:
            self.kill()
            try:
                await self._is_gone(_KILLED_S)  # even a killed process takes its time to release memory
            finally:
                self._reading.cancel()
                self._tree.close()
                with suppress(PermissionError):  # a child with another user's rights
                    self._transport.close()

    def kill(self) -> None:
        """Ends the tree at once, if that has not been done; from any thread, and without its event loop."""
        self._last_resort()

    async def _is_gone(self, within_s: float) -> bool:
        """Whether the tree ends in time."""
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
        raise NotADirectoryError(f"there is no folder {cwd!r}")


def _program(command: str, env: Mapping[str, str]) -> str:
    """The command as found on the child's PATH, which on Windows also knows `npx.cmd` and the like."""
    if os.path.dirname(command):
        return command
    found = shutil.which(command, path=env.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"no program {command!r} on the PATH")
    return found


def _kill_tree(tree: ProcessTree, owner: int) -> None:
    # A forked copy of us must not end what is not its own.
    if os.getpid() == owner:
        tree.kill()
