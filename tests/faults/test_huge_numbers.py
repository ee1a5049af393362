"""Integers that no machine word holds: they come through decoders, parts and records as they were."""

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hostile.corpus import SCRIPTS, events_of, scripted, with_events
from hostile.judge import judge
from hostile.streams import HOSTILE
from requirements import requirement
from sidestream import Usage, jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import messages_from_json
from sidestream.parts import Error, InputUsage, Raw, ResponseMetadata, part_from_json
from sidestream.providers.protocol import Decoder
from sidestream.providers.shared.decoding import NOT_JSON, count_in, parse_input
from sidestream.store.records import Row, unpack
from support.streams import stored

NUMBERS = [-(2**63) - 1, -(2**63), 2**63, 2**64, 2**64 + 1, -(10**30), 10**400]


def named(name: str) -> Callable[[], Decoder]:
    return HOSTILE[name].decoder


def responses(n: int) -> list[Any]:
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": json.dumps({"n": n})}
    return [
        {"type": "response.created", "response": {"id": "r", "created_at": n}},
        {"type": "response.output_item.done", "output_index": 0, "item": call, "n": n},
        {"type": "response.output_text.delta", "output_index": n, "delta": "a", "sequence_number": n},
        {"type": "brand_new", "n": n},
        {"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": n}, "created_at": n}},
    ]


def messages(n: int) -> list[Any]:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"n": n}}
    return [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": n}}},
        {"type": "content_block_start", "index": n, "content_block": use},
        {"type": "content_block_stop", "index": n},
        {"type": "brand_new", "n": n},
        {"type": "message_stop"},
    ]


def gemini(n: int) -> list[Any]:
    call = {"functionCall": {"name": "f", "args": {"n": n}}}
    grounding = {"groundingChunks": [], "groundingSupports": [{"segment": {"startIndex": n, "endIndex": n}}]}
    candidate = {"content": {"parts": [{"text": "a"}, call]}, "groundingMetadata": grounding, "finishReason": "STOP"}
    return [{"responseId": "r", "createTime": n, "candidates": [candidate], "usageMetadata": {"promptTokenCount": n}}]


def interactions(n: int) -> list[Any]:
    call = {"type": "function_call", "id": "c", "name": "f", "arguments": {"n": n}}
    return [
        {"event_type": "interaction.created", "interaction": {"id": "i", "created": n}},
        {"event_type": "step.start", "index": n, "step": call},
        {"event_type": "step.stop", "index": n},
        {"event_type": "interaction.completed", "interaction": {"id": "i", "status": "completed"}},
    ]


def chat(n: int) -> list[Any]:
    call = {"index": n, "id": "c", "function": {"name": "f", "arguments": json.dumps({"n": n})}}
    return [
        {"id": "c", "created": n, "choices": [{"delta": {"tool_calls": [call]}, "n": n}]},
        {"id": "c", "choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": n}},
    ]


@requirement("R5", "F07")
@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{'-' if n < 0 else ''}2^{n.bit_length()}")
@pytest.mark.parametrize(
    ("decoder", "events"),
    [
        (named("responses: searches"), responses),
        (named("anthropic: open blocks"), messages),
        (named("google: texts and thoughts"), gemini),
        (named("interactions: open steps"), interactions),
        (named("chat: annotations"), chat),
    ],
    ids=["responses", "anthropic", "google", "interactions", "chat"],
)
def test_huge_integer_round_trips_in_parts_and_records(
    decoder: Callable[[], Decoder], events: Callable[[int], list[Any]], number: int
):
    reading = decoder()
    parts = [part for event in events(number) for part in reading.feed(json.dumps(event).encode())] + reading.close()
    assert parts[-1].type == "finish"
    for part in parts:
        public = part if not hasattr(part, "outcome") else part_from_json(part.to_json())
        assert part_from_json(public.to_json()) == public
        assert stored(part) == part


