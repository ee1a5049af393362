"""A turn that is left after any fact continues from its state: the same history, legal streams, no tool run twice unasked."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.parts import (
    Finish,
    Source,
    StepOutcome,
    StreamPart,
    StreamStart,
    ToolApprovalRequest,
    ToolCall,
    ToolResult,
)
from sidestream.providers.protocol import FileRef
from sidestream.tools.approvals import Suspended, Verdict
from sidestream.turn.ledger import UNCERTAIN, resumable
from sidestream.turn.state import AwaitDecision, CallTools, Check, Fetch, Judge, Over, RunState, Send, TurnState
from support.left_runs import plain
from support.turn_drive import (
    PLAIN,
    Drive,
    Facts,
    approval,
    call,
    forwarded,
    remote_request,
    result,
    text,
    used,
    written,
)

TOOLS = {"f": Facts(), "guarded": Facts("docs", "pin_1", True), "agent": Facts()}
VERDICTS: dict[str, Verdict] = {"guarded": "ask", "ask": "ask", "denied": "deny"}
REF = FileRef(id="file_1", name="a.txt")
SEARCH: list[StreamPart] = [
    ToolCall("ws_1", "web_search", "web_search", True, {}),
    ToolResult("ws_1", "web_search", "web_search", {}, False, True),
    Source("s_1", "url", url="https://example.com"),
]
ANSWERS: list[list[StreamPart]] = [
    [*SEARCH, call("a"), call("b", "guarded"), call("x", "unknown"), *remote_request(), Finish("tool-calls", used())],
    [call("c", "agent"), call("d"), call("e", "guarded"), Finish("tool-calls", used())],
    [*text("Let me"), Finish("other", used(), outcome=StepOutcome(is_paused=True))],
    [*text("no"), Finish("stop", used())],
    [*text("{}"), Finish("stop", used())],
]
"""What the model says, by the number of messages that it has written."""


class Player:
    """Carries out the commands of a turn; what it reports depends on nothing but the turn's state."""

    def __init__(self) -> None:
        self.drive = Drive(TOOLS, checks_output=True)
        self.ran: list[str] = []
        """Calls whose tools began to run."""
        self.run_again: list[str] = []
        """Calls that a person approved although they may have run."""

    def facts(self) -> Iterator[None]:
        """Reports one fact after the other until the turn is over; yields after each. All that waits is approved."""
        while not isinstance(self.drive.command, Over):
            if isinstance(self.drive.command, AwaitDecision):
                approvals = RunState(self.drive.state).approvals
                self.run_again += [entry.call_id for entry in approvals if entry.provenance == UNCERTAIN]
                self.drive = self.drive.decided(*(entry.approve() for entry in approvals))
                yield
            else:
                yield from self._carry_out(self.drive)

    def play(self, facts: int | None = None) -> TurnState:
        """Reports this many facts, or all that are left."""
        for _ in islice(self.facts(), facts):
            pass
        return self.drive.state

    def leave(self) -> None:
        """Leaves the turn and continues it in another process."""
        self.drive = self.drive.continued(state=resumable(written(self.drive.state)))
        if not isinstance(self.drive.command, AwaitDecision):
            self.drive.reconsidered()

    def _carry_out(self, drive: Drive) -> Iterator[None]:
        match drive.command:
            case Send():
                drive.sending((), ())
                yield
                drive.opened()
                yield
                for part in ANSWERS[sum(message.role == "model" for message in drive.state.messages)]:
                    drive.received([part], (REF,) if part == Finish("stop", used()) else ())
                    yield
            case Fetch(refs=refs):
                drive.fetched(refs[0], b"text")
                yield
                drive.all_fetched()
                yield
            case Judge(questions=questions):
                drive.judged(**{entry.call_id: VERDICTS.get(entry.tool, "run") for entry in questions})
                yield
            case CallTools(calls=calls):
                for entry in calls:
                    yield from self._run_tool(drive, entry)
            case Check(text=words):
                drive.checked(None if words == "{}" else "wrong")
                yield

    def _run_tool(self, drive: Drive, entry: ToolCall) -> Iterator[None]:
        continues = entry.id in drive.state.suspended
        drive.tool_started(entry.id)
        self.ran += [] if continues else [entry.id]
        yield
        if entry.name == "agent" and not continues:
            drive.tool_reported([forwarded(entry.id, Source("s", "url", url="https://nested.example"), "agent")])
            yield
            drive.tool_suspended(entry.id, Suspended("its state", (approval(f"nested_{len(self.ran)}"),)))
        else:
            drive.tool_done(entry.id, "done", False)
        yield


