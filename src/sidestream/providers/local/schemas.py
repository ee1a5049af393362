"""Bounded schemas: a small model may otherwise never end a text or a list. Pure."""

import copy
from typing import Any

from sidestream.output.json_schema import nodes

MAX_TEXT = 200
MAX_ITEMS = 20
_BOUNDS = {"string": ("maxLength", MAX_TEXT), "array": ("maxItems", MAX_ITEMS)}
_FIXED = frozenset({"enum", "const", "pattern", "format"})
"""Keywords that bound a text already."""


def bounded(schema: Any) -> Any:
    """A copy with a maximum length for each text and list that has none."""
    made = copy.deepcopy(schema)
    for node in nodes(made):
        kind = node.get("type")
        if isinstance(kind, str) and kind in _BOUNDS and not _FIXED & node.keys():
            node.setdefault(*_BOUNDS[kind])
    return made
