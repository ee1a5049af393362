"""Decisions on pending approvals: they fit what the server holds, in time, or are refused with status 403 and a record.

Nothing that a client says of a call counts, besides the decision itself: the arguments are those in the log.
"""

import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Literal

from msgspec import Struct

from sidestream.durable.log.approval_deadlines import asked_at
from sidestream.jsontext import JsonObject
from sidestream.protocols.ai_sdk.tools import AGAIN
from sidestream.server.errors import RequestError
from sidestream.store.records import Row
from sidestream.tools.approvals import ApprovalError, Decision, PendingApproval

MAX_REFUSALS = 100
"""Refusals that the log of a conversation keeps: somebody who sends them for ever must not fill the disk."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a client answers to one call that waits: a decision, or the result of a call that it has executed."""

    approval_id: str | None = None
    approved: bool = True
    digest: str | None = None
    """Of the arguments that the person saw."""
    reason: str | None = None
    values: JsonObject | None = None
    """What fills in the form of the approval."""
    remember: Literal["conversation"] | None = None
    """How far an approval goes beyond this call."""
    call_id: str | None = None
    """The call that the client has executed, in place of the approval's id."""
    output: Any = None
    is_error: bool = False


class RefusedDecisionError(RequestError):
    """A decision that is refused. `approval_id` names what it was made on."""

    def __init__(self, approval_id: str, message: str, *, param: str = "approvalId", code: str) -> None:
        super().__init__(403, message, type="permission_error", param=param, code=code)
        self.approval_id = approval_id


class PendingCalls:
    """Calls that wait for a client, by the ids that the client knows; `id_of` is how an API shows an approval's id."""

    def __init__(
        self, waiting: Iterable[PendingApproval], id_of: Callable[[str], str] = lambda approval_id: approval_id
    ) -> None:
        self._approvals = {id_of(entry.approval_id): entry for entry in waiting}
        self._results = {entry.call_id: entry for entry in self._approvals.values() if entry.is_external}

    @property
    def ids(self) -> Set[str]:
        """The ids of the approvals, as clients know them."""
        return self._approvals.keys()

    def find(self, answer: Answer) -> PendingApproval | None:
        """Return the call that an answer is for; None if it does not wait."""
        if answer.approval_id is not None:
            return self._approvals.get(answer.approval_id)
        shown = answer.call_id or ""
        # A model may use an id again in a later step, which clients then know by a longer one.
        call, again, _ = shown.rpartition(AGAIN)
        return self._results.get(shown) or (self._results.get(call) if again else None)


def decisions_on(
    waiting: Iterable[PendingApproval], answers: Sequence[Answer], *, needs_digest: bool = True
) -> list[Decision]:
    """The decisions that the answers make on pending approvals. Raises RequestError.

    Answers to calls that do not wait are ignored, as a client that sends its whole history has some. If none fits, they
    are refused.
    """
    calls = PendingCalls(waiting)
    made: dict[str, Decision] = {}
    for answer in answers:
        if (entry := calls.find(answer)) is not None:
            made[entry.approval_id] = decision_on(entry, answer, needs_digest=needs_digest)
    if not made:
        named = next((answer.approval_id for answer in answers if answer.approval_id is not None), "")
        reason = "this call does not wait for a decision; it may have been decided already"
        raise RefusedDecisionError(named, reason, code="nothing_waits")
    if missing := calls.ids - made.keys():
        names = ", ".join(sorted(missing))
        raise RequestError(
            409,
            f"decide on all pending calls together; missing: {names}",
            type="conflict",
            param="decisions",
            code="undecided",
        )
    return list(made.values())


def decision_on(entry: PendingApproval, answer: Answer, *, needs_digest: bool) -> Decision:
    """Return the decision that an answer makes. Raises RefusedDecisionError if it does not fit the call."""
    try:
        if answer.approval_id is None:
            return entry.answer(answer.output, answer.is_error)
        if (answer.digest is None and needs_digest) or answer.digest not in (None, entry.digest):
            message = "the arguments are not those that were shown"
            raise RefusedDecisionError(entry.approval_id, message, param="digest", code="approval_refused")
        if not answer.approved:
            return entry.deny(answer.reason)
        return entry.approve(answer.values, remember=answer.remember)
    except ApprovalError as error:
        raise RefusedDecisionError(entry.approval_id, str(error), code="approval_refused") from None


def check_in_time(
    rows: Iterable[Row], decisions: Iterable[Decision], approval_s: float, now: Callable[[], float] = time.time
) -> None:
    """Raises RefusedDecisionError for an approval that comes too late. It is never too late to deny."""
    asked = asked_at(rows)
    for decision in decisions:
        if not decision.is_approved or decision.output is not None:
            continue
        if now() > asked.get(decision.approval_id, now()) + approval_s:
            message = f"the approval of {decision.tool} has expired: the call can only be denied now"
            raise RefusedDecisionError(decision.approval_id, message, code="approval_expired")
