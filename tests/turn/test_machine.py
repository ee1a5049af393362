"""The turn machine, driven fact by fact: answers, downloads, typed output, refusals, failures and limits.

Every fact of every drive is repeated on the state as JSON; see `turn_drive.Drive`.
"""

import pytest

from requirements import requirement
from sidestream.files.media_types import digest
from sidestream.limits import Limits
from sidestream.messages.fold import OUTPUT_REJECTED
from sidestream.messages.message import ChatMessage, DataPart, TextPart, ToolCallPart, ToolResultPart
from sidestream.messages.provenance import written
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    ResponseMetadata,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolResult,
    Usage,
)
from sidestream.providers.protocol import FileRef, Recovery
from sidestream.turn.machine import Turn
from sidestream.turn.state import CallTools, Check, Fetch, Over, Send
from support.turn_drive import PLAIN, QUESTION, Drive, Facts, call, result, step_finish, text, used

PNG = b"\x89PNG\r\n\x1a\n plot"
PLOT = FileRef(id="file_1", name="plot.png", container_id="c_1", tool="code_interpreter", call_id="ci_1")
TABLE = FileRef(id="file_2")
SAID = ChatMessage("model", (TextPart("Hi", "t"),))
OUT_OF_TIME = Error("limit", "the run took longer than 2 s", code="max_run_s")


# Answers


def test_turn_begins_by_sending_history():
    turn = Turn([QUESTION])
    assert turn.command == Send()
    assert turn.state.messages == [QUESTION]
    assert not turn.is_receiving


@requirement("R4", "R8")
def test_plain_answer_is_one_step_and_end():
    drive = Drive()
    assert drive.sending(("careful",), [Custom("note", 1)]) == [StreamStart(("careful",)), Custom("note", 1)]
    assert not drive.turn.is_receiving
    assert drive.opened() == [StepStart(0)]
    assert drive.turn.is_receiving
    assert drive.received([ResponseMetadata("r_1"), TextStart("t")]) == [ResponseMetadata("r_1"), TextStart("t")]
    assert drive.received([TextDelta("t", "H")]) == [TextDelta("t", "H")]
    assert drive.received([TextDelta("t", "i")]) == [TextDelta("t", "i")]
    assert drive.command == Send()
    ending = Finish("stop", used(), "end_turn", {"id": "r_1"}, outcome=StepOutcome({"_x_session": {"id": 1}}))
    assert drive.received([TextEnd("t"), ending]) == [
        TextEnd("t"),
        StepFinish(
            0,
            "stop",
            used(),
            outcome=StepOutcome({"_x_session": {"id": 1}}, raw_reason="end_turn", metadata={"id": "r_1"}),
        ),
        Finish("stop", used(), "end_turn", {"id": "r_1"}),
    ]
    assert drive.command == Over()
    assert not drive.turn.is_receiving
    assert [message.text for message in drive.answers] == ["Hi"]
    assert drive.answers[0].metadata["_x_session"]["id"] == 1
    assert drive.completed == [(drive.parts[-2], drive.answers)]


@pytest.mark.parametrize("reason", ["length", "content-filter", "other"])
def test_answer_without_natural_stop_ends_run_with_its_reason(reason):
    drive = Drive(PLAIN)
    drive.answer(text("Hi"), call("a"), reason=reason)
    assert drive.parts[-1] == Finish(reason, used())
    assert drive.command == Over()
    assert drive.answers == [ChatMessage("model", (TextPart("Hi", "t"), ToolCallPart("a", "f", {"n": "a"})))]


def test_warnings_are_emitted_once_and_notices_with_each_request():
    drive = Drive(PLAIN)
    drive.sending(("one",), ())
    drive.opened()
    drive.received([call("a"), Finish("tool-calls", used())])
    drive.judged()
    drive.tool("a")
    late = Custom("sidestream.warning", {"message": "two"})
    assert drive.sending(("one", "two"), [Custom("note", 2)]) == [Custom("note", 2), late]
    assert drive.sending(("one", "two"), [Custom("note", 2)]) == [Custom("note", 2)]


