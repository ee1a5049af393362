"""What compatible servers send otherwise: extra, misplaced and parsed fields."""

import json
from typing import Any

import pytest

from providers.openai.chat.chat_wire import chunk, decode, decode_whole, stream, whole
from requirements import requirement
from sidestream import Agent
from sidestream.parts import Finish, Raw, ReasoningEnd, TextEnd, ToolCall
from sidestream.testing import ChatScript, FakeProvider, json_reply, sse
from support.streams import of, one, streamed_text

EMPTY: list[dict[str, Any]] = [{}, {"name": None, "input": None}, {"name": "", "input": ""}]


def function(arguments: str, custom: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments, **fields}, "custom": custom}]}


@requirement("R183")
@pytest.mark.parametrize("custom", EMPTY, ids=repr)
async def test_empty_custom_beside_function_is_ignored(custom: dict[str, Any]) -> None:
    def look(city: str) -> str:
        """Looks at a city."""
        return f"sunny in {city}"

    pieces = [function('{"city":', custom, name="look"), function('"Oslo"}', custom)]
    whole_call = {**function('{"city":"Oslo"}', custom, name="look")["tool_calls"][0], "id": "call_1"}
    assert one(decode(stream(*pieces)), ToolCall).input == {"city": "Oslo"}
    assert one(decode_whole(whole({"tool_calls": [whole_call]})), ToolCall).input == {"city": "Oslo"}
    async with FakeProvider([sse(stream(*pieces)), ChatScript().text("Fine.").reply()]) as fake:
        result = await Agent("openai", base_url=fake.base_url, api_key="k", tools=[look]).send("x")
        assert [found.result for found in result.tool_results] == ["sunny in Oslo"]
        (sent,) = [m for m in json.loads(fake.requests[-1].body)["messages"] if m["role"] == "assistant"]
    assert sent["tool_calls"][0]["function"]["name"] == "look"


@requirement("R183")
def test_custom_call_input_is_plain_text() -> None:
    pieces = [{"custom": {"name": "sql", "input": ""}}, {"custom": {"input": "SELECT"}}, {"custom": {"input": " 1"}}]
    parts = decode(stream(*({"tool_calls": [{"index": 0, **piece}]} for piece in pieces)))
    assert (one(parts, ToolCall).name, one(parts, ToolCall).input) == ("sql", "SELECT 1")


@requirement("R183")
async def test_parsed_content_becomes_json_text() -> None:
    city = {"name": "Oslo", "people": 717000}
    answer = {"id": "c", "choices": [{"index": 0, "message": {"content": city}, "finish_reason": "stop"}]}
    async with FakeProvider([json_reply(answer)] * 2) as fake:
        agent = Agent("openai", base_url=fake.base_url, api_key="k")
        assert json.loads((await agent.send("x", stream=False)).output) == city
        assert (await agent.send("x", stream=False, output_type=dict[str, Any])).output == city
    assert json.loads(streamed_text(decode(stream({"content": city})))) == city


@requirement("R183")
def test_token_ids_are_kept_once_per_block() -> None:
    parts = decode(
        stream(
            {"reasoning": "Hm", "token_id": 1, "channel": "analysis"},
            {"reasoning": ".", "token_id": 2, "channel": "analysis"},
            {"content": "Hel", "token_id": 3, "channel": "final"},
            {"content": "lo", "token_id": 4, "channel": "final"},
        )
    )
    assert of(parts, Raw) == []
    assert one(parts, ReasoningEnd).provider_metadata == {"openai": {"token_id": [1, 2], "channel": "analysis"}}
    assert one(parts, TextEnd).provider_metadata == {"openai": {"token_id": [3, 4], "channel": "final"}}


@requirement("R183")
def test_unknown_field_is_reported_once_per_response() -> None:
    deltas = [{"content": "a", "mood": n, "colour": "red" if n > 2 else None} for n in range(1, 5)]
    raws = [part.event["choices"][0]["delta"] for part in of(decode(stream(*deltas)), Raw)]
    assert raws == [deltas[0], deltas[2]]
    assert len(of(decode(stream(*deltas)), Raw)) == 2


@requirement("R183")
@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, None], ids=repr)
def test_message_beside_empty_delta_is_read(delta: Any) -> None:
    body = {"id": "c", "choices": [{"message": {"content": "Hello"}, "delta": delta, "finish_reason": "stop"}]}
    assert streamed_text(decode_whole(body)) == "Hello"


@requirement("R183")
def test_legacy_completion_text_is_content() -> None:
    texts = [{"choices": [{"index": 0, "text": text}]} for text in ("Hel", "lo")]
    parts = decode([*texts, chunk({}, "stop")])
    assert (streamed_text(parts), one(parts, Finish).reason) == ("Hello", "stop")
    both = [{"choices": [{"index": 0, "text": text, "delta": {"content": text}}]} for text in ("Hel", "lo")]
    parts = decode([*both, chunk({}, "stop")])
    assert streamed_text(parts) == "Hello"
    assert "text" not in one(parts, Finish).metadata
