"""A store around another one, for what differs in a method or two."""

from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sidestream.errors import ConfigurationError
from sidestream.store.protocol import Append, ConversationInfo, SharedStore, Store, StoreProblem
from sidestream.store.queries import SharedQueries
from sidestream.store.records import Row


class WrappedStore(SharedQueries):
    """Passes everything on."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @cached_property
    def shared(self) -> SharedStore:
        """The store inside, as one that several processes use. Raises ConfigurationError if it cannot be."""
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
        """Append rows to the store inside."""
        given = (append.conversation, append.after, append.rows, append.blobs)
        if append.token is None:
            await self.inner.append(*given, flush=append.flush)
        else:
            await self.shared.append(*given, flush=append.flush, token=append.token)

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number."""
        return await self.inner.read(conversation, after)

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then each new one."""
        return self.inner.tail(conversation, after)

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest."""
        return await self.inner.blob(digest)

    async def conversations(
        self, limit: int = 100, before: float | None = None, *, prefix: str = "", search: str = ""
    ) -> list[ConversationInfo]:
        """The conversations, last changed first."""
        return await self.inner.conversations(limit, before, prefix=prefix, search=search)

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """The conversation of a run, and the number of its first record."""
        return await self.inner.find_run(run)

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """The `finish` records that are younger than this."""
        return await self.inner.ended_runs(since, prefix=prefix)

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Whether a conversation whose id begins with `prefix` names this blob."""
        return await self.inner.refers_to(digest, prefix=prefix)

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation, and the blobs that only it named."""
        return await self.inner.delete(conversation)

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Removes conversations, some hundred in a transaction."""
        return await self.shared.delete_all(conversations, before=before)

    async def collect(self) -> int:
        """Removes blobs that no record names."""
        return await self.inner.collect()

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """The problems of the store."""
        return await self.inner.check(repair=repair)

    async def fence(self, conversation: str, token: str) -> None:
        """From now on nobody with an older token appends."""
        await self.shared.fence(conversation, token)

    async def execute(
        self, sql: str, values: Mapping[str, object] | None = None, *, notify: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Runs one statement on the store's database."""
        return await self.shared.execute(sql, values, notify=notify)

    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yields whenever something of this topic may have changed."""
        return self.shared.changes(topic)

    async def aclose(self) -> None:
        """Closes the store."""
        await self.inner.aclose()


def shared(store: Store) -> SharedStore:
    """The store as one that several processes use. Raises ConfigurationError if it cannot be."""
    if not isinstance(store, SharedStore):
        raise ConfigurationError(
            f"{type(store).__name__} cannot be shared by workers: use a store in SQLite or PostgreSQL"
        )
    return store


def identity_of(store: object) -> Hashable:
    """Return what two stores share if they hold the same conversations; for a store of yours, the store itself."""
    while isinstance(store, WrappedStore):
        store = store.inner
    return getattr(store, "identity", store)
