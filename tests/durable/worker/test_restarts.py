"""The database is restarted while a run streams."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from requirements import requirement
from support.durable_scenes import STEP_TEXT, is_text, scene, story
from support.engines import Fleet
from support.postgres import Server, binaries, shared_server
from support.stores import BOUND_S

ALL = "".join(STEP_TEXT)
DATABASE = "postgresql"


@pytest.fixture
def own_server(tmp_path: Path) -> Generator[Server]:
    """A PostgreSQL server that a test may restart."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with shared_server(tmp_path) as server:
        yield server


@pytest.fixture
def postgres_url(own_server: Server) -> str:
    return own_server.url("postgres")


@requirement("R161", "R162")
async def test_database_restart_interrupts_no_run(fleet: Fleet, tmp_path: Path, own_server: Server):
    gate = asyncio.Event()
    async with scene(fleet, tmp_path) as here:
        worker = await here.worker(lease_s=20.0)
        here.fake.add(story(gate))
        reader = await here.begin()
        await reader.saw(is_text)
        await asyncio.to_thread(own_server.stop)
        gate.set()
        await here.fake.wait_answered(BOUND_S)  # All of the answer has come while there was no database.
        await asyncio.to_thread(own_server.start)
        await worker.reported("driven")
        written = await reader.over()
        assert [row.kind for row in written].count("run-started") == 2
        assert await here.said() == ALL
        assert len(here.fake.requests) == 1
