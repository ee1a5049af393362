"""Rows of deltas take a fast path; for any event it must emit what the tables emit."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidestream.messages.fold import Batch
from sidestream.parts import Raw, ReasoningDelta, StreamPart, ToolInputDelta
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode.decoder import MessagesDecoder
from sidestream.providers.google.context import GoogleContext
from sidestream.providers.google.decode.decoder import GenerateContentDecoder
from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.shared.decoding import ResponseDecoder, by_tables

Event = dict[str, Any]


def block(index: int, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: Any, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


MESSAGES = [
    {"type": "message_start", "message": {"id": "msg_1", "model": "m", "content": []}},
    block(0, "thinking", thinking=""),
    delta(0, "thinking_delta", thinking="a"),
    delta(0, "thinking_delta", thinking="b"),
    delta(0, "signature_delta", signature="s"),
    block(1, "server_tool_use", id="s1", name="web_search", input={}),
    delta(1, "input_json_delta", partial_json="{"),
    delta(1, "input_json_delta", partial_json="}"),
    delta(1.0, "input_json_delta", partial_json=""),
    {"type": "content_block_stop", "index": 1},
    block(2, "tool_use", id="t1", name="return_result", input={}),
    delta(2, "input_json_delta", partial_json="{}"),
    delta(2, "text_delta", text="c"),
    block(3, "text", text=""),
    delta(3, "text_delta", text="d"),
    delta(3, "text_delta", text="e"),
    delta(3, "citations_delta", citation={"type": "char_location", "cited_text": "x"}),
    {"index": 3, "delta": {"type": "text_delta", "text": "without a type"}},
    {"type": "ping"},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def chunk(*parts: Event, **fields: Any) -> Event:
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"totalTokenCount": len(parts)}, "responseId": "r", **fields}


GENERATE = [
    chunk({"text": "a"}),
    chunk({"text": "b"}),
    chunk({"thoughtSignature": "R"}),
    chunk({"text": "k"}),
    chunk({"text": ""}),
    chunk({"text": "c", "thought": True}),
    chunk({"text": "d", "thought": True}, createTime="2026-01-31T00:00:00Z"),
    chunk({"text": "e", "thought": True, "thoughtSignature": "S"}),
    chunk({"text": "", "thoughtSignature": "T"}),
    chunk({"text": "f", "unknown": 1}),
    chunk({"text": "g"}, {"text": "h"}),
    chunk({"text": "i"}, responseId="other"),
    chunk({"functionCall": {"name": "f", "args": {"a": 1}}}),
    {"candidates": [{"content": {"parts": [{"text": "j"}]}, "finishReason": "STOP"}]},
    {"candidates": [{"groundingMetadata": {"groundingChunks": [{"web": {"uri": "u"}}]}}]},
]


def choice(said: Event, **fields: Any) -> Event:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": said, "finish_reason": None}], **fields}


def piece(index: int, **function: Any) -> Event:
    return choice({"tool_calls": [{"index": index, "function": function}]})


CHAT = [
    {"choices": [{"index": 0, "delta": {"content": "without an id"}}]},
    choice({"role": "assistant", "content": ""}),
    choice({"reasoning_content": "a", "content": None}),
    choice({"reasoning_content": "b"}),
    choice({"reasoning": "c"}),
    choice({"content": "d"}, usage={"prompt_tokens": 3}),
    choice({"content": "e", "reasoning_content": ""}, service_tier="default"),
    choice({"content": "f", "reasoning_content": "g"}),
    choice({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]}),
    piece(0, arguments='{"a"'),
    piece(0, arguments=": 1}"),
    piece(0, arguments='{"a": 1}'),
    piece(0, arguments="", name=None),
    piece(1, arguments="{}", name="g"),
    choice({"tool_calls": [{"index": 2, "id": "c3", "custom": {"name": "h", "input": "ab"}}]}),
    piece(2, arguments="cd"),
    {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


def text(delta: str, number: int | None, **fields: Any) -> Event:
    numbered = {} if number is None else {"sequence_number": number}
    event = {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": delta}
    return {**event, **numbered, **fields}


RESPONSES = [
    {"type": "response.created", "response": {"id": "r"}, "sequence_number": 0},
    text("a", 1),
    text("b", 2, content_index=0, logprobs=[]),
    text("repeated", 2),
    text("c", 3, logprobs=[{"token": "c"}]),
    text("d", 4, content_index=1),
    text("e", 5, content_index=1),
    text("f", 6, item_id="other"),
    text("g", 7, output_index=1, item_id="n"),
    text("h", 8, output_index=1, item_id="n"),
    text("unnumbered", None),
    {"type": "response.output_text.done", "output_index": 0, "item_id": "m", "text": "a", "sequence_number": 9},
    text("late", 10),
    {"type": "response.output_text.delta", "delta": "no place", "sequence_number": 11},
    {"type": "response.completed", "response": {"id": "r", "status": "completed"}, "sequence_number": 12},
]


def summary(delta: str, number: int | None, **fields: Any) -> Event:
    kind = "response.reasoning_summary_text.delta"
    return {**text(delta, number), "type": kind, "item_id": "rs", "summary_index": 0, **fields}


def code(delta: str, number: int | None, **fields: Any) -> Event:
    kind = "response.code_interpreter_call_code.delta"
    return {**text(delta, number), "type": kind, "item_id": "ci", "output_index": 1, **fields}


RESPONSES_TOOLS = [
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "reasoning", "id": "rs"},
        "sequence_number": 0,
    },
    summary("a", 1),
    summary("b", 2),
    summary("repeated", 2),
    summary("c", 3, summary_index=1),
    summary("d", 4, summary_index=1),
    summary("", 5, summary_index=1),
    {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {"type": "code_interpreter_call", "id": "ci", "status": "in_progress"},
        "sequence_number": 6,
    },
    code("x = 1", 7),
    code('print("é")', 8),
    code("late", 8),
    code("", 9),
    code("y", 10, content_index=0),
    code("z", 11),
    summary("e", 12, summary_index=1),
    {
        "type": "response.code_interpreter_call_code.done",
        "output_index": 1,
        "item_id": "ci",
        "code": "x = 1",
        "sequence_number": 13,
    },
    code("after the end", 14),
    code("unnumbered", None),
    {"type": "response.completed", "response": {"id": "r", "status": "completed"}, "sequence_number": 15},
]

WIRES: dict[str, tuple[list[Event], Any, list[Any]]] = {
    "messages": (MESSAGES, MessagesDecoder, [MessagesContext(), MessagesContext(has_result_tool=True)]),
    "generate": (GENERATE, GenerateContentDecoder, [GoogleContext(), GoogleContext(drafts=True)]),
    "responses": (RESPONSES, ResponsesDecoder, [ResponsesContext(), ResponsesContext(store=False)]),
    "responses-tools": (RESPONSES_TOOLS, ResponsesDecoder, [ResponsesContext(), ResponsesContext(store=False)]),
    "chat": (CHAT, CompletionsDecoder, [CompletionsContext()]),
}
JUNK: list[Any] = [None, "", "x", "\ud800", 0, 1, 1.0, True, [], {}, {"a": 1}]


def decoded(decoder: ResponseDecoder[Any], events: list[Event]) -> list[list[StreamPart]]:
    return [*(decoder.feed(json.dumps(event).encode()) for event in events), decoder.close()]


def without_fast_path(decoder: ResponseDecoder[Any]) -> ResponseDecoder[Any]:
    """The decoder, made to read every event by its tables."""
    assert decoder.read_deltas is not by_tables
    decoder.read_deltas = by_tables
    return decoder


def spoilt(data: st.DataObject, event: Event) -> Event:
    """The event with one of its fields replaced, taken out or added to."""
    event = copy.deepcopy(event)
    place: Any = event
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(st.sampled_from(JUNK))
    if isinstance(place, dict) and data.draw(st.booleans()):
        del place[key]
    return event


@pytest.mark.parametrize("wire", WIRES)
@given(data=st.data())
def test_fast_path_emits_same_parts_as_tables(wire: str, data: st.DataObject) -> None:
    events, decoder, contexts = WIRES[wire]
    stream = data.draw(st.one_of(st.just(events), st.lists(st.sampled_from(events), min_size=2, max_size=20)))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = [*stream[:at], spoilt(data, stream[at]), *stream[at + 1 :]]
    context = data.draw(st.sampled_from(contexts))
    by_table = decoded(without_fast_path(decoder(context)), stream)
    assert decoded(decoder(context), stream) == by_table
    together = decoder(context)
    batch = Batch()
    together.feed_all([json.dumps(event).encode() for event in stream], batch)
    assert [*batch.parts, *together.close()] == [part for parts in by_table for part in parts]


def test_delta_of_other_kind_leaves_fast_path_and_is_raw() -> None:
    answer = decoded(MessagesDecoder(MessagesContext()), [MESSAGES[0], *MESSAGES[10:13]])
    assert [type(part) for part in answer[2]] == [ToolInputDelta]
    assert [type(part) for part in answer[3]] == [Raw]


def test_misplaced_lone_surrogate_makes_event_raw() -> None:
    event = {"type": "content_block_delta", "index": "\ud800", "delta": {"type": "text_delta", "text": "x"}}
    assert MessagesDecoder(MessagesContext()).feed(json.dumps(event).encode()) == [Raw("anthropic", event)]
    candidates = {"candidates": ["\ud800"]}
    assert GenerateContentDecoder(GoogleContext()).feed(json.dumps(candidates).encode()) == [Raw("google", candidates)]
    spoken = choice({"audio": "\ud800"})
    assert Raw("openai", spoken) in CompletionsDecoder(CompletionsContext()).feed(json.dumps(spoken).encode())


def test_chat_reasoning_and_arguments_take_fast_path() -> None:
    answer = decoded(CompletionsDecoder(CompletionsContext()), [*CHAT[1:4], *CHAT[8:11]])
    assert answer[2] == [ReasoningDelta("c:reasoning", "b")]
    assert answer[5] == [ToolInputDelta("call_1", ": 1}")]
