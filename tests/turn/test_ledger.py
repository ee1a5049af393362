"""The ledger of a turn: what each fact and each part means for the state, and from where a turn that was left continues."""

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.files.media_types import digest
from sidestream.messages.fold import APPROVAL_DECIDED, OUTPUT_REJECTED, FoldState
from sidestream.messages.message import ChatMessage, TextPart, ToolCallPart, ToolResultPart
from sidestream.messages.provenance import written
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Source,
    StepFinish,
    StepOutcome,
    StepStart,
    ToolApprovalRequest,
    ToolCall,
    ToolResult,
)
from sidestream.stream import grammar
from sidestream.tools.approvals import ExternalOutput, PendingApproval, Question, Suspended, pending
from sidestream.tools.interruption import INTERRUPTED, Attempt, notice
from sidestream.turn import ledger
from sidestream.turn.ledger import HELD, UNCERTAIN, Ledger, delivery, open_calls, resumable
from sidestream.turn.machine import Turn
from sidestream.turn.state import (
    BACKGROUND,
    AwaitDecision,
    Background,
    CallTools,
    Check,
    Judge,
    OpenCall,
    ProgramAnswer,
    Send,
    TurnState,
    copied,
)
from support.left_runs import fields as fields_of
from support.turn_drive import QUESTION, approval, call, remote_request, result, text, used

A, B = call("a"), call("b", "g")
REQUEST = remote_request()[1]
HOSTED = replace(A, provider_executed=True)
ANSWER = ToolResult("a", "f", "f", {}, False, True)
MADE = replace(call("a/1"), provider_metadata={"sidestream": {"caller": {"type": "program", "caller_id": "a"}}})


def state(**fields) -> TurnState:
    return TurnState(run_id="run_1", **{"messages": [QUESTION], **fields})


def asked(entry: ToolCall, **fields) -> PendingApproval:
    """A call of this run that waits for a person."""
    question = Question(call_id=entry.id, tool=entry.name, input=entry.input)
    return replace(pending(question, "run_1", f"approval_{entry.id}"), **fields)


def changed(before: TurnState, after: TurnState) -> dict[str, object]:
    """The fields that differ."""
    return {
        name: getattr(after, name)
        for name in after.__struct_fields__
        if name != "fold" and getattr(after, name) != getattr(before, name)
    }


def after(given: TurnState, *parts) -> dict[str, object]:
    """What these parts change in the state."""
    before = copied(given)
    Ledger(given).feed(list(parts))
    return changed(before, given)


# Parts

IN_STEP = {"step": 0, "is_in_step": True}
PNG = b"\x89PNG\r\n\x1a\n"
PARTS = {
    "a client call": (IN_STEP, A, {"calls": (A,)}),
    "a call of a program": ({"calls": (A,)}, MADE, {}),
    "a result of a program's call": (
        {"calls": (A,)},
        result("a/1", provider_metadata=MADE.provider_metadata),
        {"programs": {"a": {"a/1": ProgramAnswer("done", False)}}},
    ),
    "the result of a program": ({"programs": {"a": {"a/1": ProgramAnswer(1, False)}}}, result("a"), {"programs": {}}),
    "a call of the provider": (IN_STEP, HOSTED, {"hosted": {"a": OpenCall(HOSTED, 0)}}),
    "a result of the provider": ({**IN_STEP, "hosted": {"a": OpenCall(HOSTED, 0)}}, ANSWER, {"hosted": {}}),
    "a late result": (
        {"step": 1, "is_in_step": True, "hosted": {"a": OpenCall(HOSTED, 0)}},
        ANSWER,
        {"hosted": {"a": OpenCall(HOSTED, 0, answered=1)}},
    ),
    "a request of the provider": (IN_STEP, REQUEST, {"requests": (REQUEST,)}),
    "a request of our own": ({}, REQUEST, {}),
    "a file": (
        IN_STEP,
        File("f", "image/png", data=PNG),
        {"digests": {digest(PNG)}, "delivered": {delivery("f", digest(PNG)): 0}},
    ),
    "a link to a file": (IN_STEP, File("f", "image/png", url="https://example.com/f"), {}),
    "a file of a tool between steps": ({}, File("f", "image/png", data=PNG), {}),
    "an address": (IN_STEP, Source("s", "url", url="https://a.example"), {"sources": ("https://a.example",)}),
    "an address that is known": ({"sources": ("u",)}, Source("s", "url", url="u"), {}),
    "a document": (IN_STEP, Source("s", "document", file_id="file_1"), {}),
    "a search": (IN_STEP, ToolResult("w", "search", "web_search", {}, False, True), {"sources": ("web_search",)}),
    "a hosted server": (IN_STEP, ToolResult("w", "ask", "mcp", {}, False, True), {"sources": ("mcp ask",)}),
    "code": (IN_STEP, ToolResult("w", "run", "code_interpreter", {}, False, True), {}),
    "a preview": ({"calls": (A,)}, result("a", preliminary=True), {}),
    "a result of a server in an older log": ({}, result("x", "page", tool="mcp"), {"sources": ("mcp page",)}),
    "marks that are no object": ({}, result("x", "page", tool="mcp", provider_metadata={"sidestream": 1}), {}),
    "a source that is no text": ({}, result("x", provider_metadata={"sidestream": {"source": 1}}), {}),
    "another custom part": (IN_STEP, Custom("openai.compaction", {}), {}),
    "an error": (IN_STEP, Error("provider", "broke"), {}),
    "the end": ({"calls": (A,)}, Finish("limit", used(9)), {}),
    "an answer in the background": (
        IN_STEP,
        Custom(BACKGROUND, {"provider": "p", "id": "r_1", "is_streamed": True, "status": "queued"}),
        {"background": Background("p", "r_1", True)},
    ),
    "a background part that cannot be read": (IN_STEP, Custom(BACKGROUND, {"status": "queued"}), {}),
    "a lost answer in the background": (
        {"background": Background("p", "r_1", True)},
        Custom(BACKGROUND, {"provider": "p", "id": "r_1", "is_streamed": True, "status": "lost"}),
        {"background": None},
    ),
    "a rejected answer": (
        {"ending": Finish("stop", used())},
        Custom(OUTPUT_REJECTED, {"message": "no", "problem": "no"}),
        {"rejected_outputs": 1, "ending": None, "messages": [QUESTION, written("no")]},
    ),
}