@requirement("R5")
@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{'-' if n < 0 else ''}2^{n.bit_length()}")
def test_created_time_is_float_or_none(number: int):
    (part,) = named("responses: searches")().feed(
        jsontext.dumps({"type": "response.created", "response": {"id": "r", "created_at": number}})
    )
    assert isinstance(part, ResponseMetadata)
    assert part.created == (None if number == 10**400 else float(number))


DIGITS = "9" * (sys.get_int_max_str_digits() + 1)
"""More than Python converts."""


@requirement("R5", "F07")
@pytest.mark.parametrize("api", sorted(SCRIPTS))
@pytest.mark.parametrize("number", [f"-{DIGITS}", "1e400"], ids=["integer", "float"])
async def test_event_with_number_beyond_range_is_raw_part(api: str, number: str):
    exchange = scripted()[api]
    events, clean = events_of(exchange), (await judge(exchange)).parts
    sent = f'{{"type":"brand_new","n":[{number}]}}'
    for place in range(1, len(events)):
        parts = (await judge(with_events(exchange, [*events[:place], sent.encode(), *events[place:]]))).parts
        assert [part.event for part in parts if isinstance(part, Raw)] == [sent]
        assert [part for part in parts if not isinstance(part, Raw)] == clean


@requirement("F07", "F08")
def test_number_beyond_range_differs_from_invalid_json():
    for text in (f'{{"a":{DIGITS}}}', f'{{"a":{DIGITS}e0}}', "[1e400]", '["\\ud83d",-1e400]'):
        with pytest.raises(jsontext.NumberTooLong):
            jsontext.loads(text)
    for text in (f'{{"a":{DIGITS}', f"{DIGITS} x", f"[NaN,{DIGITS}]", f"[{DIGITS},NaN]", "[1e400", "[1e400,NaN]"):
        with pytest.raises(NOT_JSON) as caught:
            jsontext.loads(text)
        assert not isinstance(caught.value, jsontext.NumberTooLong)
    assert jsontext.loads(f'{{"a":"{DIGITS}","b":"1e400","c":1e308}}') == {"a": DIGITS, "b": "1e400", "c": 1e308}


@requirement("F58")
def test_nan_beside_lone_surrogate_is_null():
    value = {"a": float("nan"), "b": ["\ud83d", float("-inf"), 1.5]}
    expected = {"a": None, "b": ["\ud83d", None, 1.5]}
    assert jsontext.loads(jsontext.dumps(value)) == expected
    assert jsontext.loads(jsontext.canonical(value)) == expected


@requirement("F07", "F13")
@pytest.mark.parametrize("name", ["responses: searches", "anthropic: open blocks", "chat: annotations"])
def test_body_and_arguments_with_overlong_integer_are_errors(name: str):
    error = next(part for part in named(name)().whole(f'{{"id":"r","n":{DIGITS}}}'.encode()) if isinstance(part, Error))
    assert error.kind == "protocol"
    value, problem = parse_input(f'{{"n":{DIGITS}}}')
    assert (value, problem is None) == (None, False)


@requirement("F33")
def test_records_messages_and_parts_reject_overlong_integer():
    part = f'{{"type":"raw","provider":"x","event":{DIGITS}}}'
    with pytest.raises(StoreError):
        unpack(Row(seq=1, time=0.0, run="r", kind="raw", body=f'{{"kind":"raw","parts":[{part}]}}'.encode()))
    with pytest.raises(msgspec.ValidationError):
        part_from_json(part)
    with pytest.raises(msgspec.ValidationError):
        messages_from_json(f'[{{"role":"user","parts":[],"metadata":{{"n":{DIGITS}}}}}]')


@requirement("R5")
def test_added_counts_stay_serialisable():
    largest = 10 ** (sys.get_int_max_str_digits() - 1) * 9
    counts = [count_in({"n": n}, "n") for n in (largest, -largest, 2**63, 2**63 - 1, 7)]
    assert counts == [0, 0, 0, 2**63 - 1, 7]
    assert jsontext.dumps(Usage(InputUsage(counts[3])) + Usage(InputUsage(counts[3])))
