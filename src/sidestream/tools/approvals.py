"""Approval policies, pending approvals, decisions, and the forms that decisions fill in.

A policy is a fixed decision (`ask`, `ask-each`, `run` or `deny`), or a function of the call and its origin. A user's
decision is bound to the run, the call, the tool and a digest of the arguments; it is valid for that call only, and only
once. An approval may also be remembered for further calls to the tool in the conversation (`tools/grants.py`).
"""

import os
import sys
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.actions.values import SafetyCheck
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.jsontext import JsonObject, as_list, as_object, is_array
from sidestream.tools.grants import Grant, grant_of

Verdict = Literal["ask", "ask-each", "run", "deny"]
"""Policy decision. `ask-each` is `ask`, but ignores approvals remembered from earlier calls."""
Ruling = Verdict | Literal["granted"]
"""Outcome of a policy: its decision, or `granted` where the policy says `ask` and a remembered approval covers the
call."""
ASKING: frozenset[Ruling] = frozenset({"ask", "ask-each"})
"""Decisions that make a call wait for the user."""


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that is about to be made, as a policy sees it."""

    call_id: str
    tool: str
    input: Any
    server_label: str | None = None
    """Label of the MCP server that would run it. None means a function."""
    sources: tuple[str, ...] = ()
    """Untrusted sources that the conversation had read before the model requested the call."""
    is_remote: bool = False
    """Whether the provider would run it."""
    pin: str | None = None
    """Digest of the tool's definition, if known."""
    deps: Any = None
    """`deps` of the call, set only in the question that a policy receives. Never stored."""
    safety_checks: tuple[SafetyCheck, ...] = ()
    """Reasons why the provider wants the user to look first. No policy lets such a call run unasked."""
    is_external: bool = False
    """Whether the call is executed externally. It then waits for its result, and no policy applies."""
    grant: str | None = None
    """Id of the remembered approval that covers the tool, if any."""

    @property
    def is_granted(self) -> bool:
        """Whether a remembered approval covers the call, so that it runs where the policy says `ask`."""
        return self.grant is not None

    @property
    def provenance(self) -> str:
        """The call's origin and its pending safety checks, as a sentence for the user."""
        return "; ".join([self._origin, *(f"safety check: {_words(check)}" for check in self.safety_checks)])

    @property
    def _origin(self) -> str:
        if not self.sources:
            return "requested by the model"
        # URLs are more informative than tool names, so they come first.
        first, *others = sorted(self.sources, key=lambda source: "://" not in source)
        return f"requested after reading {first}" + (f" and {len(others)} more" if others else "")


Policy = Verdict | Callable[[Question], bool | Verdict | Awaitable[bool | Verdict]]
"""Decision for every call, or a function that returns one for each. True means `ask`, False means `run`."""

REQUIRED_APPROVAL: dict[str, Verdict] = {"always": "ask", "never": "run"}
"""Value of `require_approval` in the providers' APIs → policy."""


class ApprovalError(SidestreamError):
    """A decision does not match a pending call.

    Its arguments or run differ, it was used before, or no call is pending.
    """


class ExternalOutput(Struct, frozen=True):
    """JSON result of a call that was executed externally."""

    value: Any
    is_error: bool = False


