"""Files that a disk has damaged: every one is read, checked and repaired, or refused with a reason, in bounded time."""

# ruff: noqa: ASYNC240  (a test may wait for its own disk)

import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from subprocess import PIPE

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ChatMessage
from sidestream.errors import StoreError
from sidestream.parts import StepStart, TextEnd
from sidestream.store.records import MessageAdded, RunStarted, Segment, pack
from sidestream.store.sqlite.store import SqliteStore
from store.sqlite.corruption import DAMAGES, PAGE, history
from support.places import TESTS
from support.stores import digest_of, message, row, rows
from support.warm import run

PROGRAM = Path(__file__).with_name("corruption.py")


@requirement("F33")
@pytest.mark.timeout(320)
def test_damaged_file_is_survived():
    count = 3 * len(DAMAGES)
    command = [sys.executable, str(PROGRAM), "15", str(count)]
    variables = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = run(command, env=variables, stdout=PIPE, stderr=PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == count
    assert outcomes["repaired"] > count / 4, "most of the damage is damage"


async def closed_store(path: Path, records: int) -> None:
    """One file, without a WAL, with this many records."""
    store = SqliteStore(path)
    for start in range(0, records, 100):
        await store.append("long", start, history(start + 1, min(start + 100, records)))
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def repaired(path: Path) -> tuple[list[str], int]:
    """The kinds of what a repair found, and how many records of the conversation are left."""
    store = SqliteStore(path)
    found = await store.check(repair=True)
    assert all(problem.is_repaired for problem in found)
    assert await store.check(repair=True) == []
    left = await store.read("long")
    assert left == history(1, len(left))
    await store.aclose()
    return [problem.kind for problem in found], len(left)


@requirement("F33")
@pytest.mark.parametrize("damage", [0x00, 0xA5], ids=["zeroed", "overwritten"])
async def test_store_without_first_page_is_repaired_whole(tmp_path: Path, damage: int):
    path = tmp_path / "talks.db"
    await closed_store(path, 200)
    path.write_bytes(bytes([damage]) * PAGE + path.read_bytes()[PAGE:])
    assert await repaired(path) == (["damaged"], 200)


@requirement("F33")
async def test_repair_time_grows_with_file_and_not_with_gap(tmp_path: Path):
    path = tmp_path / "talks.db"
    await closed_store(path, 3000)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # The last row is far away, as after years of appends and deletions.
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("UPDATE records SET rowid = rowid + 1000000000 WHERE rowid > 1500")
    data = bytearray(path.read_bytes())
    for page in range(20, len(data) // PAGE, 7):
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    start = time.monotonic()
    _, left = await repaired(path)
    assert left
    assert time.monotonic() - start < 30


@requirement("F33")
@pytest.mark.parametrize("damaged", [1, 2, 3, 4, 5])
async def test_repair_loses_only_records_of_damaged_pages(tmp_path: Path, damaged: int):
    path, count = tmp_path / "talks.db", 30
    store = SqliteStore(path)
    # A page has room for one of these records.
    for number in range(count):
        await store.append(f"talk-{number}", 0, [message(1, f"{'x' * (PAGE * 3 // 4)}<{number}>")])
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    for number in range(10, 10 + damaged):
        page = data.index(f"<{number}>".encode()) // PAGE * PAGE
        data[page : page + PAGE] = bytes(PAGE)
    path.write_bytes(data)
    store = SqliteStore(path)
    await store.check(repair=True)
    lost = [number for number in range(count) if not await store.read(f"talk-{number}")]
    await store.aclose()
    assert lost == [*range(10, 10 + damaged)]


@requirement("F33")
async def test_wal_without_its_file_is_kept_and_repaired(tmp_path: Path):
    path = tmp_path / "talks.db"
    store = SqliteStore(path)
    await store.append("long", 0, history(1, 50))
    wal = path.with_name("talks.db-wal").read_bytes()
    await store.aclose()
    for content in (None, b""):
        for file in tmp_path.glob("talks.db*"):
            file.unlink()
        path.with_name("talks.db-wal").write_bytes(wal)
        if content is not None:
            path.write_bytes(content)
        store = SqliteStore(path)
        for attempt in (store.read("long"), store.append("long", 0, history(1, 1)), store.conversations()):
            with pytest.raises(StoreError, match="check --repair"):
                await attempt
        assert [problem.kind for problem in await store.check()] == ["damaged"]
        await store.aclose()
        assert path.with_name("talks.db-wal").read_bytes() == wal
        assert await repaired(path) == (["damaged"], 50)


@requirement("F33")
@pytest.mark.parametrize("column", ["title", "model", "last", "id"])
async def test_non_utf8_text_is_error_and_repair_keeps_every_record(tmp_path: Path, column: str):
    path = tmp_path / "talks.db"
    await closed_store(path, 20)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE conversations SET {column} = CAST(x'ff41c328' AS TEXT)")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="check --repair"):
        await store.conversations()
    assert [problem.kind for problem in await store.check()] == ["damaged"]
    await store.aclose()
    assert await repaired(path) == (["damaged", "gap"], 20)


@requirement("F33")
@pytest.mark.parametrize(
    ("pragma", "other"), [("application_id", 5), ("user_version", 0), ("user_version", -3)], ids=str
)
async def test_wrong_header_is_reported_as_damage(tmp_path: Path, pragma: str, other: int):
    path = tmp_path / "talks.db"
    await closed_store(path, 20)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA {pragma} = {other}")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="check --repair"):
        await store.read("long")
    await store.aclose()
    assert await repaired(path) == (["damaged"], 20)


@requirement("F33")
async def test_json_with_invalid_record_is_reported_as_unreadable(tmp_path: Path):
    path = tmp_path / "talks.db"
    for body in (b"[]", b"null", b'{"type":"message","message":5}', b'{"type":"segment","kind":"text","parts":[]}'):
        store = SqliteStore(path)
        await store.append("long", 0, [*history(1, 2), row(3, body=body)])
        chat = Chat(Agent("openai-responses", base_url="http://127.0.0.1:1/v1"), store=store, id="long")
        with pytest.raises(StoreError, match="record 3"):
            await chat.load()
        assert [problem.kind for problem in await store.check()] == ["unreadable-record"]
        await store.aclose()
        assert await repaired(path) == (["unreadable-record"], 2)
        store = SqliteStore(path)
        await store.delete("long")
        await store.aclose()


@requirement("F33", "F36")
async def test_repair_restores_lost_blob_references(tmp_path: Path):
    path, digest = tmp_path / "talks.db", digest_of(b"picture")
    store = SqliteStore(path)
    store.blobs.grace_s = -1
    await store.append("talk", 0, [row(1, blobs=[digest])], {digest: b"picture"})
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM blob_references")
    assert "damaged" in [problem.kind for problem in await store.check()]
    # Within one repair: the references come first, then what nothing refers to is removed.
    assert [problem.kind for problem in await store.check(repair=True)] == ["damaged"]
    assert await store.check() == []
    assert await store.collect() == 0
    assert await store.blob(digest) == b"picture"
    await store.aclose()


async def test_failed_read_keeps_no_file_lock(tmp_path: Path):
    path = tmp_path / "talks.db"
    await closed_store(path, 5)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("UPDATE records SET kind = CAST(x'ff' AS TEXT) WHERE seq = 2")
    store = SqliteStore(path, busy_timeout_s=0.05)
    with pytest.raises(StoreError) as failed:
        await store.read("long")
    # The error is kept, and with it its frames.
    await store.append("other", 0, rows(1, 1))
    assert failed.value
    await store.aclose()


@requirement("F33")
async def test_contradictory_records_raise_store_error(tmp_path: Path):
    path = tmp_path / "talks.db"
    store = SqliteStore(path)
    agent = Agent("openai-responses", base_url="http://127.0.0.1:1/v1")
    opening, started = MessageAdded(ChatMessage.user("hi")), RunStarted("openai-responses:m")
    # The end of a block that never began: its id has a changed byte.
    parts = [Segment("step-start", (StepStart(0),)), Segment("text", (TextEnd("b"),))]
    bodies = [pack(body)[0] for body in (opening, started, *parts)]
    kinds = ["message", "run-started", "step-start", "text"]
    await store.append(
        "long", 0, [row(n, kind, body=body) for n, (kind, body) in enumerate(zip(kinds, bodies, strict=True), 1)]
    )
    with pytest.raises(StoreError, match="contradict"):
        await Chat(agent, store=store, id="long").load()
    await store.aclose()


@requirement("F33")
async def test_non_string_reference_does_not_end_check(tmp_path: Path):
    path, digest = tmp_path / "talks.db", digest_of(b"x")
    store = SqliteStore(path)
    await store.append("talk", 0, [row(1, blobs=[digest])], {digest: b"x"})
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE blob_references SET digest = x'00ff'")
    assert [problem.kind for problem in await store.check()] == ["damaged"]
    assert [problem.is_repaired for problem in await store.check(repair=True)] == [True]
    assert await store.check() == []
    await store.aclose()
