"""Schema versions, blobs and the list of conversations, which the SQLite and PostgreSQL stores share."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from sidestream import jsontext
from sidestream.errors import ConfigurationError, FencedError, NewerSchemaError, StoreError
from sidestream.store.blobs.folder import BlobFolder, BlobStore
from sidestream.store.ids import PREFIX_END, RESERVED, check_id
from sidestream.store.log.summary import texts_with
from sidestream.store.protocol import Append, ConversationInfo
from sidestream.store.queries import SharedQueries
from sidestream.store.records import INCREMENT, TEXT_KINDS, Row

DELETED_AT_ONCE = 200
"""Maximum conversations deleted per transaction, so that it does not hold its locks for long."""
COLLECTED_AT_ONCE = 100
"""Maximum blobs removed at once. Appends with blobs wait meanwhile, since no reference may be added."""
PAGE = 256
"""Maximum rows that `tail` reads at once."""

SELECT_CONVERSATIONS = (
    "SELECT id, head, created, updated, title, model, last FROM {table} WHERE updated < {before}{where} AND updated >= "
    "coalesce((SELECT updated FROM {table} WHERE updated < {before}{where} ORDER BY updated DESC "
    "LIMIT 1 OFFSET {skip}), -1e300) ORDER BY updated DESC, id"
)
"""One page of the list. It includes every conversation with its last timestamp, so that the next page, which starts
before that timestamp, misses none."""
NOT_RESERVED = f" AND (id < '{RESERVED}' OR id >= '{RESERVED}{PREFIX_END}')"
WITH_PREFIX = " AND id >= {prefix} AND id < {prefix_end}"
_OF_KINDS = "kind IN ({})".format(", ".join(f"'{kind}'" for kind in TEXT_KINDS))
WITH_TEXT = (
    f" AND EXISTS (SELECT 1 FROM {{records}} WHERE conversation = id AND {_OF_KINDS} "
    f"AND (kind = '{INCREMENT}' OR {{body}} {{like}} {{pattern}} ESCAPE '!'))"
)
"""Conditions for that list. A string may cross the increments of a block, so a conversation that has some is a
candidate."""
SELECT_ENDED_RUNS = (
    "SELECT seq, time, run, kind, body, '' FROM {records} AS ended WHERE kind = 'finish' AND time > {since}{where} "
    "AND NOT EXISTS (SELECT 1 FROM {records} AS later WHERE later.conversation = ended.conversation "
    "AND later.seq > ended.seq AND later.kind = 'forked') ORDER BY time"
)
"""Runs that ended here: what a fork copied has ended in the original."""
RAISE_FENCE = "UPDATE {conversations} SET fence = :token WHERE id = :id AND fence <= :token RETURNING id"
"""Returns no row if a newer token exists, or if the conversation does not exist."""
OF_PREFIX = " AND conversation >= {prefix} AND conversation < {prefix_end}"


class DatabaseStore(SharedQueries, ABC):
    """The part of a store that is the same for every database."""

    def __init__(self, name: str, blobs: str | os.PathLike[str] | BlobStore) -> None:
        self.blobs = open_blobs(blobs)
        self._name = name
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def identity(self) -> str:
        """Name that two stores share if they hold the same conversations."""
        return self._name

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
        token: str | None = None,
    ) -> None:
        """Append rows, all or none. A write that has started completes even if the caller is cancelled."""
        check_id(conversation)
        if after < 0 or [row.seq for row in rows] != list(range(after + 1, after + 1 + len(rows))):
            raise ConfigurationError(f"the rows for {conversation!r} must be numbered from {after + 1} without gaps")
        self._check_open()
        if not rows:
            return
        if blobs:
            await self._put_blobs(blobs)
        await self._append(Append(conversation, after, rows, blobs or {}, flush, token))

    async def fence(self, conversation: str, token: str) -> None:
        """Refuse appends with an older token from now on. Raises FencedError if a newer token exists."""
        check_id(conversation)
        values = {"id": conversation, "token": token}
        if not await self.execute(RAISE_FENCE, values):
            if await self.execute("SELECT 1 FROM {conversations} WHERE id = :id", {"id": conversation}):
                raise FencedError(conversation)
            raise StoreError(f"conversation {conversation!r} not found in {self._name}")

    async def blob(self, digest: str) -> bytes:
        """Return the bytes of a blob after verifying them."""
        return await asyncio.to_thread(self.blobs.read, digest)

    async def conversations(
        self,
        limit: int = 100,
        before: float | None = None,
        *,
        prefix: str = "",
        search: str = "",
        without: Sequence[str] = (),
    ) -> list[ConversationInfo]:
        """Return one page of conversations, the most recently changed first.

        Conversations that changed at the same time are on the same page.
        """
        if limit < 1:
            return []
        if not search:
            return await self._page(limit, before, prefix, without=without)
        pattern = f"%{_pattern(search)}%"
        found: list[ConversationInfo] = []
        page = await self._page(limit, before, prefix, pattern, without)
        while True:
            found += [info for info in page if await self._says(info.id, search)]
            if len(page) < limit or len(found) >= limit:
                break
            page = await self._page(limit, page[-1].updated, prefix, pattern, without)
        return [info for info in found if info.updated >= found[limit - 1].updated] if len(found) > limit else found

    async def _page(
        self, limit: int, before: float | None, prefix: str, pattern: str = "", without: Sequence[str] = ()
    ) -> list[ConversationInfo]:
        """Return one page of conversations, those that may match the pattern and whose id none of `without`."""
        values: dict[str, object] = {"before": inf if before is None else before, "skip": limit - 1}
        values |= _range(prefix)
        for number, start in enumerate(without):
            values |= {f"without_{number}": start, f"without_{number}_end": start + PREFIX_END}
        if pattern:
            values["pattern"] = pattern
        fields = ConversationInfo.__struct_fields__
        found = await self._list(values)
        return [ConversationInfo(**dict(zip(fields, row, strict=True))) for row in found]

    async def _says(self, conversation: str, text: str) -> bool:
        """Return whether a message or an answer of the conversation contains the text."""
        return any(True for _ in texts_with(await self.said(conversation), text))

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """Return the conversation of a run and the sequence number of its first record.

        Returns None for an unknown run.
        """
        found = await self._find_run(run)
        return (str(found[0][0]), int(found[0][1])) if found else None

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """Return the `finish` records written after `since`, oldest first, without those that a fork copied."""
        values: dict[str, object] = {"since": since, **_range(prefix)}
        return rows_of(await self._ended_runs(values))

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Return whether a conversation whose id starts with `prefix` refers to this blob."""
        return bool(await self._refers_to(digest, prefix, prefix + PREFIX_END))

    async def delete(self, conversation: str) -> bool:
        """Delete a conversation and the blobs that only it refers to.

        Returns False if the conversation does not exist.
        """
        check_id(conversation)
        self._check_open()
        named = await self._delete(conversation)
        if named:
            # Blobs go last: if the process dies in between, `collect` finds them.
            await self._collect(named)
        return named is not None

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Delete conversations as `delete` does, a few hundred per transaction, and return how many.

        With `before`, skip those that have changed since then, such as one that was just continued.
        """
        for conversation in conversations:
            check_id(conversation)
        self._check_open()
        count = 0
        for start in range(0, len(conversations), DELETED_AT_ONCE):
            chosen = conversations[start : start + DELETED_AT_ONCE]
            deleted, named = await self._delete_all(chosen, inf if before is None else before)
            await self._collect(named)
            count += deleted
        return count

    async def collect(self) -> int:
        """Delete unreferenced blobs and the remains of interrupted writes, and return how many."""
        self._check_open()
        removed = await asyncio.to_thread(self.blobs.sweep)
        for shard in await asyncio.to_thread(self.blobs.shards):
            removed += len(await self._collect(await asyncio.to_thread(self.blobs.old, shard)))
        return removed

    async def _collect(self, digests: Sequence[str]) -> list[str]:
        """Delete the unreferenced ones of these blobs, and return them."""
        removed: list[str] = []
        for start in range(0, len(digests), COLLECTED_AT_ONCE):
            removed += await self._remove_orphans(digests[start : start + COLLECTED_AT_ONCE])
        return removed

    async def _put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs. They are durable when this returns."""
        await asyncio.to_thread(self.blobs.put_all, blobs)

    @abstractmethod
    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in a separate transaction, and return its rows."""

    @abstractmethod
    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yield at once, then whenever something in this topic may have changed, indefinitely."""

    @abstractmethod
    async def _append(self, append: Append) -> None:
        """Write the rows. Raises ConflictError unless `after` is the last sequence number."""

    @abstractmethod
    async def _list(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of `SELECT_CONVERSATIONS`, with a condition for each value passed.

        Returns none if nothing was ever stored.
        """

    @abstractmethod
    async def _find_run(self, run: str) -> list[tuple[Any, ...]]:
        """Return the conversation of a run and the sequence number of its first record."""

    @abstractmethod
    async def _ended_runs(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return the rows of `SELECT_ENDED_RUNS`, with a condition for each value passed."""

    @abstractmethod
    async def _refers_to(self, digest: str, first: str, last: str) -> list[tuple[Any, ...]]:
        """Return a row if a conversation between these two ids refers to the blob."""

    @abstractmethod
    async def _delete(self, conversation: str) -> list[str] | None:
        """Delete a conversation, and return the blobs that it referred to, or None if it does not exist."""

    @abstractmethod
    async def _delete_all(self, conversations: Sequence[str], before: float) -> tuple[int, list[str]]:
        """Delete the conversations that have not changed since then, in one transaction.

        Returns how many, and the blobs that they may have referred to.
        """

    @abstractmethod
    async def _remove_orphans(self, candidates: Sequence[str]) -> list[str]:
        """Delete the unreferenced ones of these blobs while no reference can be added, and return them."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self._name} is closed; open it again")


def list_query(values: Mapping[str, object], mark: str, names: Mapping[str, str]) -> str:
    """Return the query for the list in the database's dialect, with a condition for each value passed."""
    where = (WITH_PREFIX if "prefix" in values else NOT_RESERVED) + (WITH_TEXT if "pattern" in values else "")
    starts = [name for name in values if name.startswith("without_") and not name.endswith("_end")]
    where += "".join(f" AND (id < {{{name}}} OR id >= {{{name}_end}})" for name in starts)
    words = {**names, **{name: mark.format(name) for name in values}}
    return SELECT_CONVERSATIONS.format(**words, where=where.format(**words))


def ended_runs_query(values: Mapping[str, object], mark: str, names: Mapping[str, str]) -> str:
    """Return the query for ended runs in the database's dialect."""
    words = {**names, **{name: mark.format(name) for name in values}}
    return SELECT_ENDED_RUNS.format(**words, where=OF_PREFIX.format(**words) if "prefix" in values else "")


def _range(prefix: str) -> dict[str, object]:
    """Return the values for a condition on the start of ids."""
    return {"prefix": prefix, "prefix_end": prefix + PREFIX_END} if prefix else {}


def _pattern(text: str) -> str:
    """Return a LIKE pattern for a string as it appears in a record's JSON."""
    escaped = jsontext.dumps(text).decode("utf-8", "replace")[1:-1]
    return escaped.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def rows_of(found: Iterable[tuple[Any, ...]]) -> list[Row]:
    """Build rows from their columns, which are seq, time, run, kind, body and space-separated digests."""
    return [
        Row(seq=seq, time=time, run=run, kind=kind, body=body, blobs=tuple(blobs.split()) if blobs else ())
        for seq, time, run, kind, body, blobs in found
    ]


Migration = Sequence[str]
"""Statements that migrate the schema from one version to the next."""


def refuse_newer(version: int, known: int, name: str, *, alternative: str) -> int:
    """Return the schema version found in a database. Raises NewerSchemaError if it is above the known one."""
    if version > known:
        raise NewerSchemaError(
            f"{name} was written by a newer version of Sidestream (schema {version}, this one knows {known}); "
            f"it can be read, but not written: update Sidestream, or use another {alternative}"
        )
    return version


def open_blobs(where: str | os.PathLike[str] | BlobStore) -> BlobStore:
    """Open the blobs in a folder, or in a bucket given as `s3://bucket/prefix`."""
    if isinstance(where, BlobStore):
        return where
    if isinstance(where, str) and where.startswith("s3://"):
        from sidestream.store.blobs.bucket import BlobBucket

        return BlobBucket(where)
    if isinstance(where, str) and "://" in where:
        raise ConfigurationError("blobs must be a folder or s3://bucket/prefix, not another URL")
    return BlobFolder(where)
