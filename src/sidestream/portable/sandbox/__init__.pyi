"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.limits import SandboxLimits as SandboxLimits
from sidestream.portable.sandbox.bare import UnisolatedWarning as UnisolatedWarning
from sidestream.portable.sandbox.choice import use_sandbox as use_sandbox
from sidestream.portable.sandbox.port import (
    CellOutcome as CellOutcome,
    CodeFile as CodeFile,
    CommandOutcome as CommandOutcome,
    Container as Container,
    ContainerSpec as ContainerSpec,
    Sandbox as Sandbox,
    SandboxError as SandboxError,
    ToolAnswer as ToolAnswer,
)
from sidestream.portable.sandbox.workspace import RootWorkspaceWarning as RootWorkspaceWarning
