"""`python -m bench`: CPU time per event of a streamed text, each way in turn, several times over."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import aiohttp
import msgspec

from sidestream import Agent
from sidestream.wire.sse import Splitter

EVENTS = 2000
ROUNDS = 5
Client = Callable[[str], Awaitable[int]]


class _Delta(msgspec.Struct, tag_field="type", tag="response.output_text.delta"):
    item_id: str
    output_index: int
    delta: str


_decoder = msgspec.json.Decoder(_Delta)


async def floor(base_url: str) -> int:
    """aiohttp's bytes, split into events, each decoded into a tagged struct."""
    count = 0
    async with aiohttp.ClientSession() as session, session.post(f"{base_url}/responses", json={}) as response:
        splitter = Splitter(1 << 26)
        async for chunk in response.content.iter_any():
            for data in splitter.feed(chunk):
                try:
                    _decoder.decode(data)
                except msgspec.ValidationError:
                    msgspec.json.decode(data)
                count += 1
    return count


async def stream(base_url: str) -> int:
    """`agent.stream`: typed parts."""
    async with Agent("openai-responses", base_url=base_url, api_key="none").stream("hi") as run:
        return sum([1 async for _ in run])


async def send_stream(base_url: str) -> int:
    """`agent.send_stream`: chunks."""
    agent = Agent("openai-responses", base_url=base_url, api_key="none")
    return sum([1 async for _ in agent.send_stream("hi")])


async def openai_sdk(base_url: str) -> int:
    """The openai package's typed stream."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        events = await client.responses.create(model="gpt-5.6", input="hi", stream=True)
        return sum([1 async for _ in events])


CLIENTS: dict[str, Client] = {
    "floor": floor,
    "agent.stream": stream,
    "agent.send_stream": send_stream,
    "openai SDK": openai_sdk,
}


async def measure(port: int) -> dict[str, dict[str, float]]:
    """Way → packet form → CPU µs per event: the median of interleaved rounds, after one to warm up."""
    taken: dict[str, dict[str, list[float]]] = {name: {"batched": [], "single": []} for name in CLIENTS}
    for number in range(ROUNDS + 1):
        for name, client in CLIENTS.items():
            for form in ("batched", "single"):
                begin = time.process_time()
                count = await client(f"http://127.0.0.1:{port}/{form}/v1")
                if count < EVENTS:
                    raise SystemExit(f"{name} saw {count} events of {EVENTS}")
                if number:
                    taken[name][form].append((time.process_time() - begin) / EVENTS * 1e6)
    return {name: {form: statistics.median(values) for form, values in forms.items()} for name, forms in taken.items()}


def main() -> None:
    server = subprocess.Popen([sys.executable, "-m", "bench.server", str(EVENTS)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        results = asyncio.run(measure(int(server.stdout.readline())))
    finally:
        server.terminate()
        server.wait()
    names = ("sidestream", "aiohttp", "msgspec", "openai")
    print(", ".join(f"{name} {version(name)}" for name in names))
    print(f"\nCPU µs per event, {EVENTS} text deltas, median of {ROUNDS}\n")
    print("| | batched | to floor | one event per HTTP chunk | to floor |\n|---|---|---|---|---|")
    for name, forms in results.items():
        row = [f"{forms[form]:.1f} | {forms[form] / results['floor'][form]:.1f}" for form in ("batched", "single")]
        print(f"| {name} | {' | '.join(row)} |")
    if "--json" in sys.argv:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
