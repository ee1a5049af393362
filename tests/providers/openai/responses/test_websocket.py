"""The messages of the WebSocket mode: what is sent, and how an event is found to belong to a lane."""

import json
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from openai.types.responses import ResponseSteerEvent

from requirements import requirement
from sidestream import ChatMessage, DataPart, TextPart
from sidestream.jsontext import dumps
from sidestream.providers.openai.responses.decode.decoder import EVENTS
from sidestream.providers.openai.responses.encode.request import steer_event
from sidestream.providers.openai.responses.websocket import LAST_TYPES, PLAIN_HEADS, RESPONSES_WEBSOCKET as CODEC
from sidestream.testing import pixel_png
from sidestream.transport.calls import HttpCall, SteerReport

LANE = "lane-1"
SLY = st.sampled_from([',"stream_id":"lane-1"}', '"stream_id"', "lane-1", "\\", '"', "}", "stream_id", "lane-2"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.lists(SLY).map("".join),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | SLY, inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["type", "stream_id", "delta", "x"]) | SLY, VALUES)


def call(body: Any, **fields: Any) -> HttpCall:
    return HttpCall(**{"url": "https://api.openai.com/v1/responses", "body": dumps(body), "stream": True, **fields})


def test_websocket_request_is_body_without_http_fields():
    body = {"model": "m", "input": [{"content": "é"}], "stream": True, "background": False, "stream_options": {"a": 1}}
    message_for = CODEC.request(call(body))
    assert message_for is not None
    kept = {"model": "m", "input": [{"content": "é"}], "stream_options": {"a": 1}}
    assert json.loads(message_for(LANE)) == {"type": "response.create", "stream_id": LANE, **kept}
    assert json.loads(message_for("other"))["stream_id"] == "other"


@pytest.mark.parametrize(
    "other",
    [
        call({"background": True}),
        call({}, stream=False),
        call({}, url="https://api.openai.com/v1/responses/compact"),
        call({}, url="https://api.openai.com/v1/responses/resp_1", method="GET"),
        HttpCall(url="https://api.openai.com/v1/responses", stream=True),
        HttpCall(url="https://api.openai.com/v1/responses", stream=True, body=b"[1]"),
    ],
)
def test_other_calls_need_http(other: HttpCall):
    assert CODEC.request(other) is None


@given(st.binary() | VALUES.map(dumps) | OBJECTS.map(dumps))
def test_malformed_messages_never_raise(message: bytes):
    head = CODEC.head(message)
    assert isinstance(head.type, str)
    assert head.lane is None or isinstance(head.lane, str)
    CODEC.failure(message)
    CODEC.steer_report(message)


@requirement("R115")
@given(OBJECTS, st.booleans())
@example({"delta": "x", "stream_id": LANE}, True)
@example({"delta": "x", "stream_id": LANE}, False)
@example({"stream_id": "lane-2", "x": {"stream_id": LANE}}, False)
@example({"stream_id": "lane-2", "x": ',"stream_id":"lane-1"}'}, False)
def test_event_with_stream_id_suffix_belongs_to_its_stream(event: dict[str, Any], has_spaces: bool):
    message = json.dumps(event).encode() if has_spaces else dumps(event)
    if message.endswith(CODEC.tails(LANE)):
        assert event["stream_id"] == LANE


def test_unparsed_event_types_are_known_and_never_terminal():
    kinds = {json.loads(head.partition(b":")[2]) for head in PLAIN_HEADS}
    assert kinds <= EVENTS.keys()
    assert not kinds & (LAST_TYPES | CODEC.steer_types)


@requirement("R115")
def test_steer_event_fits_vendor_types():
    parts = (
        TextPart("Look:"),
        DataPart(pixel_png(), "image/png", "a.png"),
        DataPart(b"%PDF-", "application/pdf", "b.pdf"),
    )
    for message in (ChatMessage.user("Hurry."), ChatMessage("user", parts, {"steer": "steer_1"})):
        sent = json.loads(steer_event("resp_1", message, None))
        assert sent.keys() == {"type", "previous_response_id", "input"}
        event = ResponseSteerEvent.model_validate(sent)
        assert event.previous_response_id == "resp_1"
        (item,) = sent["input"]
        assert item.keys() <= {"type", "role", "content"}
    assert [entry["type"] for entry in item["content"]] == ["input_text", "input_image", "input_file"]


@requirement("R115")
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {"type": "response.steer.accepted", "steer": {"id": "s", "previous_response_id": "r"}},
            SteerReport(status="accepted", id="s", response_id="r"),
        ),
        (
            {"type": "response.steer.pending", "steer": {"id": "s", "previous_response_id": "r"}, "reason": "new"},
            SteerReport(status="pending", id="s", response_id="r"),
        ),
        (
            {"type": "response.steer.failed", "steer": {"previous_response_id": "r"}, "error": {"code": "c"}},
            SteerReport(status="failed", response_id="r", code="c"),
        ),
        ({"type": "response.steer.failed", "steer": 7, "error": None}, SteerReport(status="failed")),
        (
            {"type": "error", "error": {"type": "t", "message": "m"}},
            SteerReport(status="failed", code="t", message="m"),
        ),
        ({"type": "response.created"}, None),
    ],
)
def test_steer_report_reads_server_response(event: dict[str, Any], expected: SteerReport | None):
    assert CODEC.steer_report(dumps(event)) == expected


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"status": 429, "error": {"code": "x"}}, 429),
        ({"error": {"code": "rate_limit_exceeded"}}, 429),
        ({"error": {"type": "server_error"}}, 500),
        ({"status": 200, "error": {"type": "invalid_request_error"}}, 400),
        ({"status": "400", "error": {"code": "previous_response_not_found"}}, 400),
        ({"error": {"code": "unheard-of"}}, None),
        ({"status": 500}, None),
    ],
)
def test_error_event_has_matching_http_status(event: dict[str, Any], status: int | None):
    failure = CODEC.failure(dumps({"type": "error", **event}))
    assert (failure and failure.status) == status
