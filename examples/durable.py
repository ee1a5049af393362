"""Shows a run that outlives its worker, with three processes, one of which is killed mid-sentence.

This process starts a run, follows its log and prints the text as it arrives. Two `sidestream worker` processes are
ready. One of them executes the run until it is killed, and then the other continues it. A fake provider on this machine
plays the model, so you need no API key.

    python examples/durable.py
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from sidestream import Agent, OpenAIResponsesOptions, StreamPart, open_store
from sidestream.durable import RunClient, open_engine
from sidestream.parts import StepStart, TextDelta
from sidestream.store import Record
from sidestream.testing import FakeProvider, Received, Reply, ResponsesScript, sse

# Seconds after which an unresponsive worker loses its runs. One that died on the same machine loses them at once.
LEASE_S = 15
TEXT = (
    "A run takes minutes, waits hours for an approval, and costs money. The process that drives it is the least "
    "durable thing around: it is deployed, it runs out of memory, its machine goes away. So what happened is kept in "
    "a log, and whoever holds the claim on a run continues it from there. Two processes have written this sentence."
)

# The workers load it with `--agent writer=durable:agent`. Its answers are generated in the background, so the second
# worker fetches the answer already requested, instead of requesting another one.
agent = Agent(
    "openai-responses:gpt-5",
    base_url=os.environ.get("DEMO_PROVIDER", "http://127.0.0.1:9/v1"),
    api_key="demo",
    options=OpenAIResponsesOptions(background=True),
)


class SlowAnswer:
    """An answer that the fake provider writes word by word, to every client."""

    def __init__(self) -> None:
        words = [word + " " for word in TEXT.split()]
        self.text = "".join(words)
        self._events = ResponsesScript().text(words).events()
        self._written = [asyncio.Event() for _ in self._events]

    async def write(self) -> None:
        for event in self._written:
            await asyncio.sleep(0.06)
            event.set()

    def reply(self, _: Received) -> Reply:
        body = [item for pair in zip(self._written, self._events, strict=True) for item in pair]
        return sse(body)


class Reader:
    """Prints the text of a run as it is logged, and checks that no record is missing."""

    def __init__(self) -> None:
        self.text = ""
        self.parts = 0
        self.workers: list[str] = []
        self._position = 0
        self._in_attempt = 0

    def feed(self, record: Record) -> None:
        assert record.seq == self._position + 1, f"record {record.seq} came after {self._position}"
        self._position = record.seq
        if (name := getattr(record.body, "details", {}).get("worker")) is not None:
            self.workers.append(name)
            say(f"\n[{self.workers[-1]} drives the run]")
        for part in getattr(record.body, "parts", ()):
            self.parts += 1
            self._take(part)

    def _take(self, part: StreamPart) -> None:
        if isinstance(part, StepStart):
            self._in_attempt = 0  # The step was interrupted, so its text starts again.
        elif isinstance(part, TextDelta):
            known = len(self.text) - self._in_attempt
            self._in_attempt += len(part.delta)
            self.text += part.delta[max(known, 0) :]
            print(part.delta[max(known, 0) :], end="", flush=True)


def say(text: str) -> None:
    print(text, flush=True)


async def worker(folder: Path, provider: str) -> asyncio.subprocess.Process:
    command = [
        sys.executable,
        "-m",
        "sidestream",
        "worker",
        "--store",
        str(folder / "runs.db"),
        "--agent",
        "writer=durable:agent",
        "--lease",
        f"{LEASE_S}s",
    ]
    environment = {**os.environ, "DEMO_PROVIDER": provider, "PYTHONPATH": str(Path(__file__).parent)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    await process.stderr.readline()  # The worker prints a line once it is ready.
    return process


async def main() -> None:
    answer = SlowAnswer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with FakeProvider() as provider:
            provider.on("POST", "/v1/responses", answer.reply)
            provider.on("GET", "/v1/responses/*", answer.reply)
            workers = {str(process.pid): process for process in [await worker(folder, provider.base_url) for _ in "12"]}
            store = open_store(folder / "runs.db")
            engine = open_engine("embedded", store, lease_s=LEASE_S)
            client = RunClient(agent, "writer", store=store, engine=engine)
            await client.start("talk", "Why does the log matter?")
            writing = asyncio.create_task(answer.write())
            reader, killed = Reader(), False
            async for record in client.follow("talk"):
                reader.feed(record)
                if not killed and len(reader.text) > len(answer.text) // 2:
                    killed = True
                    process = workers[reader.workers[-1].rpartition(":")[2]]
                    process.send_signal(signal.SIGKILL)
                    say(f"\n[{reader.workers[-1]} was killed]")
            await writing
            for process in workers.values():
                if process.returncode is None:
                    process.terminate()
                await process.wait()
            await engine.aclose()
            await store.aclose()
    asks = [request for request in provider.requests if request.method == "POST"]
    assert reader.text == answer.text, "the text has a gap, or a repetition"
    assert len(asks) == 1, "the provider was asked twice"
    takeovers = len(reader.workers) - 1
    say(f"\n\ngapless: {reader.parts} parts, {takeovers} takeover, {1 + len(workers)} processes")


if __name__ == "__main__":
    asyncio.run(main())
