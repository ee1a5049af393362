"""Chats as the page knows them: a tree of branches, each a log, and their messages as a snapshot.

Chat `abc` has the logs `abc`, `abc~2`, `abc~3`: an edited or repeated question starts a new one, which begins with the
history before it. Nothing is deleted; `Fork` says where the branch left its parent.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from sidestream.durable.log.jobs import Job, job_in
from sidestream.durable.log.open_runs import job_of
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart
from sidestream.protocols.ai_sdk.content import user_parts
from sidestream.protocols.ai_sdk.message import Chunk, UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.server.errors import RequestError, not_found
from sidestream.server.server import Server
from sidestream.store import records
from sidestream.store.ids import ConversationId, chat_of, is_id
from sidestream.store.log.fold import LogState, fold, joined
from sidestream.stream.parts import StreamPart
from sidestream.tools.approvals import PendingApproval
from sidestream.tools.grants import Grant
from sidestream.turn.state import TurnStatus, status_after

MESSAGE_ID = "message_id"
"""The metadata key of a user's message with the id that the page gave it."""
MAX_LEAVES = 1000
_GRANT = b'"grant":{'
"""What the record of a decision holds if it is remembered."""
_MAX_DEPTH = 100
"""Branches of branches."""


class Fork(Struct, frozen=True):
    """Where a branch left its parent."""

    leaf: int
    before: int
    """The number of the message in the parent's log in whose place the branch has another."""
    index: int
    """How many messages the two share."""


class Leaf(Struct, frozen=True, kw_only=True):
    """A branch of a chat."""

    number: int
    id: str
    """In the store."""
    rows: tuple[records.Row, ...]
    fork: Fork | None

    @property
    def updated(self) -> float:
        return self.rows[-1].time

    @property
    def head(self) -> int:
        return self.rows[-1].seq

    @property
    def turn_start(self) -> int:
        """The number of the message that opened the last turn."""
        return next((row.seq for row in reversed(self.rows) if row.kind == "message"), 1)

    @property
    def is_live(self) -> bool:
        """True if a run is in progress there, wherever it is driven."""
        return job_of(records.open_run(self.rows)) is not None

    @property
    def run_start(self) -> int:
        """The number of the record with which the last run began, or resumed."""
        return next((row.seq for row in reversed(self.rows) if row.kind == "run-started"), 0)


class StoredChat:
    """One chat of one owner, as it was when it was read."""

    def __init__(self, server: Server, owner: str, id: str, leaves: dict[int, Leaf]) -> None:
        self.server = server
        self.owner = owner
        self.id = id
        self.leaves = leaves

    @property
    def exists(self) -> bool:
        return bool(self.leaves)

    def leaf(self, number: int | None = None) -> Leaf:
        """A branch; without a number, the one that changed last. Raises RequestError(404)."""
        if not self.leaves:
            raise not_found("chat", self.id)
        if number is None:
            return max(self.leaves.values(), key=lambda leaf: (leaf.is_live, leaf.updated))
        if number not in self.leaves:
            raise not_found("branch", str(number), param="leaf")
        return self.leaves[number]

    def stored_id(self, leaf: int) -> str:
        """The id of a branch in the store."""
        return str(ConversationId(self.owner, self.id, leaf))

    def chain(self, leaf: Leaf) -> list[tuple[Leaf, Sequence[records.Row]]]:
        """The logs that a branch is made of, with the rows of each that count, oldest first."""
        parts: list[tuple[Leaf, Sequence[records.Row]]] = []
        rows: Sequence[records.Row] = leaf.rows
        while leaf.fork is not None and len(parts) < _MAX_DEPTH and leaf.fork.leaf in self.leaves:
            own = next((index for index, row in enumerate(rows) if row.kind == "run-started"), 0)
            parts.append((leaf, rows[max(own - 1, 0) :]))
            before, leaf = leaf.fork.before, self.leaves[leaf.fork.leaf]
            rows = [row for row in leaf.rows if row.seq < before]
        parts.append((leaf, rows))
        return parts[::-1]

    async def state(self, leaf: Leaf, before: int | None = None) -> LogState:
        """The state that a branch folds to, at its end or before a record."""
        rows = [row for row in leaf.rows if before is None or row.seq < before]
        return fold(joined([await self.server.store.record(row, load=row.kind != "step-finish") for row in rows]))

    def grants(self, leaf: Leaf) -> tuple[Grant, ...]:
        """The tools that a person has allowed. Most logs have none, and are not folded for that."""
        if not any(
            row.kind == "grants" or (row.kind == "approval-decided" and _GRANT in row.body) for row in leaf.rows
        ):
            return ()
        return fold(joined([records.unpack(row) for row in leaf.rows])).grants

    def last_job(self, leaf: Leaf) -> Job | None:
        """What the last run of a branch was started with."""
        row = next((row for row in reversed(leaf.rows) if row.kind == "run-started"), None)
        return None if row is None else job_in(_details(row))


