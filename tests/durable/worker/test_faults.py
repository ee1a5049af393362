"""Workers that die, hang or are cut off, as processes: their runs end once, and readers see no gap."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from requirements import requirement
from support.durable_scenes import STEP_TEXT, Scene, is_text, scene, story
from support.engines import SLACK_S, Fleet, until_stats

ALL = "".join(STEP_TEXT)


@pytest.fixture
async def here(fleet: Fleet, tmp_path: Path) -> AsyncGenerator[Scene]:
    async with scene(fleet, tmp_path) as made:
        yield made


@requirement("R160", "R161", "R162")
async def test_run_of_killed_worker_moves_without_gap_for_subscribers(here: Scene):
    first = await here.worker()
    here.fake.add(story(asyncio.Event()), story())
    reader = await here.begin()
    await first.reported("claimed")
    await reader.saw(is_text)
    second = await here.worker()
    killed_s = time.monotonic()
    first.signal(signal.SIGKILL)
    await second.reported("claimed")
    assert time.monotonic() - killed_s < 2 * here.fleet.process_lease_s + SLACK_S
    rows = await reader.over()
    assert [row.kind for row in rows].count("finish") == 1
    assert await here.said() == ALL
    assert (await second.reported("driven"))[0]["position"] == rows[-1].seq
    await until_stats(here.engine, queued=0, running=0, waiting=0)
    assert len(here.fake.requests) == 2


@requirement("R161", "R162")
async def test_paused_worker_loses_its_run_and_cannot_write_afterwards(here: Scene):
    gate = asyncio.Event()
    first = await here.worker()
    here.fake.add(story(gate), story())
    reader = await here.begin()
    await reader.saw(is_text)
    second = await here.worker()
    await here.stop(first)
    gate.set()  # The rest arrives at a process that cannot read it yet.
    await second.reported("driven")
    rows = await reader.over()
    first.signal(signal.SIGCONT)
    await first.reported("lost")
    assert await here.store.read("talk") == rows
    assert await here.said() == ALL

    # It is a worker like others then.
    second.signal(signal.SIGTERM)
    assert await second.ended() == 0
    here.fake.add(story())
    await (await here.begin("another")).over()
    await first.reported("driven", "another")


@requirement("R160", "R162")
async def test_workers_share_runs_and_execute_each_once(here: Scene):
    workers = await here.patient_workers(2)
    here.fake.on("POST", "*", story())
    readers = [await here.begin(f"talk-{number}") for number in range(10)]
    for number, reader in enumerate(readers):
        rows = await reader.over()
        assert [row.kind for row in rows].count("run-started") == 2  # The front's, and that of one worker.
        assert await here.said(f"talk-{number}") == ALL
    claims = [event["talk"] for worker in workers for event in worker.events if event["event"] == "claimed"]
    assert sorted(claims) == sorted(f"talk-{number}" for number in range(10))
    assert len(here.fake.requests) == 10


@requirement("R160", "R162")
async def test_drained_worker_hands_off_its_run_at_once(here: Scene):
    [first] = await here.patient_workers(1)
    here.fake.add(story(asyncio.Event()), story())
    reader = await here.begin()
    await reader.saw(is_text)
    [second] = await here.patient_workers(1)
    first.signal(signal.SIGTERM)
    [claimed] = await second.reported("claimed")
    assert not claimed["is_takeover"]
    assert await first.ended() == 0
    await reader.over()
    assert await here.said() == ALL
