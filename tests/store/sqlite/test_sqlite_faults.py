"""A SQLite store when the disk, the file or another program fails it."""

# ruff: noqa: ASYNC240  (a test may wait for its own disk)

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import BlobError, ConfigurationError, ConflictError, StoreError
from sidestream.store.sqlite.file import KEPT_WAL_BYTES
from sidestream.store.sqlite.store import SqliteStore
from support.places import TESTS
from support.stores import BOUND_S, digest_of, message, next_of, row, rows, segment

CHILD = TESTS / "support" / "store_child.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "talks.db"


@pytest.fixture
async def store(path: Path) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path, busy_timeout_s=0.05)
    yield store
    await store.aclose()


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that other users can enter."""
    folder = Path(tempfile.mkdtemp(prefix="sidestream-"))
    folder.chmod(0o755)
    yield folder
    for inner in folder.rglob("*"):
        inner.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, timeout=60, check=False
    )
    if mount.returncode:
        pytest.skip("only root can mount a small disk, and not in every container")
    yield folder
    subprocess.run(["umount", "-l", folder], timeout=60, check=True)


def child(*arguments: str | Path) -> dict:
    done = subprocess.run(
        [sys.executable, CHILD, *map(str, arguments)], capture_output=True, text=True, timeout=2 * BOUND_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def filled(path: Path, records: int = 400) -> list:
    """A closed store with two conversations of some pages; returns the rows of each."""
    store = SqliteStore(path)
    content = [row(seq, body=segment(f"{seq:05} " * 30)) for seq in range(1, records + 1)]
    for start in range(0, records, 100):
        for name in ("one", "two"):
            await store.append(name, start, content[start : start + 100])
    await store.aclose()
    return content


async def test_files_are_readable_only_by_their_user(path: Path, store: SqliteStore):
    await store.append("talk", 0, [row(1, blobs=[digest_of(b"x")])], {digest_of(b"x"): b"x"})
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"talks.db": 0o600, "talks.db-wal": 0o600, "talks.db-shm": 0o600, "talks.db.blobs": 0o700}
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_reading_creates_no_files(path: Path, store: SqliteStore):
    assert await store.read("talk") == []
    assert not path.parent.exists()


@requirement("F33")
async def test_read_only_folder_is_read_and_append_names_permissions(open_folder: Path):
    path = open_folder / "closed" / "talks.db"
    store = SqliteStore(path)
    await store.append("talk", 0, rows(1, 3))
    await store.aclose()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    tally = await asyncio.to_thread(child, "unprivileged", path)
    assert tally["read"] == 3
    assert tally["error"].startswith("StoreError")
    assert "permissions" in tally["error"]


@requirement("F33")
async def test_append_names_permissions_when_folder_cannot_be_created(open_folder: Path):
    open_folder.chmod(0o555)
    tally = await asyncio.to_thread(child, "unprivileged", open_folder / "new" / "talks.db")
    assert tally["read"] == 0
    assert "permissions" in tally["error"]


@requirement("F33")
async def test_file_without_read_permission_raises_error(open_folder: Path):
    path = open_folder / "talks.db"
    store = SqliteStore(path)
    await store.append("talk", 0, rows(1, 3))
    await store.aclose()
    path.chmod(0)
    tally = await asyncio.to_thread(child, "unprivileged", path)
    assert str(path) in tally["read"]
    assert tally["error"].startswith("StoreError")


@requirement("F33")
async def test_append_fails_without_loss_when_file_cannot_grow(path: Path):
    tally = await asyncio.to_thread(child, "limited", path, str(300_000))
    assert tally["error"].startswith("StoreError")
    assert str(path.parent) in tally["blob_error"]
    assert tally["again"] is None, "without the limit, the same store continues"
    store = SqliteStore(path)
    assert [it.seq for it in await store.read("talk")] == list(range(1, tally["head"] + 2))
    assert await store.read("other") == []
    assert await store.check() == []
    assert not list(store.blobs.path.rglob("*.tmp"))
    await store.aclose()


@requirement("F33")
async def test_append_fails_on_full_disk_until_space_is_free(small_disk: Path):
    store = SqliteStore(small_disk / "talks.db")
    ballast = small_disk / "ballast"
    await store.append("talk", 0, rows(1, 1))
    ballast.write_bytes(bytes(600_000))
    head, error = 1, None
    while error is None:
        try:
            await store.append("talk", head, [row(head + 1, body=segment("x" * 9000))])
            head += 1
        except StoreError as refused:
            error = refused
    assert "full" in str(error)
    with pytest.raises(StoreError, match="full"):
        await store.append(
            "new", 0, [row(1, blobs=[digest_of(bytes(900_000))])], {digest_of(bytes(900_000)): bytes(900_000)}
        )
    assert len(await store.read("talk")) == head

    ballast.unlink()
    await store.append("talk", head, [row(head + 1)])
    assert len(await store.read("talk")) == head + 1
    assert await store.check() == []
    await store.aclose()


@requirement("F33")
async def test_locked_database_is_read_but_not_written(path: Path, store: SqliteStore):
    await store.append("talk", 0, rows(1, 1))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        results = await asyncio.gather(
            store.append("talk", 1, rows(2, 2)), store.append("new", 0, rows(1, 1)), return_exceptions=True
        )
        assert [type(result) for result in results] == [StoreError, StoreError]
        assert "another process" in str(results[0])
        assert await store.read("talk") == rows(1, 1)
        other.execute("ROLLBACK")
    await store.append("talk", 1, rows(2, 2))


@requirement("F33")
@pytest.mark.parametrize(
    "content", [b"not a database at all " * 500, b"\x00" * 8192, b"SQLite format 3\x00" + b"\xff" * 8000]
)
async def test_non_database_file_is_kept_until_repair_replaces_it(path: Path, store: SqliteStore, content: bytes):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="check --repair"):
        await store.append("talk", 0, rows(1, 1))
    with pytest.raises(StoreError):
        await store.read("talk")
    assert [it.kind for it in await store.check()] == ["damaged"]
    assert path.read_bytes() == content

    assert [(it.kind, it.is_repaired) for it in await store.check(repair=True)] == [("damaged", True)]
    assert path.with_name("talks.db.damaged").read_bytes() == content
    await store.append("talk", 0, rows(1, 1))
    assert await store.check() == []


async def test_database_of_another_program_is_not_touched(path: Path, store: SqliteStore):
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    before = path.read_bytes()
    for attempt in (store.append("talk", 0, rows(1, 1)), store.read("talk"), store.check(), store.check(repair=True)):
        with pytest.raises(StoreError, match="another program"):
            await attempt
    assert path.read_bytes() == before


@requirement("F33")
@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
async def test_repair_keeps_rows_before_damaged_page(path: Path, store: SqliteStore, share: float):
    content = await filled(path)
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    page = max(2, round(pages * share) - 1)
    data[page * 4096 : page * 4096 + 4096] = bytes([0xA5]) * 4096
    path.write_bytes(data)

    (problem,) = await store.check()
    assert problem.kind == "damaged"
    found = await store.check(repair=True)
    assert all(it.is_repaired for it in found)
    assert path.with_name("talks.db.damaged").exists()
    saved = {name: await store.read(name) for name in ("one", "two")}
    for name, it in saved.items():
        assert it == content[: len(it)], name
    assert max(map(len, saved.values())) >= 80
    assert await store.check() == []
    for name, it in saved.items():
        await store.append(name, len(it), [row(len(it) + 1)])


@requirement("F33")
async def test_truncated_file_is_reported_and_repair_saves_rest(path: Path, store: SqliteStore):
    content = await filled(path)
    os.truncate(path, path.stat().st_size // 4096 * 2 // 3 * 4096)
    with pytest.raises(StoreError, match="damaged"):
        await store.read("one")
    assert [it.kind for it in await store.check()] == ["damaged"]
    assert all(it.is_repaired for it in await store.check(repair=True))
    assert await store.check() == []
    for name in ("one", "two"):
        found = await store.read(name)
        assert found == content[: len(found)]
    assert await store.read("one")


@requirement("F33")
async def test_truncated_wal_leaves_start_of_log(path: Path, tmp_path: Path, store: SqliteStore):
    for number in range(1, 30):
        await store.append("talk", number - 1, [row(number)])
    other = tmp_path / "copy.db"
    shutil.copy(path, other)
    wal = path.with_name("talks.db-wal").read_bytes()
    lengths = set()
    for size in range(0, len(wal) + 1, len(wal) // 40):
        other.with_name("copy.db-wal").write_bytes(wal[:size])
        other.with_name("copy.db-shm").unlink(missing_ok=True)
        copy = SqliteStore(other, blobs=tmp_path / "blobs")
        found = await copy.read("talk")
        assert found == rows(1, len(found))
        assert await copy.check() == []
        lengths.add(len(found))
        await copy.aclose()
        shutil.copy(path, other)
    assert len(lengths) > 5


@requirement("F33")
async def test_deleted_folder_is_noticed_before_acknowledgement(path: Path, store: SqliteStore):
    await store.append("talk", 0, rows(1, 1))
    shutil.rmtree(path.parent)
    with pytest.raises(StoreError, match="moved or deleted"):
        await store.append("talk", 1, rows(2, 2))
    assert await store.read("talk") == []
    with pytest.raises(ConflictError):
        await store.append("talk", 1, rows(2, 2))
    await store.append("talk", 0, rows(1, 2))
    assert await store.read("talk") == rows(1, 2)


@requirement("F33")
async def test_invalid_path_raises_error(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "file" / "talks.db", tmp_path / "folder.db"):
        store = SqliteStore(path)
        with pytest.raises(StoreError):
            await store.append("talk", 0, rows(1, 1))
        await store.aclose()
    for name in ("", ":memory:"):
        with pytest.raises(ConfigurationError):
            SqliteStore(name)


async def test_records_without_conversation_are_listed_again(path: Path, store: SqliteStore):
    await store.append("talk", 0, rows(1, 3))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DELETE FROM conversations")
    assert [(it.kind, it.conversation) for it in await store.check()] == [("gap", "talk")]
    assert [it.is_repaired for it in await store.check(repair=True)] == [True]
    assert [(info.id, info.records) for info in await store.conversations()] == [("talk", 3)]
    assert path.with_name("talks.db.before-repair").exists()


async def test_blob_references_survive_repair(path: Path):
    digest = digest_of(b"picture")
    store = SqliteStore(path)
    await store.append("talk", 0, [row(1, blobs=[digest])], {digest: b"picture"})
    await store.append("talk", 1, rows(2, 300))
    await store.aclose()
    data = bytearray(path.read_bytes())
    data[-4096:] = bytes([0xA5]) * 4096
    path.write_bytes(data)
    await store.aclose()
    store = SqliteStore(path)
    store.blobs.grace_s = -1
    assert "damaged" in {it.kind for it in await store.check(repair=True)}
    assert (await store.read("talk"))[0].blobs == (digest,)
    assert await store.collect() == 0
    assert await store.blob(digest) == b"picture"
    await store.aclose()


@requirement("F36")
async def test_truncated_or_changed_blob_is_not_returned(store: SqliteStore):
    data = b"picture" * 1000
    digest = digest_of(data)
    await store.append("talk", 0, [row(1, blobs=[digest])], {digest: data})
    (file,) = [file for file in store.blobs.path.rglob("*") if file.is_file()]
    for content in (data[:100], b"", data[:-1] + b"!"):
        file.write_bytes(content)
        with pytest.raises(BlobError) as caught:
            await store.blob(digest)
        assert caught.value.digest == digest
    # A file with the wrong size is written again.
    file.write_bytes(data[:100])
    await store.append("talk", 1, [row(2, blobs=[digest])], {digest: data})
    assert await store.blob(digest) == data


@requirement("F36")
async def test_old_remains_of_interrupted_write_are_collected(store: SqliteStore):
    digest = digest_of(b"x")
    await store.append("talk", 0, [row(1, blobs=[digest])], {digest: b"x"})
    left = store.blobs.path / digest[:2] / "aaaa.bbbb.tmp"
    left.write_bytes(b"half a pict")
    assert await store.collect() == 0
    os.utime(left, (0, 0))
    assert await store.collect() == 1
    assert not left.exists()
    assert await store.blob(digest) == b"x"


async def test_tail_continues_when_file_is_replaced(path: Path, store: SqliteStore):
    tail = store.tail("talk")
    await store.append("talk", 0, rows(1, 1))
    assert await next_of(tail, 1) == rows(1, 1)
    for file in path.parent.glob("talks.db*"):
        file.unlink()
    other = SqliteStore(path)
    await other.append("talk", 0, rows(1, 2))
    assert await next_of(tail, 1) == rows(2, 2)
    await tail.aclose()
    await other.aclose()


async def test_failed_append_does_not_fail_others_in_batch(store: SqliteStore):
    results = await asyncio.gather(
        store.append("a", 0, rows(1, 2)),
        store.append("a", 0, rows(1, 1)),
        store.append("b", 7, rows(8, 8)),
        store.append("c", 0, [row(1, blobs=["0" * 64])]),
        store.append("d", 0, rows(1, 1)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), ConflictError, ConflictError, BlobError, type(None)]
    assert sorted(info.id for info in await store.conversations()) == ["a", "d"]


@requirement("F35")
async def test_file_being_created_is_not_mistaken_for_another_program(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / f"{number}.db"
        maker, readers = SqliteStore(path), [SqliteStore(path) for _ in range(3)]

        async def read(reader: SqliteStore) -> None:
            while not await reader.read("talk"):
                pass

        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(read(reader))
            group.create_task(maker.append("talk", 0, rows(1, 2)))
        for store in (maker, *readers):
            await store.aclose()


@requirement("R84")
async def test_deleted_content_is_erased_from_file(tmp_path: Path):
    store = SqliteStore(tmp_path / "talks.db")
    words = "a sentence that nobody else wrote " * 50
    await store.append("talk", 0, [message(1, words), message(2, words)])
    await store.append("kept", 0, [message(1, "kept words")])
    await store.delete("talk")
    await store.aclose()
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"kept words" in left
    assert b"nobody else wrote" not in left


@requirement("R84", "F36")
async def test_interrupted_deletion_leaves_only_collectable_blobs(tmp_path: Path):
    class Interrupted(SqliteStore):
        async def _remove_orphans(self, candidates: Callable[[], list[str]]) -> list[str]:
            raise asyncio.CancelledError

    store = Interrupted(tmp_path / "talks.db")
    blobs = {digest_of(b"picture"): b"picture"}
    await store.append("talk", 0, [row(1, blobs=[*blobs])], blobs)
    with pytest.raises(asyncio.CancelledError):
        await store.delete("talk")
    await store.aclose()
    other = SqliteStore(tmp_path / "talks.db")
    assert await other.read("talk") == []
    other.blobs.grace_s = -1
    assert [problem.kind for problem in await other.check()] == ["orphan-blob"]
    assert await other.collect() == 1
    await other.aclose()


async def test_wal_of_open_store_restarts(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sidestream.store.sqlite.threads.CHECKPOINT_BYTES", 2 * KEPT_WAL_BYTES)
    wal = path.with_name(f"{path.name}-wal")
    store = SqliteStore(path)
    written, largest, size = 0, 0, 0
    while size >= largest and written < 200:
        written += 1
        body = segment("long " * (1 if largest > 2 * KEPT_WAL_BYTES else 50_000))
        await store.append("one", written - 1, [row(written, body=body)], flush=False)
        largest, size = max(largest, size), wal.stat().st_size
        # The checkpoint is made beside the appends: the next one after it begins the log anew.
        for thread in threading.enumerate():
            # One that is about to start cannot be awaited yet: the next append looks again.
            if thread.name == "sidestream-checkpoint" and thread.is_alive():
                await asyncio.to_thread(thread.join)
    assert size <= KEPT_WAL_BYTES < largest
    assert [found.seq for found in await store.read("one")] == list(range(1, written + 1))
    await store.aclose()
    assert not wal.exists()
    reopened = SqliteStore(path)
    assert [found.seq for found in await reopened.read("one")] == list(range(1, written + 1))
    await reopened.aclose()
