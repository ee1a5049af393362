"""How a response ends: finish reasons, usage, errors, and what a response that was not streamed gives."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.parts import (
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
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
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
def test_response_statuses_map_to_finish_reasons(end: str, fields: dict[str, Any], reason: str, raw_reason: str):
    for parts in (decode(stream(end=end, **fields)), decode_whole(response(status=end, **fields))):
        assert one(parts, StepFinish).reason == reason
        finish = one(parts, Finish)
        assert (finish.reason, finish.raw_reason) == (reason, raw_reason)


@requirement("R41")
@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_unfinished_response_ends_as_other_without_its_calls(status: str):
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
def test_completed_response_reason_follows_pending_items(kind: str, reason: str):
    assert one(decode(stream(EVERY_ITEM[kind])), Finish).reason == reason


@requirement("R41", "F03")
def test_failed_response_keeps_code_and_message():
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
def test_retryable_flag_follows_error_code(code: str, kind: str, retryable: bool):
    error = one(decode(stream(end="failed", error={"code": code, "message": "m"})), Error)
    assert (error.kind, error.code, error.retryable) == (kind, code, retryable)


FLAT = {"type": "error", "code": "server_error", "message": "boom", "param": None}
NESTED = {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "boom"}}
BARE = {"error": {"code": "server_error", "message": "boom"}}


@requirement("F03")
@pytest.mark.parametrize("sent", [FLAT, NESTED, BARE], ids=["flat", "nested", "without a type"])
def test_error_event_without_failed_response_is_one_error(sent: Event):
    parts = decode([*message(0, "Hi")[:4], sent])
    assert one(parts, Error) == Error("provider", "boom", code="server_error", retryable=True)
    assert one(parts, Finish).reason == "error"
    assert len(of(parts, TextEnd)) == 1


@requirement("F03")
def test_error_event_without_code_has_none():
    assert one(decode([{**FLAT, "code": None}]), Error).code is None


@requirement("F03", "R41")
def test_error_event_and_failed_response_are_one_error():
    failed = event("failed", response=response(status="failed", error={"code": "insufficient_quota", "message": "pay"}))
    parts = decode([{**FLAT, "code": "insufficient_quota", "message": "pay"}, failed])
    assert one(parts, Error) == Error("provider", "pay", code="insufficient_quota")


@requirement("F03")
def test_failed_response_without_error_uses_error_event():
    parts = decode([FLAT, event("failed", response=response(status="failed", error=None))])
    assert one(parts, Error).message == "boom"


@requirement("F03", "R4")
@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_response_ending_after_error_event_is_error(end: str):
    parts = decode([FLAT, event(end, response=response(status=end))])
    assert one(parts, Error).message == "boom"
    assert one(parts, Finish).reason == "error"


@requirement("F03")
@pytest.mark.parametrize("error", [None, "broken", [], {"message": 3}])
def test_failed_response_without_reason_has_message(error: Any):
    assert one(decode(stream(end="failed", error=error)), Error).message


@requirement("F04")
def test_incomplete_answer_keeps_text_without_error():
    parts = decode([*message(0, "Once ", "upon")[:-2], event("incomplete", response=response(status="incomplete"))])
    assert of(parts, Error) == []
    assert [m.text for m in messages(parts)] == ["Once upon"]
    assert one(parts, Finish).reason == "length"


@requirement("R8")
def test_usage_is_emitted_per_step_and_in_total():
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
def test_unreadable_usage_counts_as_zero(usage: Any):
    counted = one(decode(stream(usage=usage)), Finish).usage
    assert (counted.input, counted.output) == (InputUsage(), OutputUsage())


@requirement("R8")
def test_unknown_usage_fields_stay_in_raw_usage():
    usage = {**USAGE, "copilot_usage": {"total": 1}}
    assert one(decode(stream(usage=usage)), Finish).usage.raw == usage


def test_finish_metadata_identifies_response_and_tier():
    parts = decode(stream(service_tier="flex", incomplete_details=None, conversation={"id": "conv_1"}))
    assert one(parts, Finish).metadata == {
        "response_id": "resp_1",
        "model": "gpt-5.6",
        "status": "completed",
        "service_tier": "flex",
        "conversation": {"id": "conv_1"},
    }


def test_response_metadata_is_emitted_once():
    opening = [event(name, response=response(status="queued")) for name in ("created", "queued", "in_progress")]
    parts = decode([*opening, event("completed", response=response())])
    assert one(parts, ResponseMetadata) == ResponseMetadata("resp_1", "gpt-5.6", 1764964102, "openai-responses")


def test_resumed_stream_without_start_has_response_metadata():
    parts = decode(stream(message(0, "Hi"))[1:])
    assert one(parts, ResponseMetadata).id == "resp_1"


@requirement("R4")
def test_decoder_ignores_events_after_terminal_event():
    decoder = ResponsesDecoder(ResponsesContext())
    emitted = decoder.feed(wire(event("completed", response=response())))
    assert isinstance(emitted[-1], Finish)
    assert decoder.feed(wire(event("output_text.delta", output_index=0, delta="late"))) == []
    assert decoder.feed(wire(event("completed", response=response()))) == []
    assert decoder.close() == []


@requirement("R4")
def test_broken_stream_closes_blocks_and_reports_cause():
    decoder = ResponsesDecoder(ResponsesContext())
    for sent in stream(message(0, "Hi"))[:4]:
        decoder.feed(wire(sent))
    broken = Error("timeout", "nothing came", retryable=True)
    assert decoder.close(broken) == [TextEnd("msg_1"), broken, Finish("error", Usage(), "timeout")]
    assert decoder.close(broken) == []


@requirement("R4")
def test_terminal_event_with_low_sequence_number_counts():
    events = stream(message(0, "Hi"))
    events[-1]["sequence_number"] = 0
    assert one(decode(events), Finish).reason == "stop"


@requirement("R9")
@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b"3", b'{"id":"x"}'])
def test_invalid_non_streaming_body_is_error(body: bytes):
    parts = decode_whole(body)
    assert one(parts, Error).kind in ("protocol", "provider")
    assert one(parts, Finish).reason == "error"


@requirement("R9")
def test_non_streaming_answer_without_status_is_completed():
    answer = {"id": "resp_1", "output": [message(0, "Hi")[-1]["item"]]}
    parts = decode_whole(answer)
    assert (streamed_text(parts), one(parts, Finish).reason) == ("Hi", "stop")


@requirement("R9", "R2")
def test_non_streaming_error_keeps_code_and_message():
    parts = decode_whole({"error": {"code": "server_error", "message": "boom"}})
    assert one(parts, Error) == Error("provider", "boom", code="server_error", retryable=True)
    assert one(parts, Raw).event == {"error": {"code": "server_error", "message": "boom"}}


@requirement("R9")
@pytest.mark.parametrize("kind", sorted(EVERY_ITEM))
def test_non_streaming_response_matches_its_stream(kind: str):
    sent = stream(EVERY_ITEM[kind])
    streamed, whole = decode(sent), decode_whole(sent[-1]["response"])
    assert messages(whole) == messages(streamed)
    assert of(whole, ToolCall) == of(streamed, ToolCall)
    assert whole[-1] == streamed[-1]
