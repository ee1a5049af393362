"""Where each server-side tool runs for a model: at its provider, here, or by another model."""

import os
from collections.abc import Collection

from sidestream.errors import UnsupportedError
from sidestream.portable.here import DELEGATION, MODULES, NOT_HERE
from sidestream.tools.server_side import TOOLS, RemoteMCP, ServerSideTool, WebSearch

HOSTED, HERE, BY = "hosted", "here", "by "
"""The words for it; the last one is followed by the name of a model."""


def place_of(kind: type[ServerSideTool], hosted: Collection[type[ServerSideTool]]) -> str:
    """`hosted`, `here` or `by` another model; else why the tool runs nowhere."""
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
    """What must be set up before the tool runs here with its default settings; None if nothing."""
    if kind is not WebSearch:
        return None
    from sidestream.portable.search.engines import VARIABLE

    return None if os.environ.get(VARIABLE) else f"set {VARIABLE} to a search engine, e.g. searxng:URL or brave"


def is_there(place: str) -> bool:
    """True if the tool runs somewhere."""
    return place in (HOSTED, HERE) or place.startswith(BY)


def places(hosted: Collection[type[ServerSideTool]]) -> dict[str, str]:
    """Key of each portable tool → where it runs for a model whose provider hosts these."""
    return {key: place_of(kind, hosted) for key, kind in sorted(TOOLS.items())}
