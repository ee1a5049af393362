"""The behaviour of every store, in SQLite and in PostgreSQL."""

import asyncio
import json
import random
from contextlib import aclosing
from typing import cast

import obstore
import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.errors import BlobError, ConfigurationError, ConflictError, StoreError
from sidestream.store import Store
from sidestream.store.blobs.bucket import BlobBucket
from sidestream.store.blobs.folder import BlobFolder, BlobStore
from sidestream.store.database import DatabaseStore
from sidestream.store.expiry import delete_all, expired_chats
from sidestream.store.postgres.blob_table import CHUNK_BYTES
from support.stores import BOUND_S, Opens, digest_of, message, next_of, row, rows

WITH_BLOBS = pytest.mark.parametrize(
    "where", ["sqlite", "sqlite-s3", "postgresql", "postgresql-database", "postgresql-s3"], indirect=True
)
PICTURE = b"\x89PNG" + bytes(range(256)) * 40
DIGEST = digest_of(PICTURE)


def test_store_implements_protocol(store: Store):
    assert isinstance(store, Store)


@requirement("R83")
async def test_rows_are_read_verbatim_in_order_and_after_number(store: Store, opens: Opens):
    await store.append("talk", 0, rows(1, 3))
    await store.append("talk", 3, rows(4, 4))
    await store.append("other", 0, rows(1, 1, run="run-2"))

    for reader in (store, opens()):
        assert await reader.read("talk") == rows(1, 4)
        assert await reader.read("talk", after=2) == rows(3, 4)
        assert await reader.read("talk", after=4) == []
        assert await reader.read("other") == rows(1, 1, run="run-2")
        assert await reader.read("unknown") == []


async def test_new_store_is_empty(store: Store):
    assert await store.read("talk") == []
    assert await store.conversations() == []
    assert await store.check() == []
    assert not await store.delete("talk")
    assert await store.collect() == 0


@pytest.mark.parametrize(
    "body", [b'{"text":"a\\u0000b"}', b'{"text":"\\ud83d"}', '{"text":"\U0001f600"}'.encode(), b"{}"]
)
async def test_bodies_survive_byte_for_byte(store: Store, opens: Opens, body: bytes):
    await store.append("talk", 0, [row(1, body=body)])
    assert [found.body for found in await opens().read("talk")] == [body]


@pytest.mark.parametrize("name", ["ähm/✓ — 1", "a" * 256, "..", "'; DROP TABLE records; --", "100%s"])
async def test_ids_may_be_any_printable_string(store: Store, name: str):
    await store.append(name, 0, rows(1, 2))
    assert await store.read(name) == rows(1, 2)
    assert [info.id for info in await store.conversations()] == [name]


@pytest.mark.parametrize("name", ["", "a\x00b", "line\nline", "\ud800", "a" * 257])
async def test_invalid_ids_are_rejected(store: Store, name: str):
    with pytest.raises(ConfigurationError):
        await store.append(name, 0, rows(1, 1))
    with pytest.raises(ConfigurationError):
        await store.read(name)


@pytest.mark.parametrize(("after", "numbers"), [(0, [2]), (0, [1, 3]), (1, [1]), (0, [1, 1]), (-1, [0])])
async def test_rows_with_wrong_numbers_are_rejected(store: Store, after: int, numbers: list[int]):
    with pytest.raises(ConfigurationError):
        await store.append("talk", after, [row(seq) for seq in numbers])
    assert await store.conversations() == []


@requirement("F34")
async def test_append_after_wrong_number_raises_conflict(store: Store, opens: Opens):
    other = opens()
    await store.append("talk", 0, rows(1, 2))
    for after in (0, 1, 3):
        with pytest.raises(ConflictError) as caught:
            await other.append("talk", after, [row(after + 1, run="late")])
        assert caught.value.conversation == "talk"
    with pytest.raises(ConflictError):
        await other.append("unknown", 4, [row(5)])

    assert await store.read("talk") == rows(1, 2)
    assert await store.read("unknown") == []
    await other.append("talk", 2, rows(3, 3))
    assert await store.read("talk") == rows(1, 3)


