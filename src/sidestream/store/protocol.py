"""The store protocols, and the values that stores return."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from sidestream.store.queries import SharedQueries
from sidestream.store.records import Row


class ConversationInfo(Struct, frozen=True, kw_only=True):
    """An entry in the list of conversations."""

    id: str
    records: int
    created: float
    updated: float
    title: str = ""
    """Start of the first message."""
    model: str = ""
    """Model of the last run."""
    last: str = ""
    """Kind of the last record. Anything but `finish` means that a turn is open or was interrupted."""


class StoreProblem(Struct, frozen=True, kw_only=True):
    """A problem found by `Store.check`."""

    kind: Literal["damaged", "missing-blob", "damaged-blob", "orphan-blob", "gap", "unreadable-record"]
    message: str
    """Description of the problem and of what is lost."""
    conversation: str | None = None
    is_repaired: bool = False


class Append(NamedTuple):
    """The arguments of `Store.append`, which are the rows to write and the blobs they refer to."""

    conversation: str
    after: int
    rows: Sequence[Row]
    blobs: Mapping[str, bytes]
    flush: bool = True
    token: str | None = None
    """Token of the writer's claim. None means that the writer has no claim."""

    def digests(self) -> set[str]:
        """Return the digests of the blobs that the rows refer to."""
        return {digest for row in self.rows for digest in row.blobs}


@runtime_checkable
class Store(Protocol):
    """A store that keeps conversations as append-only logs."""

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Append rows, numbered from `after + 1`, all or none.

        The first row creates the conversation. Blobs are durable before the rows are. Without `flush`, the rows survive
        the process but may be lost in a power failure before the next append. Raises ConflictError unless `after` is
        the last sequence number.
        """
        ...

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after a sequence number, in order. An unknown conversation has none."""
        ...

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """Yield the rows after a sequence number, then each new one that any process writes, indefinitely."""
        ...

    async def blob(self, digest: str) -> bytes:
        """Return the bytes of a blob. Raises BlobError if they are missing or damaged."""
        ...

    async def conversations(
        self,
        limit: int = 100,
        before: float | None = None,
        *,
        prefix: str = "",
        search: str = "",
        without: Sequence[str] = (),
    ) -> list[ConversationInfo]:
        """Return one page of the conversations, the most recently changed first.

        For the next page, pass the last `updated` as `before`. `prefix` selects conversations by the start of their id,
        and `search` those whose messages contain this string, ignoring case. `without` omits those whose id starts with
        one of these strings.
        """
        ...

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """Return the conversation of a run and the sequence number of its first record.

        Returns None for an unknown run.
        """
        ...

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """Return the `finish` records written after `since`, oldest first.

        `prefix` selects conversations by the start of their id. A run that waited and was resumed has several such
        records.
        """
        ...

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Return whether a conversation whose id starts with `prefix` refers to this blob."""
        ...

    async def delete(self, conversation: str) -> bool:
        """Delete a conversation and the blobs that only it refers to.

        Returns False if the conversation does not exist.
        """
        ...

    async def collect(self) -> int:
        """Delete unreferenced blobs and the remains of interrupted writes, and return how many."""
        ...

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """Return the problems of the store. `repair` fixes those that can be fixed."""
        ...

    async def aclose(self) -> None:
        """Close the store. Safe to call twice."""
        ...


@runtime_checkable
class SharedStore(Store, SharedQueries, Protocol):
    """A store that several processes use at once, each with claims on the conversations whose runs it executes.

    Each claim has a token, and the token of a later claim sorts after all earlier ones. A writer without a token has no
    claim; only the last sequence number protects it from concurrent writers.
    """

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
        """Append rows as `Store.append` does. Raises FencedError if the conversation has a newer token."""
        ...

    async def fence(self, conversation: str, token: str) -> None:
        """Refuse appends with an older token from now on. Raises FencedError if a newer token exists."""
        ...

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Delete conversations as `delete` does, a few hundred per transaction, and return how many.

        With `before`, in seconds since 1970, skip those that have changed since then.
        """
        ...

    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yield at once, then whenever something in this topic may have changed, indefinitely."""
        ...
