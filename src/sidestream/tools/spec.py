"""A client tool as a model sees it."""

from typing import Any, Literal

from msgspec import Struct

Retrieve = Literal["auto", "first", "called"]
"""`first` searches for the user's message before the model is asked, `called` when the model calls the tool. `auto`
means `first` for a model that cannot be trusted to call, if it has no other tool, else `called`."""


class ToolSpec(Struct, frozen=True):
    """A client tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False
    defer_loading: bool = False
    """Whether the model sees the tool only after finding it with its own tool search."""
    retrieve: Retrieve | None = None
    """When a search takes place. None means that the tool is not a search of the user's files."""