@requirement("F34")
async def test_one_of_concurrent_appends_wins_each_number(store: Store, opens: Opens):
    others = [store, store, opens(), opens()]

    async def turn(writer: Store, name: str) -> int:
        won = 0
        for _ in range(15):
            head = len(await writer.read("talk"))
            try:
                await writer.append("talk", head, rows(head + 1, head + 3, run=name))
                won += 1
            except ConflictError:
                pass
        return won

    async with asyncio.timeout(BOUND_S):
        wins = await asyncio.gather(*(turn(writer, f"run-{index}") for index, writer in enumerate(others)))
    found = await store.read("talk")
    assert [it.seq for it in found] == list(range(1, 3 * sum(wins) + 1))
    # The rows of an append are contiguous.
    assert all(len({it.run for it in found[start : start + 3]}) == 1 for start in range(0, len(found), 3))


async def test_conversations_are_listed_last_changed_first(store: Store):
    started = row(2, "run-started", body=b'{"type":"run-started","model":"openai:big"}')
    await store.append("old", 0, [message(1, "  What is\n the\tweather?\x00 " + "x" * 200), started, row(3, "finish")])
    await store.append("new", 0, [message(1, "be kind", "system"), message(2, "hello"), row(3), row(4)])
    await store.append("new", 4, [message(5, "second"), row(6, "tool-call")])

    new, old = await store.conversations()
    assert (new.id, new.records, new.created, new.updated, new.title, new.model, new.last) == (
        *("new", 6, 1.0, 6.0, "hello", "", "tool-call"),
    )
    assert (old.id, old.records, old.model, old.last) == ("old", 3, "openai:big", "finish")
    assert old.title.startswith("What is the weather?")
    assert len(old.title) <= 80

    other = row(4, "run-started", body=b'{"type":"run-started","model":"anthropic:other"}')
    await store.append("old", 3, [other])
    assert {info.id: info.model for info in await store.conversations()} == {"new": "", "old": "anthropic:other"}


@WITH_BLOBS
async def test_title_is_found_when_text_is_blob(store: Store):
    text = b"A long story. " * 2000
    long = message(1, {"$text": digest_of(text)})
    await store.append("talk", 0, [row(1, "message", body=long.body, blobs=[digest_of(text)])], {digest_of(text): text})
    assert (await store.conversations())[0].title.startswith("A long story. A long story.")


async def test_pages_omit_no_conversation_with_equal_timestamps(store: Store):
    for name, length in {"a": 1, "b": 2, "c": 2, "d": 2, "e": 3}.items():
        await store.append(name, 0, rows(1, length))
    assert await store.conversations(limit=0) == []
    seen: list[str] = []
    before = None
    while page := await store.conversations(limit=2, before=before):
        seen += [info.id for info in page]
        before = page[-1].updated
    assert seen == ["e", "b", "c", "d", "a"]


@requirement("R143")
async def test_list_is_filtered_by_prefix_and_search(store: Store):
    said = {"anna/a": 'He said "50%_!"', "anna/b": "Größe", "ben/a": "He left.", "anna/a~2": "50 percent"}
    for number, (name, text) in enumerate(said.items()):
        await store.append(name, 0, [replace(message(1, text), time=float(number))])

    async def found(**conditions: str) -> list[str]:
        return [info.id for info in await store.conversations(**conditions)]

    assert await found(prefix="anna/") == ["anna/a~2", "anna/b", "anna/a"]
    assert await found(prefix="anna/a") == ["anna/a~2", "anna/a"]
    assert await found(search="he") == ["ben/a", "anna/a"]
    assert await found(search='"50%_!"') == ["anna/a"]
    assert await found(search="Größe") == ["anna/b"]
    assert await found(prefix="anna/", search="HE SAID") == ["anna/a"]
    assert [info.id for info in await store.conversations(1, 3.0, prefix="anna/")] == ["anna/b"]


@requirement("R143")
async def test_search_matches_text_not_its_json(store: Store):
    for number in range(6):
        body = answer(f"the answer is {number}") if number % 2 else message(1, f"question {number}").body
        kind = "text" if number % 2 else "message"
        await store.append(f"talk-{number}", 0, [row(1, kind, body=body)])

    async def found(text: str, limit: int = 100, before: float | None = None) -> list[str]:
        return [info.id for info in await store.conversations(limit, before, search=text)]

    for word in ("role", "parts", "text-delta", "delta", '"type"', "msg_1"):
        assert await found(word) == [], word
    assert await found("text") == []
    assert await found("THE ANSWER", 10) == ["talk-1", "talk-3", "talk-5"]
    assert await found("t", 10) == ["talk-0", "talk-1", "talk-2", "talk-3", "talk-4", "talk-5"]


