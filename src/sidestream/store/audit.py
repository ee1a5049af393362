"""Whether what a store holds is whole: the checks that every store shares."""

from typing import Literal

from sidestream import jsontext
from sidestream.errors import BlobError
from sidestream.store.blobs import BlobFolder
from sidestream.store.protocol import StoreProblem

MAX_PROBLEMS = 100
"""Told of one conversation; more would be noise."""


class Audit:
    """Looks at the rows of one conversation, in order; `whole` is how many at its beginning are whole."""

    def __init__(self, conversation: str, head: int) -> None:
        self.conversation = conversation
        self.head = head
        self.whole = 0
        self.last_kind = ""
        """The kind of the last row that is whole."""
        self._last = 0
        self.problems: list[StoreProblem] = []
        """Everything that is wrong with the conversation."""

    def feed(self, seq: int, kind: str, body: bytes) -> None:
        """Takes the next row."""
        if seq != self._last + 1:
            self._found("gap", f"the records {self._last + 1} to {seq - 1} are missing")
        if not is_json(body):
            self._found("unreadable-record", f"the record {seq} is no JSON")
        if not self.problems:
            self.whole, self.last_kind = seq, kind
        self._last = seq

    def close(self) -> None:
        """There are no more rows."""
        if self._last < self.head:
            self._found("gap", f"the records {self._last + 1} to {self.head} are missing")
        elif self._last > self.head:
            self._found("gap", f"there are {self._last} records, but {self.head} were counted")

    def repaired(self) -> list[StoreProblem]:
        """The same problems, once the conversation was cut to its whole beginning."""
        lost = max(self._last, self.head) - self.whole
        words = f"; it was cut to its first {self.whole} records, {lost} are lost"
        return [
            StoreProblem(kind=it.kind, message=it.message + words, conversation=it.conversation, is_repaired=True)
            for it in self.problems
        ]

    def _found(self, kind: Literal["gap", "unreadable-record"], words: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            text = f"in {self.conversation!r}, {words}"
            self.problems.append(StoreProblem(kind=kind, message=text, conversation=self.conversation))


def is_json(body: bytes) -> bool:
    """Whether the body of a row can be read at all."""
    try:
        jsontext.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def audit_blob(folder: BlobFolder, digest: str, conversation: str, *, repair: bool) -> StoreProblem | None:
    """What is wrong with a blob that a conversation refers to.

    Repairing cannot bring it back: a damaged file is removed, so that the same bytes can be stored again.
    """
    try:
        folder.read(digest)
    except BlobError as error:
        if not folder.touch(digest):
            return StoreProblem(kind="missing-blob", message=str(error), conversation=conversation)
        if repair:
            folder.remove(digest)
        return StoreProblem(kind="damaged-blob", message=str(error), conversation=conversation)
    return None


def orphan(digest: str, *, is_removed: bool) -> StoreProblem:
    """The problem of a blob that no record names."""
    words = "it was removed" if is_removed else "a repair removes it"
    return StoreProblem(
        kind="orphan-blob", message=f"no record refers to the blob {digest}; {words}", is_repaired=is_removed
    )
