"""Chats are deleted whole, and expire."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent
from sidestream.durable.log.jobs import Job
from sidestream.errors import BlobError, ConflictError
from sidestream.server.errors import RequestError
from sidestream.server.server import BATCH, Retention, Server
from sidestream.server.settings import ServerSettings
from sidestream.store import Store, open_store
from sidestream.store.wrapped import WrappedStore
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.stores import BOUND_S, digest_of, message, row

JOB = Job(agent="main")


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of an empty store."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return str(tmp_path / "talks.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@asynccontextmanager
async def server_at(base_url: str, where: str | Store, **settings: Any) -> AsyncGenerator[Server]:
    main = Agent("openai-responses", base_url=base_url, api_key="key-0123456789")
    store = open_store(where) if isinstance(where, str) else where
    server = Server(ServerSettings(agents={"main": main}, default="main", **settings), store)
    try:
        async with asyncio.timeout(BOUND_S):
            await server.open()
            yield server
    finally:
        await server.aclose()


NOWHERE = "http://127.0.0.1:1/v1"


async def write(server: Server, *conversations: str, age_s: float = 0.0) -> None:
    """Writes conversations, each with a blob of its own and one that all share."""
    for name in conversations:
        blobs = {digest_of(data): data for data in (name.encode(), b"shared")}
        said = replace(message(1, "Hi."), time=time.time() - age_s)
        end = replace(row(2, "finish", blobs=[*blobs]), time=time.time() - age_s)
        await server.store.append(name, 0, [said, end], blobs)


async def ids(server: Server) -> set[str]:
    return {info.id for info in await server.store.conversations(1000)}


async def has_blob(server: Server, data: bytes) -> bool:
    try:
        return await server.store.blob(digest_of(data)) == data
    except BlobError:
        return False


@requirement("R144")
@pytest.mark.parametrize("given", ["anna/abc", "anna/abc~2"])
async def test_deleting_chat_removes_only_its_branches_and_blobs(where: str, given: str) -> None:
    kept = {"anna/abcd", "anna/abc~x", "anna/ab", "ben/abc", "/abc", "abc"}
    async with server_at(NOWHERE, where) as server:
        await write(server, "anna/abc", "anna/abc~2", "anna/abc~10", *kept)
        assert await server.runs.delete(given)
        assert await ids(server) == kept
        assert not await has_blob(server, b"anna/abc")
        assert not await has_blob(server, b"anna/abc~10")
        assert await has_blob(server, b"ben/abc")
        assert await has_blob(server, b"shared")
        assert not await server.runs.delete("anna/abc")
        assert await server.store.check() == []


@requirement("R142", "R144")
async def test_deleting_chat_stops_run_and_ends_its_streams(where: str) -> None:
    gate = asyncio.Event()
    events = ResponsesScript().text(["One, ", "two."]).events()
    script = [sse([*events[:6], gate, *events[6:]]), ResponsesScript().text("New.").reply()]
    async with FakeProvider(script) as fake, server_at(fake.base_url, where) as server:
        info = await server.runs.start(server.agent("main"), "anna/talk", "Count.", JOB)
        async with aclosing(server.runs.follow("anna/talk")) as records:
            async for record in records:
                if record.kind == "step-start":  # The provider has the request.
                    break
        reading = asyncio.create_task(read(server, "anna/talk"))
        deleting = asyncio.create_task(server.runs.delete("anna/talk"))
        with pytest.raises(ConflictError):
            await server.runs.start(server.agent("main"), "anna/talk", "Again.", JOB)
        assert await deleting
        await reading
        assert not server.runs.live
        assert await ids(server) == set()
        with pytest.raises(RequestError):
            await server.runs.find("anna", info.id)
        # The id is free again.
        await server.runs.start(server.agent("main"), "anna/talk", "Hi.", JOB)
        await read(server, "anna/talk")
        assert (await server.store.conversation("anna/talk").messages())[-1].text == "New."
        fake.release(gate)


async def read(server: Server, conversation: str) -> list[int]:
    return [record.seq async for record in server.runs.follow(conversation)]


@requirement("R144")
async def test_chat_expires_when_all_branches_are_old(where: str) -> None:
    gate = asyncio.Event()
    events = ResponsesScript().text("Hi.").events()
    async with FakeProvider([sse([*events[:3], gate, *events[3:]])]) as fake, server_at(fake.base_url, where) as server:
        await write(server, "anna/old", "anna/old~2", "anna/live", "library", age_s=100.0)
        await write(server, "anna/live~2", "anna/new")
        await server.runs.start(server.agent("main"), "anna/busy", "Hi.", JOB)
        keeper = Retention(server.store, server.runs, 50.0)
        assert await keeper.sweep() == 2
        assert await ids(server) == {"anna/live", "anna/live~2", "anna/new", "anna/busy"}
        assert not await has_blob(server, b"anna/old~2")
        assert await keeper.sweep() == 0
        later = Retention(server.store, server.runs, 50.0, lambda: time.time() + 100)
        assert await later.sweep() == 2
        assert await ids(server) == {"anna/busy"}, "its run is in progress"
        fake.release(gate)


@requirement("R144")
async def test_more_expired_chats_than_one_batch_are_deleted(where: str) -> None:
    async with server_at(NOWHERE, where) as server:
        await write(server, *(f"anna/{number}" for number in range(BATCH + 1)), age_s=100.0)
        assert await Retention(server.store, server.runs, 50.0).sweep() == BATCH + 1
        assert await ids(server) == set()


class Counting(WrappedStore):
    """A store that counts what one task does with it; each call takes a few statements."""

    calls = 0
    task: "asyncio.Task[Any] | None" = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "conversations", "delete", "delete_all", "execute") and asyncio.current_task() is self.task:
            self.calls += 1
        return super().__getattribute__(name)


@requirement("R144")
async def test_expired_chats_are_deleted_with_few_store_calls(where: str) -> None:
    counting = Counting(open_store(where))
    async with server_at(NOWHERE, counting) as server:
        taken: list[int] = []
        for count in (5, 45):
            await write(server, *(f"anna/{number}" for number in range(count)), "anna/1~2", age_s=100.0)
            counting.calls, counting.task = 0, asyncio.current_task()
            assert await Retention(server.store, server.runs, 50.0).sweep() == count
            counting.task = None
            taken.append(counting.calls)
        assert await ids(server) == set()
        assert taken == [5, 5]  # Two pages of the list, the branches twice, one deletion.


@requirement("R144")
async def test_server_deletes_expired_chats_from_start(where: str) -> None:
    async with server_at(NOWHERE, where) as server:
        await write(server, "anna/old", age_s=100.0)
        await write(server, "anna/new")
    async with server_at(NOWHERE, where, retention_s=50.0) as server:
        while await ids(server) != {"anna/new"}:
            pass