async def test_search_fills_pages_past_conversations_without_text(store: Store):
    for number, said in enumerate(("a role", "no", "no", "no", "a role", "no", "a role")):
        await store.append(f"talk-{number}", 0, [replace(message(1, said), time=float(number))])
    first = await store.conversations(2, search="role")
    assert [info.id for info in first] == ["talk-6", "talk-4"]
    assert [info.id for info in await store.conversations(2, first[-1].updated, search="role")] == ["talk-0"]


async def test_page_of_search_ends_at_limit(store: Store):
    for number, said in enumerate(("a role", "a role", "no", "a role")):
        await store.append(f"talk-{number}", 0, [replace(message(1, said), time=float(number))])
    # One match of the first two, then two of the next.
    assert [info.id for info in await store.conversations(2, search="role")] == ["talk-3", "talk-1"]


def answer(text: str) -> bytes:
    """The body of a text block."""
    parts = [{"type": "text-start", "id": "msg_1"}, {"type": "text-delta", "id": "msg_1", "delta": text}]
    return json.dumps(
        {"type": "segment", "kind": "text", "parts": [*parts, {"type": "text-end", "id": "msg_1"}]}
    ).encode()


@requirement("R142")
async def test_run_is_found_by_its_id(store: Store):
    assert await store.find_run("run-1") is None
    await store.append("talk", 0, [message(1, "Hi"), row(2, "run-started"), row(3), row(4, "run-started")])
    await store.append("other", 0, rows(1, 1, run="run-2"))
    assert await store.find_run("run-1") == ("talk", 2)
    assert await store.find_run("run-2") is None


@WITH_BLOBS
@requirement("R143")
async def test_blob_belongs_to_conversations_referring_to_it(store: Store):
    assert not await store.refers_to(DIGEST)
    await store.append("anna/talk", 0, [row(1), row(2, blobs=[DIGEST])], {DIGEST: PICTURE})
    assert await store.refers_to(DIGEST)
    assert await store.refers_to(DIGEST, prefix="anna/")
    assert not await store.refers_to(DIGEST, prefix="ann/")
    assert not await store.refers_to(DIGEST, prefix="anna/talks")
    assert not await store.refers_to("0" * 64, prefix="anna/")
    await store.delete("anna/talk")
    assert not await store.refers_to(DIGEST, prefix="anna/")


@WITH_BLOBS
@requirement("R83")
async def test_blobs_are_stored_once_and_read_back(store: Store, opens: Opens):
    await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: PICTURE})
    await store.append("talk", 1, [row(2, blobs=[DIGEST])], {DIGEST: PICTURE})
    await store.append("talk", 2, [row(3, blobs=[DIGEST])])
    other = opens()
    assert [found.blobs for found in await other.read("talk")] == [(DIGEST,)] * 3
    assert await other.blob(DIGEST) == PICTURE
    assert digests_in(store) == [DIGEST]
    if isinstance(store.blobs, BlobFolder):
        files = [file for file in store.blobs.path.rglob("*") if file.is_file()]
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600]


@WITH_BLOBS
async def test_record_keeps_order_of_its_blobs(store: Store):
    blobs = {digest_of(bytes([n])): bytes([n]) for n in range(9)}
    order = list(blobs)
    random.Random(1).shuffle(order)
    await store.append("talk", 0, [row(1, blobs=order)], blobs)
    assert [found.blobs for found in await store.read("talk")] == [tuple(order)]


@WITH_BLOBS
async def test_record_cannot_name_missing_blob(store: Store):
    with pytest.raises(BlobError) as caught:
        await store.append("talk", 0, [row(1, blobs=[DIGEST])])
    assert caught.value.digest == DIGEST
    assert await store.read("talk") == []
    with pytest.raises(ConfigurationError):
        await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: b"something else"})


@WITH_BLOBS
@pytest.mark.parametrize("digest", [DIGEST, "../../etc/passwd", "", DIGEST.upper()])
async def test_missing_blob_raises_error_with_digest(store: Store, digest: str):
    with pytest.raises(BlobError) as caught:
        await store.blob(digest)
    assert caught.value.digest == digest


@WITH_BLOBS
@requirement("R83", "F36")
async def test_unreferenced_blobs_are_collected_after_grace_period(store: Store):
    other = digest_of(b"other")
    await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: PICTURE})
    with pytest.raises(ConflictError):
        await store.append("talk", 7, [row(8, blobs=[other])], {other: b"other"})
    assert await store.collect() == 0, "it may belong to an append that is under way"

    store.blobs.grace_s = -1
    assert await store.collect() == 1
    assert await store.blob(DIGEST) == PICTURE
    with pytest.raises(BlobError):
        await store.blob(other)


