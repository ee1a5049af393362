"""A worker in a process of its own, for tests that kill, stop or cut it off: `python durable_worker.py SETTINGS`.

It prints what happens as lines of JSON. SIGTERM lets it hand over what it drives, and end.

Without settings it forks a worker for each line that it reads, the path of a FIFO and settings, and prints its process
id: a worker that has not to import anything is ready at once.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from sidestream import Agent, Tool
from sidestream.durable.engines import open_engine
from sidestream.durable.engines.protocol import Claim, LeaseLostError, Outcome
from sidestream.durable.worker.worker import Worker
from sidestream.errors import FencedError
from sidestream.store import open_store
from sidestream.store.log.writer import LogDetail
from sidestream.store.records import Row
from sidestream.store.wrapped import WrappedStore, shared

AGENT = "main"
"""The agent that the worker knows, and its queue."""


class Settings(Struct, kw_only=True):
    """What a worker is started with."""

    store: str
    engine: str
    provider: str
    """The base URL of the fake provider."""
    effects: str
    """The file in which the tools note each call: name, argument and process."""
    lease_s: float
    slots: int = 20
    tool_s: float = 0.0
    """How long each call takes, after it was noted."""


def say(**values: object) -> None:
    line = json.dumps({**values, "at_s": time.monotonic()}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())  # At once: other workers write to the same pipe.


class ReportingStore(WrappedStore):
    """Reports appends that are refused."""

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
        token: str | None = None,
    ) -> None:
        try:
            await super().append(conversation, after, rows, blobs, flush=flush, token=token)
        except FencedError:
            say(event="refused", talk=conversation)
            raise


def agent_of(settings: Settings) -> Agent[Any]:
    """The agent; its tools note their calls, and wait as long as there is a file that is named after their argument."""

    def write(name: str, value: str) -> None:
        with open(settings.effects, "a") as file:
            file.write(f"{name} {value} {os.getpid()}\n")

    async def called(name: str, value: str) -> str:
        write(name, value)
        await asyncio.sleep(settings.tool_s)
        while True:
            if not await asyncio.to_thread(os.path.exists, f"{settings.effects}.{value}"):
                return f"{name}: {value}"
            await asyncio.sleep(0.02)

    async def book(value: str) -> str:
        """Books something: twice would be wrong."""
        return await called("book", value)

    async def look(value: str) -> str:
        """Looks something up: as often as one likes."""
        return await called("look", value)

    async def note(value: str) -> str:
        """Notes something: not again after an interruption."""
        return await called("note", value)

    tools = [
        Tool.from_function(book),
        Tool.from_function(look, on_interruption="retry"),
        Tool.from_function(note, on_interruption="fail"),
    ]
    return Agent("openai-responses", base_url=settings.provider, api_key="k", tools=tools)


async def main(settings: Settings) -> None:
    store = ReportingStore(open_store(settings.store))
    engine = open_engine(settings.engine, shared(store), lease_s=settings.lease_s)
    agent = agent_of(settings)
    worker = Worker(
        shared(store), engine, lambda name: agent, detail=LogDetail(interval_s=0.03, previews=True, inputs=True)
    )
    stopping = asyncio.Event()

    async def drive(claim: Claim) -> Outcome:
        talk = claim.task.conversation
        say(event="claimed", talk=talk, is_takeover=claim.is_takeover, token=claim.token)
        try:
            outcome = await worker.drive(claim)
        except LeaseLostError as error:
            say(event="lost", talk=talk, error=str(error))
            raise
        except Exception as error:
            say(event="failed", talk=talk, error=f"{type(error).__name__}: {error}")
            raise
        say(event="driven", talk=talk, position=outcome.position, is_waiting=outcome.is_waiting)
        return outcome

    async def drain() -> None:
        await stopping.wait()
        await worker.drain()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(worker.attend()), group.create_task(drain())]
        say(event="ready")
        await engine.work(drive, queues=[AGENT], slots=settings.slots, stopping=stopping)
        for task in others:
            task.cancel()
    await engine.aclose()
    await store.aclose()
    say(event="ended")


def fork_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for them.
    for line in sys.stdin:
        fifo, _, text = line.partition("\t")
        settings = decode(text, type=Settings)
        preload(settings)
        if pid := os.fork():
            os.write(sys.stdout.fileno(), f"{pid}\n".encode())
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(fifo, os.O_WRONLY), 1)
        asyncio.run(main(settings))
        os._exit(0)


def preload(settings: Settings) -> None:
    """Imports what a worker would import when it needs it."""
    database = "postgres" if settings.store.startswith("postgresql:") else "sqlite"
    for name in (f"store.{database}.store", f"durable.engines.{settings.engine.partition(':')[0]}.engine", "wire.http"):
        import_module(f"sidestream.{name}")
    agent_of(settings)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(decode(sys.argv[1], type=Settings)))
    else:
        fork_workers()
