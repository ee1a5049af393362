"""What a sandbox is: starts containers, in which code runs and keeps its variables until the container ends.

Implement `Sandbox` and `Container` to run code elsewhere, e.g. at a vendor of virtual machines, and pass it to
`use_sandbox`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from sidestream.errors import SidestreamError
from sidestream.limits import DEFAULT_SANDBOX_LIMITS, SandboxLimits
from sidestream.stream.parts import Json

FOLDER = "/mnt/data"
"""The working folder inside: where files are put and where written files are found, as in hosted containers."""

Ending = Literal["completed", "raised", "timeout", "output", "memory", "flood", "died"]
"""How code ended. After the last five the container is gone, with its variables and files."""

ENDED: Mapping[Ending, str] = {
    "timeout": "the code ran longer than {cell_s:g} s and was stopped",
    "output": "the code printed more than {output_mib} MiB and was stopped",
    "memory": "the code used more than the {memory_mib} MiB of memory of its container and was stopped",
    "flood": "the code made more tool calls at once, or with larger arguments, than a program may, and was stopped",
    "died": "the code ended its own container",
}
"""Why a container is gone, for the model."""


class SandboxError(SidestreamError):
    """No container could be started; the message says why, and how to get one."""


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """What a container is to be."""

    limits: SandboxLimits = DEFAULT_SANDBOX_LIMITS
    packages: Sequence[str] | None = None
    """Installed distributions that code may import, with what they require; None: the usual ones for data."""
    workspace: str | None = None
    """A folder of the user's that is the working folder and can be written; None: an empty one."""
    allow_root: bool = False
    """Whether commands may run as root on a workspace of root's, if root starts the container."""


class CodeFile(Struct, frozen=True):
    """A file in the working folder; `name` has no folders."""

    name: str
    data: bytes
    path: str = ""
    """Where it is in the container."""


class CellOutcome(Struct, frozen=True, kw_only=True):
    """What a cell gave."""

    ending: Ending
    logs: str = ""
    """What it printed, its traceback and the value of its last expression; cut if it was too long."""
    images: tuple[bytes, ...] = ()
    """Figures as PNG."""
    files: tuple[CodeFile, ...] = ()
    """What it wrote into the working folder."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """What a shell command gave."""

    ending: Ending
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    """None if it was stopped."""
    files: tuple[CodeFile, ...] = ()
    notes: tuple[str, ...] = ()


class ToolAnswer(Struct, frozen=True):
    """What a tool returned to code that called it."""

    result: Json
    is_error: bool = False


OnOutput = Callable[[str], None]
OnStreams = Callable[[str, str], None]
CallTool = Callable[[str, Json], Awaitable[ToolAnswer]]


class Container(Protocol):
    """A running container. One call at a time; `kill` at any time."""

    @property
    def id(self) -> str:
        """Its id; nobody can guess it."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once it has ended, for whatever reason."""
        ...

    async def run(
        self, code: str, on_output: OnOutput, *, tools: Sequence[str] = (), call_tool: CallTool | None = None
    ) -> CellOutcome:
        """Runs Python code, with its output passed on while it runs.

        `tools` are names of async functions that the code may call; `call_tool` answers them.
        """
        ...

    async def command(self, command: str, on_output: OnStreams, *, timeout_s: float | None = None) -> CommandOutcome:
        """Runs a shell command in the working folder. At `timeout_s` the command ends, not the container."""
        ...

    async def put(self, files: Sequence[CodeFile]) -> None:
        """Writes files into the working folder. Raises SandboxError if one does not fit."""
        ...

    async def kill(self) -> None:
        """Ends it with everything in it. Returns when it is gone; safe to call twice."""
        ...


class Sandbox(Protocol):
    """Starts containers."""

    @property
    def name(self) -> str:
        """As in `CodeInterpreter(sandbox=…)`."""
        ...

    async def start(self, spec: ContainerSpec) -> Container:
        """A new container. Raises SandboxError."""
        ...