class PendingApproval(Struct, frozen=True, kw_only=True):
    """A call that waits for the user's decision or, if it is executed externally, for its result.

    ```python
    for call in result.approvals:
        print(call.tool, call.input)
    decisions = [call.deny("Ask me again tomorrow.") for call in result.approvals]
    result = await agent.resume(result.run_state, decisions)
    ```
    """

    approval_id: str
    run_id: str
    call_id: str
    tool: str
    input: Any
    digest: str
    provenance: str
    server_label: str | None = None
    is_remote: bool = False
    pin: str | None = None
    safety_checks: tuple[SafetyCheck, ...] = ()
    """Safety checks that an approval acknowledges to the provider."""
    is_external: bool = False
    """Whether this is a call to an `ExternalTool`. Give its result with `answer`."""
    form: JsonObject | None = None
    """Information that the tool's server requests: `{"message", "schema"}`, or `{"message", "url"}` for a page to
    visit."""
    can_remember: bool = False
    """Whether `approve(remember="conversation")` may cover further calls to the tool."""

    def approve(
        self, answers: JsonObject | None = None, *, remember: Literal["conversation"] | None = None
    ) -> "Decision":
        """Approve the call with exactly these arguments.

        `answers` fill in the call's form; fields that have defaults may be left out. With `remember="conversation"`,
        later calls to the same tool in the conversation run where the policy says `ask`. Raises ApprovalError if the
        call is executed externally, or if `remember` is set and the approval cannot be remembered.
        """
        if self.is_external:
            raise ApprovalError(f"the call to {self.tool} waits for its result: use answer(output) or deny()")
        if remember not in (None, "conversation"):
            raise ApprovalError(f"remember must be 'conversation' or None, not {remember!r}")
        if remember is not None and not self.can_remember:
            raise ApprovalError(f"the approval of {self.tool} cannot be remembered: each call needs a decision")
        decision = self._decision(is_approved=True, answers=answers)
        return (
            decision if remember is None else msgspec.structs.replace(decision, grant=grant_of(self.approval_id, self))
        )

    def deny(self, reason: str | None = None) -> "Decision":
        """Deny the call and give the model the reason.

        A form is declined instead, and its server decides how to continue.
        """
        return msgspec.structs.replace(self._decision(is_approved=False), reason=reason)

    def answer(self, output: Any, is_error: bool = False) -> "Decision":
        """Give the result of a call that was executed externally.

        `output` is text, JSON, or a list of strings and files. Raises ApprovalError if the call runs locally, and
        TypeError if the value has no JSON form.
        """
        if not self.is_external:
            raise ApprovalError(f"the call to {self.tool} runs locally: use approve() or deny()")
        from sidestream.tools.results import json_value

        value = ExternalOutput(json_value(output, sys.maxsize), is_error)
        return msgspec.structs.replace(self._decision(is_approved=True), output=value)

    def _decision(self, *, is_approved: bool, answers: JsonObject | None = None) -> "Decision":
        return Decision(
            approval_id=self.approval_id,
            run_id=self.run_id,
            call_id=self.call_id,
            tool=self.tool,
            digest=self.digest,
            is_approved=is_approved,
            answers=answers,
        )


class Decision(Struct, frozen=True, kw_only=True):
    """The user's answer to one pending approval, created by its `approve()`, `deny()` or `answer()`."""

    approval_id: str
    run_id: str
    call_id: str
    tool: str
    digest: str
    is_approved: bool
    reason: str | None = None
    output: ExternalOutput | None = None
    """Result of a call that was executed externally."""
    answers: JsonObject | None = None
    """Values of the approval's form."""
    grant: Grant | None = None
    """Remembered approval that this decision creates."""

    @property
    def key(self) -> tuple[str, str]:
        """The key under which a used decision is recorded, since each counts once."""
        return self.run_id, self.approval_id


class Suspended(Struct, frozen=True):
    """State of a call that paused because its tool waits for the user, or for work done outside this process."""

    state: str
    """Position at which it paused, in the tool's own format."""
    approvals: tuple[PendingApproval, ...] = ()
    decisions: tuple[Decision, ...] = ()


def digest_of(tool: str, arguments: Any, form: JsonObject | None = None) -> str:
    """Return a digest of a call and its form, independent of how the arguments are written."""
    import hashlib

    parts = [tool, arguments] if form is None else [tool, arguments, form]
    return hashlib.sha256(jsontext.canonical(parts)).hexdigest()


APPROVAL_TOOL: Final = "sidestream_approval"
"""Name of the tool through which APIs without approvals ask their client. A call to it is not the model's."""


