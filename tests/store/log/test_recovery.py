"""A store that fails and works again: what a chat could not write is written then."""

import asyncio
import resource
import shutil
import signal
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, aclosing, closing
from pathlib import Path

import pytest

from requirements import requirement
from sidestream import Agent, Chat
from sidestream.errors import ConfigurationError, ConflictError, StoreError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom, Finish, StreamStart, TextDelta
from sidestream.store import LogDetail, open_store
from sidestream.store.log.writer import Writer
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.records import Row
from sidestream.store.sqlite.store import SqliteStore
from sidestream.store.wrapped import WrappedStore
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript
from support.postgres import Server, binaries, shared_server
from support.stores import BOUND_S, rows


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    """A server that no other test uses."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with shared_server(tmp_path) as server:
        yield server


def answers(count: int) -> list[object]:
    return [ResponsesScript(id=f"r{n}").text(f"Answer {n}.").reply() for n in range(1, count + 1)]


def agent_at(fake: FakeProvider) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url)


async def stored_texts(where: str) -> list[str]:
    """What another program reads: the texts of the conversation, which must be complete."""
    other = open_store(where)
    chat = Chat(Agent("openai-responses", base_url="http://127.0.0.1:1/v1"), store=other, id="talk")
    await chat.load()
    assert chat.status == "complete"
    log = await other.read("talk")
    assert [row.seq for row in log] == list(range(1, len(log) + 1))
    assert await other.check() == []
    await other.aclose()
    return [message.text for message in chat.messages]


@requirement("F33")
async def test_chat_is_stored_again_when_server_returns(own_server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.store.log.writer.OUTAGE_S", 0.0)
    url = own_server.url("postgres")
    store = PostgresStore(url)
    async with FakeProvider(answers(4)) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("one")
        await asyncio.to_thread(own_server.stop)
        notices: list[Custom] = []
        async with chat.stream("two") as run:
            notices += [part async for part in run if isinstance(part, Custom)]
        assert [notice.kind for notice in notices] == ["sidestream.not-stored"]
        assert chat.store_error is not None
        assert (await chat.send("three")).output == "Answer 3."
        assert chat.store_error is not None
        await asyncio.to_thread(own_server.start)
        assert (await chat.send("four")).output == "Answer 4."
        assert chat.store_error is None
    told = [text for n, word in enumerate(["one", "two", "three", "four"], 1) for text in (word, f"Answer {n}.")]
    assert [message.text for message in chat.messages] == told
    assert await stored_texts(url) == told
    await store.aclose()


@requirement("F33")
@pytest.mark.parametrize("at", ["stream", "tool"])
async def test_log_has_no_gap_when_server_restarts_during_run(own_server: Server, at: str):
    """While text streams, or between the start of a tool and its result: nothing is reported, and nothing is lost."""
    url = own_server.url("postgres")
    starting: list[asyncio.Task[None]] = []

    async def restart() -> str:
        """Stop the server, and let it start while the run continues."""
        async with asyncio.timeout(BOUND_S):  # A reader that could not even begin to read would get the error.
            await reading.wait()
        await asyncio.to_thread(own_server.stop)
        starting.append(asyncio.create_task(asyncio.to_thread(own_server.start)))
        return "restarted"

    call = ResponsesScript(id="r1").function_call("restart" if at == "tool" else "wait", {}).reply()
    text = ResponsesScript(id="r2").text([f"word {n} " for n in range(200)]).reply()
    store, other = PostgresStore(url), PostgresStore(url)
    followed: list[Row] = []
    reading = asyncio.Event()

    async def wait() -> str:
        """Do nothing."""
        return "waited"

    async def follow() -> None:
        async with aclosing(other.tail("talk")) as tail:
            async for row in tail:
                followed.append(row)
                reading.set()
                if row.kind == "finish":
                    return

    async with FakeProvider([call, text]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[restart, wait])
        chat = Chat(agent, store=store, id="talk", log=LogDetail(interval_s=0.001))
        await chat.load()
        reader = asyncio.create_task(follow())
        notices: list[str] = []
        async with chat.stream("go") as run:
            async for part in run:
                notices += [part.kind] if isinstance(part, Custom) else []
                if at == "stream" and isinstance(part, TextDelta) and not starting:
                    await restart()
        await asyncio.gather(*starting)
        assert (notices, chat.store_error) == ([], None)
        async with asyncio.timeout(BOUND_S):
            await reader
    log = await store.read("talk")
    assert followed == log
    assert [row.seq for row in log] == list(range(1, len(log) + 1))
    assert [row.kind for row in log].count("tool-started") == 1
    assert await stored_texts(url) == [message.text for message in chat.messages]
    await store.aclose()
    await other.aclose()


@requirement("F33")
async def test_run_without_log_is_written_when_store_recovers(store: "BrokenStore", monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.store.log.writer.FAILED_WAIT_S", 0.0)
    writer = Writer(store, "talk", 0)
    writer.begin("run", model="m", opening=[ChatMessage.user("go")], message_metadata="session", decisions=[])
    store.is_broken = True
    notice = await writer.commit()
    assert isinstance(notice, Custom)
    assert notice.kind == "sidestream.not-stored"
    store.is_broken = False
    writer.feed([StreamStart(())])
    async with asyncio.timeout(BOUND_S):
        while writer.error is not None:
            await store.read("talk")
    assert [row.kind for row in await store.read("talk")] == ["message", "run-started", "stream-start"]


class BrokenStore(SqliteStore):
    """A store whose appends fail on request; `commits_first` as if only the response were lost."""

    is_broken = False
    commits_first = False

    async def append(self, conversation: str, after: int, rows, blobs=None, *, flush: bool = True) -> None:
        if not self.is_broken or self.commits_first:
            await super().append(conversation, after, rows, blobs, flush=flush)
        if self.is_broken:
            raise StoreError("the disk is full")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[BrokenStore]:
    store = BrokenStore(tmp_path / "talks.db")
    yield store
    await store.aclose()


class SlowStore(WrappedStore):
    """A store whose first append waits, before or after it is made."""

    def __init__(self, inner: SqliteStore, *, writes_first: bool) -> None:
        super().__init__(inner)
        self.waits = asyncio.Event()
        self._writes_first = writes_first

    async def append(self, conversation: str, after: int, rows, blobs=None, *, flush=True, token=None) -> None:
        is_first = not self.waits.is_set()
        if self._writes_first or not is_first:
            await super().append(conversation, after, rows, blobs, flush=flush, token=token)
        if is_first:
            self.waits.set()
            await asyncio.Event().wait()


@requirement("F33")
@pytest.mark.parametrize("writes_first", [False, True])
async def test_cancelled_commit_leaves_no_gap_and_no_duplicate(store, writes_first: bool):
    """Whether it was stored is unknown then: the next commit, here that of somebody else who waits, finds out."""
    slow = SlowStore(store, writes_first=writes_first)
    writer = Writer(slow, "talk", 0)
    writer.begin("run", model="m", opening=[ChatMessage.user("go")], message_metadata="session", decisions=[])
    first, second = asyncio.create_task(writer.commit()), asyncio.create_task(writer.commit())
    await slow.waits.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(BOUND_S):
        assert await second is None
    writer.cancelled()
    assert await writer.commit() is None
    assert [(row.seq, row.kind) for row in await store.read("talk")] == [
        (1, "message"),
        (2, "run-started"),
        (3, "cancelled"),
    ]
    assert writer.head == 3


@requirement("F33")
@pytest.mark.parametrize("commits_first", [False, True])
async def test_unwritten_records_are_written_by_next_load(store: BrokenStore, commits_first: bool):
    async with FakeProvider(answers(3)) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("one")
        store.is_broken, store.commits_first = True, commits_first
        await chat.send("two " + "x" * 20_000)
        await chat.load()
        assert chat.store_error is not None
        store.is_broken = False
        await chat.load()
        assert chat.store_error is None
        assert (await chat.send("three")).output == "Answer 3."
    texts = await stored_texts(str(store.path))
    assert [text[:5] for text in texts] == ["one", "Answe", "two x", "Answe", "three", "Answe"]
    assert texts == [message.text for message in chat.messages]


@requirement("F33")
@pytest.mark.parametrize("fault", ["locked", "full"])
async def test_run_streams_while_file_is_locked_or_full(tmp_path: Path, fault: str):
    store = SqliteStore(tmp_path / "talks.db", busy_timeout_s=0.05)
    async with FakeProvider(answers(3)) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("one")
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other, ExitStack() as stack:
            if fault == "locked":
                other.execute("BEGIN IMMEDIATE")
            else:
                # As large as it may become: SQLite reports a full disk in the same way.
                limit = resource.getrlimit(resource.RLIMIT_FSIZE)
                stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
                stack.callback(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
            async with chat.stream("two") as run:
                parts = [part async for part in run]
        grammar.check(parts)
        assert isinstance(parts[-1], Finish)
        assert parts[-1].reason == "stop"
        assert [part.kind for part in parts if isinstance(part, Custom)] == ["sidestream.not-stored"]
        assert chat.store_error is not None
        await chat.send("three")
        assert chat.store_error is None
    assert len(await stored_texts(str(store.path))) == 6
    await store.aclose()


@requirement("F34", "F33")
async def test_records_of_another_writer_are_conflict_and_kept(store: BrokenStore):
    async with FakeProvider(answers(4)) as fake:
        chat, other = (Chat(agent_at(fake), store=one, id="talk") for one in (store, SqliteStore(store.path)))
        await chat.send("one")
        store.is_broken = True
        await chat.send("two")
        assert other._store is not None
        await other.send("three")
        store.is_broken = False
        with pytest.raises(ConflictError):
            await chat.send("four")
        await chat.load()
        await chat.send("five")
        await other._store.aclose()
    assert await stored_texts(str(store.path)) == ["one", "Answer 1.", "three", "Answer 3.", "five", "Answer 4."]


@requirement("F33")
async def test_chat_with_deleted_log_continues_in_memory(store: BrokenStore):
    async with FakeProvider(answers(3)) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("one")
        for file in store.path.parent.glob("talks.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        await chat.send("two")
        await chat.send("three")
    assert chat.store_error is not None
    assert [message.text for message in chat.messages][::2] == ["one", "two", "three"]


@requirement("F33")
async def test_records_waiting_for_store_are_bounded(store: BrokenStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.store.log.writer.MAX_UNSTORED_BYTES", 10_000)
    async with FakeProvider(answers(4)) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("one")
        stored = await store.read("talk")
        store.is_broken = True
        await chat.send("two " + "x" * 20_000)
        store.is_broken = False
        await chat.send("three")
        assert chat.store_error is not None, "a gap is never written"
        assert await store.read("talk") == stored
        assert len(chat.messages) == 6


@pytest.mark.parametrize("id", ["", "\0", "a\0b", "\ud800", "x" * 257, "line\n", 5], ids=ascii)
async def test_invalid_id_is_rejected_when_chat_is_created(tmp_path: Path, id: str):
    agent = Agent("openai-responses", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(ConfigurationError, match="a conversation id must be") as caught:
        Chat(agent, store=tmp_path / "talks.db", id=id)
    str(caught.value).encode()
    store = SqliteStore(tmp_path / "talks.db")
    for attempt in (store.append(id, 0, rows(1, 1)), store.read(id), store.delete(id), anext(store.tail(id))):
        with pytest.raises(ConfigurationError, match="a conversation id must be"):
            await attempt
    await store.aclose()
    assert not (tmp_path / "talks.db").exists()
