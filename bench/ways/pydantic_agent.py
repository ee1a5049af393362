"""pydantic-ai: the agent's events."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

from bench.turns import turns
from bench.ways.weather import calls, get_weather

Take = Callable[[str], object]


@cache
def model(wire: str, url: str) -> Any:
    return _MODELS[wire](url)


@cache
def agent(wire: str, url: str) -> Agent:
    return Agent(model(wire, url))


def _openai(url: str) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600))


def _responses(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    return OpenAIResponsesModel("gpt-5.6", provider=_openai(url))


def _chat(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel

    return OpenAIChatModel("gpt-5.6", provider=_openai(url))


def _messages(url: str) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=url, api_key="none", timeout=600)
    return AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))


def _generate(url: str) -> Any:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel("gemini-3-flash", provider=GoogleProvider(api_key="none", base_url=url))


_MODELS = {"responses": _responses, "chat": _chat, "messages": _messages, "generate": _generate}


def play(wire: str) -> Callable[[str, Take], Any]:
    """`Agent.run_stream_events`."""

    async def play(url: str, take: Take) -> None:
        async with agent(wire, url).run_stream_events("Say it.") as events:
            async for event in events:
                _text(event, take)

    return play


def _text(event: Any, take: Take) -> None:
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        take(event.delta.content_delta)
    elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
        take(event.part.content)


@cache
def _weather_agent(url: str) -> Agent:
    return Agent(model("responses", url), tools=[get_weather])


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """An agent with a function."""
    calls.clear()
    pieces: list[str] = []
    async with _weather_agent(url).run_stream_events("Compare the weather.") as events:
        async for event in events:
            _text(event, pieces.append)
    return {"calls": len(calls), "chars": len("".join(pieces))}


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A turn on a long history."""
    pieces: list[str] = []
    messages = _history(task["messages"])
    async with agent("responses", url).run_stream_events("And now?", message_history=messages) as events:
        async for event in events:
            _text(event, pieces.append)
    return {"said": "".join(pieces)}


@cache
def _history(count: int) -> list[Any]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart

    make = {
        "user": lambda text: ModelRequest(parts=[UserPromptPart(content=text)]),
        "assistant": lambda text: ModelResponse(parts=[TextPart(content=text)]),
    }
    return [make[role](text) for role, text in turns(count)]


PLAYERS = {"agent": {wire: play(wire) for wire in _MODELS}}
PROGRAMS = {"loop": loop, "history": history}
