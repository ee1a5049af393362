"""openai-agents: the events of a streamed run."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from collections.abc import Callable
from functools import cache
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from bench.turns import turns
from bench.ways.weather import calls, get_weather

Take = Callable[[str], object]
set_tracing_disabled(True)


@cache
def agent(wire: str, url: str, *, has_tools: bool = False) -> Agent:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
    kinds = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
    tools = [function_tool(get_weather)] if has_tools else []
    return Agent(name="bench", model=kinds[wire](model="gpt-5.6", openai_client=client), tools=tools)


async def _run(known: Agent, asked: Any, take: Take) -> None:
    result = Runner.run_streamed(known, asked, max_turns=40)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            take(event.data.delta)


def play(wire: str) -> Callable[[str, Take], Any]:
    """`Runner.run_streamed`."""

    async def play(url: str, take: Take) -> None:
        await _run(agent(wire, url), "Say it.", take)

    return play


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """An agent with a function."""
    calls.clear()
    pieces: list[str] = []
    await _run(agent("responses", url, has_tools=True), "Compare the weather.", pieces.append)
    return {"calls": len(calls), "chars": len("".join(pieces))}


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A turn on a long history."""
    pieces: list[str] = []
    asked = [*_history(task["messages"]), {"role": "user", "content": "And now?"}]
    await _run(agent("responses", url), asked, pieces.append)
    return {"said": "".join(pieces)}


@cache
def _history(count: int) -> list[Any]:
    return [{"role": role, "content": text} for role, text in turns(count)]


PLAYERS = {"runner": {wire: play(wire) for wire in ("responses", "chat")}}
PROGRAMS = {"loop": loop, "history": history}