async def read_chat(server: Server, owner: str, id: str) -> StoredChat:
    """A chat with all its branches; one that does not exist has none."""
    check_chat_id(id)
    base = str(ConversationId(owner, id))
    forks = await server.store.conversations(MAX_LEAVES, prefix=f"{base}~")
    numbers = {1: base} | {ConversationId.parse(info.id).branch: info.id for info in forks if chat_of(info.id) == base}
    leaves: dict[int, Leaf] = {}
    for number, stored in sorted(numbers.items()):
        if rows := await server.store.read(stored):
            leaves[number] = Leaf(number=number, id=stored, rows=tuple(rows), fork=_fork(rows))
    return StoredChat(server, owner, id, leaves)


def check_chat_id(id: str) -> None:
    """Raises RequestError for a text that cannot be a chat's id."""
    if not is_id(id) or "/" in id or "~" in id or len(id) > 200 or id in (".", ".."):  # No path could name these.
        raise RequestError(400, "a chat's id is a text of 1 to 200 characters without / and ~", param="id")


def message_id_of(run: str) -> str:
    """The id of the assistant's message: all runs of a turn have one id."""
    return f"msg_{run.removeprefix('run_')}"


class TurnEncoder(Protocol):
    """Makes the chunks of a protocol of the parts of a turn, and of the facts that no part reports."""

    def feed(self, part: StreamPart, at: float | None = None, seq: int | None = None) -> list[Chunk]: ...
    def asked(self, approval: PendingApproval, at: float | None = None) -> list[Chunk]: ...
    def decided(self, approval_id: str, is_approved: bool, reason: str | None = None) -> list[Chunk]: ...
    def began(self, provider: str) -> list[Chunk]: ...
    def resumed(self, *, after_restart: bool = False) -> list[Chunk]: ...
    def cancelled(self) -> list[Chunk]: ...
    def failed(self, message: str) -> list[Chunk]: ...
    def rejoined(self) -> list[Chunk]: ...


def chunks_of(record: records.Record, encoder: TurnEncoder) -> list[Chunk]:
    """What a record adds to the stream of its turn."""
    match record.body:
        case records.Segment(parts=parts):
            return [chunk for part in parts for chunk in encoder.feed(part, record.time, record.seq)]
        case records.RunStarted(model=model, resumes=False):
            return encoder.began(model.partition(":")[0])
        case records.RunStarted(details=details):
            job = job_in(details)
            return encoder.resumed(after_restart=job is not None and job.attempt > 1 and not job.has_expired)
        case records.ApprovalAsked(approval=approval):
            return encoder.asked(approval, record.time)
        case records.ApprovalDecided(decision=decision):
            return encoder.decided(decision.approval_id, decision.is_approved, decision.reason)
        case records.RunCancelled():
            return encoder.cancelled()
        case _:
            return []


class Blobs:
    """Which blobs the records of a stream name, and the URLs at which the server has them."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, digests: Iterable[str]) -> None:
        """A record names these."""
        self._known.update(digests)

    def url_of(self, digest: str) -> str | None:
        """The URL of a blob; None for a text that only looks like the address of one."""
        return f"/api/blobs/{digest}" if digest in self._known else None


async def loaded(server: Server, conversation: str, record: records.Record) -> records.Record:
    """The record; a person decides on all of a call's arguments, so those of an approval are read whole."""
    if not record.blobs or record.kind not in ("tool-approval-request", "approval-asked"):
        return record
    rows = await server.store.read(conversation, record.seq - 1)
    return await server.store.record(rows[0], load=True)