@pytest.mark.parametrize(("given", "part", "changes"), PARTS.values(), ids=PARTS.keys())
def test_part_changes_state(given, part, changes):
    assert after(state(**given), part) == changes


def test_result_ends_its_call_and_waiting_entries():
    given = state(calls=(A, B), waiting=(asked(A), asked(B)), suspended={"a": Suspended("s"), "b": Suspended("s")})
    assert after(given, result("a")) == {"calls": (B,), "waiting": (asked(B),), "suspended": {"b": Suspended("s")}}


def test_reported_decision_ends_request_and_wait():
    entry = replace(asked(A), approval_id="mcpr_1", is_remote=True)
    decision = Custom(APPROVAL_DECIDED, {"approval_id": "mcpr_1", "is_approved": True, "reason": None})
    given = state(requests=(REQUEST, replace(REQUEST, approval_id="mcpr_2")), waiting=(asked(B), entry))
    assert after(given, decision) == {"requests": (replace(REQUEST, approval_id="mcpr_2"),), "waiting": (asked(B),)}


def test_step_start_clears_last_round():
    given = state(
        calls=(A,),
        requests=(REQUEST,),
        ending=Finish("stop", used()),
        digests=frozenset({"d"}),
        started=frozenset({"a"}),
        approved=frozenset({"a"}),
        pins={"a": "p"},
        sources=("u",),
    )
    before = state(step=3, is_in_step=True, sources=("u",))
    Ledger(given).feed([StepStart(3)])
    assert changed(before, given) == {}


# Steps and rounds


def ended(given: TurnState, reason="stop", *parts, **outcome):
    """The end of a step that said these parts."""
    kept = Ledger(given)
    kept.feed([StepStart(given.step + 1), *parts])
    return kept.end_step(StepFinish(given.step, reason, used(), outcome=StepOutcome(**outcome)))


def test_step_end_adds_message_and_usage():
    given = state(usage=used(), defers_output=False)
    step = ended(given, "stop", *text("Hi"), raw_reason="end", metadata={"id": 1})
    assert step.messages == [ChatMessage("model", (TextPart("Hi", "t"),))]
    assert not step.is_repeated
    assert given.messages == [QUESTION, *step.messages]
    assert (given.usage, given.is_in_step, given.step) == (used(2), False, 0)
    assert given.ending is not None
    assert (given.ending.reason, given.ending.raw_reason, given.ending.metadata) == ("stop", "end", {"id": 1})


