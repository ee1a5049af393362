"""What holds for the streams of pages, whatever a provider sends: clients accept them, and a snapshot can be made."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, strategies as st

from property.test_decoder_properties import DAMAGES, changed, garbage
from protocols.ui_chunks import check
from requirements import requirement
from sidestream.parts import StreamPart
from sidestream.protocols.agui import AGUIEncoder
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from support.streams import Event, decode

Json = dict[str, Any]

OPENING = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
    "REASONING_START": ("REASONING_END", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
    "STEP_STARTED": ("STEP_FINISHED", "stepName"),
}
GROWING = {
    "TEXT_MESSAGE_CONTENT": "TEXT_MESSAGE_END",
    "REASONING_MESSAGE_CONTENT": "REASONING_MESSAGE_END",
    "TOOL_CALL_ARGS": "TOOL_CALL_END",
}


def check_events(events: Iterable[Json]) -> None:
    """The rules of order that AG-UI's client enforces."""
    found = list(events)
    open_ends: set[tuple[str, str]] = set()
    assert found[0]["type"] == "RUN_STARTED"
    for event in found[1:-1]:
        kind = event["type"]
        assert kind not in ("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"), event
        id = next((event[name] for name in ("messageId", "toolCallId", "stepName") if name in event), "")
        if kind in OPENING:
            end = (OPENING[kind][0], event[OPENING[kind][1]])
            assert end not in open_ends, event
            open_ends.add(end)
        elif kind in GROWING:
            assert (GROWING[kind], id) in open_ends, event
        elif kind.endswith(("_END", "_FINISHED")):
            open_ends.remove((kind, id))
    assert found[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    assert not open_ends


def check_pages(parts: list[StreamPart]) -> None:
    encoder, folding = UIMessageEncoder("m1"), UIMessageFold("m1")
    chunks = [chunk for number, part in enumerate(parts, 1) for chunk in encoder.feed(part, float(number), number)]
    check(chunks)
    folding.feed(chunks)
    folding.message()
    events = AGUIEncoder("t1", "r1", "m1")
    check_events(event for part in parts for event in events.feed(part))


@requirement("R141", "F07", "F09")
@given(changed(DAMAGES), st.booleans())
def test_damaged_stream_is_valid_for_web_ui(events: list[Event], store: bool):
    check_pages(decode(events, store=store))


@requirement("R141", "F07")
@given(garbage())
def test_garbage_is_valid_for_web_ui(events: list[Any]):
    check_pages(decode(events))