class Snapshot:
    """The messages of a branch, as the page shows them."""

    def __init__(self, approval_s: float | None = None) -> None:
        self._approval_s = approval_s
        self.messages: list[JsonObject] = []
        self.run: JsonObject | None = None
        self.places: dict[str, tuple[Leaf, int, int]] = {}
        """Id of a message → the log it is in, the number of the user's message there, and its place among all."""
        self._blobs = Blobs()
        self._turn: tuple[UIMessageEncoder, UIMessageFold] | None = None

    async def add(self, server: Server, leaf: Leaf, rows: Iterable[records.Row], *, imported: bool) -> None:
        """Takes the rows of a log."""
        opener = 0
        for row in rows:
            record = await loaded(server, leaf.id, records.unpack(row))
            self._blobs.add(record.blobs)
            match record.body:
                case records.MessageAdded(opens_turn=opens_turn) as body:
                    self._end_turn()
                    if opens_turn or imported:
                        opener = row.seq
                        self._message(body.message, record, leaf)
                case records.TurnDiscarded():
                    self._turn = None
                    self._drop(opener, leaf)
                case records.RunStarted(resumes=resumes) as body:
                    self._run_started(record, leaf, opener, resumes=resumes)
                    self._fold(record)
                case _:
                    self._fold(record)

    def finish(self) -> list[JsonObject]:
        """All messages."""
        self._end_turn()
        return self.messages

    def _message(self, message: ChatMessage, record: records.Record, leaf: Leaf) -> None:
        id = message.metadata.get(MESSAGE_ID) or f"msg_{leaf.number}_{record.seq}"
        if message.role not in ("user", "model"):
            return
        content = [part for part in message.parts if isinstance(part, TextPart | DataPart | LinkPart)]
        self.places[str(id)] = (leaf, record.seq, len(self.messages))
        self.messages.append(
            {
                "id": id,
                "role": "user" if message.role == "user" else "assistant",
                "metadata": {"createdAt": record.time, "seq": record.seq},
                "parts": user_parts(content, self._blobs.url_of),
            }
        )

    def _drop(self, opener: int, leaf: Leaf) -> None:
        while self.messages and self.places.get(str(self.messages[-1]["id"]), (leaf, 0, 0))[:2] == (leaf, opener):
            self.places.pop(str(self.messages.pop()["id"]), None)

    def _run_started(self, record: records.Record, leaf: Leaf, opener: int, *, resumes: bool) -> None:
        self.run = {"id": record.run, "status": "unfinished", "seq": record.seq}
        if resumes and self._turn is not None:
            return
        self._end_turn()
        id = message_id_of(record.run)
        self.places[id] = (leaf, opener, len(self.messages))
        encoder = UIMessageEncoder(
            id, run=record.run, url_of=self._blobs.url_of, steering=True, approval_s=self._approval_s
        )
        self._turn = (encoder, UIMessageFold(id))

    def _fold(self, record: records.Record) -> None:
        if self._turn is None:
            return
        encoder, folding = self._turn
        folding.feed(chunks_of(record, encoder))
        if self.run is not None and (status := _status(record)) is not None:
            self.run["status"] = status

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn[1].message())
            self._turn = None


async def snapshot_of(chat: StoredChat, leaf: Leaf) -> Snapshot:
    """The messages of a branch."""
    snapshot = Snapshot(chat.server.settings.approval_s)
    for log, rows in chat.chain(leaf):
        await snapshot.add(chat.server, log, rows, imported=log.fork is None)
    snapshot.finish()
    if snapshot.run is not None and leaf.is_live:
        snapshot.run["status"] = "running"
        if (job := chat.last_job(leaf)) is not None and job.attempt == 0 and job.at is not None:
            snapshot.run["at"] = job.at  # It is sent then.
    return snapshot


def _status(record: records.Record) -> TurnStatus | None:
    match record.body:
        case records.Segment(kind="finish", parts=(part, *_)):
            return status_after(getattr(part, "reason", None))
        case records.RunCancelled():
            return "cancelled"
        case _:
            return None


def _fork(rows: Sequence[records.Row]) -> Fork | None:
    row = next((row for row in rows if row.kind == "run-started"), None)
    job = None if row is None else job_in(_details(row))
    if job is None or "fork" not in job.details:
        return None
    try:
        return msgspec.convert(job.details["fork"], Fork)
    except msgspec.ValidationError:
        return None


def _details(row: records.Row) -> dict[str, Any]:
    body = records.unpack(row).body
    return body.details if isinstance(body, records.RunStarted) else {}
