"""The moments at which logs are written: one for all, and those who read first."""

import asyncio
import gc
import weakref

import pytest

from sidestream.store.moments import Moments, moments

SHORT_S = 0.005


class Written:
    """Notes that its moment has come."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen
        self.is_due = asyncio.Event()

    def write_due(self) -> None:
        self.seen.append(self.name)
        self.is_due.set()
        if self.name == "broken":
            raise ValueError("the disk is gone")


async def test_all_writers_of_a_loop_share_their_moments() -> None:
    seen: list[str] = []
    one, two, gone = (Written(name, seen) for name in ("one", "two", "gone"))
    assert moments(SHORT_S) is moments(SHORT_S)
    assert moments(SHORT_S) is not moments(2 * SHORT_S)
    for writer in (one, two, gone):
        moments(SHORT_S).add(writer)
    moments(SHORT_S).discard(gone)
    await one.is_due.wait()
    await two.is_due.wait()
    assert sorted(seen) == ["one", "two"]
    two.is_due.clear()
    moments(SHORT_S).add(two)  # Each is called once; who wants more adds itself again.
    await two.is_due.wait()
    assert sorted(seen) == ["one", "two", "two"]
    assert not gone.is_due.is_set()


async def test_what_is_read_at_a_moment_is_written_at_that_moment() -> None:
    seen: list[str] = []
    now = moments(SHORT_S)
    late = Written("written", seen)

    async def read() -> None:
        for _ in range(3):
            await now.wait()
            seen.append("read")
            now.add(late)

    reading = [asyncio.create_task(read()) for _ in range(2)]
    await asyncio.gather(*reading)
    await late.is_due.wait()
    await asyncio.sleep(0)
    assert seen == ["read", "read", "written"] * 3


async def test_readers_with_a_phase_have_moments_of_their_own_and_others_are_not_written_then() -> None:
    seen: list[str] = []
    now = Moments(4 * SHORT_S)
    other, late = Written("other", seen), Written("late", seen)
    await now.wait()
    await asyncio.sleep(0)
    now.add(other)
    began_s = asyncio.get_running_loop().time()
    await now.wait(0.5)
    seen.append("read")
    now.add(late)
    assert asyncio.get_running_loop().time() > began_s
    await late.is_due.wait()
    await other.is_due.wait()
    assert seen in (["read", "late", "other"], ["other", "read", "late"])  # The latter if the machine slept.


async def test_a_reader_that_is_cancelled_holds_up_nobody_and_a_writer_that_fails_neither() -> None:
    seen: list[str] = []
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    now = Moments(60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(now.wait(), SHORT_S)
    assert not any(now._readers.values())
    now = moments(SHORT_S)
    writers = [Written(name, seen) for name in ("one", "broken", "two")]
    for writer in writers:
        now.add(writer)
    await now.wait()
    for writer in writers:
        await writer.is_due.wait()
    assert (sorted(seen), failures) == (["broken", "one", "two"], ["the disk is gone"])


def test_the_moments_of_a_loop_end_with_it() -> None:
    async def kept() -> weakref.ref[Moments]:
        await moments(0.0).wait()
        return weakref.ref(moments(0.0))

    found = asyncio.run(kept())
    gc.collect()
    assert found() is None
