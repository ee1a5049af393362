"""Placement of each server-side tool for a model: at its provider, locally, or by another model."""

import os
import shutil
import sys
from collections.abc import Collection
from importlib.util import find_spec

from sidestream.errors import UnsupportedError
from sidestream.portable.here import DELEGATION, MODULES, NOT_HERE
from sidestream.tools.server_side import TOOLS, RemoteMCP, ServerSideTool, WebSearch

HOSTED, HERE, BY = "hosted", "here", "by "
"""Values of a placement. The last one is followed by the name of a model."""


def place_of(kind: type[ServerSideTool], hosted: Collection[type[ServerSideTool]]) -> str:
    """Return `hosted`, `here` or `by` another model, else the reason why the tool cannot run."""
    if kind in hosted:
        return HOSTED
    if kind is RemoteMCP:
        return HERE
    module = MODULES.get(kind.key)
    if module is None:
        return NOT_HERE.get(kind.key, "only a provider that hosts it runs it")
    if module != DELEGATION:
        return HERE
    from sidestream.portable.tools.delegation import default_host

    try:
        return f"{BY}{default_host(kind)}"
    except UnsupportedError as error:
        return str(error)


_EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "file_search": ("index", ("apsw", "sqlite_vec")),
    "mcp": ("mcp", ("mcp",)),
    "web_fetch": ("fetch", ("selectolax", "html_to_markdown")),
}
"""Key of a tool → the extra that it needs, and modules of it."""
_IN_SANDBOX = frozenset({"code_interpreter", "programmatic_tool_calling", "shell"})


def missing_here(kind: type[ServerSideTool]) -> str | None:
    """Return what must be set up before the tool runs locally with default settings, or None."""
    if kind is WebSearch:
        from sidestream.portable.search.engines import VARIABLE

        return None if os.environ.get(VARIABLE) else f"set {VARIABLE} to a search engine, e.g. searxng:URL or brave"
    if kind.key in _IN_SANDBOX:
        return _missing_sandbox()
    extra, modules = _EXTRAS.get(kind.key, ("", ()))
    missing = [name for name in modules if find_spec(name) is None]
    return f'pip install "sidestream[{extra}]"' if missing else None


def _missing_sandbox() -> str | None:
    if sys.platform != "linux":
        return 'use a Linux machine or a sandbox of your own; for computation, sandbox="monty"'
    from sidestream.portable.sandbox.bubblewrap import programs

    return None if programs() or shutil.which("runsc") else 'pip install "sidestream[sandbox]"'


def is_there(place: str) -> bool:
    """Return whether the placement means that the tool can run."""
    return place in (HOSTED, HERE) or place.startswith(BY)


def places(hosted: Collection[type[ServerSideTool]]) -> dict[str, str]:
    """Map each portable tool's key to its placement for a model whose provider hosts these tools."""
    return {key: place_of(kind, hosted) for key, kind in sorted(TOOLS.items())}
