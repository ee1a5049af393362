"""Histories with thousands of one thing: checking, repairing, resuming and encoding them grows with their size."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from hostile.streams import HOSTILE, Hostile, calls_in, wire
from requirements import requirement
from sidestream import ChatMessage, limits
from sidestream.messages import repair_history, validate_history
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ToolCallPart, ToolResultPart
from sidestream.parts import Finish, StepFinish, StepStart, ToolApprovalRequest, Usage
from sidestream.providers.google.decode import state as google_state
from sidestream.providers.protocol import ModelRequest
from sidestream.store.log.fold import OpenTurn
from sidestream.store.records import ApprovalAsked, ApprovalDecided, Segment
from sidestream.tools.approvals import Question, Verdict, pending
from sidestream.turn import rounds
from sidestream.turn.machine import Turn
from sidestream.turn.state import Judge
from support.followups import UNSTORED, model_of, step_end

FEW, TIMES = 60, 4
LINEAR = 1.4 * TIMES
FOLDERS = {
    "responses": "openai-responses",
    "anthropic": "anthropic",
    "google": "google",
    "interactions": "google-interactions",
    "chat": "openai-chat",
}
"""First word of a hostile stream's name → the folder of its API."""


def answer(case: Hostile, folder: str, n: int) -> tuple[ChatMessage, ...]:
    """A conversation with one hostile answer, which is replayed rather than held by a server."""
    model: Any = model_of(folder)
    decoder: Any = case.decoder()
    context = decoder._state.context
    facts = {"model": model.name.removeprefix("interactions/"), "base_url": model.base_url, "store": False}
    decoder = type(decoder)(replace(context, **{key: value for key, value in facts.items() if hasattr(context, key)}))
    parts = [part for event in case.events(n) for part in decoder.feed(wire(event))] + decoder.close()
    fold = MessageFold()
    messages = [message for part in parts for message in fold.feed(step_end(part))]
    return (ChatMessage.user("Why?"), *messages, ChatMessage.user("And then?"))


@requirement("F15")
@pytest.mark.parametrize("name", HOSTILE)
def test_reencoding_hostile_answer_is_linear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1_000_000)
    monkeypatch.setattr(google_state, "MAX_SEARCHED", 10_000)
    own = FOLDERS[name.partition(":")[0]]
    few, many = (answer(HOSTILE[name], own, n) for n in (FEW, FEW * TIMES))
    for folder in FOLDERS.values():
        model = model_of(folder)
        options = UNSTORED.get(folder)

        def encode(messages: tuple[ChatMessage, ...], model: Any = model, options: Any = options) -> int:
            return calls_in(lambda: model.encode(ModelRequest(messages=messages, options=options)))

        encode(few)  # Imports count once.
        assert encode(many) / encode(few) < LINEAR, folder


def called(ids: list[str]) -> ChatMessage:
    return ChatMessage("model", tuple(ToolCallPart(call_id, "look", {}) for call_id in ids))


def answered(ids: list[str]) -> ChatMessage:
    return ChatMessage("tool", tuple(ToolResultPart(call_id, "look", "ok") for call_id in ids))


def histories(n: int) -> dict[str, list[ChatMessage]]:
    one, own = ["a"] * n, [f"c{number}" for number in range(n)]
    return {
        "calls with one id": [called(one), answered(one)],
        "calls with one id in messages of their own": [called(["a"])] * n + [answered(one)],
        "results in the wrong order": [called(own), answered(own[::-1])],
        "results in messages of their own": [called(own), *(answered([call_id]) for call_id in own)],
        "results that are missing": [called(own), ChatMessage.user("So?")],
        "results without calls": [ChatMessage.user("So?"), answered(own)],
    }


@requirement("F15")
@pytest.mark.parametrize("name", histories(1))
def test_checking_and_repairing_history_is_linear(name: str) -> None:
    few, many = histories(FEW)[name], histories(FEW * TIMES)[name]
    for work in (validate_history, repair_history):
        work(few)
        assert calls_in(lambda work=work: work(many)) / calls_in(lambda work=work: work(few)) < LINEAR
    assert not [
        problem for problem in validate_history(repair_history(many, answer_last=True)) if problem.is_repairable
    ]


def approving(n: int, decide: Verdict) -> int:
    """The calls that it takes to judge, decide and rebuild a round of `n` requests of the provider."""
    requests = [ToolApprovalRequest(f"r{number}", f"c{number}", "ask", {}, "web") for number in range(n)]
    ids = itertools.count()

    def work() -> None:
        turn = Turn([ChatMessage.user("hi")])
        turn.sending((), ())
        turn.opened()
        turn.received([*requests, Finish("approval", Usage())])
        assert isinstance(turn.command, Judge)
        verdicts: dict[str, Verdict] = {question.call_id: decide for question in turn.command.questions}
        turn.judged(verdicts, lambda: f"a{next(ids)}")
        if decide == "ask":
            assert len(turn.state.waiting) == n
            turn.resumed([entry.approve() for entry in turn.state.waiting])
        assert not turn.state.waiting
        assert not turn.state.requests

    return calls_in(work)


@requirement("F15")
@pytest.mark.parametrize("verdict", ["ask", "run", "deny"])
def test_deciding_thousands_of_approval_requests_is_linear(verdict: Verdict) -> None:
    approving(FEW, verdict)
    assert approving(FEW * TIMES, verdict) / approving(FEW, verdict) < LINEAR


def rebuilding(n: int) -> int:
    """The calls that it takes to rebuild a round of `n` requests that were decided."""
    requests = [ToolApprovalRequest(f"r{number}", f"c{number}", "ask", {}, "web") for number in range(n)]
    question = Question(call_id="r", tool="ask", input={}, is_remote=True)
    asked = [replace(pending(question, "run", f"r{number}"), call_id=f"r{number}") for number in range(n)]

    def work() -> None:
        turn = OpenTurn([], ChatMessage.user("hi"))
        turn.segment(Segment("step-start", (StepStart(0),)))
        for place, request in enumerate(requests):
            turn.segment(Segment("tool-approval-request", (request,), place))
        turn.segment(Segment("step-finish", (StepFinish(0, "approval", Usage()),)))
        for approval in asked:
            turn.asked(ApprovalAsked(approval))
        for approval in asked:
            turn.decided(ApprovalDecided(approval.approve()))
        for approval in asked:
            turn.segment(Segment("custom", (rounds.decided(approval.approval_id, is_approved=True),)))
        assert not turn.state.waiting
        assert not turn.state.requests

    return calls_in(work)


@requirement("F15", "R82")
def test_rebuilding_log_with_thousands_of_approvals_is_linear() -> None:
    rebuilding(FEW)
    assert rebuilding(FEW * TIMES) / rebuilding(FEW) < LINEAR
