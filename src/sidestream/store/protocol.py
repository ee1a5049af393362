"""The protocol of stores, and the values they return."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from sidestream.store.queries import SharedQueries
from sidestream.store.records import Row


class ConversationInfo(Struct, frozen=True, kw_only=True):
    """A conversation as listed."""

    id: str
    records: int
    created: float
    updated: float
    title: str = ""
    """The start of its first message."""
    model: str = ""
    """The model of its last run."""
    last: str = ""
    """The kind of its last record; anything but `finish` means that a turn is open or was interrupted."""


class StoreProblem(Struct, frozen=True, kw_only=True):
    """A problem found by `Store.check`."""

    kind: Literal["damaged", "missing-blob", "damaged-blob", "orphan-blob", "gap", "unreadable-record"]
    message: str
    """What is wrong, and what is lost."""
    conversation: str | None = None
    is_repaired: bool = False


class Append(NamedTuple):
    """Rows to write, and the blobs they refer to: the arguments of `Store.append`."""

    conversation: str
    after: int
    rows: Sequence[Row]
    blobs: Mapping[str, bytes]
    flush: bool = True
    token: str | None = None
    """Token of the writer's claim; None without one."""

    def digests(self) -> set[str]:
        """Return the blobs that the rows name."""
        return {digest for row in self.rows for digest in row.blobs}


@runtime_checkable
class Store(Protocol):
    """Stores conversations as append-only logs."""

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Appends rows, numbered from `after + 1`, all or none; the first row creates the conversation.

        Blobs are durable before the rows are. Without `flush` the rows survive the process, but may be lost in a power
        failure before the next append. Raises ConflictError unless `after` is the last number.
        """
        ...

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number, in order; none for an unknown conversation."""
        ...

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then each new one as it is written, by any process, without end."""
        ...

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest. Raises BlobError if they are missing or damaged."""
        ...

    async def conversations(
        self, limit: int = 100, before: float | None = None, *, prefix: str = "", search: str = ""
    ) -> list[ConversationInfo]:
        """The conversations, last changed first; for the next page, pass the last `updated` as `before`.

        Only those whose id begins with `prefix`, and in which somebody said `search`, in any case of its letters.
        """
        ...

    async def find_run(self, run: str) -> tuple[str, int] | None:
        """The conversation of a run, and the number of the record with which it begins; None for an unknown run."""
        ...

    async def ended_runs(self, since: float, *, prefix: str = "") -> list[Row]:
        """The `finish` records that are younger than this, oldest first; `prefix` is as for `conversations`.

        A run that waited and was resumed has several.
        """
        ...

    async def refers_to(self, digest: str, *, prefix: str = "") -> bool:
        """Whether a conversation whose id begins with `prefix` names this blob."""
        ...

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation, and the blobs that only it named; False if it does not exist."""
        ...

    async def collect(self) -> int:
        """Removes blobs that no record names, and the remains of interrupted writes; returns how many."""
        ...

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """The problems of the store; `repair` fixes what it can."""
        ...

    async def aclose(self) -> None:
        """Closes the store. Safe to call twice."""
        ...


@runtime_checkable
class SharedStore(Store, SharedQueries, Protocol):
    """A store that several processes use at once, each with claims on the conversations that it drives.

    A claim has a token; the token of a later claim is the greater text. Who appends without one has no claim: only the
    number of the last record protects from others then.
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
        """Appends rows. Raises FencedError if the conversation knows a later token, and like `Store.append`."""
        ...

    async def fence(self, conversation: str, token: str) -> None:
        """From now on nobody with an older token appends. Raises FencedError if a later one is known."""
        ...

    async def delete_all(self, conversations: Sequence[str], *, before: float | None = None) -> int:
        """Removes conversations as `delete` does, some hundred in a transaction; returns how many.

        With `before`, in seconds since 1970, only those that have not changed since then.
        """
        ...

    def changes(self, topic: str) -> AsyncGenerator[None]:
        """Yields at once, then whenever something of this topic may have changed, without end."""
        ...
