"""Approval deadlines, and the decisions made when they pass."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from sidestream.store.records import ApprovalAsked, Row, ToolSuspended, unpack
from sidestream.tools.approvals import Decision, PendingApproval

OnExpiry = Literal["deny", "wait", "stop"]
"""Action for calls whose approval has timed out.

`deny` denies them and continues the run, `wait` keeps waiting although they can only be denied by then, and `stop`
stops the run.
"""
NOBODY_DECIDED = "nobody decided in time"


def asked_at(rows: Iterable[Row]) -> Mapping[str, float]:
    """Return when each approval was requested, in seconds since 1970, by approval id."""
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
    """Return when the last of the pending approvals expires, in seconds since 1970, or None if they do not expire.

    All pending calls are decided together, and the results of external calls are never late. A single external call
    therefore keeps all of them from expiring.
    """
    if approval_s is None or not pending or any(entry.is_external for entry in pending):
        return None
    asked = asked_at(rows)
    times = [asked[entry.approval_id] for entry in pending if entry.approval_id in asked]
    return max(times) + approval_s if times else None


def denials(pending: Sequence[PendingApproval]) -> list[Decision]:
    """Return the decisions that deny calls whose approval has timed out."""
    return [entry.deny(NOBODY_DECIDED) for entry in pending]
