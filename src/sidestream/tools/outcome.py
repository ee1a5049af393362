"""What a call of a tool comes to."""

from typing import Self

from msgspec import Struct

from sidestream.stream.parts import Json
from sidestream.tools.approvals import Suspended


class ToolError(Exception):
    """Raise it in a tool to send its message to the model, which sees only the type of other exceptions."""


class ToolOutcome(Struct, frozen=True):
    """The result of a call: a JSON value, or `{"error": type, "message": ...}` with `is_error`.

    `exception` is what the tool raised, for logs and telemetry; it is never sent.
    """

    result: Json
    is_error: bool = False
    exception: BaseException | None = None
    suspended: Suspended | None = None
    """Set if the tool waits for a person; there is no result yet."""
    source: str | None = None
    """An untrusted source that the result comes from, where only the call shows that."""

    @classmethod
    def failure(cls, error: str, message: str | None = None, exception: BaseException | None = None) -> Self:
        """An error result; the message is for the model."""
        result = {"error": error} if message is None else {"error": error, "message": message}
        return cls(result, True, exception)
