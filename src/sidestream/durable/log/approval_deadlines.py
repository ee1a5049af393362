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


def expires_at(
    rows: Iterable[Row], pending: Sequence[PendingApproval], approval_s: float | None, answer_s: float | None
) -> float | None:
    """Return when the last of the pending calls expires, in seconds since 1970, or None if they do not expire.

    A call waits `approval_s` seconds for its approval, or `answer_s` seconds for the result of a client. All pending
    calls are decided together, so one without a limit keeps all of them from expiring.
    """
    limits = {entry.approval_id: answer_s if entry.is_external else approval_s for entry in pending}
    if None in limits.values():
        return None
    asked = asked_at(rows)
    return max((asked[id] + (limit_s or 0.0) for id, limit_s in limits.items() if id in asked), default=None)


def denials(pending: Sequence[PendingApproval]) -> list[Decision]:
    """Return the decisions that deny calls whose approval has timed out."""
    return [entry.deny(NOBODY_DECIDED) for entry in pending]
