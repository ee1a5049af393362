"""How a turn stands: one name for each status, in code, docs and output."""

from typing import Final, Literal

TurnStatus = Literal["complete", "waiting", "failed", "cancelled", "unfinished"]
"""The status of a conversation's last turn."""

TURN_STATUSES: Final[dict[TurnStatus, str]] = {
    "complete": "it has come to its end",
    "waiting": "a call waits for an approval, or for its result from outside",
    "failed": "it ended with an error",
    "cancelled": "it was stopped before its end",
    "unfinished": "it was interrupted, or still runs in another process",
}
"""Status → what it means."""

MUST_RESUME: Final = frozenset[TurnStatus]({"waiting", "unfinished"})
"""After these, the turn must be resumed or discarded before the next message. A failed or cancelled one is dropped."""

_ENDINGS: dict[str | None, TurnStatus] = {"approval": "waiting", "error": "failed", None: "failed"}


def status_after(reason: str | None) -> TurnStatus:
    """The status of a turn whose run ended with this finish reason; None if it has ended without one."""
    return _ENDINGS.get(reason, "complete")
