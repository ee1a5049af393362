"""Appends of many conversations to a SQLite file, written by a few statements: as if each had been written by itself."""

from pathlib import Path
from typing import Any

from sidestream.errors import ConflictError, FencedError
from sidestream.store.database import open_blobs
from sidestream.store.protocol import Append, ConversationInfo
from sidestream.store.records import Row
from sidestream.store.sqlite.file import MIGRATIONS, SqliteFile
from sidestream.store.sqlite.store import SqliteStore
from sidestream.store.sqlite.threads import Notifier, WriterThread
from sidestream.store.threads import QueuedCall
from support.stores import digest_of

COUNT = 150
"""More than one statement takes."""


class Talks:
    """A writer of a file, to which conversations are appended, in batches or one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = SqliteFile(path, MIGRATIONS, 5.0)
        self._writer = WriterThread(file, open_blobs(path.with_suffix(".blobs")), Notifier())

    async def append(self, *appends: Append) -> list[Any]:
        """The outcome of each: None, or its error."""
        jobs: list[QueuedCall[Any]] = [QueuedCall(append) for append in appends]
        self._writer.serve(jobs)
        outcomes: list[Any] = []
        for job in jobs:
            try:
                outcomes.append(await job.wait())
            except ConflictError as error:
                outcomes.append(error)
        return outcomes

    async def content(self) -> tuple[list[ConversationInfo], list[list[Row]]]:
        """The list of conversations, and the rows of each."""
        self.close()
        store = SqliteStore(self.path)
        try:
            found = await store.conversations(2 * COUNT)
            return found, [await store.read(info.id) for info in found]
        finally:
            await store.aclose()

    def close(self) -> None:
        self._writer.close()


def opening(number: int, token: str | None = None) -> Append:
    """How a conversation begins."""
    rows = [Row(seq=1, time=float(number), run="run_1", kind="step-start", body=b"{}")]
    return Append(f"talk{number}", 0, rows, {}, False, token)


def more(number: int, after: int = 1, token: str | None = None) -> Append:
    """What follows: a title, a model, and bytes that are no text."""
    message = b'{"type":"message","message":{"role":"user","parts":[{"type":"text","text":"Title %d"}]}}' % number
    bodies = {"message": message, "run-started": b'{"type":"run-started","model":"m:%d"}' % number, "text": b"\xff\x00"}
    rows = [
        Row(seq=after + 1 + place, time=1000.1 + number / 3, run=f"run_{number}", kind=kind, body=body)
        for place, (kind, body) in enumerate(list(bodies.items())[: 1 + number % 3])
    ]
    return Append(f"talk{number}", after, rows, {}, False, token)


async def test_grouped_appends_write_same_content_as_single_ones(tmp_path: Path) -> None:
    together, singly = Talks(tmp_path / "together.db"), Talks(tmp_path / "singly.db")
    for talks in (together, singly):
        await talks.append(*map(opening, range(COUNT)))
    assert await together.append(*map(more, range(COUNT))) == [None] * COUNT
    for number in range(COUNT):
        await singly.append(more(number))
    assert await together.content() == await singly.content()


async def test_grouped_appends_fail_only_those_with_conflict(tmp_path: Path) -> None:
    talks = Talks(tmp_path / "talks.db")
    await talks.append(*(opening(number, "2") for number in range(COUNT)))
    appends = [more(number, token="3") for number in range(COUNT)]
    appends[7] = more(7, after=2, token="3")
    appends[90] = more(90, token="1")
    outcomes = await talks.append(*appends)
    failed = {place: type(outcome) for place, outcome in enumerate(outcomes) if outcome is not None}
    assert failed == {7: ConflictError, 90: FencedError}
    found, rows = await talks.content()
    lengths = {info.id: len(each) for info, each in zip(found, rows, strict=True)}
    expected = {f"talk{number}": 1 + 1 + number % 3 for number in range(COUNT)} | {"talk7": 1, "talk90": 1}
    assert lengths == expected
    # The token of the others holds.
    assert [type(outcome) for outcome in await talks.append(more(0, after=2, token="2"), more(3, after=2))] == [
        FencedError,
        type(None),
    ]
    talks.close()


async def test_new_conversations_and_blobs_are_written_beside_group(tmp_path: Path) -> None:
    talks = Talks(tmp_path / "talks.db")
    await talks.append(*map(opening, range(4)))
    data, digest = b"an image", digest_of(b"an image")
    open_blobs(tmp_path / "talks.blobs").put(digest, data)
    file = Row(seq=2, time=5.0, run="run_1", kind="file", body=b"{}", blobs=(digest,))
    pictured = Append("talk2", 1, [file], {digest: data}, False)
    assert await talks.append(more(0), opening(9), pictured, more(1)) == [None] * 4
    assert await talks.append(more(3), more(3, after=2)) == [None, None]
    found, rows = await talks.content()
    lengths = {info.id: len(each) for info, each in zip(found, rows, strict=True)}
    assert lengths == {"talk0": 2, "talk1": 3, "talk2": 2, "talk3": 3, "talk9": 1}
    assert [row.blobs for each in rows for row in each if row.kind == "file"] == [(digest,)]
