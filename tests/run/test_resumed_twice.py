"""Two resumptions in a row, cut at every record of both: what is sent to the provider, and what is not sent again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from run.test_background import BOUND_S, NEVER, Api, both, read_aside
from sidestream import Chat
from sidestream.store import LogDetail, open_store
from sidestream.store.records import Row
from sidestream.testing import FakeProvider, sse

AT_ONCE = LogDetail(interval_s=0.0)


async def copied(store: Any, rows: Sequence[Row], id: str) -> None:
    """A conversation as a process leaves it that was killed after these records."""
    await store.append(id, 0, list(rows))


async def resumed(api: Api, fake: FakeProvider, store: Any, id: str, stream: bool) -> list[str]:
    """Resumes a conversation to its end; returns the methods of the requests."""
    before = len(fake.requests)
    chat = Chat(api.agent(fake), store=store, id=id, log=AT_ONCE)
    await chat.load()
    if is_left := chat.status != "complete":
        assert (await chat.resume(stream=stream)).output == "Hello world"
    assert [message.text for message in chat.messages] == ["hi", "Hello world"]
    made = [request.method for request in fake.requests[before:]]
    assert is_left == bool(made)
    return made


def needed(rows: Sequence[Row], stream: bool) -> list[str]:
    """The requests that a run needs after these records: none but the fetch once the log knows the answer's id."""
    if any(row.kind == "step-finish" for row in rows):
        return []
    if any(b"sidestream.background" in row.body for row in rows):
        return ["GET"]
    return ["POST"] if stream else ["POST", "GET"]


@both
@requirement("R47", "R161")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_background_answer_is_requested_once_however_often_left(api: Api, stream: bool, tmp_path: Path) -> None:
    store = open_store(tmp_path / "talks.db")
    cuts = 0
    async with FakeProvider([], base_path=api.base_path) as fake:
        fake.on("POST", api.path, sse(api.stream()) if stream else api.at("queued"))
        fake.on("GET", api.answer_path, sse(api.stream()) if stream else api.done())
        first = Chat(api.agent(fake), store=store, id="whole", log=AT_ONCE)
        await first.send("hi", stream=stream)
        rows = await store.read("whole")
        for cut in range(2, len(rows)):
            await copied(store, rows[:cut], f"once{cut}")
            made = await resumed(api, fake, store, f"once{cut}", stream)
            assert made == needed(rows[:cut], stream), (cut, [row.kind for row in rows[:cut]])
            again = await store.read(f"once{cut}")
            for later in range(cut + 1, len(again)):
                id = f"twice{cut}-{later}"
                await copied(store, again[:later], id)
                made = await resumed(api, fake, store, id, stream)
                assert made == needed(again[:later], stream), (cut, later, [row.kind for row in again[:later]])
                cuts += 1
    await store.aclose()
    assert cuts > 20


@both
@requirement("R47", "R161")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_background_answer_id_is_logged_at_once(api: Api, stream: bool, tmp_path: Path) -> None:
    """A process that is killed right after the provider has begun must not cost a second answer."""
    store = open_store(tmp_path / "talks.db")
    first = sse([*api.stream()[:4], asyncio.Event()]) if stream else api.at("queued")
    async with asyncio.timeout(BOUND_S), api.fake(first) as fake:
        # Nothing else is written before the test is over.
        chat = Chat(api.agent(fake, limits=NEVER), store=store, id="talk", log=LogDetail(interval_s=3600))
        await chat.load()
        async with chat.stream("hi", stream=stream) as run:
            reading = asyncio.create_task(read(run))
            async for row in store.tail("talk"):
                if api.id.encode() in row.body and b"sidestream.background" in row.body:
                    break
            reading.cancel()
            await asyncio.wait([reading])
    await store.aclose()


async def read(run: Any) -> None:
    async for _ in run:
        pass


@both
@requirement("R47", "R161")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_handed_off_run_leaves_its_answer_to_next_worker(api: Api, stream: bool, tmp_path: Path) -> None:
    store = open_store(tmp_path / "talks.db")
    first = sse([*api.stream()[:4], asyncio.Event()]) if stream else api.at("queued")
    async with asyncio.timeout(BOUND_S), api.fake(first) as fake:
        chat = Chat(api.agent(fake, limits=NEVER), store=store, id="talk")
        await chat.load()
        run = chat.stream("hi", stream=stream)
        reader = await read_aside(run)
        await run.leave()
        await reader
        fake.on("GET", api.answer_path, sse(api.stream()) if stream else api.done())
        later = Chat(api.agent(fake), store=store, id="talk")
        await later.load()
        assert later.status == "unfinished"
        assert (await later.resume(stream=stream)).output == "Hello world"
        assert [request.method for request in fake.requests] == ["POST", "GET"]
    await store.aclose()