def test_response_in_one_piece_gives_same_parts_as_in_many():
    arrived: list[StreamPart] = [*text("Hi"), call("a"), Finish("tool-calls", used())]
    whole, pieces = Drive(PLAIN), Drive(PLAIN)
    for drive in (whole, pieces):
        drive.sending((), ())
        drive.opened()
    whole.received(arrived)
    for part in arrived:
        pieces.received([part])
    assert whole.parts == pieces.parts
    assert whole.state == pieces.state


def test_paused_response_is_resent_with_its_content():
    drive = Drive()
    parts = drive.answer(text("Let me"), reason="other", is_paused=True)
    assert parts[-1] == step_finish(0, "other", is_paused=True)
    assert drive.command == Send()
    drive.answer(text("see"))
    assert [message.text for message in drive.answers] == ["Let me", "see"]
    assert drive.parts[-1] == Finish("stop", used(2))


def test_paused_response_without_content_is_kept_for_session():
    drive = Drive()
    drive.answer(reason="other", is_paused=True, message_metadata={"container": "c_1"})
    assert drive.answers == [ChatMessage("model", (), {"container": "c_1"})]


@requirement("R74")
def test_empty_answer_after_tools_is_requested_only_once_more():
    drive = Drive(PLAIN)
    drive.calls(call("a"))
    drive.tool("a")
    history = list(drive.state.messages)
    assert drive.answer() == [StepStart(1), step_finish(1)]
    assert drive.command == Send()
    assert drive.answer() == [StepStart(2), step_finish(2), Finish("stop", used(3))]
    assert drive.state.messages == history
    assert drive.state.empty_answers == 2


def test_empty_answer_to_user_is_final():
    drive = Drive()
    assert drive.answer() == [StreamStart(()), StepStart(0), step_finish(0), Finish("stop", used())]
    assert drive.answers == []


# Downloads


def fetching(*arrived: StreamPart, refs=(PLOT, TABLE), **settings) -> Drive:
    """A turn whose answer names files."""
    drive = Drive(**settings)
    drive.answer(*text("Hi"), *arrived, downloads=refs)
    return drive


@requirement("R40")
def test_files_of_answer_are_downloaded_before_step_ends():
    drive = fetching()
    assert drive.command == Fetch((PLOT, TABLE))
    assert drive.parts[-1] == TextEnd("t")
    assert not drive.turn.is_receiving
    plot = File("file_1", "image/png", "plot.png", PNG, tool="code_interpreter", call_id="ci_1")
    table = File("file_2", "text/plain", "file_2.txt", b"a,b")
    assert drive.fetched(PLOT, PNG) == [plot]
    assert drive.fetched(TABLE, b"a,b") == [table]
    assert drive.all_fetched() == [step_finish(0), Finish("stop", used())]
    assert drive.answers[0].parts[1:] == (
        DataPart(PNG, "image/png", "plot.png", to="container"),
        DataPart(b"a,b", "text/plain", "file_2.txt"),
    )


def test_download_of_already_delivered_file_is_dropped():
    drive = fetching(File("inline", "image/png", "plot.png", PNG))
    assert drive.state.digests == {digest(PNG)}
    assert drive.fetched(PLOT, PNG) == []
    assert drive.fetched(TABLE, b"a,b") != []
    assert drive.fetched(TABLE, b"a,b") == []
    drive.all_fetched()
    assert drive.state.digests == frozenset()
    assert len(drive.answers[0].parts) == 3


@pytest.mark.parametrize(("ref", "name"), [(PLOT, "plot.png"), (TABLE, "file_2")])
def test_failed_download_is_reported_and_answer_kept(ref, name):
    drive = fetching(refs=(ref,))
    error = Error("rate-limit", "too many", code="slow_down", status=429, retryable=True)
    assert drive.not_fetched(ref, error) == [
        Error("tool", f"could not download {name}: too many", code="slow_down", status=429, retryable=True)
    ]
    assert drive.all_fetched() == [step_finish(0), Finish("stop", used())]
    assert drive.answers == [SAID]