class ApprovalCall(Struct, frozen=True):
    """A question to a client, as a call to `APPROVAL_TOOL`."""

    id: str
    input: JsonObject


def new_approval_id() -> str:
    """Return a new random approval id."""
    return f"approval_{os.urandom(16).hex()}"


def pending(question: Question, run_id: str, approval_id: str, verdict: Ruling = "ask-each") -> PendingApproval:
    """Convert a question to a pending approval.

    Only an approval that the decision `ask` requires can be remembered.
    """
    return PendingApproval(
        approval_id=approval_id,
        run_id=run_id,
        call_id=question.call_id,
        tool=question.tool,
        input=question.input,
        digest=digest_of(question.tool, question.input),
        provenance=question.provenance,
        server_label=question.server_label,
        is_remote=question.is_remote,
        pin=question.pin,
        safety_checks=question.safety_checks,
        is_external=question.is_external,
        can_remember=verdict == "ask",
    )


def has_kind_of(decision: Decision, entry: PendingApproval) -> bool:
    """Return whether the decision brings a result exactly when the approved call is executed externally."""
    return (decision.output is not None) == (entry.is_external and decision.is_approved)


def has_own_grant(decision: Decision, entry: PendingApproval) -> bool:
    """Return whether the decision's grant, if any, is for the tool of a call whose approval can be remembered."""
    if decision.grant is None:
        return True
    may_grant = entry.can_remember and decision.is_approved
    return may_grant and decision.grant == grant_of(entry.approval_id, entry)


def match_decisions(waiting: Iterable[PendingApproval], decisions: Iterable[Decision]) -> dict[str, Decision]:
    """Map each approval id to its decision.

    Raises ApprovalError if a decision matches no pending call, or if a pending call has no decision.
    """
    open_ones = {entry.approval_id: entry for entry in waiting}
    found: dict[str, Decision] = {}
    for decision in decisions:
        entry = open_ones.pop(decision.approval_id, None)
        if entry is None:
            raise ApprovalError(
                f"the decision {decision.approval_id} matches no pending call; it may have been used already"
            )
        bound = (decision.run_id, decision.call_id, decision.tool, decision.digest)
        if bound != (entry.run_id, entry.call_id, entry.tool, entry.digest):
            raise ApprovalError(f"the decision {decision.approval_id} was made for another call to {entry.tool}")
        if not has_kind_of(decision, entry):
            needed = "its result: use answer(output)" if entry.is_external else "an approval: use approve()"
            raise ApprovalError(f"the call to {entry.tool} waits for {needed} or deny()")
        if not has_own_grant(decision, entry):
            raise ApprovalError(f"the decision {decision.approval_id} cannot be remembered for {entry.tool}")
        if digest_of(entry.tool, entry.input, entry.form) != entry.digest:
            raise ApprovalError(f"the arguments of {entry.tool} differ from the approved ones")
        if entry.form is not None or decision.answers is not None:
            _check_answers(entry, decision)
        found[decision.approval_id] = decision
    if open_ones:
        names = ", ".join(f"{entry.tool} ({entry.approval_id})" for entry in open_ones.values())
        raise ApprovalError(f"missing decisions for: {names}")
    return found


def _check_answers(entry: PendingApproval, decision: Decision) -> None:

    problem = problem_with(entry.form, decision.answers) if decision.is_approved else None
    if problem is not None:
        raise ApprovalError(f"invalid answers to {entry.server_label or entry.tool}: {problem}")


def check_policy(policy: object) -> None:
    """Raise ConfigurationError if the policy is invalid. None means no policy and is accepted."""
    if policy is not None and policy not in get_args(Verdict) and not callable(policy):
        raise ConfigurationError(f"approval must be 'ask', 'ask-each', 'run', 'deny' or a function, not {policy!r}")


_VERDICTS: Final = get_args(Verdict)