@requirement("R84", "F32")
@pytest.mark.parametrize("more", [None, 1, 2], ids=lambda more: "once" if more is None else f"again after {more}")
def test_turn_resumed_after_any_transition_reaches_same_end(more):
    whole = Player().play()
    count = sum(1 for _ in Player().facts())
    assert count > 50
    for facts in range(count):
        player = Player()
        player.play(facts)
        player.leave()
        if more is not None and not isinstance(player.play(more).command, Over):
            player.leave()
        end = player.play()
        assert plain(end.messages) == plain(whole.messages)
        assert end.sources == whole.sources
        # A tool runs once, and once more each time that a person allows it, knowing that it may have run.
        assert Counter(player.ran) == Counter("abcde") + Counter(player.run_again)


# The stream that continues


def left(verdict: Verdict = "run", **settings) -> Drive:
    """A turn that was left after the policy had said this, as another process finds it."""
    drive = Drive(PLAIN, **settings)
    drive.calls(call("a"), verdict=verdict)
    return drive.continued(state=resumable(written(drive.state)))


def test_resumed_round_consults_policy_in_new_stream():
    drive = left()
    assert drive.reconsidered() == [StreamStart(())]
    assert isinstance(drive.command, Judge)
    drive.judged("ask")
    assert [type(part) for part in drive.parts] == [StreamStart, ToolApprovalRequest, Finish]
    assert drive.command == AwaitDecision()


def test_resumed_round_asks_same_questions():
    drive = Drive({"page": Facts("docs", "pin_1", True)})
    drive.answer(call("a", "page"), *remote_request(), reason="tool-calls")
    questions = drive.command.questions
    second = drive.continued(state=resumable(written(drive.state)))
    assert second.command.questions != questions
    second.reconsidered()
    assert second.command.questions == questions


def test_approved_call_left_before_running_runs_in_new_stream():
    drive = left("ask")
    decided = drive.decided(drive.approvals["f"].approve())
    second = decided.continued(state=resumable(written(decided.state)))
    assert second.reconsidered() == [StreamStart(())]
    assert second.tool("a") == [result("a")]
    assert second.answer(text("Hi"))[-1] == Finish("stop", used(2))


def test_stream_starting_with_request_has_its_warnings():
    drive = Drive(PLAIN)
    assert drive.reconsidered() == []
    assert drive.sending(("careful",), ()) == [StreamStart(("careful",))]


@pytest.mark.parametrize("checks_output", [True, False])
def test_unchecked_answer_is_not_requested_again_after_resume(checks_output):
    drive = Drive(checks_output=True)
    drive.answer(text("{}"))
    state = resumable(written(drive.state))
    second = Drive(PLAIN, state=state, checks_output=checks_output)
    second.reconsidered()
    if checks_output:
        assert second.command == Check("{}")
        second.checked(None)
    assert second.parts == [StreamStart(()), Finish("stop", used())]
    assert [message.text for message in second.answers] == ["{}"]


# The state as JSON


def test_state_with_lone_surrogate_round_trips():
    drive = Drive(PLAIN)
    drive.answer(*text("\ud83d"), call("a", input={"n": "\ude00"}), reason="tool-calls")
    state = written(drive.state)
    assert state.messages[-1].text == "\ud83d"
    assert state.calls[0].input == {"n": "\ude00"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"turn": {"messages": 3}}', b"\xff", '{"turn": {"messages": []}, "version": 2}']
)
def test_run_state_from_json_rejects_invalid_state(text):
    with pytest.raises(ConfigurationError):
        RunState.from_json(text)


def test_only_waiting_turn_has_approvals():
    drive = Drive(PLAIN)
    drive.calls(call("a"), call("b", "g"), a="ask")
    assert drive.state.waiting
    assert RunState(drive.state).approvals == ()
    entry = approval()
    drive.agent_suspended("b", entry)
    assert RunState(drive.state).approvals == (*drive.state.waiting, entry)