def test_files_of_failed_answer_are_not_downloaded():
    drive = Drive()
    drive.answer(*text("Hi"), Error("provider", "broke"), reason="error", downloads=(PLOT,))
    assert drive.command == Over()


def test_run_out_of_time_during_download_keeps_answer():
    drive = fetching()
    drive.fetched(PLOT, PNG)
    assert drive.stopped("max_run_s", 2.0) == [
        step_finish(0),
        Finish("limit", used(), metadata={"limit": "max_run_s", "reached": 2.0}),
    ]
    assert drive.answers == [
        ChatMessage("model", (TextPart("Hi", "t"), DataPart(PNG, "image/png", "plot.png", to="container")))
    ]
    assert drive.command == Over()


# Time


def test_run_out_of_time_while_receiving_ends_as_limit():
    drive = Drive()
    drive.sending((), ())
    drive.opened()
    drive.received([TextStart("t"), TextDelta("t", "Hi")])
    drive.state.limit = ("max_run_s", 2.0)
    assert drive.received([TextEnd("t"), OUT_OF_TIME, Finish("error", used(), "limit", {"id": "r_1"})]) == [
        TextEnd("t"),
        step_finish(0, "limit", raw_reason="limit", metadata={"id": "r_1"}),
        Finish("limit", used(), "limit", {"id": "r_1", "limit": "max_run_s", "reached": 2.0}),
    ]
    assert drive.state.error is None
    assert drive.answers == [SAID]


def test_answer_too_long_for_its_limit_is_error():
    drive = Drive()
    drive.answer(*text("Hi"), OUT_OF_TIME, reason="error")
    assert drive.parts[-2:] == [OUT_OF_TIME, Finish("error", used())]


def test_run_out_of_time_before_first_request_is_complete_stream():
    drive = Drive()
    limit = {"limit": "max_run_s", "reached": 0.5}
    assert drive.stopped("max_run_s", 0.5) == [StreamStart(()), Finish("limit", Usage(), metadata=limit)]
    assert drive.command == Over()


def test_run_out_of_time_during_tools_keeps_their_results():
    drive = Drive(PLAIN)
    drive.calls(call("a"), call("b"))
    drive.tool("a")
    drive.tool_started("b")
    (finish,) = drive.stopped("max_run_s", 2.0)
    assert finish == Finish("limit", used(), metadata={"limit": "max_run_s", "reached": 2.0})
    assert drive.answers[1] == ChatMessage("tool", (ToolResultPart("a", "f", "done"),))
    assert drive.completed[-1] == (finish, [drive.answers[1]])


# Errors


@requirement("F03")
def test_error_in_step_follows_step_finish_and_drops_message():
    drive = Drive(PLAIN)
    error = Error("truncated", "the stream ended early", retryable=True)
    assert drive.answer(text("Hi"), call("a"), error, reason="error")[-3:] == [
        step_finish(0, "error"),
        error,
        Finish("error", used()),
    ]
    assert drive.answers == []
    assert drive.state.calls == ()
    partial = ChatMessage("model", (TextPart("Hi", "t"), ToolCallPart("a", "f", {"n": "a"})))
    assert drive.completed == [(drive.parts[-3], [partial])]


def test_key_in_provider_error_is_redacted():
    drive = Drive()
    drive.answer(Error("provider", "bad key sk-abcdefghijkl", status=401), reason="error")
    assert drive.parts[-2] == Error("provider", "bad key [redacted]", status=401)


def test_tool_error_in_step_does_not_end_run():
    drive = Drive()
    problem = Error("tool", "no such container")
    drive.answer(problem, *text("Hi"))
    assert drive.parts[2] == problem
    assert drive.parts[-1] == Finish("stop", used())


def test_run_failing_before_first_request_is_complete_stream():
    drive = Drive()
    error = Error("provider", "no server", status=502)
    assert drive.failed(error) == [StreamStart(()), error, Finish("error", Usage(), "provider")]
    assert drive.command == Over()


