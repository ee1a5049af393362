"""The thread of a store: jobs are done in order, those of one turn of the event loop together, and none is lost."""

import asyncio
import threading
from typing import Any

from sidestream.store.threads import MAX_BATCH, JobThread, QueuedCall
from support.stores import BOUND_S


class Batches(JobThread[int]):
    """Notes the batches that it gets. The first one waits for the gate."""

    name = "sidestream-test"

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.batches: list[list[int]] = []

    def serve(self, jobs: list[QueuedCall[int]]) -> None:
        self.gate.wait(BOUND_S)
        self.batches.append([job.work for job in jobs])
        QueuedCall.set_all((job, job.work) for job in jobs)

    def close(self) -> None:
        self.batches.append([])


async def test_jobs_of_one_loop_iteration_are_batched_in_order() -> None:
    thread = Batches()
    count = 3 * MAX_BATCH
    doing = [asyncio.create_task(thread.do(number)) for number in range(count)]
    await asyncio.sleep(0)
    doing.append(asyncio.create_task(thread.do(count)))
    await asyncio.sleep(0)
    thread.gate.set()
    assert await asyncio.gather(*doing) == list(range(count + 1))
    await thread.aclose()
    *batches, last = thread.batches
    assert [number for batch in batches for number in batch] == list(range(count + 1))
    assert last == []
    assert max(map(len, batches)) <= MAX_BATCH
    # One job wakes the thread, perhaps a second and a third; the rest comes together.
    assert len(batches) <= 3 + 4


async def test_queued_jobs_finish_before_thread_stops() -> None:
    thread = Batches()
    doing: list[asyncio.Task[Any]] = [asyncio.create_task(thread.do(number)) for number in range(20)]
    await asyncio.sleep(0)
    thread.stop()
    thread.gate.set()
    assert await asyncio.gather(*doing) == list(range(20))
    await thread.aclose()
    assert thread.batches[-1] == []
