"""Steers a run and is killed: `python steered_child.py STORE BASE_URL MOMENT`; says `accepted` when the message is."""

import asyncio
import os
import signal
import sys

from sidestream import Agent, Chat, TextDelta

BOUND_S = 60


async def main(store: str, base_url: str, moment: str) -> None:
    async def work() -> str:
        """Is never done."""
        await accept()
        return "never"

    async def accept() -> None:
        await run.steer("Hurry.")
        os.write(1, b"accepted\n")
        if moment != "applied":
            os.kill(os.getpid(), signal.SIGKILL)

    chat = Chat(Agent("openai-responses", base_url=base_url, tools=[work]), store=store, id="talk")
    await chat.load()
    async with chat.stream("go") as run:
        async for part in run:
            if isinstance(part, TextDelta):
                await accept()


if __name__ == "__main__":
    signal.alarm(BOUND_S)
    asyncio.run(main(*sys.argv[1:]))