def test_message_of_failed_step_is_returned_but_not_stored():
    given = state()
    step = ended(given, "error", *text("Hi"), A, REQUEST)
    assert step.messages == [ChatMessage("model", (TextPart("Hi", "t"), ToolCallPart("a", "f", {"n": "a"})))]
    assert given.messages == [QUESTION]
    assert (given.calls, given.requests, given.tool_calls_made) == ((), (), 0)
    assert given.usage == used()


@pytest.mark.parametrize(("reason", "made"), [("tool-calls", 5), ("approval", 5), ("length", 3), ("limit", 3)])
def test_only_calls_to_be_answered_are_counted(reason, made):
    given = state(tool_calls_made=3)
    ended(given, reason, A, B)
    assert given.tool_calls_made == made


AFTER_TOOLS = [QUESTION, ChatMessage("tool", (ToolResultPart("a", "f", "done"),))]


@pytest.mark.parametrize(
    ("fields", "said", "reason", "outcome", "is_repeated"),
    [
        ({}, [], "stop", {}, False),
        ({"messages": AFTER_TOOLS}, [], "stop", {}, True),
        ({"messages": AFTER_TOOLS}, [], "length", {}, False),
        ({"messages": AFTER_TOOLS, "empty_answers": 1}, [], "stop", {}, False),
        ({"messages": AFTER_TOOLS}, text("Hi"), "stop", {}, False),
        ({}, text("Hi"), "other", {"is_paused": True}, True),
        ({"defers_output": True}, text("Hi"), "stop", {}, True),
        ({"defers_output": True}, text("Hi"), "length", {}, False),
    ],
)
def test_step_is_repeated_for_listed_outcomes(fields, said, reason, outcome, is_repeated):
    given = state(**{**fields, "messages": list(fields.get("messages", [QUESTION]))})
    assert ended(given, reason, *said, **outcome).is_repeated is is_repeated
    assert not given.defers_output


def test_step_repeated_for_other_reason_keeps_its_tools():
    given = state(messages=list(AFTER_TOOLS), defers_output=True)
    ended(given)
    assert given.without == frozenset()


@pytest.mark.parametrize(("limit", "is_known"), [(None, False), (("max_background_s", 1.0), True)])
def test_background_answer_is_kept_only_if_limit_ended_step(limit, is_known):
    given = state(background=Background("p", "r_1", True), limit=limit)
    ended(given)
    assert (given.background is not None) is is_known


def test_step_without_outcome_ends():
    given = state()
    kept = Ledger(given)
    kept.feed([StepStart(0), *text("Hi")])
    step = kept.end_step(StepFinish(0, "stop", used()))
    assert given.messages == [QUESTION, *step.messages]
    assert not step.is_repeated


def test_round_end_orders_results_by_call_and_clears_decisions():
    given = state(pins={"a": "p"}, approved=frozenset({"a"}), started=frozenset({"a"}))
    kept = Ledger(given)
    ended(given, "tool-calls", A, B)
    kept = Ledger(given)
    kept.feed([result("b", "g"), result("a")])
    (message,) = kept.end_round()
    assert [part.id for part in message.parts] == ["a", "b"]
    assert given.messages[-1] is message
    assert (given.ending, given.pins, given.approved, given.started) == (None, {}, frozenset(), frozenset())
    assert kept.end_round() == []


# Facts


def test_prepare_sets_omissions_and_deferred_output():
    given = state(without=frozenset({"session"}))
    ledger.prepare(given, frozenset({"tools"}), defers_output=True)
    assert (given.without, given.defers_output) == ({"tools"}, True)


def test_asking_about_call_revokes_approval_and_closes_request():
    given = state(
        calls=(A, B),
        pins={"a": "p", "b": "q"},
        approved=frozenset({"a", "b"}),
        requests=(replace(REQUEST, approval_id="approval_a"), REQUEST),
        waiting=(asked(A, provenance="before"), asked(B)),
    )
    ledger.ask(given, asked(A))
    assert (given.pins, given.approved, given.requests) == ({"b": "q"}, {"b"}, (REQUEST,))
    assert given.waiting == (asked(B), asked(A))


def decided(given: TurnState, decision) -> dict[str, object]:
    before = copied(given)
    ledger.decide(given, decision)
    return changed(before, given)


def test_approved_call_keeps_its_tool_pin():
    given = state(calls=(A, B), waiting=(asked(A, pin="p"), asked(B)))
    assert decided(given, asked(A).approve()) == {
        "waiting": (asked(B),),
        "approved": {"a"},
        "pins": {"a": "p"},
    }
    assert decided(given, asked(B).approve()) == {"waiting": (), "approved": {"a", "b"}}


