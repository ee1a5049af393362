"""Shows a fork of a logged run: a tool's wrong result is corrected, and the run ends differently.

The first run is told the wrong price. The fork takes everything up to the wrong result from the log, puts the right
result in its place, and is live from there. A fake provider on this machine plays the model, so you need no API key.

    python examples/fork.py
"""

import asyncio
import tempfile
from pathlib import Path

from sidestream import Agent, Chat, Conversation, open_store
from sidestream.testing import FakeProvider, Received, Reply, ResponsesScript

QUESTION = "Order a lamp, if one costs less than 50 euros."
LOOKED_UP: list[str] = []


def price(item: str) -> str:
    """Look up the price of an item."""
    LOOKED_UP.append(item)
    return "1000 euros"  # The price list has a typing error.


def answer(request: Received) -> Reply:
    """Play the model, which decides by the price that it is told."""
    told = str(request.json["input"])
    if "function_call_output" not in told:
        return ResponsesScript(id="resp_1").function_call("price", {"item": "lamp"}, "call_1").reply()
    if "1000 euros" in told:
        return ResponsesScript(id="resp_2").text("A lamp costs 1000 euros, so I have not ordered one.").reply()
    return ResponsesScript(id="resp_3").text("A lamp costs 10 euros. I have ordered one.").reply()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "runs.db")
        async with FakeProvider() as provider:
            provider.on("POST", "/v1/responses", answer)
            agent = Agent("openai-responses:gpt-5.6", base_url=provider.base_url, api_key="demo", tools=[price])
            chat = Chat(agent, store=store, id="lamps")
            first = await chat.send(QUESTION)
            print(f"{QUESTION}\n\nthe run:  {first.output}")

            rows = await store.read("lamps")
            begun = next(row.seq for row in rows if row.kind == "run-started")
            same = await chat.fork(begun, replay=True, strict=True)
            asked = len(provider.requests)
            assert same.messages == chat.messages, "the replay differs"
            assert same.forked_from is not None

            wrong = next(row.seq for row in rows if row.kind == "tool-result")
            fork = await chat.fork(wrong, results={"call_1": "10 euros"})
            assert len(provider.requests) == asked, "the part from the log asked the provider"
            print(f"\nrecord {wrong} has the price: '1000 euros' → '10 euros'; cost so far: 0 dollars")
            second = await fork.resume()
            print(f"the fork: {second.output}")

            copied = await Conversation(store, fork.id).records()
            parts = sum(len(getattr(record.body, "parts", ())) for record in copied if record.seq <= wrong)
            asked = len(provider.requests) - asked
            assert LOOKED_UP == ["lamp"], "the tool ran again"
            assert await store.read("lamps") == rows, "the original changed"
        await store.aclose()
    print(f"\nfork: {parts} parts from the log, {asked} requests, {same.forked_from.equal} equal")


if __name__ == "__main__":
    asyncio.run(main())
