"""Faults between workers and the database: cut off, and clocks that differ."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from glob import glob
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.durable.engines.protocol import Task
from support.durable_scenes import STEP_TEXT, Scene, is_text, scene, story
from support.durable_worker import AGENT
from support.engines import Fleet, talk
from support.postgres import Server
from support.stores import BOUND_S

ALL = "".join(STEP_TEXT)
DATABASE = "postgresql"


class Link:
    """A way to a PostgreSQL server that a test can cut: then nothing arrives, and nothing says so."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self._target = target
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._is_open.clear()

    def restore(self) -> None:
        self._is_open.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on what comes from both sides, until one has gone."""
        there, back = await asyncio.open_unix_connection(self._target)
        pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, back), (there, writer))]
        self._tasks |= {*pumps}
        await asyncio.wait(pumps)
        for end in (back, writer):
            end.close()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def linked(folder: Path, server: Server) -> AsyncGenerator[Link]:
    """A link to the server, whose socket is in the folder."""
    link = Link(folder, f"{server.folder}/.s.PGSQL.{server.port}")
    listening = await asyncio.start_unix_server(link.accept, folder / ".s.PGSQL.5432")
    try:
        yield link
    finally:
        listening.close()
        await link.aclose()
        await listening.wait_closed()


@pytest.fixture
async def here(fleet: Fleet, tmp_path: Path) -> AsyncGenerator[Scene]:
    async with scene(fleet, tmp_path) as made:
        yield made


@requirement("R161", "R162")
async def test_disconnected_worker_stops_and_loses_its_run(here: Scene, tmp_path: Path, postgres_server: Server):
    async with linked(tmp_path, postgres_server) as link:
        schema = here.fleet.where.partition("&schema=")[2]
        away = f"postgresql://postgres@/postgres?host={tmp_path}&port=5432&schema={schema}"
        first = await here.worker(store=away)
        here.fake.add(story(asyncio.Event()), story())
        reader = await here.begin()
        await reader.saw(is_text)
        second = await here.worker()
        link.cut()
        await second.reported("driven")
        written = await reader.over()
        assert await here.said() == ALL
        await here.fake.wait_answered(BOUND_S)  # It has left its request to the provider.
        link.restore()
        await first.reported("lost")
        assert await here.store.read("talk") == written

        # It is a worker like others again.
        second.signal(signal.SIGTERM)
        await second.ended()
        here.fake.add(story())
        await (await here.begin("another")).over()


@pytest.fixture
def faketime() -> str:
    """The library that shifts the clock of a process."""
    if not (found := glob("/usr/lib/*/faketime/libfaketime.so.1")):
        missing = "libfaketime is not installed: apt-get install libfaketime"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    return found[0]


@requirement("R161", "R162")
async def test_clock_differences_change_neither_leases_nor_timers(here: Scene, faketime: str):
    def shifted(by: str) -> dict[str, str]:
        return {"LD_PRELOAD": faketime, "FAKETIME": by, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}

    ahead = await here.worker(variables=shifted("+10m"))
    here.fake.add(story(asyncio.Event()), story(), story())
    reader = await here.begin()
    await reader.saw(is_text)
    behind = await here.worker(variables=shifted("-10m"))
    await talk(here.store, "later")
    at = time.time() + 2 * here.fleet.process_lease_s
    await here.engine.enqueue(Task(conversation="later", position=1, queue=AGENT, at=at))
    async with asyncio.timeout(BOUND_S):
        done = [asyncio.create_task(worker.reported("driven", "later")) for worker in (ahead, behind)]
        await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.cancel()
        await asyncio.wait(done)
    assert time.time() >= at - 0.1
    assert (await here.engine.stats()).takeovers == 0
    assert not [event for event in behind.events if event.get("talk") == "talk"]

    await here.stop(ahead)
    await behind.reported("driven", "talk")
    ahead.signal(signal.SIGCONT)
    await ahead.reported("lost")
    await reader.over()
    assert await here.said() == ALL
