"""Tools whose worker died while they ran, and decisions on them that another process drives on."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream.durable.engines.protocol import Task
from sidestream.testing import ResponsesScript, sse
from support.durable_scenes import STEP_TEXT, Scene, calling, is_waiting, scene, story
from support.durable_worker import AGENT
from support.engines import Fleet
from support.waiting import eventually

ALL = "".join(STEP_TEXT)


@pytest.fixture
async def here(fleet: Fleet, tmp_path: Path) -> AsyncGenerator[Scene]:
    async with scene(fleet, tmp_path) as made:
        yield made


@requirement("R161", "R162")
async def test_run_resumes_when_worker_died_during_tool_input(here: Scene):
    events: list[Any] = ResponsesScript().function_call("look", {"value": "seat"}).events()
    done = [event["type"] for event in events].index("response.function_call_arguments.done")
    first = await here.worker()
    here.fake.add(sse([*events[:done], asyncio.Event(), *events[done:]]), calling("look", "seat"), story())
    reader = await here.begin()
    await reader.saw(lambda row: row.kind == "tool-input")
    first.signal(signal.SIGKILL)
    await here.worker()
    await reader.over()
    assert await here.said() == ALL
    assert here.calls("look") == ["seat"]


@requirement("R161", "R162")
async def test_tool_running_when_worker_died_is_not_rerun_silently(here: Scene):
    held = here.hold("seat")
    first = await here.worker()
    here.fake.add(calling("book", "seat"), story())
    reader = await here.begin()

    async def is_called() -> bool:
        return here.calls("book") == ["seat"]

    await eventually(is_called)
    second = await here.worker()
    first.signal(signal.SIGKILL)
    [driven] = await second.reported("driven")
    assert driven["is_waiting"]
    held.unlink()
    assert here.calls("book") == ["seat"]

    chat = here.chat()
    await chat.load()
    assert chat.status == "waiting"
    waited_at = chat.head
    await chat.resume_stream([approval.deny("it is booked") for approval in chat.approvals]).begin()
    await here.engine.wake("talk", waited_at)
    await reader.over()
    assert await here.said() == ALL
    assert here.calls("book") == ["seat"]


@requirement("R160", "R162")
async def test_lost_wake_is_repaired_by_enqueueing_again(here: Scene):
    held = here.hold("seat")
    first = await here.worker()
    here.fake.add(calling("book", "seat"), story())
    reader = await here.begin()
    await reader.saw(lambda row: row.kind == "tool-started")
    first.signal(signal.SIGKILL)
    second = await here.worker()
    await reader.saw(lambda row: row.kind == "finish" and is_waiting(row))
    held.unlink()
    await second.reported("driven")
    chat = here.chat()
    await chat.load()
    await chat.resume_stream([approval.deny("no") for approval in chat.approvals]).begin()
    # The process that decided dies here, before it wakes the engine. Whoever finds the open run enqueues it.
    await chat.load()
    for _ in range(2):
        await here.engine.enqueue(Task(conversation="talk", position=chat.head, queue=AGENT))
    await reader.over()
    assert await here.said() == ALL
    assert len(here.fake.requests) == 2
