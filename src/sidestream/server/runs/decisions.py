"""Checks of decisions on pending approvals. Invalid or late ones are refused with status 403 and recorded.

Only the decision itself is taken from the client; the call's arguments are those in the log.
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
"""Maximum refusals recorded per conversation, so that repeated ones cannot fill the disk."""


class Answer(Struct, frozen=True, kw_only=True):
    """A client's answer to one pending call, either a decision or the result of a call that the client executed."""

    approval_id: str | None = None
    approved: bool = True
    digest: str | None = None
    """Digest of the arguments that the approver saw."""
    reason: str | None = None
    values: JsonObject | None = None
    """Values for the approval's form."""
    remember: Literal["conversation"] | None = None
    """Scope of the approval beyond this call."""
    call_id: str | None = None
    """Id of the call that the client executed, instead of the approval's id."""
    output: Any = None
    is_error: bool = False


class RefusedDecisionError(RequestError):
    """A refused decision. `approval_id` names the approval that it was made on."""

    def __init__(self, approval_id: str, message: str, *, param: str = "approvalId", code: str) -> None:
        super().__init__(403, message, type="permission_error", param=param, code=code)
        self.approval_id = approval_id


class PendingCalls:
    """Pending calls by the ids that the client knows. `id_of` converts an approval id to the API's form."""

    def __init__(
        self, waiting: Iterable[PendingApproval], id_of: Callable[[str], str] = lambda approval_id: approval_id
    ) -> None:
        self._approvals = {id_of(entry.approval_id): entry for entry in waiting}
        self._results = {entry.call_id: entry for entry in self._approvals.values() if entry.is_external}

    @property
    def ids(self) -> Set[str]:
        """The approval ids that clients know."""
        return self._approvals.keys()

    def find(self, answer: Answer) -> PendingApproval | None:
        """Return the call that an answer is for, or None if it is not pending."""
        if answer.approval_id is not None:
            return self._approvals.get(answer.approval_id)
        shown = answer.call_id or ""
        # A model may reuse an id in a later step; clients then know the call by a longer id.
        call, again, _ = shown.rpartition(AGAIN)
        return self._results.get(shown) or (self._results.get(call) if again else None)


def decisions_on(
    waiting: Iterable[PendingApproval], answers: Sequence[Answer], *, needs_digest: bool = True
) -> list[Decision]:
    """Return the decisions that the answers make on pending approvals.

    Ignores answers to calls that are not pending, because a client that sends its whole history has some. Raises
    RequestError if no answer is for a pending call, if a decision is refused, or if a pending call has no decision.
    """
    calls = PendingCalls(waiting)
    made: dict[str, Decision] = {}
    for answer in answers:
        if (entry := calls.find(answer)) is not None:
            made[entry.approval_id] = decision_on(entry, answer, needs_digest=needs_digest)
    if not made:
        named = next((answer.approval_id for answer in answers if answer.approval_id is not None), "")
        reason = "the call is not waiting for a decision; it may have been decided already"
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
            message = "digest is missing or does not match the arguments of the call"
            raise RefusedDecisionError(entry.approval_id, message, param="digest", code="approval_refused")
        if not answer.approved:
            return entry.deny(answer.reason)
        return entry.approve(answer.values, remember=answer.remember)
    except ApprovalError as error:
        raise RefusedDecisionError(entry.approval_id, str(error), code="approval_refused") from None


def check_in_time(
    rows: Iterable[Row], decisions: Iterable[Decision], approval_s: float, now: Callable[[], float] = time.time
) -> None:
    """Raise RefusedDecisionError if an approval comes too late. Denials are accepted at any time."""
    asked = asked_at(rows)
    for decision in decisions:
        if not decision.is_approved or decision.output is not None:
            continue
        if now() > asked.get(decision.approval_id, now()) + approval_s:
            message = f"the approval of {decision.tool} has expired; the call can only be denied now"
            raise RefusedDecisionError(decision.approval_id, message, code="approval_expired")
