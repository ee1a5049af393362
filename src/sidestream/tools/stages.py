"""What is emitted for a call of a tool that stands in for a hosted one, besides what its function emits."""

from collections.abc import Callable
from typing import Protocol

from sidestream.jsontext import Json, JsonObject
from sidestream.stream.parts import ToolCall

Stage = tuple[str, JsonObject]
"""The name of a stage, and its event."""


class CallStages(Protocol):
    """The stages of one call, in the form of the hosted tool's events. Pure."""

    @property
    def places(self) -> int:
        """How many items the call has among those of its step."""
        ...

    def begun(self) -> list[Stage]:
        """The model begins to write the input."""
        ...

    def delta(self, text: str) -> list[Stage]:
        """More of the JSON text of the input."""
        ...

    def called(self, call: ToolCall) -> list[Stage]:
        """The input is complete."""
        ...

    def running(self) -> list[Stage]:
        """The tool begins to run."""
        ...

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[Stage]:
        """The tool has given its result."""
        ...

    def is_repeated(self, event: JsonObject) -> bool:
        """True if an event of the tool's function says what was or will be emitted here."""
        ...

    def placed(self, event: JsonObject) -> JsonObject:
        """An event of the tool's function, with the ids of the call."""
        ...


StagesOf = Callable[[str, int], CallStages]
"""Id of a call, and its place among the calls of its step → its stages."""