@WITH_BLOBS
@requirement("R83", "R84")
async def test_deleting_conversation_removes_its_unshared_blobs(store: Store, opens: Opens):
    other = digest_of(b"other")
    await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: PICTURE})
    await store.append(
        "gone", 0, [row(1, blobs=[DIGEST, other]), row(2, blobs=[other])], {DIGEST: PICTURE, other: b"other"}
    )
    assert await store.delete("gone")
    assert not await store.delete("gone")
    assert await store.read("gone") == []
    assert digests_in(store) == [DIGEST]
    assert await opens().blob(DIGEST) == PICTURE
    assert await store.check() == []
    # The id is free again, and so is the blob.
    await store.append("gone", 0, [row(1, blobs=[other])], {other: b"other"})
    assert await store.blob(other) == b"other"


@requirement("R84")
@pytest.mark.parametrize("where", ["sqlite", "postgresql", "postgresql-database"], indirect=True)
async def test_old_conversations_are_deleted_in_steps_during_writes(store: DatabaseStore, opens: Opens):
    count, other = 2000, opens()
    for start in range(0, count, 100):
        names = [f"anna/{number}" for number in range(start, start + 100)]
        await asyncio.gather(
            *(store.append(name, 0, [row(1, blobs=[DIGEST]), row(2)], {DIGEST: PICTURE}) for name in names)
        )
    await store.append("anna/kept", 0, [replace(row(1, blobs=[DIGEST]), time=100.0)], {DIGEST: PICTURE})
    # A chat that one of its branches keeps.
    await store.append("anna/1~2", 0, [replace(row(1), time=100.0)])
    old = [info.id async for chat in expired_chats(store, 50.0) for info in chat]
    assert len(old) == count - 1
    deleting = asyncio.create_task(store.delete_all(old))
    written = 0
    while not deleting.done():
        await other.append("live", written, [replace(row(written + 1), time=100.0)])
        written += 1
    assert await deleting == count - 1
    assert written
    assert await store.delete_all(old) == 0
    assert {info.id for info in await store.conversations()} == {"anna/kept", "anna/1", "anna/1~2", "live"}
    assert await store.blob(DIGEST) == PICTURE
    assert await store.delete_all(["anna/kept", "anna/1"]) == 2
    assert digests_in(store) == []
    assert await store.check() == []


async def test_delete_all_keeps_conversation_continued_meanwhile(store: DatabaseStore):
    for name in ("old", "continued"):
        await store.append(name, 0, [row(1, blobs=[DIGEST])], {DIGEST: PICTURE})
    found = [info.id async for chat in expired_chats(store, 50.0) for info in chat]
    await store.append("continued", 1, [replace(row(2), time=100.0)])
    assert await store.delete_all(found, before=50.0) == 1
    assert [info.id for info in await store.conversations()] == ["continued"]
    assert await store.blob(DIGEST) == PICTURE


class _OwnStore:
    """A store of a program, which cannot be shared."""

    def __init__(self, inner: Store) -> None:
        self.conversations, self.delete = inner.conversations, inner.delete


async def test_delete_all_keeps_changed_chats_when_store_is_not_shared(store: Store):
    for name, time_s in (("old", 1.0), ("older", 1.0), ("continued", 100.0)):
        await store.append(name, 0, [replace(row(1), time=time_s)])
    await delete_all(cast(Store, _OwnStore(store)), ["old", "continued", "missing"], 50.0)
    assert {info.id for info in await store.conversations()} == {"older", "continued"}


@WITH_BLOBS
@requirement("F36")
async def test_deletion_during_appends_keeps_referenced_blobs(store: Store, opens: Opens):
    other = opens()
    data = b"shared" * 100
    blobs = {digest_of(data): data}

    async def append(writer: Store, name: str) -> None:
        for _ in range(15):
            await writer.append(name, 0, [row(1, blobs=[*blobs])], blobs)
            assert await writer.delete(name)

    await store.append("kept", 0, rows(1, 1))
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
        group.create_task(append(store, "a"))
        group.create_task(append(other, "b"))
    await store.append("kept", 1, [row(2, blobs=[*blobs])], blobs)
    await append(other, "c")
    assert await store.blob(digest_of(data)) == data
    assert await store.check() == []


