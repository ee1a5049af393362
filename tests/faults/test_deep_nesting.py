"""JSON that nests deeper than any API sends: it is passed on as text, and no run ends because of it."""

from pathlib import Path
from typing import Any

import pytest

from hostile.corpus import events_of, scripted, with_events
from hostile.judge import judge
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.jsontext import MAX_DEPTH, is_too_deep
from sidestream.parts import Raw, ToolCall
from sidestream.stream import grammar
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript, sse

DEPTHS = [MAX_DEPTH, 500, 990, 5000, 100_000]


def nested(depth: int, inside: str = "1") -> str:
    return "[" * depth + inside + "]" * depth


def lookup(value: Any) -> str:
    """Looks a value up."""
    raise AssertionError("the arguments must be refused")


@requirement("F07", "R2")
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(
    ("model", "events"),
    [
        ("openai-responses", ResponsesScript().text("Hello").events()),
        ("openai", ChatScript().text("Hello").chunks()),
        ("anthropic", MessagesScript().text("Hello").events()),
        ("google", GeminiScript().text("Hello").chunks()),
    ],
    ids=["openai-responses", "openai", "anthropic", "google"],
)
async def test_deeply_nested_event_is_raw_part_in_complete_answer(
    model: str, events: list[Any], depth: int, tmp_path: Path
) -> None:
    deep = f'{{"type":"brand_new","x":{nested(depth)}}}'
    async with FakeProvider([sse([events[0], deep, *events[1:]])]) as fake:
        chat = Chat(Agent(model, base_url=fake.base_url, api_key="k"), store=tmp_path / "talk.db")
        await chat.load()
        async with chat.stream("hi") as run:
            parts = [part async for part in run]
        assert chat.store_error is None
    grammar.check(parts)
    assert run.output == "Hello"
    assert deep in [part.event for part in parts if isinstance(part, Raw)]


@requirement("F13")
@pytest.mark.parametrize("depth", DEPTHS)
async def test_deeply_nested_arguments_are_refused_and_model_is_told(depth: int, tmp_path: Path) -> None:
    call = ResponsesScript().function_call("lookup", {}).events()
    text = f'{{"value":{nested(depth)}}}'
    for event in call:
        if event["type"] == "response.function_call_arguments.done":
            event["arguments"] = text
        if event["type"] == "response.output_item.done":
            event["item"]["arguments"] = text
    async with FakeProvider([sse(call), ResponsesScript().text("ok").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[lookup], approval="ask")
        async with agent.stream("hi") as run:
            parts = [part async for part in run]
    (called,) = [part for part in parts if isinstance(part, ToolCall)]
    assert called.input_error is not None
    assert run.output == "ok"


def test_depth_counts_only_brackets_outside_strings() -> None:
    assert not is_too_deep(nested(MAX_DEPTH))
    assert is_too_deep(nested(MAX_DEPTH + 1))
    assert is_too_deep('{"a":' * 200 + "1" + "}" * 200)
    assert not is_too_deep('["' + "[" * 1000 + '\\"' + "{" * 1000 + '"]')
    assert not is_too_deep("[" + ",".join("[[]]" for _ in range(1000)) + "]")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_of_long_json_counts_only_brackets_outside_strings(opening: str) -> None:
    text, closing = "x" * 100_000, "]" if opening == "[" else "}"
    for depth in (1, MAX_DEPTH, MAX_DEPTH + 1):
        assert is_too_deep(opening * depth + f'"{text}"' + closing * depth) == (depth > MAX_DEPTH)
        assert not is_too_deep(f'["{text}","{"[" * depth}"]')


@requirement("F07")
@pytest.mark.parametrize("depth", [500, 5000])
@pytest.mark.parametrize("api", sorted(ANSWERS := scripted()))
async def test_deeply_nested_field_in_any_event_leaves_valid_stream(api: str, depth: int) -> None:
    events = events_of(ANSWERS[api])
    for place, event in enumerate(events):
        deep = event[:-1] + f',"new":{nested(depth)}}}'.encode()
        await judge(with_events(ANSWERS[api], [*events[:place], deep, *events[place + 1 :]]), None)