# Refusals

REFUSAL = Error("provider", "unknown response id", status=404)
DROP_SESSION = Recovery("session", Custom("sidestream.session-fallback", {"id": "r_0"}))


@requirement("F24")
def test_refused_feature_is_dropped_once_then_run_fails():
    drive = Drive()
    drive.sending((), ())
    assert drive.refused(DROP_SESSION, REFUSAL) == [DROP_SESSION.notice]
    assert (drive.command, drive.state.without) == (Send(), {"session"})
    assert drive.sending((), ()) == []
    assert drive.state.without == {"session"}
    assert drive.refused(DROP_SESSION, REFUSAL) == [REFUSAL, Finish("error", Usage(), "provider")]
    assert drive.command == Over()


def test_different_features_can_be_refused_in_turn():
    drive = Drive()
    drive.sending((), (), defers_output=True)
    drive.refused(DROP_SESSION, REFUSAL)
    drive.refused(Recovery("tools", Custom("note", 1)), REFUSAL)
    assert drive.state.without == {"session", "tools"}
    assert drive.state.defers_output


def test_refusal_without_recovery_fails_run():
    drive = Drive()
    assert drive.refused(None, REFUSAL) == [StreamStart(()), REFUSAL, Finish("error", Usage(), "provider")]


def test_only_refused_session_and_container_are_tried_next_step():
    drive = Drive(PLAIN)
    drive.sending((), ())
    for drop in ("session", "container", "summaries"):
        drive.refused(Recovery(drop, Custom("note", drop)), REFUSAL)
    drive.opened()
    drive.received([call("a"), Finish("tool-calls", used())])
    assert drive.state.without == {"summaries"}


# Typed output


def test_typed_answer_is_checked_before_run_ends():
    drive = Drive(checks_output=True)
    assert drive.answer(text('{"n": 1}'))[-1] == step_finish(0)
    assert drive.command == Check('{"n": 1}')
    assert drive.checked(None) == [Finish("stop", used())]
    assert drive.command == Over()


def test_empty_typed_answer_is_checked():
    drive = Drive(checks_output=True)
    drive.answer()
    assert drive.command == Check("")


def test_truncated_answer_is_not_checked():
    drive = Drive(checks_output=True)
    drive.answer(text('{"n"'), reason="length")
    assert drive.parts[-1] == Finish("length", used())


def test_rejected_answer_is_requested_again_until_limit():
    drive = Drive(checks_output=True, limits=Limits(max_output_retries=1))
    drive.answer(text("one"))
    words = "n: a number is required\n\nAnswer again, with JSON that fits and nothing else."
    rejection = Custom(OUTPUT_REJECTED, {"message": words, "problem": "n: a number is required"})
    assert drive.checked("n: a number is required") == [rejection]
    assert drive.command == Send()
    assert drive.answers[-1] == written(words)
    assert drive.completed[-1] == (rejection, [written(words)])
    drive.answer(text("two"))
    problem = Error("protocol", "the answer does not fit the output type: still wrong", code="output")
    assert drive.checked("still wrong") == [problem, Finish("error", used(2), "protocol")]
    assert drive.state.rejected_outputs == 1
    assert drive.command == Over()


def test_deferred_typed_answer_is_requested_without_tools():
    drive = Drive(PLAIN, checks_output=True)
    drive.sending((), (), defers_output=True)
    drive.opened()
    drive.received([call("a"), Finish("tool-calls", used())])
    assert drive.state.without == frozenset()
    drive.judged()
    drive.tool("a")
    drive.sending((), (), defers_output=True)
    drive.opened()
    drive.received([*text("I have all."), Finish("stop", used())])
    assert drive.command == Send()
    assert (drive.state.without, drive.state.defers_output) == ({"tools"}, False)
    drive.answer(text("{}"))
    assert drive.command == Check("{}")
    drive.checked("wrong")
    assert drive.state.without == {"tools"}
    assert [message.text for message in drive.answers if message.role == "model"] == ["", "I have all.", "{}"]


