"""langchain-openai: `ChatOpenAI.astream`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from collections.abc import Callable
from functools import cache
from typing import Any

from langchain_openai import ChatOpenAI

from bench.turns import turns
from bench.ways.weather import WEATHER, get_weather

Take = Callable[[str], object]


@cache
def model(wire: str, url: str) -> ChatOpenAI:
    return ChatOpenAI(
        model="gpt-5.6", base_url=f"{url}/v1", api_key="none", use_responses_api=wire == "responses", timeout=600
    )


def play(wire: str) -> Callable[[str, Take], Any]:
    """The model's chunks."""

    async def play(url: str, take: Take) -> None:
        async for chunk in model(wire, url).astream("Say it."):
            if text := _text(chunk):
                take(text)

    return play


def _text(chunk: Any) -> str:
    content = chunk.content
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content if isinstance(block, dict) and block["type"] == "text")


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The loop that a user writes by hand around a model with tools."""
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = model("responses", url).bind_tools([WEATHER])
    messages: list[Any] = [HumanMessage("Compare the weather.")]
    calls, text = 0, ""
    while True:
        answer: Any = None
        async for chunk in bound.astream(messages):
            answer = chunk if answer is None else answer + chunk
            text += _text(chunk)
        if not answer.tool_calls:
            return {"calls": calls, "chars": len(text)}
        messages.append(answer)
        for call in answer.tool_calls:
            messages.append(ToolMessage(str(get_weather(**call["args"])), tool_call_id=call["id"]))
            calls += 1


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A turn on a long history."""
    from langchain_core.messages import HumanMessage

    messages = [*_history(task["messages"]), HumanMessage("And now?")]
    said = ""
    async for chunk in model("responses", url).astream(messages):
        said += _text(chunk)
    return {"said": said}


@cache
def _history(count: int) -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage

    make = {"user": HumanMessage, "assistant": AIMessage}
    return [make[role](text) for role, text in turns(count)]


PLAYERS = {"model": {wire: play(wire) for wire in ("responses", "chat")}}
PROGRAMS = {"loop": loop, "history": history}
