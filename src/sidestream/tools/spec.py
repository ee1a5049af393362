"""A client tool as a model sees it."""

from typing import Any

from msgspec import Struct


class ToolSpec(Struct, frozen=True):
    """A client tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False
    defer_loading: bool = False
    """Whether the model sees the tool only after finding it with its own tool search."""