@requirement("F42")
@pytest.mark.parametrize("is_own", [True, False])
def test_only_grant_for_own_call_is_remembered(is_own: bool):
    entry, other = asked(A, can_remember=True), asked(call("b", name="g"), can_remember=True)
    grant = (entry if is_own else other).approve(remember="conversation").grant
    given = state(calls=(A,), waiting=(entry,))
    ledger.decide(given, replace(entry.approve(), grant=grant))
    assert given.grants == ((grant,) if is_own else ())


OTHER_INPUT = call("a", input={"n": "another"})


@requirement("F42")
@pytest.mark.parametrize(
    ("calls", "waits", "decision"),
    [
        ((A,), asked(A), replace(asked(A).approve(), digest="of other arguments")),
        ((A,), asked(A), replace(asked(A).approve(), output=ExternalOutput("made up"))),
        ((A,), asked(A, is_external=True), asked(A).approve()),
        ((OTHER_INPUT,), asked(A), asked(A).approve()),
        ((B,), asked(A), asked(A).approve()),
        ((), asked(A), asked(A).approve()),
    ],
    ids=["digest", "result of own call", "no result of external call", "changed call", "other call", "no call"],
)
def test_decision_must_match_digest_kind_and_call(calls, waits, decision):
    given = state(calls=calls, waiting=(waits,))
    assert decided(given, decision) == {"waiting": ()}
    assert (given.approved, given.pins, given.outputs) == (frozenset(), {}, {})


def interruption(policy: str, call_id: str = "a") -> Custom:
    return Custom(INTERRUPTED, notice(call_id, "f", "ask", 1) | {"policy": policy})


@pytest.mark.parametrize(
    ("policy", "attempt"),
    [
        ("retry", Attempt("k", "ask", 2, is_interrupted=False)),
        ("fail", Attempt("k", "fail", 2, is_interrupted=True)),
        ("ask", Attempt("k", "ask", 2, is_interrupted=True)),
    ],
)
def test_reported_interruption_applies_its_policy(policy, attempt):
    other = Attempt("o", "ask", 2, is_interrupted=True)
    given = state(calls=(A, B), attempts={"a": Attempt("k", "ask", 2, is_interrupted=True), "b": other})
    Ledger(given).feed([interruption(policy), interruption(policy, "unknown")])
    assert given.attempts == {"a": attempt, "b": other}


@pytest.mark.parametrize("policy", ["retry", "fail", "ask"])
def test_interruption_of_running_call_is_ignored(policy):
    running = {"a": Attempt("k", "retry", 2, is_interrupted=False)}
    given = state(calls=(A,), attempts=dict(running))
    Ledger(given).feed([interruption(policy)])
    assert given.attempts == running


@pytest.mark.parametrize(
    ("entry", "is_approved"), [(asked(A, pin="p"), False), (asked(A, is_remote=True), True), (asked(A), False)]
)
def test_denied_or_remote_call_only_stops_waiting(entry, is_approved):
    given = state(calls=(A,), waiting=(entry,))
    assert decided(given, entry.approve() if is_approved else entry.deny()) == {"waiting": ()}


def test_decision_for_suspended_agent_is_kept_for_it():
    one, other = approval("nested_1"), approval("nested_2")
    given = state(calls=(A, B), suspended={"a": Suspended("s", (approval("x"),)), "b": Suspended("s", (one, other))})
    ledger.decide(given, other.deny())
    ledger.decide(given, one.approve())
    assert given.suspended["b"] == Suspended("s", (), (other.deny(), one.approve()))
    assert given.suspended["a"] == Suspended("s", (approval("x"),))
    assert given.approved == frozenset()


def test_unrelated_decision_is_ignored():
    given = state(calls=(A,), waiting=(asked(A),), suspended={"b": Suspended("s", (approval(),))})
    assert decided(given, asked(B).approve()) == {}


def test_tool_is_either_started_or_suspended():
    one, other = asked(A).approve(), asked(B).approve()
    given = state(calls=(A, B), suspended={"a": Suspended("s", (), (one,)), "b": Suspended("s", (), (other,))})
    ledger.start_tool(given, "a")
    assert (given.started, given.suspended) == ({"a"}, {"b": Suspended("s", (), (other,))})
    ledger.suspend_tool(given, "a", Suspended("later"))
    assert (given.started, given.suspended["a"]) == (frozenset(), Suspended("later"))
    ledger.start_tool(given, "never suspended")
    assert given.started == {"never suspended"}


