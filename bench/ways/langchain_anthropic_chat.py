"""langchain-anthropic: `ChatAnthropic.astream`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# It is installed in an environment of its own.

from collections.abc import Callable
from functools import cache

from langchain_anthropic import ChatAnthropic

Take = Callable[[str], object]


@cache
def model(url: str) -> ChatAnthropic:
    return ChatAnthropic(model="claude-sonnet-5-5", base_url=url, api_key="none", max_tokens=64000, timeout=600)


async def messages(url: str, take: Take) -> None:
    async for chunk in model(url).astream("Say it."):
        content = chunk.content
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
        if text:
            take(text)


PLAYERS = {"model": {"messages": messages}}
PROGRAMS = {}
