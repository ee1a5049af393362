"""Steers a run and is killed: `python steered_child.py STORE BASE_URL MOMENT [TRANSPORT]`.

Says `accepted` when the message is. Over WebSocket its parent kills it, and it says `applied` when the next step begins.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from sidestream import Agent, Chat
from sidestream.parts import StepStart, TextDelta

BOUND_S = 60


async def main(store: str, base_url: str, moment: str, transport: Any = "http") -> None:
    has_steered = False

    async def work() -> str:
        """Is never done."""
        await accept()
        return "never"

    async def accept() -> None:
        await run.steer("Hurry.")
        os.write(1, b"accepted\n")
        if moment != "applied" and transport == "http":
            os.kill(os.getpid(), signal.SIGKILL)

    chat = Chat(Agent("openai-responses", base_url=base_url, tools=[work], transport=transport), store=store, id="talk")
    await chat.load()
    async with chat.stream("go") as run:
        async for part in run:
            if isinstance(part, TextDelta) and not has_steered:
                has_steered = True
                await accept()
            if isinstance(part, StepStart) and part.step == 1 and transport != "http":
                os.write(1, b"applied\n")


if __name__ == "__main__":
    signal.alarm(BOUND_S)
    asyncio.run(main(*sys.argv[1:]))
