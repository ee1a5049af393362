"""Integers that no machine word holds: they come through decoders, parts and records as they were."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from hostile_streams import HOSTILE
from requirements import requirement
from sidestream import jsontext
from sidestream.providers.protocol import Decoder
from sidestream.stream.parts import ResponseMetadata, part_from_json
from streams import stored

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
def test_a_huge_integer_comes_back_from_parts_and_records(
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
def test_a_time_is_a_float_or_nothing(number: int):
    (part,) = named("responses: searches")().feed(
        jsontext.dumps({"type": "response.created", "response": {"id": "r", "created_at": number}})
    )
    assert isinstance(part, ResponseMetadata)
    assert part.created == (None if number == 10**400 else float(number))
