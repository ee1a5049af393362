"""Placement of each server-side tool for a model: at its provider, locally, or by another model."""

import os
from collections.abc import Collection

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


def missing_here(kind: type[ServerSideTool]) -> str | None:
    """Return what must be set up before the tool runs locally with default settings, or None."""
    if kind is not WebSearch:
        return None
    from sidestream.portable.search.engines import VARIABLE

    return None if os.environ.get(VARIABLE) else f"set {VARIABLE} to a search engine, e.g. searxng:URL or brave"


def is_there(place: str) -> bool:
    """Return whether the placement means that the tool can run."""
    return place in (HOSTED, HERE) or place.startswith(BY)


def places(hosted: Collection[type[ServerSideTool]]) -> dict[str, str]:
    """Map each portable tool's key to its placement for a model whose provider hosts these tools."""
    return {key: place_of(kind, hosted) for key, kind in sorted(TOOLS.items())}
