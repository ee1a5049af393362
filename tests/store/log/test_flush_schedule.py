"""The moments at which logs are written: one for all, and those who read first."""

import asyncio
import gc
import socket
import weakref

import pytest

from sidestream.store.log.flush_schedule import PHASES, Moments, moments

SHORT_S = 0.005
TALK = "talk"


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


class Read:
    """Notes when it is paused, and when it is read on."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def pause(self) -> None:
        self.seen.append("paused")

    def resume(self) -> None:
        self.seen.append("resumed")


async def test_writers_of_loop_share_flush_schedule() -> None:
    seen: list[str] = []
    one, two, gone = (Written(name, seen) for name in ("one", "two", "gone"))
    assert moments(SHORT_S, TALK) is moments(SHORT_S, TALK)
    assert moments(SHORT_S, TALK) is not moments(2 * SHORT_S, TALK)
    for writer in (one, two, gone):
        moments(SHORT_S, TALK).add(writer)
    moments(SHORT_S, TALK).discard(gone)
    await one.is_due.wait()
    await two.is_due.wait()
    assert sorted(seen) == ["one", "two"]
    two.is_due.clear()
    moments(SHORT_S, TALK).add(two)  # Each is called once; who wants more adds itself again.
    await two.is_due.wait()
    assert sorted(seen) == ["one", "two", "two"]
    assert not gone.is_due.is_set()


async def test_data_read_at_flush_is_written_at_same_flush() -> None:
    seen: list[str] = []
    now = moments(SHORT_S, TALK)
    late = Written("written", seen)

    async def read() -> None:
        for _ in range(3):
            await now.wait(Read([]))
            seen.append("read")
            now.add(late)

    reading = [asyncio.create_task(read()) for _ in range(2)]
    await asyncio.gather(*reading)
    await late.is_due.wait()
    await asyncio.sleep(0)
    assert seen == ["read", "read", "written"] * 3


async def test_paused_connection_is_read_when_flush_is_due() -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)

    class Connection:
        def pause(self) -> None:
            writer.transport.pause_reading()

        def resume(self) -> None:
            writer.transport.resume_reading()

    with there:
        for piece in (b"one", b"two"):
            there.send(piece)
            await moments(SHORT_S, TALK).wait(Connection())
            assert reader._buffer == piece  # Without another turn of the event loop.
            assert await reader.read(100) == piece
    writer.close()


async def test_cancelled_reader_or_failed_writer_blocks_no_others() -> None:
    seen: list[str] = []
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    now = Moments(60.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(now.wait(Read(seen)), SHORT_S)
    assert not now._readers
    assert seen == ["paused", "resumed"]
    seen.clear()
    now = moments(SHORT_S, TALK)
    writers = [Written(name, seen) for name in ("one", "broken", "two")]
    for writer in writers:
        now.add(writer)
    await now.wait(Read([]))
    for writer in writers:
        await writer.is_due.wait()
    assert (sorted(seen), failures) == (["broken", "one", "two"], ["the disk is gone"])


def test_flush_schedule_ends_with_its_loop() -> None:
    async def kept() -> weakref.ref[Moments]:
        await moments(0.0, TALK).wait(Read([]))
        return weakref.ref(moments(0.0, TALK))

    found = asyncio.run(kept())
    gc.collect()
    assert found() is None


async def test_conversations_are_spread_over_flush_interval() -> None:
    groups = {moments(0.2, f"talk{number}") for number in range(64 * PHASES)}
    assert {group._offset_s for group in groups} == {0.2 * number / PHASES for number in range(PHASES)}
    assert all(moments(0.2, f"talk{number}") in groups for number in range(64 * PHASES))
