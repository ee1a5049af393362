"""Lifecycle events of a local tool that replaces a hosted one."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sidestream.jsontext import Json, JsonObject
from sidestream.parts import Stage, ToolCall

StageEvent = tuple[Stage, str, JsonObject]
"""Stage of a lifecycle event, its name in the event's API, and the event itself."""


class CallStages(Protocol):
    """Produces the lifecycle events of one call, in the format of the hosted tool's events. Pure."""

    @property
    def places(self) -> int:
        """Number of output items that the call occupies in its step."""
        ...

    def begun(self) -> list[StageEvent]:
        """Return the events for the start of the input."""
        ...

    def delta(self, text: str) -> list[StageEvent]:
        """Return the events for a fragment of the input's JSON."""
        ...

    def called(self, call: ToolCall) -> list[StageEvent]:
        """Return the events for a complete input."""
        ...

    def running(self) -> list[StageEvent]:
        """Return the events for the start of execution."""
        ...

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[StageEvent]:
        """Return the events for a result."""
        ...

    def is_repeated(self, event: JsonObject) -> bool:
        """Return whether an event of the tool's function duplicates one that is emitted here."""
        ...

    def placed(self, event: JsonObject) -> JsonObject:
        """Return an event of the tool's function with the call's ids added."""
        ...


StagesOf = Callable[[str, int], CallStages]
"""Returns the lifecycle events of a call, given its id and its position among the calls of its step."""

Listing = Callable[[str, int], list[StageEvent]]
"""Returns the lifecycle events of a listing of tools, given its id and its position in its step."""


@runtime_checkable
class ReportsListings(Protocol):
    """A toolset that replaces a hosted one, whose listings of tools are reported."""

    key: str
    """Server-side tool under which listings are reported."""

    def take_listing(self) -> Listing | None:
        """Return the last listing that was requested in this event loop, once."""
        ...