def test_suspended_tool_resumes_its_task_after_every_restart():
    given = state(calls=(A,), suspended={"a": Suspended("task 1")})
    for _ in range(3):
        ledger.start_tool(given, "a", "key")
        given = resumable(given)
        assert (given.suspended, given.waiting) == ({"a": Suspended("task 1")}, ())
        assert given.command == CallTools((A,))


# Where a turn that was left continues


def judge(*calls: ToolCall, requests=()) -> Judge:
    own = (Question(call_id=c.id, tool=c.name, input=c.input) for c in calls)
    remote = (
        Question(call_id=r.approval_id, tool=r.name, input=r.input, server_label=r.server_label, is_remote=True)
        for r in requests
    )
    return Judge((*own, *remote))


UNDECIDED, DECIDED = Suspended("s", (approval(),)), Suspended("s", (), (approval().approve(),))
LEFT = {
    "before the first request": ({}, Send()),
    "in a step": ({"is_in_step": True, "step": 0, "calls": (A,)}, Send()),
    "after the end of a round": ({"step": 0}, Send()),
    "with a call that was not judged": ({"calls": (A, B)}, judge(A, B)),
    "with a request that was not judged": ({"requests": (REQUEST,)}, judge(requests=[REQUEST])),
    "with both": ({"calls": (A,), "requests": (REQUEST,)}, judge(A, requests=[REQUEST])),
    "with an approved call": ({"calls": (A,), "approved": frozenset("a")}, CallTools((A,))),
    "with an approved call beside one not judged": ({"calls": (A, B), "approved": frozenset("a")}, judge(B)),
    "with a call that waits": ({"calls": (A,), "waiting": (asked(A),)}, AwaitDecision()),
    "with a call that waits beside one not judged": ({"calls": (A, B), "waiting": (asked(A),)}, judge(B)),
    "with a call that waits beside an approved one": (
        {"calls": (A, B), "waiting": (asked(A),), "approved": frozenset("b")},
        CallTools((B,)),
    ),
    "with a request that waits": ({"waiting": (asked(A, call_id="mcpr_1", is_remote=True),)}, AwaitDecision()),
    "with a suspended agent": ({"calls": (A,), "suspended": {"a": UNDECIDED}}, AwaitDecision()),
    "with a suspended agent that may continue": ({"calls": (A,), "suspended": {"a": DECIDED}}, CallTools((A,))),
    "with two agents of which one may continue": (
        {"calls": (A, B), "suspended": {"a": UNDECIDED, "b": DECIDED}},
        CallTools((B,)),
    ),
    "with a tool that had started": ({"calls": (A,), "started": frozenset("a")}, AwaitDecision()),
    "with a tool that had started beside an agent that may continue": (
        {"calls": (A, B), "started": frozenset("a"), "suspended": {"b": DECIDED}},
        CallTools((B,)),
    ),
    "with a tool whose result is known": ({"calls": (B,), "started": frozenset("a")}, judge(B)),
    "with an answer that was not checked": ({"command": Check("{}"), "step": 0}, Check("{}")),
}


@requirement("R84", "F32")
@pytest.mark.parametrize(("fields", "command"), LEFT.values(), ids=LEFT.keys())
def test_abandoned_turn_resumes_with_expected_command(fields, command):
    stale = {"command": CallTools(()), "error": Error("provider", "broke"), "limit": ("max_run_s", 1.0)}
    given = state(**{**stale, **fields})
    assert resumable(given) is given
    assert given.command == command
    assert (given.error, given.limit, given.is_in_step) == (None, None, False)
    assert fields_of(resumable(copied(given))) == fields_of(given)


@requirement("R84", "F32")
def test_possibly_run_tool_and_its_siblings_need_approval():
    given = resumable(
        state(
            calls=(A, B, call("c")),
            started=frozenset({"a"}),
            approved=frozenset({"b"}),
            waiting=(asked(call("c")),),
            sources=("https://example.com",),
        )
    )
    c, a, b = given.waiting
    assert c == asked(call("c"))
    assert a == asked(A, approval_id="again_a", provenance=UNCERTAIN)
    assert b == asked(B, approval_id="again_b", provenance=HELD)
    assert (given.started, given.approved, given.command) == (frozenset(), frozenset(), AwaitDecision())


