"""Launcher of a container's process, with its descriptors and the kernel that runs in it."""

import asyncio
import marshal
import os
import re
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, NamedTuple

from sidestream.limits import SandboxLimits
from sidestream.portable.sandbox.port import FOLDER, SandboxError
from sidestream.portable.sandbox.runtime import KERNEL
from sidestream.portable.sandbox.workspace import User

INSIDE = Path(__file__).parent / "inside"
"""Folder with the code that runs inside a container."""
_PIPE_BYTES = 1 << 20
_INFO_BYTES = 4096


@cache
def kernel_files() -> dict[str, bytes]:
    """Return the kernel's files by name, compiled so that containers need not do it."""
    return {
        "enter.pyc": _compiled("enter.py"),
        "kernel.pyc": _compiled("kernel.py"),
        "sandbox_figures.py": (INSIDE / "sandbox_figures.py").read_bytes(),
    }


def _compiled(name: str) -> bytes:
    code = compile((INSIDE / name).read_text("utf-8"), f"{KERNEL}/{name}", "exec", dont_inherit=True)
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def new_id() -> str:
    """Return a new container id, in OpenAI's format."""
    return f"cntr_{secrets.token_hex(16)}"


def kernel_arguments(limits: SandboxLimits, *, folder: str = FOLDER, bounds_processes: bool = True) -> list[str]:
    """Return the kernel's arguments: its folder, its delivery limits, and the resource limits that it sets itself."""
    resources = {
        "AS": limits.memory_bytes,
        "CPU": limits.cpu_s,
        "NOFILE": limits.open_files,
        "FSIZE": limits.disk_bytes,
        "CORE": 0,
        **({"NPROC": limits.processes} if bounds_processes else {}),
    }
    return [
        folder,
        str(limits.files),
        str(limits.file_bytes),
        *(f"{name}={value}" for name, value in resources.items()),
    ]


class Started(NamedTuple):
    """A process with its pipes."""

    process: Process
    frames: asyncio.StreamReader
    frames_end: asyncio.ReadTransport
    """Our end of the frame pipe. The process can be waited for whether or not the frames have been read."""
    logs: int
    """Our end of the output pipe."""


class Launch:
    """Descriptors that a process gets, and what it reports about itself."""

    def __init__(self) -> None:
        self._theirs: list[int] = []
        self._info: int | None = None

    def give(self, data: bytes) -> str:
        """Return the number of a descriptor from which the process reads the data."""
        descriptor = os.memfd_create("sidestream", os.MFD_CLOEXEC)
        self._theirs.append(descriptor)
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def receive(self) -> str:
        """Return the number of a descriptor to which the process reports its child."""
        self._info, theirs = os.pipe()
        self._theirs.append(theirs)
        return str(theirs)

    async def start(self, arguments: Sequence[str], *, user: User | None = None, **options: Any) -> Started:
        """Start the process, with an empty environment unless `env` is given.

        Raises SandboxError if it cannot be started.
        """
        logs, their_logs = os.pipe()
        os.set_blocking(logs, False)
        ours, their_frames = os.pipe()
        frames = asyncio.StreamReader(limit=_PIPE_BYTES)
        if user is not None:
            options |= {"user": user.uid, "group": user.gid, "extra_groups": []}
        frames_end = None
        try:
            frames_end, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(frames), os.fdopen(ours, "rb", buffering=0)
            )
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=PIPE,
                # Not PIPE: asyncio would wait for the end of the pipe together with the end of the process.
                stdout=their_frames,
                stderr=their_logs,
                env=options.pop("env", {}),
                start_new_session=True,
                pass_fds=self._theirs,
                **options,
            )
        except BaseException as error:
            if frames_end is not None:
                frames_end.close()
            os.close(logs)
            if isinstance(error, OSError):
                raise SandboxError(f"{arguments[0]} could not be started: {error}") from error
            raise
        finally:
            os.close(their_frames)
            os.close(their_logs)
        self._close_theirs()
        return Started(process, frames, frames_end, logs)

    def child_pid(self) -> int | None:
        """Return the host's pid of the first process inside, or None."""
        if self._info is None:
            return None
        found = re.search(rb'"child-pid":\s*(\d+)', os.read(self._info, _INFO_BYTES))
        return int(found[1]) if found else None

    def close(self) -> None:
        self._close_theirs()
        if self._info is not None:
            os.close(self._info)
            self._info = None

    def _close_theirs(self) -> None:
        for descriptor in self._theirs:
            with suppress(OSError):
                os.close(descriptor)
        self._theirs.clear()


@contextmanager
def launch() -> Generator[Launch]:
    """Yield a launch, and close our side of its descriptors afterwards."""
    starting = Launch()
    try:
        yield starting
    finally:
        starting.close()
