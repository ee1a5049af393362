"""Whatever a provider sends, the stream of the Responses API is legal, in both dialects, wherever it was interrupted."""

from typing import Any

from hypothesis import given, strategies as st

from property.test_decoder_properties import DAMAGES, changed, streams
from requirements import requirement
from sidestream.parts import Finish, StepFinish, StepStart, StreamPart, StreamStart, Usage
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import Dialect, ResponseHead
from support.response_events import check_events
from support.streams import Event, decode

HEAD = ResponseHead(id="resp_1", model="main", created=7)
dialects = st.sampled_from(["openai", "open-responses"])


def run_of(events: list[Event]) -> list[StreamPart]:
    """The parts of a run with one step, as a turn makes them of what a decoder found."""
    *parts, finish = decode(events)
    assert isinstance(finish, Finish)
    ends = [part for part in parts if part.type == "error" and getattr(part, "kind", "") != "tool"]
    said = [part for part in parts if part not in ends]
    step = StepFinish(0, finish.reason, finish.usage, finish.outcome)
    return [StreamStart(()), StepStart(0), *said, step, *ends, Finish(finish.reason, Usage(), finish.raw_reason)]


def events_of(parts: list[StreamPart], dialect: Dialect) -> list[Any]:
    encoder = ResponsesEncoder(HEAD, dialect=dialect, functions=None)
    return [*encoder.begin(), *(event for part in parts for event in encoder.feed(part))]


@requirement("R140")
@given(streams() | changed(DAMAGES), dialects)
def test_any_provider_stream_is_valid_server_stream(events: list[Event], dialect: Dialect):
    check_events(events_of(run_of(events), dialect), dialect, typed=False, corrections=None)


@requirement("R140", "R142")
@given(streams(), dialects, st.data())
def test_run_left_anywhere_and_resumed_is_valid_stream(events: list[Event], dialect: Dialect, data: st.DataObject):
    parts = run_of(events)
    left = data.draw(st.integers(2, len(parts) - 2))
    encoder = ResponsesEncoder(HEAD, dialect=dialect, functions=None)
    out = encoder.begin()
    for part in parts[:left]:
        out += encoder.feed(part)
    out += encoder.resumed()
    for part in parts[1:]:
        out += encoder.feed(part)
    response = check_events(out, "openai" if dialect == "openai" else dialect, typed=False, corrections=None)
    assert (
        response["status"] == check_events(events_of(parts, dialect), dialect, typed=False, corrections=None)["status"]
    )
