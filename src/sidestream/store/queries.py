"""Queries for processes that share a store, in statements that every database understands."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from sidestream.store.ids import PREFIX_END, UNSTORED
from sidestream.store.records import ENDINGS, TEXT_KINDS, Row

POSTS = "posts"
"""Topic on which new control messages are announced."""
LEASE = "pass "
"""Prefix of the kind of control messages that are leases, followed by the lease's name. They have no conversation."""

_PREPARE = "DELETE FROM {conversations} WHERE id IS NULL RETURNING id"
_NOW = "SELECT {now}"
_FENCE = "SELECT fence FROM {conversations} WHERE id = :id"
_UNSTORED = "SELECT id, updated FROM {conversations} WHERE id LIKE :pattern ESCAPE '!'"
_UNSTORED_PATTERN = f"%/{UNSTORED.replace('_', '!_')}%"
_OPEN = (
    "SELECT id, head, updated FROM {{conversations}} WHERE last NOT IN ({endings}) "
    "AND updated > :since AND updated < :before AND id >= :prefix AND id < :prefix_end ORDER BY updated LIMIT :limit"
).format(endings=", ".join(f"'{kind}'" for kind in sorted(ENDINGS)))
_POST = "INSERT INTO {posts} (conversation, kind, body) VALUES (:conversation, :kind, :body)"
_POSTS = "SELECT id, conversation, kind, body FROM {{posts}} WHERE conversation IN ({names}) ORDER BY id"
_REMOVE_POST = "DELETE FROM {posts} WHERE id = :id"
_CLEAR_POSTS = "DELETE FROM {posts} WHERE conversation = :conversation"
_LAST_LEASE = "FROM {posts} WHERE conversation = '' AND kind = :kind"
# A time in the future was written before the clock was set back.
_TAKE_LEASE = (
    "UPDATE {posts} SET body = :now "
    f"WHERE id IN (SELECT id {_LAST_LEASE}) AND (body <= :before OR body > :now) RETURNING id"
)
_TAKE_FIRST_LEASE = (
    "INSERT INTO {posts} (conversation, kind, body) SELECT '', :kind, :now "
    f"WHERE NOT EXISTS (SELECT 1 {_LAST_LEASE}) RETURNING id"
)
_LEASES = "SELECT kind, body FROM {posts} WHERE conversation = '' AND kind >= 'pass ' AND kind < 'pass!'"
_TITLE_OF = "SELECT title FROM {conversations} WHERE id = :id"
_SET_TITLE = "UPDATE {conversations} SET title = :title WHERE id = :id"
_REPLACE_TITLE = f"{_SET_TITLE} AND title = :old"
_TITLED = (
    "SELECT id FROM {conversations} WHERE id >= :prefix AND id < :prefix_end AND lower(title) LIKE :pattern ESCAPE '!' "
    "ORDER BY updated DESC LIMIT :limit"
)
PINS = "~pins/"
"""Prefix of what control messages that are pins name instead of a conversation, followed by the tenant."""
_OF_PIN = "conversation = :owner AND kind = :chat"
_PINS = "SELECT kind FROM {posts} WHERE conversation = :owner ORDER BY id"
_PIN = (
    "INSERT INTO {posts} (conversation, kind, body) SELECT :owner, :chat, :body "
    f"WHERE NOT EXISTS (SELECT 1 FROM {{posts}} WHERE {_OF_PIN})"
)
_UNPIN = f"DELETE FROM {{posts}} WHERE {_OF_PIN}"
_SAID = (
    "SELECT seq, time, run, kind, body FROM {{records}} WHERE conversation = :id AND kind IN ({kinds}) ORDER BY seq"
).format(kinds=", ".join(f"'{kind}'" for kind in TEXT_KINDS))


