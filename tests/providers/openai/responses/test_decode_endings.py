"""How a response ends: finish reasons, usage, errors, and what a response that was not streamed gives."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.stream.parts import (
    Error,
    Finish,
    InputUsage,
    OutputUsage,
    Raw,
    ResponseMetadata,
    StepFinish,
    TextEnd,
    ToolCall,
    Usage,
)
from support.streams import (
    EVERY_ITEM,
    USAGE,
    Event,
    code,
    decode,
    decode_whole,
    event,
    function_call,
    message,
    messages,
    of,
    one,
    response,
    stream,
    streamed_text,
    web_search,
    wire,
)


@requirement("R41", "R7")
@pytest.mark.parametrize(
    ("end", "fields", "reason", "raw_reason"),
    [
        ("completed", {}, "stop", "completed"),
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "length", "max_output_tokens"),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}}, "content-filter", "content_filter"),
        ("incomplete", {"incomplete_details": {"reason": "max_messages"}}, "other", "max_messages"),
        ("incomplete", {"incomplete_details": {"reason": "steered"}}, "other", "steered"),
        ("incomplete", {"incomplete_details": {"reason": "a new one"}}, "other", "a new one"),
        ("incomplete", {"incomplete_details": None}, "length", "incomplete"),
        ("failed", {"error": {"code": "server_error", "message": "boom"}}, "error", "failed"),
        ("cancelled", {}, "other", "cancelled"),
    ],
)
def test_each_end_has_its_reason_beside_the_provider_s_own(
    end: str, fields: dict[str, Any], reason: str, raw_reason: str
):
    for parts in (decode(stream(end=end, **fields)), decode_whole(response(status=end, **fields))):
        assert one(parts, StepFinish).reason == reason
        finish = one(parts, Finish)
        assert (finish.reason, finish.raw_reason) == (reason, raw_reason)


@requirement("R41")
@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_response_that_is_not_over_yet_ends_as_other_without_its_unfinished_items(status: str):
    item = {**function_call(0, "{}")[-1]["item"], "status": "in_progress"}
    parts = decode_whole(response([item], status))
    assert of(parts, ToolCall) == []
    finish = one(parts, Finish)
    assert (finish.reason, finish.raw_reason) == ("other", status)


@requirement("R7")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("message", "stop"),
        ("web_search_call", "stop"),
        ("function_call", "tool-calls"),
        ("custom_tool_call", "tool-calls"),
        ("mcp_approval_request", "approval"),
    ],
)
def test_a_completed_response_ends_by_what_it_waits_for(kind: str, reason: str):
    assert one(decode(stream(EVERY_ITEM[kind])), Finish).reason == reason


@requirement("R41", "F03")
def test_a_failed_response_carries_its_code_and_message():
    parts = decode(stream(message(0, "Hi"), end="failed", error={"code": "server_error", "message": "boom"}))
    assert parts[-2:] == [
        Error("provider", "boom", code="server_error", retryable=True),
        Finish("error", one(parts, Finish).usage, "failed", one(parts, Finish).metadata),
    ]
    assert streamed_text(parts) == "Hi"


@requirement("F03")
@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("server_error", "provider", True),
        ("vector_store_timeout", "provider", True),
        ("rate_limit_exceeded", "rate-limit", True),
        ("insufficient_quota", "provider", False),
        ("invalid_prompt", "provider", False),
    ],
)
def test_whether_an_error_is_worth_a_retry_follows_from_its_code(code: str, kind: str, retryable: bool):
    error = one(decode(stream(end="failed", error={"code": code, "message": "m"})), Error)
    assert (error.kind, error.code, error.retryable) == (kind, code, retryable)


FLAT = {"type": "error", "code": "server_error", "message": "boom", "param": None}
NESTED = {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "boom"}}
BARE = {"error": {"code": "server_error", "message": "boom"}}


@requirement("F03")
@pytest.mark.parametrize("sent", [FLAT, NESTED, BARE], ids=["flat", "nested", "without a type"])
def test_an_error_event_without_a_failed_response_is_one_error(sent: Event):
    parts = decode([*message(0, "Hi")[:4], sent])
    assert one(parts, Error) == Error("provider", "boom", code="server_error", retryable=True)
    assert one(parts, Finish).reason == "error"
    assert len(of(parts, TextEnd)) == 1


@requirement("F03")
def test_an_error_event_without_a_code_has_none():
    assert one(decode([{**FLAT, "code": None}]), Error).code is None


@requirement("F03", "R41")
def test_an_error_event_and_the_failed_response_after_it_are_one_error():
    failed = event("failed", response=response(status="failed", error={"code": "insufficient_quota", "message": "pay"}))
    parts = decode([{**FLAT, "code": "insufficient_quota", "message": "pay"}, failed])
    assert one(parts, Error) == Error("provider", "pay", code="insufficient_quota")


@requirement("F03")
def test_a_failed_response_without_its_own_words_takes_those_of_the_error_event():
    parts = decode([FLAT, event("failed", response=response(status="failed", error=None))])
    assert one(parts, Error).message == "boom"


@requirement("F03", "R4")
@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_a_response_that_ends_well_after_an_error_is_still_an_error(end: str):
    parts = decode([FLAT, event(end, response=response(status=end))])
    assert one(parts, Error).message == "boom"
    assert one(parts, Finish).reason == "error"


@requirement("F03")
@pytest.mark.parametrize("error", [None, "broken", [], {"message": 3}])
def test_a_failed_response_that_does_not_say_why_still_has_a_message(error: Any):
    assert one(decode(stream(end="failed", error=error)), Error).message


@requirement("F04")
def test_an_incomplete_answer_keeps_what_was_written_and_is_no_error():
    parts = decode([*message(0, "Once ", "upon")[:-2], event("incomplete", response=response(status="incomplete"))])
    assert of(parts, Error) == []
    assert [m.text for m in messages(parts)] == ["Once upon"]
    assert one(parts, Finish).reason == "length"


@requirement("R8")
def test_usage_is_emitted_once_per_step_and_once_in_total():
    parts = decode(stream(web_search(0), web_search(1, "ws_2"), code(2, "x")))
    expected = Usage(
        InputUsage(total=30, no_cache=15, cache_read=10, cache_write=5),
        OutputUsage(total=9, text=5, reasoning=4),
        {"web_search": 2, "code_interpreter": 1},
        USAGE,
    )
    assert one(parts, StepFinish).usage == expected
    assert one(parts, Finish).usage == expected


@requirement("R8")
@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "many",
        {"input_tokens": "3", "output_tokens": None},
        {"input_tokens": 1.5, "output_tokens": True, "input_tokens_details": []},
    ],
)
def test_usage_that_cannot_be_read_counts_as_nothing(usage: Any):
    counted = one(decode(stream(usage=usage)), Finish).usage
    assert (counted.input, counted.output) == (InputUsage(), OutputUsage())


@requirement("R8")
def test_unknown_counts_stay_in_the_raw_usage():
    usage = {**USAGE, "copilot_usage": {"total": 1}}
    assert one(decode(stream(usage=usage)), Finish).usage.raw == usage


def test_the_finish_says_which_response_it_was_and_how_it_was_served():
    parts = decode(stream(service_tier="flex", incomplete_details=None, conversation={"id": "conv_1"}))
    assert one(parts, Finish).metadata == {
        "response_id": "resp_1",
        "model": "gpt-5.6",
        "status": "completed",
        "service_tier": "flex",
        "conversation": {"id": "conv_1"},
    }


def test_the_response_s_facts_come_once_with_the_first_event_that_has_them():
    opening = [event(name, response=response(status="queued")) for name in ("created", "queued", "in_progress")]
    parts = decode([*opening, event("completed", response=response())])
    assert one(parts, ResponseMetadata) == ResponseMetadata("resp_1", "gpt-5.6", 1764964102, "openai-responses")


def test_a_resumed_stream_without_a_beginning_has_the_response_s_facts_too():
    parts = decode(stream(message(0, "Hi"))[1:])
    assert one(parts, ResponseMetadata).id == "resp_1"


@requirement("R4")
def test_nothing_comes_after_the_terminal_event():
    decoder = ResponsesDecoder(ResponsesContext())
    emitted = decoder.feed(wire(event("completed", response=response())))
    assert isinstance(emitted[-1], Finish)
    assert decoder.feed(wire(event("output_text.delta", output_index=0, delta="late"))) == []
    assert decoder.feed(wire(event("completed", response=response()))) == []
    assert decoder.close() == []


@requirement("R4")
def test_a_stream_that_broke_ends_its_blocks_and_says_why():
    decoder = ResponsesDecoder(ResponsesContext())
    for sent in stream(message(0, "Hi"))[:4]:
        decoder.feed(wire(sent))
    broken = Error("timeout", "nothing came", retryable=True)
    assert decoder.close(broken) == [TextEnd("msg_1"), broken, Finish("error", Usage(), "timeout")]
    assert decoder.close(broken) == []


@requirement("R4")
def test_a_terminal_event_counts_even_with_a_low_sequence_number():
    events = stream(message(0, "Hi"))
    events[-1]["sequence_number"] = 0
    assert one(decode(events), Finish).reason == "stop"


@requirement("R9")
@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b"3", b'{"id":"x"}'])
def test_a_whole_answer_that_is_no_response_is_an_error(body: bytes):
    parts = decode_whole(body)
    assert one(parts, Error).kind in ("protocol", "provider")
    assert one(parts, Finish).reason == "error"


@requirement("R9")
def test_a_whole_answer_without_a_status_counts_as_completed():
    answer = {"id": "resp_1", "output": [message(0, "Hi")[-1]["item"]]}
    parts = decode_whole(answer)
    assert (streamed_text(parts), one(parts, Finish).reason) == ("Hi", "stop")


@requirement("R9", "R2")
def test_a_whole_answer_that_holds_an_error_says_what_it_says():
    parts = decode_whole({"error": {"code": "server_error", "message": "boom"}})
    assert one(parts, Error) == Error("provider", "boom", code="server_error", retryable=True)
    assert one(parts, Raw).event == {"error": {"code": "server_error", "message": "boom"}}


@requirement("R9")
@pytest.mark.parametrize("kind", sorted(EVERY_ITEM))
def test_a_whole_response_gives_the_same_message_calls_and_end_as_its_stream(kind: str):
    sent = stream(EVERY_ITEM[kind])
    streamed, whole = decode(sent), decode_whole(sent[-1]["response"])
    assert messages(whole) == messages(streamed)
    assert of(whole, ToolCall) == of(streamed, ToolCall)
    assert whole[-1] == streamed[-1]
