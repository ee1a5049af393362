"""What the tests of the embedded model share."""

import importlib.util
from typing import Any

import pytest

from sidestream import Agent
from sidestream.errors import ConfigurationError
from sidestream.parts import StreamPart
from sidestream.providers.local.files import PACKAGES, folder_of
from sidestream.providers.openai.chat import OpenAIChatOptions
from sidestream.stream import grammar

OPTIONS = OpenAIChatOptions(temperature=0, max_completion_tokens=60)


def skip_without(*modules: str, model: str) -> None:
    """Skips a module of tests where the model or what runs it is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    try:
        folder_of(PACKAGES[model])
    except ConfigurationError:
        missing.append(PACKAGES[model].distribution)
    if missing:
        reason = f"no embedded model: {', '.join(missing)} not installed (`make setup` installs them)"
        pytest.skip(reason, allow_module_level=True)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


async def run_parts(agent: Agent[Any], prompt: Any, **call: Any) -> list[StreamPart]:
    """The parts of a run; they are legal."""
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts
