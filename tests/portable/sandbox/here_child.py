"""A chat whose code runs here, in a process that tests kill: `python here_child.py STORE URL send|approve|deny [keep]`.

With `keep`, the conversation keeps its container.
"""

import asyncio
import sys

from sidestream import Agent, Chat, CodeInterpreter, ToolResult
from sidestream.parts import Custom, ToolEvent
from sidestream.store import open_store


async def main(where: str, base_url: str, mode: str, keep: str = "") -> None:
    store = open_store(where)
    tool = CodeInterpreter(reuse_container=bool(keep), on_interruption="ask")
    async with Agent("groq:m", base_url=base_url, api_key="k", server_side_tools=[tool]) as agent:
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        waiting = chat.run_state.approvals if chat.run_state is not None else ()
        decisions = [entry.approve() if mode == "approve" else entry.deny("it ran") for entry in waiting]
        async with chat.stream("go") if mode == "send" else chat.resume_stream(decisions) as run:
            async for part in run:
                if isinstance(part, ToolEvent) and part.provider_stage == "logs":
                    print("logs", str(part.event["logs"]).strip(), flush=True)
                elif isinstance(part, Custom):
                    print("custom", part.kind, flush=True)
                elif isinstance(part, ToolResult):
                    print("result", part.is_error, part.result, flush=True)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