@requirement("R84")
async def test_ended_runs_are_listed_by_time_and_prefix(store: Store):
    assert await store.ended_runs(0.0) == []
    await store.append("anna/a", 0, [*rows(1, 2), row(3, "finish", run="run-a")])
    await store.append("ben/b", 0, [row(1, "finish", run="run-b"), row(2, "finish", run="run-c")])
    assert [found.run for found in await store.ended_runs(0.0)] == ["run-b", "run-c", "run-a"]
    assert [found.run for found in await store.ended_runs(1.0)] == ["run-c", "run-a"]
    (found,) = await store.ended_runs(0.0, prefix="anna/")
    assert found == row(3, "finish", run="run-a")


@requirement("R221")
async def test_ended_runs_omit_those_that_fork_copied(store: Store):
    await store.append("a", 0, [row(1, "finish", run="run-a")])
    copied = row(1, "finish", run="run-b")
    await store.append("fork", 0, [copied, row(2, "forked", run="run-b"), row(3, "finish", run="run-c")])
    assert [found.run for found in await store.ended_runs(0.0)] == ["run-a", "run-c"]


@WITH_BLOBS
@requirement("F36")
async def test_collection_during_appends_keeps_referenced_blobs(store: Store, opens: Opens):
    other = opens()
    store.blobs.grace_s = other.blobs.grace_s = -1

    async def append() -> None:
        for number in range(1, 31):
            data = bytes([number % 3]) * 100
            await store.append("talk", number - 1, [row(number, blobs=[digest_of(data)])], {digest_of(data): data})
            if number % 5 == 0:
                assert await store.delete("other") is (number > 5)  # the first time there is none
                await store.append("other", 0, [row(1, blobs=[digest_of(b"x")])], {digest_of(b"x"): b"x"})

    async def collect(done: asyncio.Task[None]) -> None:
        while not done.done():
            await other.collect()

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
        appending = group.create_task(append())
        group.create_task(collect(appending))
    assert await store.check() == []
    assert await store.blob(digest_of(b"x")) == b"x"


async def test_tail_yields_existing_rows_then_new_ones(store: Store, opens: Opens):
    other = opens()
    await store.append("talk", 0, rows(1, 600))
    async with aclosing(store.tail("talk", after=2)) as tail, aclosing(other.tail("talk", after=600)) as late:
        assert await next_of(tail, 598) == rows(3, 600)
        waiting = [asyncio.create_task(next_of(it, 2)) for it in (tail, late)]
        await store.append("unrelated", 0, rows(1, 1))
        await store.append("talk", 600, rows(601, 601))
        await other.append("talk", 601, rows(602, 602))
        assert [await task for task in waiting] == [rows(601, 602), rows(601, 602)]


async def test_tail_of_unknown_conversation_waits_for_it(store: Store, opens: Opens):
    async with aclosing(store.tail("talk")) as tail:
        waiting = asyncio.create_task(next_of(tail, 3))
        await opens().append("talk", 0, rows(1, 3))
        assert await waiting == rows(1, 3)


async def test_tail_during_writes_has_no_gaps_or_repeats(store: Store, opens: Opens):
    writer = opens()

    async def write() -> None:
        for start in range(0, 200, 4):
            await writer.append("talk", start, rows(start + 1, start + 4))

    tails = [store.tail("talk"), store.tail("talk", after=100), writer.tail("talk", after=3)]
    async with asyncio.timeout(BOUND_S):
        _, *found = await asyncio.gather(
            write(), *(next_of(tail, n) for tail, n in zip(tails, (200, 100, 197), strict=True))
        )
    for tail in tails:
        await tail.aclose()
    assert found == [rows(1, 200), rows(101, 200), rows(4, 200)]


async def test_waiting_tail_can_be_cancelled(store: Store):
    await store.append("talk", 0, rows(1, 1))
    tail = store.tail("talk", after=1)
    waiting = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await tail.aclose()


async def test_started_append_completes_when_caller_is_cancelled(store: Store, opens: Opens):
    await store.append("talk", 0, rows(1, 1))
    appending = asyncio.create_task(store.append("talk", 1, rows(2, 3)))
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert await opens().read("talk") == rows(1, 3)


async def test_closed_store_raises_and_wakes_tails(store: Store):
    await store.append("talk", 0, rows(1, 1))
    tail = store.tail("talk")
    assert await next_of(tail, 1) == rows(1, 1)
    waiting = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    await store.aclose()
    await store.aclose()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(StoreError):
            await waiting
    with pytest.raises(StoreError):
        await store.read("talk")
    with pytest.raises(StoreError):
        await store.append("talk", 1, rows(2, 2))


