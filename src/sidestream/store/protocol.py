"""What a store must be."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from sidestream.store.records import Row


class ConversationInfo(Struct, frozen=True, kw_only=True):
    """What a list of conversations shows of one."""

    id: str
    records: int
    created: float
    updated: float
    title: str = ""
    """The beginning of its first message."""
    model: str = ""
    """The model of its last run."""
    last: str = ""
    """The kind of its last record; anything but `finish` means that a turn is open or was broken off."""


class StoreProblem(Struct, frozen=True, kw_only=True):
    """Something that is wrong with a store."""

    kind: Literal["damaged", "missing-blob", "damaged-blob", "orphan-blob", "gap", "unreadable-record"]
    message: str
    """What is wrong, and what is lost by it."""
    conversation: str | None = None
    is_repaired: bool = False


@runtime_checkable
class Store(Protocol):
    """Where conversations are kept."""

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Adds rows, numbered from `after + 1`, all or none; a conversation begins with its first row.

        Blobs are safe on the disk before the rows are. Without `flush` the rows outlive the process, but perhaps not a
        loss of power before the next append. Raises ConflictError unless `after` is the last number.
        """
        ...

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """The rows after a number, in order; none for a conversation that there is not."""
        ...

    def tail(self, conversation: str, after: int = 0) -> AsyncGenerator[Row]:
        """The rows after a number, then every new one as it comes, whoever writes it, without end."""
        ...

    async def blob(self, digest: str) -> bytes:
        """The bytes behind a digest. Raises BlobError where they are missing or not what they were."""
        ...

    async def conversations(self, limit: int = 100, before: float | None = None) -> list[ConversationInfo]:
        """The conversations, the one that changed last first; `before` goes on after a page, by `updated`."""
        ...

    async def delete(self, conversation: str) -> bool:
        """Removes a conversation; False where there was none. Its blobs go with `collect`."""
        ...

    async def collect(self) -> int:
        """Removes blobs that no record names, and what broken writes left; returns how many."""
        ...

    async def check(self, *, repair: bool = False) -> list[StoreProblem]:
        """What is wrong with the store; with `repair`, what can be mended is."""
        ...

    async def aclose(self) -> None:
        """Closes it. Safe to call twice."""
        ...
