"""The anthropic package: typed streams."""

from collections.abc import Callable
from functools import cache

from anthropic import AsyncAnthropic

Take = Callable[[str], object]


@cache
def client(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="none", timeout=600)


async def messages(url: str, take: Take) -> None:
    stream = await client(url).messages.create(
        model="claude-sonnet-5-5", max_tokens=64000, messages=[{"role": "user", "content": "Say it."}], stream=True
    )
    async for event in stream:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            take(event.delta.text)


PLAYERS = {"sdk": {"messages": messages}}
PROGRAMS = {}
