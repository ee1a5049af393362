"""Choice of a sandbox: the named one, else the first default that works here. Never "none" unless named."""

import sys
from importlib import import_module

from sidestream.errors import ConfigurationError
from sidestream.logs import get_logger
from sidestream.portable.sandbox.port import Container, ContainerSpec, Sandbox, SandboxError

_log = get_logger(__name__)
_BACKENDS = {
    "bubblewrap": ("bubblewrap", "Bubblewrap"),
    "runsc": ("runsc", "Runsc"),
    "monty": ("computation", "Monty"),
    "none": ("bare", "Bare"),
}
"""Name → module and class."""

AUTO = ("bubblewrap", "runsc")
"""Sandboxes that `auto` tries, in this order. Monty supports only a subset of Python, so it must be named."""

_own: dict[str, Sandbox] = {}


def use_sandbox(sandbox: Sandbox) -> None:
    """Register your own sandbox under its name, as in `CodeInterpreter(sandbox="vendor")`."""
    if sandbox.name in (*_BACKENDS, "auto"):
        raise ConfigurationError(f"sandbox name {sandbox.name!r} is reserved: choose another name")
    _own[sandbox.name] = sandbox


def sandbox_named(name: str) -> Sandbox:
    """Return the sandbox with this name.

    Raises ConfigurationError if the name is unknown.
    """
    if name in _own:
        return _own[name]
    if name not in _BACKENDS:
        known = ", ".join(["auto", *_BACKENDS, *_own])
        raise ConfigurationError(f"unknown sandbox {name!r}; known: {known}; add your own with use_sandbox(…)")
    module, kind = _BACKENDS[name]
    made: Sandbox = getattr(import_module(f"sidestream.portable.sandbox.{module}"), kind)()
    return made


async def start(name: str, spec: ContainerSpec) -> Container:
    """Start a container of the named sandbox, or for `auto` of the first that works.

    Raises SandboxError if none can be started.
    """
    if name != "auto":
        return await sandbox_named(name).start(spec)
    if sys.platform != "linux":
        raise SandboxError(
            f"code is isolated here on Linux only, and this is {sys.platform}: for computation, use "
            'CodeInterpreter(sandbox="monty") (pip install "sidestream[monty]"); else a remote sandbox of yours '
            "with use_sandbox(…)"
        )
    refusals: list[str] = []
    for each in AUTO:
        try:
            return await sandbox_named(each).start(spec)
        except SandboxError as error:
            refusals.append(str(error))
    raise SandboxError(
        "no sandbox works on this machine, and code is never run without one. " + ". ".join(refusals) + ". For "
        'computation only: CodeInterpreter(sandbox="monty") with pip install "sidestream[monty]". `sidestream doctor` '
        "checks all of them"
    )
