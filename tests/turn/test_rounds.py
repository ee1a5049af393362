"""Rounds of calls, driven fact by fact: policy, tools, approvals, suspended agents, and what a run has read."""

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.messages.fold import APPROVAL_DECIDED
from sidestream.messages.message import ApprovalPart, ChatMessage, ToolCallPart, ToolResultPart
from sidestream.parts import (
    Custom,
    Finish,
    Source,
    StreamStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.tools.approvals import ApprovalError, Question, Suspended, digest_of
from sidestream.turn.state import AwaitDecision, CallTools, Judge, Send
from support.turn_drive import (
    PLAIN,
    Drive,
    Facts,
    approval,
    call,
    forwarded,
    remote_request,
    result,
    step_finish,
    text,
    used,
)

NOTES = {
    "f": Facts(),
    "page": Facts("docs", "pin_1", True),
    "clock": Facts("docs", "pin_2"),
    "feed": Facts(None, None, True),
}


def question(call_id: str, name: str = "f", **fields) -> Question:
    return Question(call_id=call_id, tool=name, input={"n": call_id}, **fields)


def request(approval_id: str, call_id: str, name: str = "f", provenance: str = "requested by the model", **fields):
    metadata = {"sidestream": {"provenance": provenance}}
    given = fields.pop("input", {"n": call_id})
    return ToolApprovalRequest(approval_id, call_id, name, given, provider_metadata=metadata, **fields)


def denied(call_id: str, name: str = "f", message: str | None = None, **fields) -> ToolResult:
    words = message or f"The call of {name} was denied. Continue without it."
    return result(call_id, name, {"error": "Denied", "message": words}, is_error=True, **fields)


APPROVAL = Finish("approval", used())


# Tools that run


@requirement("R73")
def test_round_results_are_one_message_in_call_order():
    drive = Drive(PLAIN)
    assert drive.answer(call("a"), call("b", "g"), reason="tool-calls")[-1] == step_finish(0, "tool-calls")
    assert drive.command == Judge((question("a"), question("b", "g")))
    assert drive.judged() == []
    assert drive.command == CallTools((call("a"), call("b", "g")))
    drive.tool_started("a")
    drive.tool_started("b")
    assert drive.state.started == {"a", "b"}
    assert drive.tool_done("b", "second", True) == [result("b", "g", "second", is_error=True)]
    assert isinstance(drive.command, CallTools)
    assert drive.tool_done("a", {"n": 1}, False) == [result("a", "f", {"n": 1})]
    assert drive.command == Send()
    assert drive.answers == [
        ChatMessage("model", (ToolCallPart("a", "f", {"n": "a"}), ToolCallPart("b", "g", {"n": "b"}))),
        ChatMessage("tool", (ToolResultPart("a", "f", {"n": 1}), ToolResultPart("b", "g", "second", True))),
    ]
    assert (drive.state.started, drive.state.tool_calls_made) == (frozenset(), 2)
    drive.answer(text("Hi"))
    assert drive.parts[-1] == Finish("stop", used(2))


def test_tool_progress_is_emitted_without_state_change():
    drive = Drive(PLAIN)
    drive.calls(call("a"))
    drive.tool_started("a")
    progress = ToolEvent("f", "delta", {"type": "progress", "half": True}, call_id="a", provider_stage="progress")
    preview = result("a", value="half", preliminary=True)
    assert drive.tool_reported([progress, preview]) == [progress, preview]
    assert drive.state.calls == (call("a"),)
    drive.tool_done("a", "done", False)
    assert drive.answers[-1] == ChatMessage("tool", (ToolResultPart("a", "f", "done"),))


def test_provider_executed_calls_do_not_start_round():
    drive = Drive(PLAIN)
    drive.answer(ToolCall("c", "run", "code_interpreter", True, {}), *text("Hi"))
    assert drive.parts[-1] == Finish("stop", used())
    assert drive.state.tool_calls_made == 0


# Calls that must not run


@requirement("R73")
def test_unknown_tool_result_lists_available_tools():
    drive = Drive(PLAIN)
    problem = {"error": "UnknownTool", "message": "There is no tool 'h'. The tools are: f, g."}
    assert drive.answer(call("a", "h"), reason="tool-calls")[-1] == result("a", "h", problem, is_error=True)
    assert drive.command == Send()
    assert drive.answers[-1] == ChatMessage("tool", (ToolResultPart("a", "h", problem, True),))


def test_unknown_tool_without_any_tools_gets_result():
    drive = Drive({})
    drive.answer(call("a"), reason="tool-calls")
    assert drive.parts[-1].result["message"] == "There is no tool 'f'. The tools are: none."


@requirement("F13")
def test_malformed_input_is_answered_while_other_calls_run():
    drive = Drive(PLAIN)
    broken = call("a", input=None, input_error="it is no JSON", input_text="{")
    problem = {"error": "InvalidArguments", "message": "The call was not executed: it is no JSON."}
    assert drive.answer(broken, call("b"), reason="tool-calls")[-1] == result("a", "f", problem, is_error=True)
    assert drive.command == Judge((question("b"),))
    drive.judged()
    drive.tool("b")
    assert [part.id for part in drive.answers[-1].parts] == ["a", "b"]


def test_tool_removed_after_policy_decision_is_unknown():
    drive = Drive(PLAIN)
    drive.answer(call("a", "g"), reason="tool-calls")
    drive.set_tools({"f": Facts()})
    (part,) = drive.judged()
    assert part.result["error"] == "UnknownTool"
    assert drive.command == Send()


def test_no_call_is_refused_while_tools_are_unknown():
    drive = Drive(tools=None)
    drive.calls(call("a", "anything"))
    assert drive.command == CallTools((call("a", "anything"),))


def test_call_denied_by_policy_is_answered_without_running():
    drive = Drive(PLAIN)
    drive.answer(call("a"), call("b", "g"), reason="tool-calls")
    assert drive.judged("run", a="deny") == [denied("a")]
    assert drive.command == CallTools((call("b", "g"),))


# Approvals


@requirement("R76")
def test_call_needing_approval_is_requested_and_run_waits():
    drive = Drive(PLAIN)
    assert drive.calls(call("a"), verdict="ask")[-2:] == [request("approval_0", "a"), APPROVAL]
    assert drive.command == AwaitDecision()
    (entry,) = drive.state.waiting
    assert (entry.run_id, entry.call_id, entry.digest) == ("run_1", "a", digest_of("f", {"n": "a"}))
    assert len(drive.answers) == 1


@requirement("R76")
def test_approved_call_runs_in_next_stream():
    drive = Drive(PLAIN)
    drive.calls(call("a"), verdict="ask")
    second = drive.decided(drive.approvals["f"].approve())
    assert second.parts == [StreamStart(())]
    assert second.command == CallTools((call("a"),))
    assert second.state.approved == {"a"}
    assert second.tool("a") == [result("a")]
    assert second.answer(text("Hi"))[-1] == Finish("stop", used(2))
    assert second.state.approved == frozenset()


@pytest.mark.parametrize("reason", [None, "not today"])
def test_denied_call_is_answered_with_reason_and_model_continues(reason):
    drive = Drive(PLAIN)
    drive.calls(call("a"), verdict="ask")
    second = drive.decided(drive.approvals["f"].deny(reason))
    assert second.parts == [StreamStart(()), denied("a", message=reason)]
    assert second.command == Send()
    assert second.completed == []
    assert second.answer(text("Hi"))[0].step == 1
    assert second.completed[0][1] == second.answers[1:2]


def test_one_call_waits_while_another_runs():
    drive = Drive(PLAIN)
    assert drive.calls(call("a"), call("b", "g"), a="ask")[-1] == request("approval_0", "a")
    assert drive.command == CallTools((call("b", "g"),))
    assert drive.tool("b", "early") == [result("b", "g", "early"), APPROVAL]
    assert drive.command == AwaitDecision()
    second = drive.decided(drive.approvals["f"].approve())
    second.tool("a", "late")
    assert second.answers[-1] == ChatMessage(
        "tool", (ToolResultPart("a", "f", "late"), ToolResultPart("b", "g", "early"))
    )


def test_asked_denied_and_running_calls_share_one_message():
    drive = Drive(PLAIN)
    calls = [call("a"), call("b"), call("c", "g"), call("d", "g")]
    drive.calls(*calls, a="ask", b="deny", c="ask")
    drive.tool("d")
    f, g = drive.approvals["f"], drive.approvals["g"]
    second = drive.decided(g.deny(), f.approve())
    assert second.command == CallTools((call("a"),))
    second.tool("a")
    assert [part.id for part in second.answers[-1].parts] == ["a", "b", "c", "d"]
    assert [part.is_error for part in second.answers[-1].parts] == [False, True, True, False]


# Decisions


def waiting() -> Drive:
    """A turn with two calls that wait."""
    drive = Drive(PLAIN)
    drive.calls(call("a"), call("b", "g"), verdict="ask")
    return drive


DECISIONS = {
    "for another run": lambda a, b: [replace(a, run_id="run_2"), b],
    "for another call": lambda a, b: [replace(a, call_id="b"), b],
    "for another tool": lambda a, b: [replace(a, tool="g"), b],
    "for other arguments": lambda a, b: [replace(a, digest=digest_of("f", {"n": "other"})), b],
    "with the id of another": lambda a, b: [replace(a, approval_id=b.approval_id), b],
    "with an invented id": lambda a, b: [replace(a, approval_id="approval_9"), b],
    "for one call only": lambda a, b: [a],
    "for no call": lambda a, b: [],
    "for a call too many": lambda a, b: [a, b, replace(a, approval_id="approval_9")],
    "twice for one call": lambda a, b: [a, a, b],
    "yes and no for one call": lambda a, b: [replace(a, is_approved=False), a, b],
    "forged before the right one": lambda a, b: [replace(a, digest="forged"), a, b],
}


@requirement("F42")
@pytest.mark.parametrize("made", DECISIONS.values(), ids=DECISIONS.keys())
@pytest.mark.parametrize("fact", ["check_decisions", "resumed"])
def test_mismatched_decisions_are_refused(made, fact):
    drive = waiting().continued()
    decisions = made(*(entry.approve() for entry in drive.state.waiting))
    with pytest.raises(ApprovalError):
        getattr(drive, fact)(decisions)
    assert drive.command == AwaitDecision()


@requirement("F42")
def test_matching_decisions_are_accepted_in_any_order():
    drive = waiting()
    a, b = (entry.approve() for entry in drive.state.waiting)
    drive.continued().check_decisions([b, a])
    assert drive.decided(b, a).command == CallTools((call("a"), call("b", "g")))


@requirement("F42")
def test_decision_counts_once():
    drive = waiting()
    decisions = [entry.approve() for entry in drive.state.waiting]
    second = drive.decided(*decisions)
    for fact in (second.check_decisions, second.resumed):
        with pytest.raises(ApprovalError):
            fact(decisions)


@requirement("F42")
def test_arguments_changed_in_stored_state_are_refused():
    drive = waiting()
    decisions = [entry.approve() for entry in drive.state.waiting]
    in_calls, in_entry = drive.continued(), drive.continued()
    in_calls.state.calls = (call("a", input={"n": "other"}), call("b", "g"))
    in_entry.state.waiting = tuple(replace(entry, input={"n": "other"}) for entry in in_entry.state.waiting)
    for changed in (in_calls, in_entry):
        with pytest.raises(ApprovalError):
            changed.resumed(decisions)


# Tools that change


@requirement("F43")
def test_approved_call_is_asked_again_if_its_tool_changed():
    drive = Drive(NOTES)
    drive.calls(call("a", "page"), verdict="ask")
    assert drive.approvals["page"].pin == "pin_1"
    changed = {**NOTES, "page": Facts("docs", "pin_9", True)}
    second = drive.decided(drive.approvals["page"].approve(), tools=changed)
    assert second.parts == [StreamStart(()), request("approval_1", "a", "page", server_label="docs"), APPROVAL]
    assert (second.command, second.state.approved, second.state.pins) == (AwaitDecision(), frozenset(), {})
    assert second.approvals["page"].pin == "pin_9"
    with pytest.raises(ApprovalError):
        second.continued().check_decisions([drive.approvals["page"].approve()])
    third = second.decided(second.approvals["page"].approve(), tools=changed)
    assert third.command == CallTools(second.state.calls)
    assert third.state.pins == {"a": "pin_9"}


def test_calls_beside_changed_tool_still_run():
    drive = Drive(NOTES)
    drive.calls(call("a", "page"), call("b", "clock"), verdict="ask")
    decisions = [entry.approve() for entry in drive.state.waiting]
    second = drive.decided(*decisions, tools={**NOTES, "page": Facts("docs", "pin_9", True)})
    assert [entry.call_id for entry in second.state.waiting] == ["a"]
    assert [entry.id for entry in second.command.calls] == ["b"]
    assert second.tool("b")[-1] == APPROVAL


def test_approved_call_of_removed_tool_is_unknown():
    drive = Drive(NOTES)
    drive.calls(call("a", "page"), verdict="ask")
    second = drive.decided(drive.approvals["page"].approve(), tools={"f": Facts()})
    assert second.parts[-1].result["error"] == "UnknownTool"
    assert second.command == Send()


# Calls that a provider wants to make


def decision(is_approved: bool, reason: str | None = None, **more: bool) -> Custom:
    return Custom(APPROVAL_DECIDED, {"approval_id": "mcpr_1", "is_approved": is_approved, "reason": reason, **more})


@requirement("R76")
@pytest.mark.parametrize(("verdict", "is_approved"), [("run", True), ("deny", False)])
def test_policy_answers_provider_request(verdict, is_approved):
    drive = Drive()
    drive.answer(*remote_request(), reason="approval", message_metadata={"_x_session": {}})
    asked = Question(call_id="mcpr_1", tool="ask", input={"q": 1}, server_label="wiki", is_remote=True)
    assert drive.command == Judge((asked,))
    assert drive.judged(verdict) == [decision(is_approved, is_automatic=True)]
    assert drive.command == Send()
    assert drive.state.requests == ()
    assert drive.answers[-1] == ChatMessage("tool", (ApprovalPart("mcpr_1", is_approved),))


@requirement("R76")
@pytest.mark.parametrize(("is_approved", "reason"), [(True, None), (False, "not this one")])
def test_approver_answers_provider_request(is_approved, reason):
    drive = Drive()
    drive.answer(*remote_request(), reason="approval", message_metadata={"_x_session": {}})
    assert drive.judged("ask") == [APPROVAL]
    entry = drive.approvals["ask"]
    assert (entry.approval_id, entry.is_remote, entry.server_label) == ("mcpr_1", True, "wiki")
    second = drive.decided(entry.approve() if is_approved else entry.deny(reason))
    assert second.parts == [StreamStart(()), decision(is_approved, reason)]
    assert second.command == Send()
    assert second.answers[-1] == ChatMessage("tool", (ApprovalPart("mcpr_1", is_approved, reason),))


def test_client_tool_runs_while_provider_request_waits():
    drive = Drive(PLAIN)
    drive.answer(call("a"), *remote_request(), reason="approval")
    drive.judged("run", mcpr_1="ask")
    assert drive.command == CallTools((call("a"),))
    assert drive.tool("a") == [result("a"), APPROVAL]
    second = drive.decided(drive.approvals["ask"].approve())
    assert second.answers[-1].parts == (ApprovalPart("mcpr_1", True), ToolResultPart("a", "f", "done"))


def test_provider_request_is_answered_beside_waiting_call():
    drive = Drive(PLAIN)
    drive.answer(call("a"), *remote_request(), reason="approval")
    assert drive.judged("run", a="ask") == [request("approval_0", "a"), decision(True, is_automatic=True), APPROVAL]
    second = drive.decided(drive.approvals["f"].deny())
    assert [type(part) for part in second.answers[-1].parts] == [ApprovalPart, ToolResultPart]


# Agents as tools


@requirement("R76")
def test_suspended_agent_requests_belong_to_run():
    drive = Drive(PLAIN)
    drive.calls(call("a"))
    first, second = approval("nested_1"), approval("nested_2", "move", sources=("https://example.com",))
    nested = {"input": {"path": "/"}}
    assert drive.agent_suspended("a", first, second) == [
        request("nested_1", "a", "delete", **nested),
        request("nested_2", "a", "move", "requested after reading https://example.com", **nested),
        APPROVAL,
    ]
    assert drive.command == AwaitDecision()
    assert drive.approvals == {"delete": first, "move": second}
    assert drive.state.started == frozenset()


def test_suspended_agent_resumes_with_decisions_and_waits_again():
    drive = Drive(PLAIN)
    drive.calls(call("a"))
    entry = approval()
    drive.agent_suspended("a", entry)
    second = drive.decided(entry.deny("no"))
    assert second.command == CallTools((call("a"),))
    assert second.state.suspended == {"a": Suspended("its state", (), (entry.deny("no"),))}
    again = approval("nested_2")
    assert second.agent_suspended("a", again) == [request("nested_2", "a", "delete", input={"path": "/"}), APPROVAL]
    third = second.decided(again.approve())
    assert third.state.suspended["a"].decisions == (again.approve(),)
    assert third.tool("a", "deleted") == [result("a", value="deleted")]
    assert third.state.suspended == {}
    assert third.command == Send()


def test_suspended_agent_waits_beside_call_of_run():
    drive = Drive(PLAIN)
    drive.calls(call("a"), call("b", "g"), b="ask")
    entry = approval()
    assert drive.agent_suspended("a", entry)[-1] == APPROVAL
    own = drive.approvals["g"]
    for decisions in ([entry.approve()], [own.approve()], [entry.approve(), entry.approve(), own.approve()]):
        with pytest.raises(ApprovalError):
            drive.continued().resumed(decisions)
    second = drive.decided(entry.approve(), own.approve())
    assert second.command == CallTools((call("a"), call("b", "g")))


def test_each_suspended_agent_gets_its_own_decisions():
    drive = Drive(PLAIN)
    drive.calls(call("a"), call("b", "g"))
    one, other = approval("nested_1"), approval("nested_2")
    assert APPROVAL not in drive.agent_suspended("a", one)
    assert drive.agent_suspended("b", other)[-1] == APPROVAL
    second = drive.decided(other.deny(), one.approve())
    assert {call_id: entry.decisions for call_id, entry in second.state.suspended.items()} == {
        "a": (one.approve(),),
        "b": (other.deny(),),
    }


def running(tools=PLAIN) -> Drive:
    """A turn whose tool `f` runs."""
    drive = Drive(tools)
    drive.calls(call("a"))
    drive.tool_started("a")
    return drive


@requirement("R8")
def test_agent_usage_counts_once_for_run():
    drive = running()
    inner = forwarded("inner_1", Finish("stop", used(7)), "inner")
    drive.tool_reported([forwarded("a", inner)])
    assert drive.state.usage == used()
    drive.tool_reported([forwarded("a", Finish("stop", used(3)))])
    drive.tool_done("a", "done", False)
    assert drive.state.usage == used(4)
    drive.answer(text("Hi"))
    assert drive.parts[-1] == Finish("stop", used(5))


@requirement("R8")
def test_suspended_agent_usage_is_counted_when_it_finishes():
    drive = running()
    drive.tool_reported([forwarded("a", Finish("approval", used(2)))])
    drive.tool_suspended("a", Suspended("its state", (approval(),)))
    assert drive.parts[-1] == APPROVAL
    second = drive.decided(approval().approve())
    second.tool_started("a")
    second.tool_reported([forwarded("a", Finish("stop", used(3)))])
    second.tool_done("a", "done", False)
    assert second.state.usage == used(4)


def search(tool: str = "web_search", name: str = "web_search") -> ToolResult:
    return ToolResult("ws_1", name, tool, {}, False, True)


def nested(part, depth: int):
    for level in range(depth):
        part = forwarded(f"inner_{level}", part, "inner")
    return forwarded("a", part)


PAGE = "https://example.com/page"
MARKED = {"sidestream": {"source": "docs page"}}


@requirement("F41")
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize(
    ("part", "source"),
    [
        (Source("s_1", "url", url=PAGE), PAGE),
        (search(), "web_search"),
        (search("mcp", "ask"), "mcp ask"),
        (result("x", "page", tool="mcp", provider_metadata=MARKED), "docs page"),
        (result("x", "page", tool="mcp"), "mcp page"),
    ],
)
def test_agent_sources_count_for_run_at_any_depth(part, source, depth):
    drive = running()
    drive.tool_reported([nested(part, depth), nested(part, depth)])
    assert drive.state.sources == (source,)
    drive.tool_done("a", "done", False)
    drive.answer(call("b"), reason="tool-calls")
    assert drive.command == Judge((question("b", sources=(source,)),))


@pytest.mark.parametrize(
    "event",
    [
        forwarded("a", Source("s_1", "document", file_id="file_1")),
        forwarded("a", search("code_interpreter")),
        forwarded("a", result("x")),
        ToolEvent("f", "delta", {"type": "text-delta", "id": "t", "delta": "x"}, call_id="a", provider_stage="source"),
        ToolEvent("f", "delta", {"type": "source", "id": 3}, call_id="a", provider_stage="source"),
        ToolEvent("f", "delta", "no part", call_id="a", provider_stage="finish"),
        ToolEvent(
            "f",
            "delta",
            {"type": "finish", "reason": "stop", "usage": {"input": {"total": 9}}},
            call_id="a",
            provider_stage="progress",
        ),
        forwarded("a", ToolEvent("x", "delta", {"type": "progress"}, provider_stage="progress")),
    ],
)
def test_other_tool_events_are_emitted_without_state_change(event):
    drive = running()
    assert drive.tool_reported([event]) == [event]
    assert (drive.state.sources, drive.state.usage) == ((), used())


def test_server_side_tool_events_are_not_agent_parts():
    drive = Drive()
    drive.answer(forwarded("a", Finish("stop", used(9))), forwarded("a", Source("s", "url", url=PAGE)), *text("Hi"))
    assert drive.parts[-1] == Finish("stop", used())
    assert drive.state.sources == ()


# What a run has read


@requirement("F41")
@pytest.mark.parametrize(
    ("name", "marks", "sources"),
    [
        ("page", {"server_label": "docs", "source": "docs page"}, ("docs page",)),
        ("clock", {"server_label": "docs"}, ()),
        ("feed", {"source": "the tool feed"}, ("the tool feed",)),
        ("f", None, ()),
    ],
)
@pytest.mark.parametrize("is_error", [False, True])
def test_external_sources_of_tool_are_noted_with_result(name, marks, sources, is_error):
    drive = Drive(NOTES)
    drive.calls(call("a", name))
    tool = "mcp" if NOTES[name].server_label else name
    metadata = None if marks is None else {"sidestream": marks}
    assert drive.tool("a", "text", is_error) == [
        result("a", name, "text", tool=tool, is_error=is_error, provider_metadata=metadata)
    ]
    assert drive.state.sources == sources


def test_local_mcp_call_looks_like_hosted_mcp_call():
    drive = Drive(NOTES)
    given = call("a", "page", provider_metadata={"openai": 1})
    marked = replace(given, tool="mcp", provider_metadata={"openai": 1, "sidestream": {"server_label": "docs"}})
    parts = drive.answer(given, reason="tool-calls")
    assert parts[2] == marked
    assert drive.command == Judge((question("a", "page", server_label="docs", pin="pin_1"),))
    drive.judged()
    assert drive.command == CallTools((marked,))


@requirement("F41")
def test_mcp_call_without_execution_adds_no_sources():
    drive = Drive(NOTES)
    marks = {"sidestream": {"server_label": "docs"}}
    broken = call("a", "page", input=None, input_error="it is no JSON", input_text="{")
    drive.calls(broken, call("b", "page"), call("c", "page"), b="deny", c="ask")
    second = drive.decided(drive.approvals["page"].deny())
    assert drive.parts[-3] == denied("b", "page", tool="mcp", provider_metadata=marks)
    assert second.parts[-1] == denied("c", "page", tool="mcp", provider_metadata=marks)
    assert second.state.sources == ()


@requirement("F41")
def test_provider_sources_are_known_to_policy():
    drive = Drive(PLAIN)
    cited = Source("s_1", "url", url=PAGE)
    searched = ToolCall("ws_1", "web_search", "web_search", True, {})
    asked = ToolCall("ws_2", "ask", "mcp", True, {})
    answered = ToolResult("ws_2", "ask", "mcp", {}, False, True)
    drive.answer(searched, search(), cited, asked, answered, call("a"), *remote_request(), reason="tool-calls")
    sources = ("web_search", PAGE, "mcp ask")
    assert [entry.sources for entry in drive.command.questions] == [sources, sources]
    drive.judged("ask")
    assert drive.approvals["f"].provenance == f"requested after reading {PAGE} and 2 more"