def test_store_serves_several_event_loops_in_sequence(where: str):
    from sidestream.store import open_store

    store = open_store(where)

    async def turn(number: int) -> None:
        await store.append("talk", number - 1, [row(number)])
        async with aclosing(store.tail("talk")) as tail:
            assert await next_of(tail, number) == rows(1, number)

    for number in range(1, 4):
        asyncio.run(turn(number))
    asyncio.run(store.aclose())


@requirement("F33")
async def test_gap_is_found_and_repair_truncates_before_it(store: Store, opens: Opens, execute):
    await store.append("whole", 0, rows(1, 3))
    await store.append("talk", 0, rows(1, 5))
    await store.append("short", 0, rows(1, 2))
    await execute("DELETE FROM {}records WHERE conversation = 'talk' AND seq = 4")
    await execute("DELETE FROM {}records WHERE conversation = 'short'")

    found = await store.check()
    assert {(it.kind, it.conversation, it.is_repaired) for it in found} == {
        ("gap", "talk", False),
        ("gap", "short", False),
    }
    assert await store.read("talk") == [*rows(1, 3), row(5)], "a check changes nothing"

    found = await store.check(repair=True)
    assert {(it.kind, it.conversation, it.is_repaired) for it in found} == {
        ("gap", "talk", True),
        ("gap", "short", True),
    }
    assert await store.check() == []
    reader = opens()
    assert await reader.read("talk") == rows(1, 3)
    assert await reader.read("whole") == rows(1, 3)
    assert sorted(info.id for info in await reader.conversations()) == ["talk", "whole"]
    await store.append("talk", 3, rows(4, 4))


@requirement("F33")
async def test_non_json_record_is_found_and_truncated(store: Store, execute):
    await store.append("talk", 0, [*rows(1, 2), row(3, body=b'{"text": "torn'), row(4)])
    assert [(it.kind, it.conversation) for it in await store.check()] == [("unreadable-record", "talk")]
    assert all(it.is_repaired for it in await store.check(repair=True))
    assert await store.read("talk") == rows(1, 2)
    assert (await store.conversations())[0].records == 2


@WITH_BLOBS
@requirement("F36")
async def test_missing_damaged_and_orphaned_blobs_are_reported(store: Store):
    datas = [b"missing", b"damaged", b"whole", b"orphan"]
    digests = [digest_of(data) for data in datas]
    blobs = dict(zip(digests, datas, strict=True))
    await store.append("talk", 0, [row(1, blobs=digests[:3])], blobs)
    store.blobs.remove([digests[0]])
    damage(store.blobs, digests[1])

    assert {(it.kind, it.is_repaired) for it in await store.check()} == {
        ("missing-blob", False),
        ("damaged-blob", False),
    }
    store.blobs.grace_s = -1
    assert "orphan-blob" in {it.kind for it in await store.check()}
    found = {it.kind: it.is_repaired for it in await store.check(repair=True)}
    assert found == {"missing-blob": False, "damaged-blob": False, "orphan-blob": True}
    with pytest.raises(BlobError):
        await store.blob(digests[3])
    # What was lost can be stored again.
    await store.append("talk", 1, [row(2, blobs=digests[:2])], {digest: blobs[digest] for digest in digests[:2]})
    assert await store.check() == []


def digests_in(store: Store) -> list[str]:
    """The blobs of the store, whatever their age."""
    blobs = store.blobs
    grace_s, blobs.grace_s = blobs.grace_s, -1
    found = [digest for shard in blobs.shards() for digest in blobs.old(shard)]
    blobs.grace_s = grace_s
    return found


def damage(blobs: BlobStore, digest: str) -> None:
    """Other bytes take the place of a blob's."""
    if isinstance(blobs, BlobFolder):
        blobs._file(digest).write_bytes(b"DAMAGED")
    elif isinstance(blobs, BlobBucket):
        obstore.put(blobs._opened(), f"{digest[:2]}/{digest[2:]}", b"DAMAGED")
    else:
        sql = blobs._server.sql("UPDATE {schema}.blob_chunks SET data = 'DAMAGED' WHERE digest = %s")
        blobs._do(lambda connection: connection.execute(sql, (digest,)))


@pytest.mark.parametrize("where", ["postgresql-database", "postgresql-s3"], indirect=True)
async def test_large_blob_is_restored_whole(store: Store, opens: Opens):
    data = random.Random(1).randbytes(5 * CHUNK_BYTES // 2)
    await store.append("talk", 0, [row(1, blobs=[digest_of(data)])], {digest_of(data): data})
    assert await opens().blob(digest_of(data)) == data
    assert await store.delete("talk")
    assert digests_in(store) == []