async def judge(question: Question, policy: Policy, *, is_sensitive: bool = False) -> Ruling:
    """Apply the policy to a call.

    `ask` becomes `granted` if a remembered approval covers the call. A sensitive tool never runs unasked once the
    conversation has read an untrusted source.
    """
    verdict: bool | Ruling
    if callable(policy):
        answer = policy(question)
        verdict = await answer if isinstance(answer, Awaitable) else answer
    else:
        verdict = policy
    if isinstance(verdict, bool):
        verdict = "ask" if verdict else "run"
    if verdict not in _VERDICTS:
        # An unknown decision must never let the call run unasked.
        verdict = "ask"
    if verdict == "ask" and question.is_granted:
        verdict = "granted"
    return "ask-each" if verdict != "deny" and is_sensitive and question.sources else verdict


def unless_checked(verdict: Ruling, question: Question) -> Ruling:
    """Return the policy's decision, or `ask-each` if safety checks are pending.

    Only the user can acknowledge a safety check.
    """
    return "ask-each" if verdict != "deny" and question.safety_checks else verdict


def _words(check: SafetyCheck) -> str:
    return check.message or check.code or check.id


_spent: dict[tuple[str, str], None] = {}
_MAX_SPENT = 10_000


def already_used(decision: Decision) -> ApprovalError:
    """Return the error for a decision that was used before."""
    return ApprovalError(f"the decision {decision.approval_id} on {decision.tool} has been used already")


def check_unspent(decisions: Iterable[Decision], spent: Container[tuple[str, str]] = ()) -> None:
    """Raise ApprovalError if a decision was used before.

    It counts as used if this process has used it, or if its key is in `spent`.
    """
    for decision in decisions:
        if decision.key in _spent or decision.key in spent:
            raise already_used(decision)


def spend(decisions: Iterable[Decision]) -> None:
    """Mark decisions as used when they take effect.

    Raises ApprovalError if one was used before in this process.
    """
    made = list(decisions)
    check_unspent(made)
    for decision in made:
        _spent[decision.key] = None
    while len(_spent) > _MAX_SPENT:
        _spent.pop(next(iter(_spent)))


def defaults(schema: JsonObject | None) -> JsonObject:
    """Return the default values of a form's fields."""
    fields = as_object((schema or {}).get("properties")).items()
    return {name: as_object(field)["default"] for name, field in fields if "default" in as_object(field)}


def problem_with(form: JsonObject | None, answers: JsonObject | None) -> str | None:
    """Return the reason why the answers do not fit the form, or None if they fit. The reason contains no values."""
    schema = as_object((form or {}).get("schema"))
    if not schema:
        return "there is no form to fill in" if answers else None
    fields = as_object(schema.get("properties"))
    values = defaults(schema) | (answers or {})
    if unknown := [name for name in values if name not in fields]:
        return f"the form has no field {', '.join(unknown)}"
    if missing := [str(name) for name in as_list(schema.get("required")) if name not in values]:
        return f"the form needs {', '.join(missing)}"
    wrong = [name for name in answers or {} if not _fits(as_object(fields[name]), values[name])]
    return f"the form does not accept the value of {', '.join(wrong)}" if wrong else None


def _fits(field: JsonObject, value: Any) -> bool:
    from sidestream.output.json_schema import TYPES

    kind = field.get("type")
    if isinstance(kind, str) and kind in TYPES and not TYPES[kind](value):
        return False
    entries = value if is_array(value) else [value]
    if any(entry is not None and not isinstance(entry, str | int | float) for entry in entries):
        return False
    allowed = choices(field)
    return not allowed or all(entry in allowed for entry in entries)


def choices(field: JsonObject) -> list[Any]:
    """Return the values that a field accepts. An empty list means all values of its type."""
    options = as_object(field.get("items")) if field.get("type") == "array" else field
    titled = as_list(options.get("oneOf")) or as_list(options.get("anyOf"))
    return as_list(options.get("enum")) or [as_object(option).get("const") for option in titled]
