"""Sandboxes for code on this machine, and the protocols for your own.

`port` has the protocols, `choice` selects a sandbox, `containers` keeps running containers. Then one module per
sandbox: `bubblewrap` (with `runtime`, `seccomp`, `staging`, `workspace`, `cgroup`), `runsc`, `computation` (Monty),
`bare` (none). `worker` owns the processes, and `inside/` is the code that runs in them. Imports no provider.
"""

from sidestream.lazy import lazy_names

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
