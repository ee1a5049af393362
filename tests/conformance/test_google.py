"""What Google really sent decodes to legal streams that lose nothing, by both of its APIs.

Facts are read from the recordings' JSON without our code, then looked for in the parts.
"""

import base64
import json
from functools import cached_property
from typing import Any

from hypothesis import given, strategies as st

from conformance.recorded import RecordedAnswer, each, recorded
from providers.google.gemini_wire import fed, kept, whole
from requirements import requirement
from sidestream.messages.message import TextPart, ThinkingPart
from sidestream.parts import (
    Error,
    File,
    Finish,
    Raw,
    Source,
    StreamPart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolResult,
)
from sidestream.providers.google import PROVIDER
from sidestream.providers.registry import register_provider
from sidestream.replay.recording import Exchange
from sidestream.stream.grammar import check
from support.streams import messages, of, one

register_provider(PROVIDER)


class Case(RecordedAnswer):
    """One recorded answer."""

    def __init__(self, name: str, exchange: Exchange) -> None:
        super().__init__(name, exchange)
        self.is_interaction = "/interactions" in exchange.request.path

    def decoded(self, events: list[bytes]) -> list[StreamPart]:
        decoder = PROVIDER.recorded_decoder("POST", self.exchange.request.path, self.exchange.request.body)
        assert decoder is not None
        return fed(decoder, events) if self.exchange.is_stream else whole(decoder, self.exchange.body_bytes())

    @cached_property
    def parts(self) -> list[StreamPart]:
        return self.decoded(self.events if self.exchange.is_stream else [])

    @cached_property
    def sent(self) -> list[dict[str, Any]]:
        return (
            [json.loads(event) for event in self.events] if self.exchange.is_stream else [self.exchange.response.body]
        )

    @cached_property
    def sent_parts(self) -> list[dict[str, Any]]:
        """Every part of every chunk."""
        return [
            part
            for chunk in self.sent
            for candidate in chunk.get("candidates", [])
            for part in candidate.get("content", {}).get("parts", [])
        ]

    @property
    def grounding(self) -> dict[str, Any]:
        found = [
            c["groundingMetadata"] for chunk in self.sent for c in chunk["candidates"] if c.get("groundingMetadata")
        ]
        return found[-1] if found else {}


CASES = recorded(Case, ["google", "google-interactions"], r"[gG]enerateContent|/interactions$")
ANSWERED = [case for case in CASES if case.exchange.response.status < 400]
REFUSED = [case for case in CASES if case.exchange.response.status >= 400]
STREAMS = [case for case in ANSWERED if case.exchange.is_stream]
GEMINI = [case for case in ANSWERED if not case.is_interaction]
INTERACTIONS = [case for case in ANSWERED if case.is_interaction]


def test_recordings_cover_enough_exchanges():
    assert len([case for case in GEMINI if case.exchange.is_stream]) >= 13
    assert len(GEMINI) >= 27
    assert len(INTERACTIONS) >= 12
    assert len(REFUSED) >= 1


@requirement("R2", "R5")
@each(ANSWERED)
def test_every_answer_is_legal_without_raw_parts(case: Case):
    check(case.parts)
    assert of(case.parts, Raw) == []
    assert of(case.parts, Error) == []


@each(GEMINI)
def test_text_and_thoughts_are_complete(case: Case):
    stored = [part for message in messages(case.parts) for part in message.parts]
    for kind, is_thought in ((TextPart, False), (ThinkingPart, True)):
        sent = [part["text"] for part in case.sent_parts if "text" in part and part.get("thought", False) is is_thought]
        assert "".join(part.text for part in stored if isinstance(part, kind)) == "".join(sent)


@requirement("R63")
@each(GEMINI)
def test_signatures_are_kept_in_order(case: Case):
    layout = kept(case.parts)["_google_session"]["parts"]
    found = [entry.get("thoughtSignature") or entry.get("part", {}).get("thoughtSignature") for entry in layout]
    assert [signature for signature in found if signature] == [
        part["thoughtSignature"] for part in case.sent_parts if "thoughtSignature" in part
    ]


@requirement("R63")
@each(GEMINI)
def test_function_calls_are_complete(case: Case):
    named = [part["functionCall"] for part in case.sent_parts if part.get("functionCall", {}).get("name")]
    calls = [call for call in of(case.parts, ToolCall) if not call.provider_executed]
    assert [call.name for call in calls] == [call["name"] for call in named]
    for call, sent in zip(calls, named, strict=True):
        if "args" in sent:
            assert call.input == sent["args"]
        assert call.id == sent.get("id", call.id)
        text = "".join(part.delta for part in of(case.parts, ToolInputDelta) if part.id == call.id)
        assert json.loads(text) == call.input


