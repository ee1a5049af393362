"""Containers in which code runs on this machine, and what a sandbox of your own must be.

`port` has the protocols, `choice` picks a sandbox, `containers` keeps what runs. Then one module per sandbox:
`bubblewrap` (with `runtime`, `seccomp`, `staging`, `workspace`, `cgroup`), `runsc`, `computation` (Monty), `bare`
(none). `worker` owns the processes, `inside/` is what runs in them. Imports no provider.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
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

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "limits": "SandboxLimits",
        "portable.sandbox.bare": "UnisolatedWarning",
        "portable.sandbox.choice": "use_sandbox",
        "portable.sandbox.port": (
            "CellOutcome CodeFile CommandOutcome Container ContainerSpec Sandbox SandboxError ToolAnswer"
        ),
        "portable.sandbox.workspace": "RootWorkspaceWarning",
    },
)
