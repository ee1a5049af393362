"""A store around another one, for overriding a method or two."""

from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sidestream.errors import ConfigurationError
from sidestream.store.protocol import Append, ConversationInfo, SharedStore, Store, StoreProblem
from sidestream.store.queries import SharedQueries
from sidestream.store.records import Row


class WrappedStore(SharedQueries):
    """A store that passes every call on to another store."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @cached_property
    def shared(self) -> SharedStore:
        """The inner store as a shared one. Raises ConfigurationError if it cannot be shared."""
        return shared(self.inner)

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
        """Append rows. Override `write` to change how."""
        await self.write(Append(conversation, after, rows, blobs or {}, flush, token))

    async def write(self, append: Append) -> None:
        """Append rows to the inner store."""
        given = (append.conversation, append.after, append.rows, append.blobs)
        if append.token is None:
            await self.inner.append(*given, flush=append.flush)
        else:
            await self.shared.append(*given, flush=append.flush, token=append.token)

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after a sequence number."""
        return await self.inner.read(conversation, after)

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """Yield the rows after a sequence number, then each new one."""
        return self.inner.tail(conversation, after)

    async def blob(self, digest: str) -> bytes:
        """Return the bytes of a blob."""
        return await self.inner.blob(digest)

    async def conversations(
        self,
        limit: int = 100,
        before: float | None = None,
        *,
        prefix: str = "",
        search: str = "",
        without: Sequence[str] = (),
    ) -> list[ConversationInfo]:
        """Return one page of conversations, the most recently changed first."""
        return await self.inner.conversations(limit, before, prefix=prefix, search=search, without=without)

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """Return the conversation of a run and the sequence number of its first record."""
        return await self.inner.find_run(run)

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """Return the `finish` records written after `since`."""
        return await self.inner.ended_runs(since, prefix=prefix)

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Return whether a conversation whose id starts with `prefix` refers to this blob."""
        return await self.inner.refers_to(digest, prefix=prefix)

    async def delete(self, conversation: str) -> bool:
        """Delete a conversation and the blobs that only it refers to."""
        return await self.inner.delete(conversation)

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Delete conversations, a few hundred per transaction."""
        return await self.shared.delete_all(conversations, before=before)

    async def collect(self) -> int:
        """Delete unreferenced blobs."""
        return await self.inner.collect()

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """Return the problems of the store."""
        return await self.inner.check(repair=repair)

    async def fence(self, conversation: str, token: str) -> None:
        """Refuse appends with an older token from now on."""
        await self.shared.fence(conversation, token)

    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement on the store's database."""
        return await self.shared.execute(sql, values, notify=notify)

    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yield whenever something in this topic may have changed."""
        return self.shared.changes(topic)

    async def aclose(self) -> None:
        """Close the store."""
        await self.inner.aclose()


def shared(store: Store) -> SharedStore:
    """Return the store as a shared one. Raises ConfigurationError if it cannot be shared."""
    if not isinstance(store, SharedStore):
        raise ConfigurationError(
            f"{type(store).__name__} cannot be shared by workers: use a store in SQLite or PostgreSQL"
        )
    return store


def identity_of(store: object) -> Hashable:
    """Return a value that is equal for stores with the same conversations.

    For a custom store, this is the store itself.
    """
    while isinstance(store, WrappedStore):
        store = store.inner
    return getattr(store, "identity", store)