@requirement("R3", "R62")
@each(GEMINI)
def test_hosted_tool_events_are_unchanged_and_in_order(case: Case):
    of_tools = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
    expected = [part for part in case.sent_parts if any(key in part for key in of_tools)]
    events = [part.event for part in of(case.parts, ToolEvent)]
    assert [event for event in events if any(key in event for key in of_tools)] == expected
    assert len(of(case.parts, ToolResult)) == sum("codeExecutionResult" in p or "toolResponse" in p for p in expected)
    metadata = [
        {key: candidate[key]}
        for chunk in case.sent
        for candidate in chunk["candidates"]
        for key in ("urlContextMetadata", "groundingMetadata")
        if candidate.get(key)
    ]
    assert [event for event in events if event.keys() & {"urlContextMetadata", "groundingMetadata"}] == metadata


@requirement("R62")
@each([case for case in GEMINI if case.grounding])
def test_sources_match_grounding_and_supported_text(case: Case):
    chunks = case.grounding["groundingChunks"]
    supports = case.grounding.get("groundingSupports", [])
    expected = [
        (index, support["segment"]["text"]) for support in supports for index in support["groundingChunkIndices"]
    ]
    sources = of(case.parts, Source)
    cited = {index for index, _ in expected}
    assert len(sources) == len(expected) + len(chunks) - len(cited)
    (text,) = [part for message in messages(case.parts) for part in message.parts if isinstance(part, TextPart)]
    for source, (index, segment) in zip(sources, expected, strict=False):
        (chunk,) = chunks[index].values()
        assert (source.url, source.title) == (chunk.get("uri"), chunk.get("title"))
        assert source.cited_text == segment
        assert text.text[source.start : source.end] == segment
    assert kept(case.parts)["grounding_metadata"] == case.grounding
    assert one(case.parts, Finish).metadata["grounding_metadata"] == case.grounding


@requirement("R62")
@each([case for case in GEMINI if any("inlineData" in part for part in case.sent_parts)])
def test_inline_data_becomes_file(case: Case):
    blobs = [part["inlineData"] for part in case.sent_parts if "inlineData" in part]
    assert [(file.mime_type, file.data) for file in of(case.parts, File)] == [
        (blob["mimeType"], base64.b64decode(blob["data"])) for blob in blobs
    ]


@requirement("R7", "R8")
@each(GEMINI)
def test_usage_and_finish_reason_match_last_chunk(case: Case):
    finish = one(case.parts, Finish)
    usage = [chunk["usageMetadata"] for chunk in case.sent if "usageMetadata" in chunk][-1]
    thought = usage.get("thoughtsTokenCount", 0)
    assert finish.usage.raw == usage
    assert finish.usage.input.total == usage["promptTokenCount"] + usage.get("toolUsePromptTokenCount", 0)
    assert finish.usage.output.total == usage.get("candidatesTokenCount", 0) + thought
    assert finish.usage.output.reasoning == thought
    calls = [call for call in of(case.parts, ToolCall) if not call.provider_executed]
    assert (finish.reason, finish.raw_reason) == ("tool-calls" if calls else "stop", "STOP")


@requirement("F08")
@each(STREAMS)
def test_single_bytes_give_same_parts_as_whole_body(case: Case):
    assert case.decoded(case.events_of(1)) == case.parts


@given(st.data())
def test_arbitrary_chunks_give_same_parts(data: st.DataObject):
    case = data.draw(st.sampled_from(STREAMS))
    sizes = data.draw(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
    assert case.decoded(case.events_of(sizes)) == case.parts


@requirement("F01")
@given(st.data())
def test_stream_cut_before_its_end_is_truncated(data: st.DataObject):
    case = data.draw(st.sampled_from(STREAMS))
    parts = case.decoded(case.events[: data.draw(st.integers(0, len(case.events) - 1))])
    assert one(parts, Error).kind == "truncated"


@each(ANSWERED)
async def test_replayed_recording_gives_same_parts(case: Case):
    replayed = await case.replayed((1000, 1, 333))
    assert [told(part) for part in replayed] == [told(part) for part in case.parts]


def told(part: StreamPart) -> Any:
    """The part without what only the message keeps."""
    fields = [name for name in part.__struct_fields__ if name not in ("provider_metadata", "outcome")]
    return (type(part), {name: getattr(part, name) for name in fields})


@requirement("F03")
@each(REFUSED)
async def test_refused_request_is_error_with_status_then_finish(case: Case):
    parts = await case.replayed()
    check(parts)
    error = one(parts, Error)
    assert error.status == case.exchange.response.status == 429
    assert error.kind == "rate-limit"
    assert one(parts, Finish).reason == "error"