class SharedQueries(Protocol):
    """Queries that any store that can execute statements supports. Each raises StoreError if the database fails."""

    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement on the store's database in a separate transaction, and return its rows.

        Values are written `:name`, and tables `{tasks}` and so on, so that every database understands the statement.
        `{now}` is the database's clock, in seconds since 1970. `{skip_locked}` at the end of a subquery skips rows that
        another process has locked. `notify` wakes those who wait for changes of this topic.
        """
        ...

    async def prepare(self) -> None:
        """Create the database if it does not exist. Raises StoreError if it cannot be written."""
        await self.execute(_PREPARE)

    async def fence_of(self, conversation: str) -> str:
        """Return the token of the latest claim, or an empty string if there was none."""
        found = await self.execute(_FENCE, {"id": conversation})
        return str(found[0][0]) if found else ""

    async def open_conversations(
        self, *, prefix: str = "", since: float = 0.0, before: float = float("inf"), limit: int = 1000
    ) -> list[tuple[str, int, float]]:
        """Return conversations in which a run may be in progress, the oldest first.

        Each comes with the sequence number and time of its last record. Their ids start with `prefix`, and they changed
        between `since` and `before`. Some have only a note after the end of a run, as their records show.
        """
        values = {"prefix": prefix, "prefix_end": prefix + PREFIX_END, "since": since, "before": before, "limit": limit}
        return [(str(id), int(head), float(updated)) for id, head, updated in await self.execute(_OPEN, values)]

    async def unstored(self) -> list[tuple[str, float]]:
        """Return conversations to delete once their client has the answer, each with the time of its last change."""
        found = await self.execute(_UNSTORED, {"pattern": _UNSTORED_PATTERN})
        return [(str(id), float(updated)) for id, updated in found]

    async def post(self, conversation: str, kind: str, body: bytes) -> None:
        """Leave a control message for the worker of a conversation, and announce it."""
        await self.execute(_POST, {"conversation": conversation, "kind": kind, "body": body}, notify=POSTS)

    async def posts(self, conversations: Collection[str]) -> list[tuple[int, str, str, bytes]]:
        """Return the control messages for these conversations, oldest first, as id, conversation, kind and body."""
        if not conversations:
            return []
        values = {f"id_{number}": conversation for number, conversation in enumerate(conversations)}
        found = await self.execute(_POSTS.format(names=", ".join(f":{name}" for name in values)), values)
        return [(int(id), str(conversation), str(kind), bytes(body)) for id, conversation, kind, body in found]

    async def remove_post(self, id: int) -> None:
        await self.execute(_REMOVE_POST, {"id": id})

    async def clear_posts(self, conversation: str) -> None:
        """Remove all control messages for a conversation."""
        await self.execute(_CLEAR_POSTS, {"conversation": conversation})

    async def title_of(self, conversation: str) -> str:
        """Return the title in the list of conversations, or an empty string if there is none."""
        found = await self.execute(_TITLE_OF, {"id": conversation})
        return str(found[0][0]) if found else ""

    async def rename(self, conversation: str, title: str, *, old: str | None = None) -> None:
        """Change the title in the list of conversations, with `old` only if that is the title now.

        The log does not change, so that a run in progress does not notice it.
        """
        values = {"id": conversation, "title": title}
        await self.execute(*((_SET_TITLE, values) if old is None else (_REPLACE_TITLE, {**values, "old": old})))

    async def titled(self, text: str, *, prefix: str, limit: int) -> list[str]:
        """Return conversations whose title contains this string, ignoring the case of ASCII letters."""
        escaped = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        values = {"prefix": prefix, "prefix_end": prefix + PREFIX_END, "pattern": f"%{escaped}%", "limit": limit}
        return [str(id) for (id,) in await self.execute(_TITLED, values)]

    async def said(self, conversation: str) -> list[Row]:
        """Return the rows with text, in order, without their blobs."""
        found = await self.execute(_SAID, {"id": conversation})
        return [Row(seq=seq, time=time, run=run, kind=kind, body=bytes(body)) for seq, time, run, kind, body in found]

    async def pins(self, owner: str) -> list[str]:
        """Return the chats that a tenant has pinned, the first one first."""
        return [str(chat) for (chat,) in await self.execute(_PINS, {"owner": PINS + owner})]

    async def pin(self, owner: str, chat: str, *, is_pinned: bool = True) -> None:
        """Pin a chat, or unpin it."""
        values: dict[str, object] = {"owner": PINS + owner, "chat": chat}
        await self.execute(*((_PIN, {**values, "body": b""}) if is_pinned else (_UNPIN, values)))

    async def take_lease(self, name: str, interval_s: float) -> bool:
        """Take the lease of this name, or return False if any process took it less than `interval_s` ago.

        Times are those of the database's clock.
        """
        found = await self.execute(_NOW)
        now_s = float(found[0][0]) if found else time.time()  # Before the first write the database may not exist.
        values = {"kind": LEASE + name, "now": _sortable(now_s)}
        if await self.execute(_TAKE_LEASE, {**values, "before": _sortable(now_s - interval_s)}):
            return True
        return bool(await self.execute(_TAKE_FIRST_LEASE, values))

    async def leases(self) -> dict[str, bytes]:
        """Return all leases by name, with the time each was last taken as bytes."""
        return {str(kind).removeprefix(LEASE): bytes(body) for kind, body in await self.execute(_LEASES)}


def _sortable(time_s: float) -> bytes:
    return b"%017.3f" % time_s
