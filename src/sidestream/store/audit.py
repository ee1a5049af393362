"""Checks that both stores share, for gaps, unreadable records, and missing, damaged or orphaned blobs."""

from typing import Literal

from sidestream.errors import BlobError, StoreError
from sidestream.store.blobs.folder import BlobStore, is_digest
from sidestream.store.protocol import StoreProblem
from sidestream.store.records import Row, unpack

MAX_PROBLEMS = 100
"""Maximum problems reported per conversation."""


class Audit:
    """A check of the rows of one conversation, fed in order. `intact` counts the rows before the first problem."""

    def __init__(self, conversation: str, head: int) -> None:
        self.conversation = conversation
        self.head = head
        self.intact = 0
        self.last_kind = ""
        """Kind of the last intact row."""
        self._last = 0
        self.problems: list[StoreProblem] = []
        """Problems found, at most `MAX_PROBLEMS`."""

    def feed(self, row: Row) -> None:
        """Check the next row."""
        if row.seq != self._last + 1:
            self._found("gap", f"the records {self._last + 1} to {row.seq - 1} are missing")
        if (damage := damage_of(row)) is not None:
            self._found("unreadable-record", damage)
        if not self.problems:
            self.intact, self.last_kind = row.seq, row.kind
        self._last = row.seq

    def close(self) -> None:
        """Check the total number of rows, after the last one."""
        if self._last < self.head:
            self._found("gap", f"the records {self._last + 1} to {self.head} are missing")
        elif self._last > self.head:
            self._found("gap", f"there are {self._last} records, but {self.head} were counted")

    def repaired(self) -> list[StoreProblem]:
        """Return the same problems, reworded for a conversation that was truncated to its intact records."""
        lost = max(self._last, self.head) - self.intact
        outcome = f"; it was truncated to its first {self.intact} records, {lost} are lost"
        return [
            StoreProblem(kind=it.kind, message=it.message + outcome, conversation=it.conversation, is_repaired=True)
            for it in self.problems
        ]

    def _found(self, kind: Literal["gap", "unreadable-record"], what: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            message = f"in {self.conversation!r}, {what}"
            self.problems.append(StoreProblem(kind=kind, message=message, conversation=self.conversation))


def damage_of(row: Row) -> str | None:
    """Return why a row cannot be read, or None if it holds a record and refers to blobs by valid digests."""
    try:
        unpack(row)
    except StoreError as error:
        return f"the record {row.seq} ({row.kind}) cannot be read: {error.__cause__}"
    return (
        None
        if all(map(is_digest, row.blobs))
        else f"the record {row.seq} ({row.kind}) refers to blobs by invalid digests"
    )


def audit_blob(blobs: BlobStore, digest: str, conversation: str, *, repair: bool) -> StoreProblem | None:
    """Check a blob that a conversation refers to, and return its problem or None.

    A repair cannot restore the blob, but deletes a damaged file so that the same bytes can be stored again.
    """
    try:
        blobs.read(digest)
    except BlobError as error:
        if not blobs.touch(digest):
            return StoreProblem(kind="missing-blob", message=str(error), conversation=conversation)
        if repair:
            blobs.remove([digest])
        return StoreProblem(kind="damaged-blob", message=str(error), conversation=conversation)
    return None


def orphan(digest: str, *, is_removed: bool) -> StoreProblem:
    """Return the problem for an unreferenced blob."""
    outcome = "it was removed" if is_removed else "a repair removes it"
    message = f"no record refers to the blob {digest}; {outcome}"
    return StoreProblem(kind="orphan-blob", message=message, is_repaired=is_removed)
