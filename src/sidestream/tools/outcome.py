"""Outcome of a tool call."""

from typing import Self

from msgspec import Struct

from sidestream.stream.parts import Json
from sidestream.tools.approvals import Suspended


class ToolError(Exception):
    """Raise this in a tool to send its message to the model. Of other exceptions, the model sees only the type."""


class ToolOutcome(Struct, frozen=True):
    """Result of a call: a JSON value, or `{"error": type, "message": ...}` with `is_error`.

    `exception` is what the tool raised, for logs and telemetry. It is never sent.
    """

    result: Json
    is_error: bool = False
    exception: BaseException | None = None
    suspended: Suspended | None = None
    """State of a paused call, which has no result yet."""
    source: str | None = None
    """Untrusted source of the result, if only the call itself shows it."""

    @classmethod
    def failure(cls, error: str, message: str | None = None, exception: BaseException | None = None) -> Self:
        """Create an error result. The message is for the model."""
        result = {"error": error} if message is None else {"error": error, "message": message}
        return cls(result, True, exception)
