"""What workers need of a store, in SQLite and in PostgreSQL: claims with tokens, statements, and changes."""

import asyncio
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream.durable.log.jobs import token_after, token_at
from sidestream.errors import ConflictError, FencedError, StoreError
from sidestream.store.ids import ConversationId
from sidestream.store.protocol import SharedStore
from sidestream.store.queries import POSTS
from support.stores import BOUND_S, Opens, rows

OLD, NEW = token_at(1_000.0), token_at(1_000.001)


def test_store_can_be_shared(store: SharedStore):
    assert isinstance(store, SharedStore)


@requirement("R160")
async def test_older_token_cannot_append_after_later_claim(store: SharedStore, opens: Opens):
    await store.append("talk", 0, rows(1, 1), token=OLD)
    await opens().fence("talk", NEW)
    with pytest.raises(FencedError):
        await store.append("talk", 1, rows(2, 2), token=OLD)
    await store.append("talk", 1, rows(2, 2), token=NEW)
    with pytest.raises(FencedError):
        await store.append("talk", 2, rows(3, 3), token=OLD)
    with pytest.raises(ConflictError, match="another writer"):
        await store.append("talk", 1, rows(2, 2), token=NEW)
    assert await store.read("talk") == rows(1, 2)


async def test_append_raises_fence_by_itself(store: SharedStore):
    await store.append("talk", 0, rows(1, 1))
    await store.append("talk", 1, rows(2, 2), token=NEW)
    with pytest.raises(FencedError):
        await store.fence("talk", OLD)
    await store.append("talk", 2, rows(3, 3))  # Without a claim only the number counts.
    await store.fence("talk", NEW)


async def test_missing_conversation_has_no_fence(store: SharedStore):
    with pytest.raises(StoreError, match="conversation 'talk' not found"):
        await store.fence("talk", NEW)


async def test_statements_work_on_every_database(store: SharedStore):
    sql = "INSERT INTO {posts} (conversation, kind, body) VALUES (:talk, :kind, :body) RETURNING kind"
    assert await store.execute(sql, {"talk": "a", "kind": "stop", "body": b"\0"}) == [("stop",)]
    assert await store.execute("SELECT conversation, body FROM {posts}") == [("a", b"\0")]
    assert await store.execute("DELETE FROM {posts} WHERE kind = :kind", {"kind": "stop"}) == []
    assert await store.execute("SELECT 1 FROM {posts}") == []


async def test_topic_changes_reach_every_process(store: SharedStore, opens: Opens):
    async with asyncio.timeout(BOUND_S), aclosing(opens().changes(POSTS)) as changes:
        await anext(changes)
        await store.post("a", "stop", b"")
        await anext(changes)


async def test_waiting_for_changes_raises_when_store_is_closed(store: SharedStore):
    changes = store.changes("posts")
    async with asyncio.timeout(BOUND_S):
        await anext(changes)
        waiting = asyncio.create_task(anext(changes))
        await store.aclose()
        with pytest.raises(StoreError, match="closed"):
            await waiting


@pytest.mark.parametrize("time_s", [0.0, 1_000.0, 1_763_000_000.0])
@pytest.mark.parametrize(
    "previous", ["", token_at(1_000.0), token_at(1_000.0, 7), "019a0f4e-5c3b-7def-8000-000000000000"]
)
def test_token_of_later_claim_is_greater_regardless_of_clock(previous: str, time_s: float):
    first = token_after(previous, time_s)
    assert first > previous
    assert token_after(first, time_s - 60.0) > first


async def test_posts_stay_until_removed(store: SharedStore, opens: Opens):
    for number, talk in enumerate(("a", "b", "a")):
        await store.post(talk, "steer", b"%d" % number)
    assert await store.posts([]) == []
    found = await opens().posts(["a", "b"])
    assert [entry[1:] for entry in found] == [("a", "steer", b"0"), ("b", "steer", b"1"), ("a", "steer", b"2")]
    await store.remove_post(found[0][0])
    assert await store.posts(["a"]) == [found[2]]
    await store.clear_posts("a")
    assert await store.posts(["a", "b"]) == [found[1]]


async def test_lease_is_taken_once_per_interval(store: SharedStore, opens: Opens):
    assert await store.take_lease("a b", 60.0)
    assert not await opens().take_lease("a b", 60.0)
    assert await store.take_lease("a", 60.0), "another name"
    before = await store.leases()
    assert before.keys() == {"a", "a b"}
    assert await store.posts(["a", "a b"]) == []
    assert await opens().take_lease("a", 0.0)


async def test_prepare_creates_database(store: SharedStore, opens: Opens):
    await store.prepare()
    assert await opens().conversations() == []
    assert await store.fence_of("talk") == ""


async def test_fence_of_returns_latest_token(store: SharedStore):
    await store.append("talk", 0, rows(1, 1), token=OLD)
    assert await store.fence_of("talk") == OLD
    await store.fence("talk", NEW)
    assert await store.fence_of("talk") == NEW


async def test_open_conversations_omit_finished_runs(store: SharedStore):
    for time_s, (talk, kind) in enumerate((("a/1", "run-started"), ("a/2", "finish"), ("b/1", "text")), 1):
        await store.append(talk, 0, [replace(*rows(1, 1), kind=kind, time=float(time_s))])
    assert await store.open_conversations() == [("a/1", 1, 1.0), ("b/1", 1, 3.0)]
    assert await store.open_conversations(prefix="a/") == [("a/1", 1, 1.0)]
    assert await store.open_conversations(since=1.0) == [("b/1", 1, 3.0)]
    assert await store.open_conversations(before=3.0, limit=5) == [("a/1", 1, 1.0)]


async def test_unstored_conversations_are_found(store: SharedStore):
    for talk in ("a/unstored_1", "/unstored_2", "a/unstored", "unstored_3", "a/unstoredX1"):
        await store.append(talk, 0, rows(1, 1))
    found = {talk for talk, _ in await store.unstored()}
    assert found == {"a/unstored_1", "/unstored_2"}
    assert all(ConversationId.parse(talk).is_unstored for talk in found)
