"""The openai package: typed streams."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from openai import AsyncOpenAI

from bench.turns import turns
from bench.ways.weather import WEATHER, get_weather

Take = Callable[[str], object]


@cache
def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)


async def responses(url: str, take: Take) -> None:
    async for event in await client(url).responses.create(model="gpt-5.6", input="Say it.", stream=True):
        if event.type == "response.output_text.delta":
            take(event.delta)


async def chat(url: str, take: Take) -> None:
    messages: Any = [{"role": "user", "content": "Say it."}]
    options: Any = {"stream_options": {"include_usage": True}}
    stream = await client(url).chat.completions.create(model="gpt-5.6", messages=messages, stream=True, **options)
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                take(choice.delta.content)


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The loop that a user writes by hand."""
    items: list[Any] = [{"role": "user", "content": "Compare the weather."}]
    calls, text = 0, ""
    while True:
        called: list[Any] = []
        tools: Any = [WEATHER]
        async for event in await client(url).responses.create(model="gpt-5.6", input=items, tools=tools, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                called.append(event.item)
        if not called:
            return {"calls": calls, "chars": len(text)}
        for item in called:
            result = json.dumps(get_weather(**json.loads(item.arguments)))
            items += [item, {"type": "function_call_output", "call_id": item.call_id, "output": result}]
            calls += 1


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A turn on a long history."""
    items: Any = [*_history(task["messages"]), {"role": "user", "content": "And now?"}]
    said = ""
    async for event in await client(url).responses.create(model="gpt-5.6", input=items, stream=True):
        if event.type == "response.output_text.delta":
            said += event.delta
    return {"said": said}


@cache
def _history(count: int) -> list[Any]:
    return [{"role": role, "content": text} for role, text in turns(count)]


PLAYERS = {"sdk": {"responses": responses, "chat": chat}}
PROGRAMS = {"loop": loop, "history": history}
