"""Rows of deltas are read by a shorter way; whatever comes, it must give what the longer way gives."""

import copy
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from sidestream import jsontext
from sidestream.providers.anthropic.context import DecodeContext as MessagesContext
from sidestream.providers.anthropic.decode import MessagesDecoder
from sidestream.providers.google.context import DecodeContext as GenerateContext
from sidestream.providers.google.decode import GenerateContentDecoder
from sidestream.providers.openai_chat.context import DecodeContext as ChatContext
from sidestream.providers.openai_chat.decode import CompletionsDecoder
from sidestream.providers.openai_responses.context import DecodeContext as ResponsesContext
from sidestream.providers.openai_responses.decode import ResponsesDecoder
from sidestream.stream.parts import Finish, Raw, ReasoningDelta, StreamPart, TextDelta, ToolEvent, ToolInputDelta

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
    piece(0, arguments=": 12}"),
    piece(0, arguments='{"a": 12}'),
    piece(0, arguments="", name=None),
    piece(1, arguments="{}", name="g"),
    choice({"tool_calls": [{"index": 2, "id": "c3", "custom": {"name": "h", "input": "ab"}}]}),
    piece(2, arguments="cd"),
    {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


def said(text: str, index: Any = 1, **fields: Any) -> Event:
    place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
    return {"type": "response.output_text.delta", **place, "delta": text, **fields}


def item(stage: str, index: int, kind: str, **fields: Any) -> Event:
    return {"type": f"response.output_item.{stage}", "output_index": index, "item": {"type": kind, **fields}}


def counted(events: list[Event]) -> list[Event]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


MESSAGE = {"id": "msg_1", "role": "assistant"}
ANSWER = [{"type": "output_text", "text": "abcdfijk, and the rest", "annotations": []}]
RESPONSES = [
    *counted(
        [
            {"type": "response.created", "response": {"id": "resp_1", "model": "m", "status": "in_progress"}},
            item("added", 0, "reasoning", id="rs_1", summary=[]),
            {
                "type": "response.reasoning_text.delta",
                "item_id": "rs_1",
                "output_index": 0,
                "content_index": 0,
                "delta": "x",
            },
            item("added", 1, "message", content=[], **MESSAGE),
            {
                "type": "response.content_part.added",
                "item_id": "msg_1",
                "output_index": 1,
                "content_index": 0,
                "part": {"type": "output_text", "text": ""},
            },
            said("a"),
            said("b"),
            said("c", obfuscation="x"),
            said("", logprobs=[]),
            said("d", logprobs=[{"token": "d", "logprob": -1.0}]),
            said("e", content_index=1),
            said("f", item_id="msg_2"),
            said("g", 1.0),
        ]
    ),
    said("h", sequence_number=3),
    said("i"),
    said("j", sequence_number=None),
    item("added", 2, "function_call", id="fc_1", call_id="call_1", name="f", arguments=""),
    {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 2, "delta": "{}"},
    said("k"),
    {
        "type": "response.output_text.annotation.added",
        "item_id": "msg_1",
        "output_index": 1,
        "content_index": 0,
        "annotation": {"type": "url_citation", "url": "u"},
    },
    {"type": "response.output_text.delta", "delta": "without a place"},
    item("done", 1, "message", content=ANSWER, **MESSAGE),
    said("l"),
    {
        "type": "response.completed",
        "response": {
            "id": "resp_1",
            "status": "completed",
            "output": [{"type": "message", **MESSAGE, "content": ANSWER}],
        },
    },
]

WIRES: dict[str, tuple[list[Event], Any, list[Any]]] = {
    "messages": (MESSAGES, MessagesDecoder, [MessagesContext(), MessagesContext(has_result_tool=True)]),
    "generate": (GENERATE, GenerateContentDecoder, [GenerateContext(), GenerateContext(drafts=True)]),
    "chat": (CHAT, CompletionsDecoder, [ChatContext()]),
    "responses": (RESPONSES, ResponsesDecoder, [ResponsesContext()]),
}
JUNK: list[Any] = [None, "", "x", "\ud800", 0, 1, 1.0, True, [], {}, {"a": 1}]


class Decoded(NamedTuple):
    parts: list[list[StreamPart]]
    """Of each event, then of the end."""
    by_the_table: list[bool]
    """For each event whether it was read by the table."""


@contextmanager
def parsed() -> Generator[list[Any]]:
    """All that is parsed in the block by the parser of the table, which the shorter way does without."""
    seen: list[Any] = []
    parse = jsontext.loads

    def watched(data: bytes | str) -> Any:
        seen.append(data)
        return parse(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "loads", watched)
        yield seen


def decoded(decoder: Any, texts: list[bytes]) -> Decoded:
    parts: list[list[StreamPart]] = []
    by_the_table: list[bool] = []
    for text in texts:
        with parsed() as seen:
            parts.append(decoder.feed(text))
        by_the_table.append(text in seen)
    return Decoded([*parts, decoder.close()], by_the_table)


def plain(event: Event) -> bytes:
    return json.dumps(event).encode()


def roundabout(event: Event) -> bytes:
    """The same event in a form that only the table reads: its first key comes twice, at first with half a surrogate
    pair, which strict parsers refuse; of two values the last counts."""
    text = json.dumps(event)
    return (f'{{{json.dumps(next(iter(event)))}: "\\ud800", {text[1:]}' if event else text).encode()


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
def test_a_row_gives_what_each_of_its_events_gives_by_the_table(wire: str, data: st.DataObject) -> None:
    events, decoder, contexts = WIRES[wire]
    stream = data.draw(st.one_of(st.just(events), st.lists(st.sampled_from(events), min_size=2, max_size=20)))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = [*stream[:at], spoilt(data, stream[at]), *stream[at + 1 :]]
    context = data.draw(st.sampled_from(contexts))
    expected = decoded(decoder(context), list(map(roundabout, stream)))
    over = (number for number, parts in enumerate(expected.parts) if any(isinstance(part, Finish) for part in parts))
    assert all(expected.by_the_table[: next(over) + 1])  # nothing is read after the end
    assert decoded(decoder(context), list(map(plain, stream))).parts == expected.parts


ROWS: dict[str, list[tuple[list[Event], int, type[StreamPart]]]] = {
    "messages": [
        (MESSAGES[:4], 2, ReasoningDelta),
        (MESSAGES[:8], 2, ToolInputDelta),
        (MESSAGES[:16], 2, TextDelta),
    ],
    "generate": [(GENERATE[:2], 1, TextDelta), (GENERATE[:7], 1, ReasoningDelta)],
    "chat": [(CHAT[1:5], 2, ReasoningDelta), (CHAT[1:7], 1, TextDelta), (CHAT[1:11], 1, ToolInputDelta)],
    "responses": [(RESPONSES[:9], 3, TextDelta)],
}
"""For each wire, streams that end in a row: how many events the shorter way reads, and the part that each becomes."""


@pytest.mark.parametrize("wire", WIRES)
def test_a_row_is_read_by_the_shorter_way(wire: str) -> None:
    _, decoder, contexts = WIRES[wire]
    for stream, length, kind in ROWS[wire]:
        parts, by_the_table = decoded(decoder(contexts[0]), list(map(plain, stream)))
        assert by_the_table[-length:] == [False] * length
        for emitted in parts[-length - 1 : -1]:
            assert [type(part) for part in emitted if not isinstance(part, ToolEvent)] == [kind]


def test_a_delta_of_another_kind_ends_the_row_and_is_handed_on() -> None:
    answer = decoded(MessagesDecoder(MessagesContext()), list(map(plain, [MESSAGES[0], *MESSAGES[10:13]]))).parts
    assert [type(part) for part in answer[2]] == [ToolInputDelta]
    assert [type(part) for part in answer[3]] == [Raw]


def test_half_a_surrogate_pair_in_the_wrong_place_makes_the_event_raw() -> None:
    event = {"type": "content_block_delta", "index": "\ud800", "delta": {"type": "text_delta", "text": "x"}}
    assert MessagesDecoder(MessagesContext()).feed(json.dumps(event).encode()) == [Raw("anthropic", event)]
    candidates = {"candidates": ["\ud800"]}
    assert GenerateContentDecoder(GenerateContext()).feed(json.dumps(candidates).encode()) == [
        Raw("google", candidates)
    ]
    spoken = choice({"audio": "\ud800"})
    assert Raw("openai", spoken) in CompletionsDecoder(ChatContext()).feed(json.dumps(spoken).encode())


def test_reasoning_and_arguments_of_chat_completions_go_on_in_a_row() -> None:
    answer = decoded(CompletionsDecoder(ChatContext()), list(map(plain, [*CHAT[1:4], *CHAT[8:11]]))).parts
    assert answer[2] == [ReasoningDelta("c:reasoning", "b")]
    assert answer[5] == [ToolInputDelta("call_1", ": 12}")]