@requirement("F42")
def test_call_interrupted_after_approval_needs_new_decision():
    given = resumable(state(calls=(A,), started=frozenset("a")))
    ids = []
    for _ in range(3):
        (entry,) = given.waiting
        ids.append(entry.approval_id)
        ledger.decide(given, entry.approve())
        ledger.start_tool(given, "a")
        given = resumable(copied(given))
    assert ids == ["again_a", "again1_a", "again2_a"]


@requirement("F43")
def test_possibly_run_call_keeps_approved_tool_pin():
    given = resumable(state(calls=(A, B), started=frozenset("a"), approved=frozenset("ab"), pins={"a": "p", "b": "q"}))
    assert [entry.pin for entry in given.waiting] == ["p", "q"]
    for entry in given.waiting:
        ledger.decide(given, entry.approve())
    assert given.pins == {"a": "p", "b": "q"}


def test_request_about_possibly_run_call_names_its_server():
    of_server = call("a", tool="mcp", provider_metadata={"sidestream": {"server_label": "docs"}})
    given = resumable(state(calls=(of_server, B), started=frozenset("a")))
    assert [entry.server_label for entry in given.waiting] == ["docs", None]


def test_suspended_agents_keep_approvals_beside_uncertain_tool():
    given = resumable(state(calls=(A, B), started=frozenset("a"), suspended={"b": UNDECIDED}))
    assert [entry.call_id for entry in given.waiting] == ["a"]
    assert given.suspended == {"b": UNDECIDED}
    assert given.command == AwaitDecision()


def test_unfinished_step_keeps_sources_and_background_answer():
    given = state(
        step=2,
        is_in_step=True,
        calls=(A,),
        requests=(REQUEST,),
        digests=frozenset({"d"}),
        ending=Finish("stop", used()),
        fold=FoldState(calls=["x"]),
        sources=("u",),
        usage=used(2),
        without=frozenset({"session"}),
        defers_output=True,
        background=Background("p", "r_1", True),
    )
    left = state(
        step=1,
        sources=("u",),
        usage=used(2),
        without=frozenset({"session"}),
        defers_output=True,
        background=Background("p", "r_1", True),
    )
    assert fields_of(resumable(given)) == fields_of(left)


def test_results_of_complete_round_are_in_history():
    given = state()
    ended(given, "tool-calls", A)
    Ledger(given).feed([result("a")])
    resumable(given)
    assert given.messages[-1] == ChatMessage("tool", (ToolResultPart("a", "f", "done"),))
    assert (given.command, given.ending) == (Send(), None)


def test_questions_of_resumed_turn_list_its_sources():
    given = resumable(state(calls=(A,), requests=(REQUEST,), sources=("https://example.com",)))
    assert isinstance(given.command, Judge)
    assert [question.sources for question in given.command.questions] == [("https://example.com",)] * 2


def test_provider_requests_are_recorded_in_order():
    other = ToolApprovalRequest("mcpr_2", "mcp_2", "ask", {}, "wiki")
    assert after(state(**IN_STEP), REQUEST, other) == {"requests": (REQUEST, other)}


def test_state_left_inside_step_resumes_before_it():
    left = state()
    Ledger(left).feed([StepStart(0)])
    assert (left.is_in_step, left.step) == (True, 0)
    resumed = resumable(left)
    assert (resumed.is_in_step, resumed.step, resumed.command) == (False, -1, Send())
    # A limit that is reached now is reached between two answers: there is no step to end.
    parts = Turn(state=resumed).stopped("max_run_s", 1.0)
    assert [part.type for part in parts] == ["stream-start", "finish"]
    grammar.check(parts)


def test_open_call_outlives_step_until_its_result():
    given = state(step=0, is_in_step=True)
    ledger = Ledger(given)
    ledger.feed([HOSTED])
    ledger.end_step(StepFinish(0, "other", used(), outcome=StepOutcome(is_paused=True)))
    assert open_calls(given) == (HOSTED,)
    ledger.feed([StepStart(1), ANSWER])
    assert open_calls(given) == ()
    ledger.end_step(StepFinish(1, "stop", used()))
    assert given.hosted == {}


@pytest.mark.parametrize("ends", ["left", "failed"])
def test_repeated_step_reopens_calls_it_answered(ends):
    given = state(step=0, hosted={"a": OpenCall(HOSTED, 0)})
    ledger = Ledger(given)
    ledger.feed([StepStart(1), ANSWER, replace(HOSTED, id="b")])
    if ends == "left":
        resumable(given)
    else:
        ledger.end_step(StepFinish(1, "error", used()))
    assert given.hosted == {"a": OpenCall(HOSTED, 0)}
