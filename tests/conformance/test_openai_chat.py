"""What servers of Chat Completions really sent decodes to legal streams that lose nothing.

Facts are read from the recordings' JSON without our code, then looked for in the parts.
"""

import json
from functools import cached_property
from typing import Any

from hypothesis import given, strategies as st

from conformance.recorded import RecordedAnswer, each, recorded
from providers.openai.chat.chat_wire import decode, decode_whole
from requirements import requirement
from sidestream.parts import (
    Error,
    Finish,
    Raw,
    ResponseMetadata,
    Source,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
)
from sidestream.providers.openai.chat import PROVIDER
from sidestream.replay.provider import model_exchanges
from sidestream.replay.recording import Recording
from sidestream.stream.grammar import check
from sidestream.transport.calls import DONE
from support.places import RECORDINGS
from support.streams import input_text, messages, of, one, streamed_text

FOLDER = RECORDINGS / "openai-chat"


class Case(RecordedAnswer):
    """One recorded answer."""

    @cached_property
    def events(self) -> list[bytes]:
        return [data for data in self.events_of(None) if data != DONE]

    @cached_property
    def parts(self) -> list[StreamPart]:
        return decode(self.events) if self.exchange.is_stream else decode_whole(self.exchange.response.body)

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The whole answer: as it came, or put together from its chunks by the API's own rules."""
        return joined([json.loads(event) for event in self.events]) if self.exchange.is_stream else self.body

    @property
    def body(self) -> Any:
        return self.exchange.response.body

    @property
    def message(self) -> dict[str, Any]:
        return self.answer["choices"][0]["message"]


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a stream is the pieces of."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    answer: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for chunk in chunks:
        answer |= {key: value for key, value in chunk.items() if value and key not in ("choices", "obfuscation")}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] = ((message["content"] or "") + (delta.get("content") or "")) or None
            for piece in delta.get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"type": "function", "function": {"arguments": ""}})
                call |= {"id": piece["id"]} if "id" in piece else {}
                call["function"] |= {"name": piece["function"]["name"]} if "name" in piece["function"] else {}
                call["function"]["arguments"] += piece["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    message |= {"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return {**answer, "object": "chat.completion", "choices": [choice]}


CASES = recorded(Case, ["openai-chat"], r"/chat/completions$")
ANSWERED = [case for case in CASES if case.exchange.response.status < 400]
REFUSED = [case for case in CASES if case.exchange.response.status >= 400]
STREAMS = [case for case in ANSWERED if case.exchange.is_stream]


def test_recordings_cover_enough_exchanges():
    assert len(STREAMS) >= 3
    assert len(ANSWERED) - len(STREAMS) >= 4
    assert len(REFUSED) >= 1
    assert any("tool_calls" in case.message for case in STREAMS)


def test_recorded_decoder_matches_every_recorded_exchange():
    for path in sorted(FOLDER.glob("*.json")):
        recording = Recording.load(path)
        calls = [exchange for exchange in recording.exchanges if "/chat/" in exchange.request.path]
        assert model_exchanges(recording) == calls
        for exchange in calls:
            sent = exchange.request
            assert PROVIDER.recorded_decoder(sent.method, sent.path, sent.body) is not None


@requirement("R2", "R5", "R90")
@each(ANSWERED)
def test_every_answer_is_legal_complete_without_raw_parts(case: Case):
    check(case.parts)
    assert of(case.parts, Raw) == of(case.parts, Error) == []
    assert one(case.parts, Finish).reason in ("stop", "tool-calls")


@requirement("R9", "R90")
@each(STREAMS)
def test_stream_folds_like_non_streaming_answer(case: Case):
    at_once = decode_whole(case.answer)
    assert messages(case.parts) == messages(at_once)
    assert of(case.parts, ToolCall) == of(at_once, ToolCall)
    assert of(case.parts, TextEnd) == of(at_once, TextEnd)
    assert one(case.parts, Finish).usage == one(at_once, Finish).usage
    assert one(case.parts, Finish).reason == one(at_once, Finish).reason


@requirement("R90")
@each(ANSWERED)
def test_text_calls_and_citations_are_complete(case: Case):
    message = case.message
    assert streamed_text(case.parts) == (message["content"] or "")
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
    ]
    assert [(call.id, call.name, input_text(case.parts, call.id)) for call in of(case.parts, ToolCall)] == calls
    assert [call.input for call in of(case.parts, ToolCall)] == [json.loads(text) for _, _, text in calls]
    assert len(of(case.parts, Source)) == len(message.get("annotations") or [])


@requirement("R7", "R8", "R90")
@each(ANSWERED)
def test_usage_reason_and_metadata_match_answer(case: Case):
    finish, usage = one(case.parts, Finish), case.answer["usage"]
    assert finish.usage.raw == usage
    assert (finish.usage.input.total, finish.usage.output.total) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert finish.usage.output.reasoning == usage["completion_tokens_details"]["reasoning_tokens"]
    assert finish.raw_reason == case.answer["choices"][0]["finish_reason"]
    told = one(case.parts, ResponseMetadata)
    assert (told.id, told.model, told.created) == tuple(case.answer[key] for key in ("id", "model", "created"))
    for fact in ("service_tier", "system_fingerprint"):
        assert finish.metadata.get(fact) == (case.answer.get(fact) or None)


@each(STREAMS)
def test_text_deltas_are_streamed_unchanged(case: Case):
    deltas = [choice["delta"].get("content") for event in case.events for choice in json.loads(event)["choices"]]
    assert [part.delta for part in of(case.parts, TextDelta)] == [delta for delta in deltas if delta]


@requirement("F08", "R90")
@each(STREAMS)
def test_single_bytes_give_same_parts_as_whole_body(case: Case):
    assert decode(case.events_of(1)) == case.parts


@given(st.data())
def test_arbitrary_chunks_give_same_parts(data: st.DataObject):
    case = data.draw(st.sampled_from(STREAMS))
    sizes = data.draw(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
    assert decode(case.events_of(sizes)) == case.parts


@requirement("F01", "R90")
@each(STREAMS)
def test_stream_cut_before_finish_reason_is_truncated(case: Case):
    last = next(
        n for n, event in enumerate(case.events) if any(c["finish_reason"] for c in json.loads(event)["choices"])
    )
    for count in range(last + 1):
        assert one(decode(case.events[:count]), Error).kind == "truncated"


@each(ANSWERED)
async def test_replayed_recording_gives_same_parts(case: Case):
    replayed = await case.replayed((1000, 1, 333))
    assert [part.to_json() for part in replayed] == [part.to_json() for part in case.parts]


@requirement("F03", "R90")
@each(REFUSED)
async def test_refused_request_is_error_with_status_and_code(case: Case):
    parts = await case.replayed()
    check(parts)
    stated, error = case.body["error"], one(parts, Error)
    assert (error.kind, error.status, error.code) == ("provider", case.exchange.response.status, stated["code"])
    assert stated["message"] in error.message
    assert one(parts, Finish).reason == "error"
