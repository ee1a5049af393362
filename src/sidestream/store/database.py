"""What the stores in SQLite and PostgreSQL share: schema versions, blobs, and the list of conversations."""

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
from sidestream.store.protocol import Append, ConversationInfo
from sidestream.store.queries import SharedQueries
from sidestream.store.records import Row

DELETED_AT_ONCE = 200
"""Conversations that are deleted in one transaction: it must not hold its locks for long."""
COLLECTED_AT_ONCE = 100
"""Blobs that are removed while no reference can be added: appends with blobs wait meanwhile."""
PAGE = 256
"""Rows that `tail` reads at once."""

SELECT_CONVERSATIONS = (
    "SELECT id, head, created, updated, title, model, last FROM {table} WHERE updated < {before}{where} AND updated >= "
    "coalesce((SELECT updated FROM {table} WHERE updated < {before}{where} ORDER BY updated DESC "
    "LIMIT 1 OFFSET {skip}), -1e300) ORDER BY updated DESC, id"
)
"""One page of the list. It includes every conversation of its last moment, so that the next page, which starts before
that moment, misses none."""
NOT_RESERVED = f" AND (id < '{RESERVED}' OR id >= '{RESERVED}{PREFIX_END}')"
WITH_PREFIX = " AND id >= {prefix} AND id < {prefix_end}"
WITH_TEXT = (
    " AND EXISTS (SELECT 1 FROM {records} WHERE conversation = id AND kind IN ('message', 'text', 'text-delta') "
    "AND {body} {like} {pattern} ESCAPE '!')"
)
"""Conditions for that list."""
SELECT_ENDED_RUNS = (
    "SELECT seq, time, run, kind, body, '' FROM {records} WHERE kind = 'finish' AND time > {since}{where} ORDER BY time"
)
RAISE_FENCE = "UPDATE {conversations} SET fence = :token WHERE id = :id AND fence <= :token RETURNING id"
"""No row: a later token is known, or there is no such conversation."""
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
        """A name that two stores share if they hold the same conversations."""
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
        """Appends rows, all or none; a write that has started completes even if the caller is cancelled."""
        check_id(conversation)
        if after < 0 or [row.seq for row in rows] != list(range(after + 1, after + 1 + len(rows))):
            raise ConfigurationError(f"the rows for {conversation!r} are not numbered from {after + 1} without gaps")
        self._check_open()
        if not rows:
            return
        if blobs:
            await self._put_blobs(blobs)
        await self._append(Append(conversation, after, rows, blobs or {}, flush, token))

    async def fence(self, conversation: str, token: str) -> None:
        """From now on nobody with an older token appends. Raises FencedError if a later one is known."""
        check_id(conversation)
        values = {"id": conversation, "token": token}
        if not await self.execute(RAISE_FENCE, values):
            if await self.execute("SELECT 1 FROM {conversations} WHERE id = :id", {"id": conversation}):
                raise FencedError(conversation)
            raise StoreError(f"there is no conversation {conversation!r} in {self._name}")

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest, verified."""
        return await asyncio.to_thread(self.blobs.read, digest)

    async def conversations(
        self, limit: int = 100, before: float | None = None, *, prefix: str = "", search: str = ""
    ) -> list[ConversationInfo]:
        """The conversations, last changed first; those that changed at the same moment are on the same page."""
        if limit < 1:
            return []
        values: dict[str, object] = {"before": inf if before is None else before, "skip": limit - 1}
        values |= _range(prefix)
        if search:
            values["pattern"] = f"%{_pattern(search)}%"
        fields = ConversationInfo.__struct_fields__
        found = await self._list(values)
        return [ConversationInfo(**dict(zip(fields, row, strict=True))) for row in found]

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """The conversation of a run, and the number of the record with which it begins; None for an unknown run."""
        found = await self._find_run(run)
        return (str(found[0][0]), int(found[0][1])) if found else None

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """The `finish` records that are younger than this, oldest first."""
        values: dict[str, object] = {"since": since, **_range(prefix)}
        return rows_of(await self._ended_runs(values))

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Whether a conversation whose id begins with `prefix` names this blob."""
        return bool(await self._refers_to(digest, prefix, prefix + PREFIX_END))

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation, and the blobs that only it named; False if it does not exist."""
        check_id(conversation)
        self._check_open()
        named = await self._delete(conversation)
        if named:
            # After the conversation: should the process end here, `collect` finds them.
            await self._collect(named)
        return named is not None

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Removes conversations as `delete` does, some hundred in a transaction; returns how many.

        With `before`, only those that have not changed since then: somebody may just have continued one.
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
        """Removes blobs that no record names, and the remains of interrupted writes; returns how many."""
        self._check_open()
        removed = await asyncio.to_thread(self.blobs.sweep)
        for shard in await asyncio.to_thread(self.blobs.shards):
            removed += len(await self._collect(await asyncio.to_thread(self.blobs.old, shard)))
        return removed

    async def _collect(self, digests: Sequence[str]) -> list[str]:
        """Removes those of the blobs that no record names; returns them."""
        removed: list[str] = []
        for start in range(0, len(digests), COLLECTED_AT_ONCE):
            removed += await self._remove_orphans(digests[start : start + COLLECTED_AT_ONCE])
        return removed

    async def _put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Stores blobs, durably when this returns."""
        await asyncio.to_thread(self.blobs.put_all, blobs)

    @abstractmethod
    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Runs one statement in a transaction of its own; returns its rows."""

    @abstractmethod
    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yields at once, then whenever something of this topic may have changed, without end."""

    @abstractmethod
    async def _append(self, append: Append) -> None:
        """Writes the rows. Raises ConflictError unless `after` is the last number."""

    @abstractmethod
    async def _list(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of `SELECT_CONVERSATIONS`, with the conditions that the values are for; none if nothing was ever
        stored."""

    @abstractmethod
    async def _find_run(self, run: str) -> list[tuple[Any, ...]]:
        """The conversation and the number of the record with which the run begins."""

    @abstractmethod
    async def _ended_runs(self, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of `SELECT_ENDED_RUNS`, with the condition that the values are for."""

    @abstractmethod
    async def _refers_to(self, digest: str, first: str, last: str) -> list[tuple[Any, ...]]:
        """A row if a conversation between these two ids names the blob."""

    @abstractmethod
    async def _delete(self, conversation: str) -> list[str] | None:
        """Removes a conversation; returns the blobs that it named, None if it does not exist."""

    @abstractmethod
    async def _delete_all(self, conversations: Sequence[str], before: float) -> tuple[int, list[str]]:
        """Removes those that have not changed since then, in one transaction; returns how many, and blobs that they may
        have named."""

    @abstractmethod
    async def _remove_orphans(self, candidates: Sequence[str]) -> list[str]:
        """Removes those of the blobs that no record names, while no reference can be added; returns them."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self._name} is closed; open it again")


def list_query(values: Mapping[str, object], mark: str, names: Mapping[str, str]) -> str:
    """The query for the list, in the words of a database, with the conditions that there are values for."""
    where = (WITH_PREFIX if "prefix" in values else NOT_RESERVED) + (WITH_TEXT if "pattern" in values else "")
    words = {**names, **{name: mark.format(name) for name in values}}
    return SELECT_CONVERSATIONS.format(**words, where=where.format(**words))


def ended_runs_query(values: Mapping[str, object], mark: str, names: Mapping[str, str]) -> str:
    """The query for the runs that ended, in the words of a database."""
    words = {**names, **{name: mark.format(name) for name in values}}
    return SELECT_ENDED_RUNS.format(**words, where=OF_PREFIX.format(**words) if "prefix" in values else "")


def _range(prefix: str) -> dict[str, object]:
    """The values for a condition on the beginning of ids."""
    return {"prefix": prefix, "prefix_end": prefix + PREFIX_END} if prefix else {}


def _pattern(text: str) -> str:
    """A text as it stands in a record's JSON, for LIKE."""
    escaped = jsontext.dumps(text).decode("utf-8", "replace")[1:-1]
    return escaped.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def rows_of(found: Iterable[tuple[Any, ...]]) -> list[Row]:
    """Rows from their columns: seq, time, run, kind, body and the digests, separated by spaces."""
    return [
        Row(seq=seq, time=time, run=run, kind=kind, body=body, blobs=tuple(blobs.split()) if blobs else ())
        for seq, time, run, kind, body, blobs in found
    ]


Migration = Sequence[str]
"""The statements that lead from one version of the schema to the next."""


def refuse_newer(version: int, known: int, name: str, *, alternative: str) -> int:
    """The version found in a database. Raises NewerSchemaError if it is above the one we know."""
    if version > known:
        raise NewerSchemaError(
            f"{name} was written by a newer version of Sidestream (schema {version}, this one knows {known}); "
            f"it can be read, but not written: update Sidestream, or use another {alternative}"
        )
    return version


def open_blobs(where: str | os.PathLike[str] | BlobStore) -> BlobStore:
    """The blobs in a folder, or in a bucket: `s3://bucket/prefix`."""
    if isinstance(where, BlobStore):
        return where
    if isinstance(where, str) and where.startswith("s3://"):
        from sidestream.store.blobs.bucket import BlobBucket

        return BlobBucket(where)
    if isinstance(where, str) and "://" in where:
        raise ConfigurationError("blobs are in a folder or in s3://bucket/prefix, and not at another URL")
    return BlobFolder(where)