# Limits


@requirement("R73")
@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(max_steps=1), {"limit": "max_steps", "reached": 1}),
        (Limits(max_total_tokens=15), {"limit": "max_total_tokens", "reached": 15}),
    ],
)
def test_no_step_exceeds_limit_and_round_results_are_kept(limits, limit):
    drive = Drive(PLAIN, limits=limits)
    drive.calls(call("a"))
    assert drive.tool("a") == [result("a"), Finish("limit", used(), metadata=limit)]
    assert drive.command == Over()
    assert drive.answers[-1] == ChatMessage("tool", (ToolResultPart("a", "f", "done"),))
    assert drive.completed[-1] == (drive.parts[-1], [drive.answers[-1]])


def test_run_below_its_limits_continues():
    drive = Drive(PLAIN, limits=Limits(max_steps=2, max_total_tokens=16, max_tool_calls=1))
    drive.calls(call("a"))
    drive.tool("a")
    assert drive.command == Send()
    drive.answer(text("Hi"))
    assert drive.parts[-1] == Finish("stop", used(2))


def test_call_beyond_call_limit_does_not_run():
    drive = Drive(PLAIN, limits=Limits(max_tool_calls=2))
    drive.calls(call("a"))
    drive.tool("a")
    limit = {"limit": "max_tool_calls", "reached": 3}
    assert drive.answer(call("b"), call("c"), reason="tool-calls")[-1] == Finish("limit", used(2), metadata=limit)
    assert drive.command == Over()


# Calls that the turn does not answer


@pytest.mark.parametrize(
    "settings", [{"answers_calls": False}, {"handed_over": frozenset({"computer", "f"})}], ids=["all", "by name"]
)
def test_calls_handed_to_caller_end_run(settings):
    drive = Drive(**settings)
    drive.answer(call("a"), reason="tool-calls")
    assert drive.parts[-1] == Finish("tool-calls", used())
    assert drive.state.calls == ()
    assert drive.answers[-1].tool_calls == (ToolCallPart("a", "f", {"n": "a"}),)


def test_provider_call_type_answered_by_tool_is_not_handed_off():
    drive = Drive(tools=["computer"], handed_over=frozenset({"computer"}))
    drive.answer(call("a", "computer"), reason="tool-calls")
    assert [question.tool for question in drive.command.questions] == ["computer"]


def test_turn_not_answering_calls_ends_at_paused_response():
    drive = Drive(answers_calls=False)
    drive.answer(text("Hi"), reason="other", is_paused=True)
    assert drive.parts[-1] == Finish("other", used())


# Messages


def test_each_history_message_is_completed_by_one_part():
    drive = Drive(PLAIN, checks_output=True)
    drive.calls(*text("Let me see."), call("a"), call("b"))
    drive.tool("b")
    drive.tool("a")
    drive.answer(text("no"))
    drive.checked("wrong")
    drive.answer(text("{}"))
    drive.checked(None)
    assert [type(part) for part, _ in drive.completed] == [StepFinish, StepStart, StepFinish, Custom, StepFinish]
    assert [message for _, messages in drive.completed for message in messages] == drive.answers
    assert [message.role for message in drive.answers] == ["model", "tool", "model", "user", "model"]


def test_message_metadata_can_keep_tool_events():
    drive = Drive(message_metadata="full")
    search = ToolCall("ws_1", "web_search", "web_search", True, {})
    event = ToolEvent("web_search", "searching", {"type": "searching"}, call_id="ws_1")
    drive.answer(search, event, ToolResult("ws_1", "web_search", "web_search", {}, False, True), *text("Hi"))
    read = {"sources": ["web_search"]}
    assert drive.answers[0].metadata == {"web_search": [{"type": "searching"}], "_provenance": read}


def test_tools_set_later_replace_earlier_tools():
    drive = Drive(PLAIN)
    drive.set_tools({"h": Facts()})
    drive.calls(call("a", "h"), call("b", "f"))
    assert drive.command == CallTools((call("a", "h"),))
