"""Records what a workflow of Temporal does, for the test that replays it: once for each release that changes it.

Usage: PYTHONPATH=tests python tests/durable/engines/record_histories.py 127.0.0.1:7233
"""

import asyncio
import secrets
import sys
import time
from pathlib import Path

from sidestream.durable.engines.protocol import Claim, Outcome, Task
from sidestream.durable.engines.temporal import TemporalEngine
from support.engines import until_stats

FOLDER = Path(__file__).with_name("histories")


async def woken(engine: TemporalEngine) -> None:
    """Driven, woken, handed over, woken before it waits, ended."""
    ends = [
        Outcome(position=4, is_waiting=True),
        Outcome(position=6, is_handed_over=True),
        Outcome(position=8, is_waiting=True, until=time.time() + 600),
        Outcome(position=9),
    ]
    done = asyncio.Event()

    async def drive(claim: Claim) -> Outcome:
        outcome = ends.pop(0)
        if len(ends) == 1:
            await engine.wake("talk", 8)
        if not ends:
            done.set()
        return outcome

    async with asyncio.TaskGroup() as group:
        work = group.create_task(engine.work(drive, queues=["models"], slots=1))
        await engine.enqueue(Task(conversation="talk", position=1))
        await until_stats(engine, waiting=1)
        await engine.wake("talk", 4)
        await done.wait()
        await asyncio.sleep(1)
        work.cancel()


async def moved(engine: TemporalEngine) -> None:
    """Waits for its time, then for a worker that there is not, until another agent has it."""
    done = asyncio.Event()

    async def drive(claim: Claim) -> Outcome:
        done.set()
        return Outcome(position=9)

    async with asyncio.TaskGroup() as group:
        work = group.create_task(engine.work(drive, queues=["support@2"], slots=1))
        await engine.enqueue(Task(conversation="talk", position=1, queue="support@1", at=time.time() + 0.5))
        await until_stats(engine, queued=1)
        await asyncio.sleep(1)
        await engine.enqueue(Task(conversation="talk", position=5, queue="support@2"))
        await done.wait()
        await asyncio.sleep(1)
        work.cancel()


async def main(address: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, record in (("driven-woken-handed-over", woken), ("scheduled-and-moved", moved)):
        prefix = f"record-{secrets.token_hex(4)}"
        engine = TemporalEngine(None, f"temporal://{address}?prefix={prefix}", lease_s=5)
        await record(engine)
        workflow = (await engine._client()).get_workflow_handle(f"{prefix}:talk")
        history = (await workflow.fetch_history()).to_json()
        (FOLDER / f"{name}.json").write_text(history + "\n")


asyncio.run(main(sys.argv[1]))
