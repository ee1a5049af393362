"""The sandbox protocols: a sandbox starts containers, in which code runs and keeps its variables.

Implement `Sandbox` and `Container` to run code outside this machine, e.g. at a vendor of virtual machines, and pass it
to `use_sandbox`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from sidestream.errors import SidestreamError
from sidestream.limits import DEFAULT_SANDBOX_LIMITS, SandboxLimits
from sidestream.messages.container_files import FOLDER as FOLDER
from sidestream.parts import Json

Ending = Literal["completed", "raised", "timeout", "output", "memory", "flood", "died"]
"""Outcome of a cell or command. After the last five, the container and its variables and files no longer exist."""

ENDED: Mapping[Ending, str] = {
    "timeout": "the code ran longer than {cell_s:g} s and was stopped",
    "output": "the code printed more than {output_mib} MiB and was stopped",
    "memory": "the code used more than the {memory_mib} MiB of memory of its container and was stopped",
    "flood": "the code made more tool calls at once, or with larger arguments, than a program may, and was stopped",
    "died": "the code ended its own container",
}
"""Ending → explanation for the model."""


class SandboxError(SidestreamError):
    """A container could not be started. The message says why, and how to get one."""


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """Settings of a container."""

    limits: SandboxLimits = DEFAULT_SANDBOX_LIMITS
    packages: Sequence[str] | None = None
    """Installed distributions that code may import besides the usual ones for data, with their requirements. An empty
    sequence means none at all."""
    workspace: str | None = None
    """User's folder that becomes the writable working folder. None means an empty one."""
    allow_root: bool = False
    """Whether commands may run as root in a workspace owned by root, if root starts the container."""


class CodeFile(Struct, frozen=True):
    """A file in the working folder. `name` has no folders."""

    name: str
    data: bytes
    path: str = ""
    """Path in the container."""


class CellOutcome(Struct, frozen=True, kw_only=True):
    """Result of a cell."""

    ending: Ending
    logs: str = ""
    """Printed output, traceback, and value of the last expression. Cut if too long."""
    images: tuple[bytes, ...] = ()
    """Figures as PNG."""
    files: tuple[CodeFile, ...] = ()
    """Files written into the working folder."""
    notes: tuple[str, ...] = ()
    """Notes on what was left out, and why."""


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """Result of a shell command."""

    ending: Ending
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    """Exit code. None means that the command was stopped."""
    files: tuple[CodeFile, ...] = ()
    notes: tuple[str, ...] = ()


class ToolAnswer(Struct, frozen=True):
    """Result of a tool, for the code that called it."""

    result: Json
    is_error: bool = False


OnOutput = Callable[[str], None]
OnStreams = Callable[[str, str], None]
CallTool = Callable[[str, Json], Awaitable[ToolAnswer]]


class Container(Protocol):
    """A running container. It takes one call at a time; `kill` works at any time."""

    @property
    def id(self) -> str:
        """Unguessable id."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it is still running."""
        ...

    async def run(
        self, code: str, on_output: OnOutput, *, tools: Sequence[str] = (), call_tool: CallTool | None = None
    ) -> CellOutcome:
        """Run Python code, passing its output on while it runs.

        `tools` are names of async functions that the code may call; `call_tool` answers them.
        """
        ...

    async def command(self, command: str, on_output: OnStreams, *, timeout_s: float | None = None) -> CommandOutcome:
        """Run a shell command in the working folder.

        At `timeout_s` the command ends, not the container.
        """
        ...

    async def put(self, files: Sequence[CodeFile]) -> None:
        """Write files into the working folder.

        Raises SandboxError if one does not fit.
        """
        ...

    async def kill(self) -> None:
        """End it with everything in it, and return once that is done. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """Starts containers."""

    @property
    def name(self) -> str:
        """Name, as in `CodeInterpreter(sandbox=…)`."""
        ...

    async def start(self, spec: ContainerSpec) -> Container:
        """Start a container.

        Raises SandboxError if that fails.
        """
        ...
