"""Deadlines of approvals: until when a turn waits for a person, and what happens then."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from sidestream.store.records import ApprovalAsked, Row, ToolSuspended, unpack
from sidestream.tools.approvals import Decision, PendingApproval

OnExpiry = Literal["deny", "wait", "stop"]
"""What happens to calls that nobody decided on in time: they are denied and the run continues, they wait on, although
they can only be denied then, or the run is stopped."""
NOBODY_DECIDED = "nobody decided in time"


def asked_at(rows: Iterable[Row]) -> Mapping[str, float]:
    """Approval id → when it was requested, in seconds since 1970."""
    found: dict[str, float] = {}
    for row in rows:
        if row.kind in ("approval-asked", "tool-suspended"):
            match unpack(row).body:
                case ApprovalAsked(approval=approval):
                    found[approval.approval_id] = row.time
                case ToolSuspended(suspended=suspended):
                    found |= {entry.approval_id: row.time for entry in suspended.approvals}
                case _:
                    pass
    return found


def expires_at(rows: Iterable[Row], pending: Sequence[PendingApproval], approval_s: float | None) -> float | None:
    """When the last of the pending approvals expires, in seconds since 1970; None if they do not.

    Results of calls that somebody else runs are never late, and all pending calls are decided together: one of those
    among them keeps all waiting.
    """
    if approval_s is None or not pending or any(entry.is_external for entry in pending):
        return None
    asked = asked_at(rows)
    times = [asked[entry.approval_id] for entry in pending if entry.approval_id in asked]
    return max(times) + approval_s if times else None


def denials(pending: Sequence[PendingApproval]) -> list[Decision]:
    """The decisions on calls that nobody decided on in time."""
    return [entry.deny(NOBODY_DECIDED) for entry in pending]
