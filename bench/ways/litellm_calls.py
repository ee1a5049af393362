"""litellm: its calls for each wire."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from collections.abc import Callable
from typing import Any

import litellm

Take = Callable[[str], object]
litellm.telemetry = False
litellm.suppress_debug_info = True


async def responses(url: str, take: Take) -> None:
    stream: Any = await litellm.aresponses(
        model="openai/gpt-5.6", input="Say it.", stream=True, api_base=f"{url}/v1", api_key="none"
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            take(event.delta)


async def chat(url: str, take: Take) -> None:
    await _completion("openai/gpt-5.6", f"{url}/v1", take)


async def messages(url: str, take: Take) -> None:
    await _completion("anthropic/claude-sonnet-5-5", url, take)


async def generate(url: str, take: Take) -> None:
    await _completion("gemini/gemini-3-flash", f"{url}/v1beta/models/gemini-3-flash", take)


async def _completion(model: str, url: str, take: Take) -> None:
    asked = [{"role": "user", "content": "Say it."}]
    stream: Any = await litellm.acompletion(model=model, messages=asked, stream=True, api_base=url, api_key="none")
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                take(choice.delta.content)


PLAYERS = {"calls": {"responses": responses, "chat": chat, "messages": messages, "generate": generate}}
PROGRAMS = {}
