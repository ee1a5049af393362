"""Chats of the web UI: a tree of branches, each with its own log, and snapshots of their messages.

Chat `abc` has the logs `abc`, `abc~2`, `abc~3`. An edited or repeated question starts a new log, which begins with the
history before the question. Nothing is deleted; `Fork` records where a branch left its parent.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from sidestream.durable.log.jobs import Job, job_in
from sidestream.durable.log.open_runs import job_of
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart
from sidestream.parts import StreamPart
from sidestream.protocols.ai_sdk.content import user_parts
from sidestream.protocols.ai_sdk.message import Chunk, UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import ChatResult, fold as fold_chunks
from sidestream.server.errors import RequestError, not_found
from sidestream.server.file_links import PATH
from sidestream.server.server import Server
from sidestream.store import records
from sidestream.store.ids import ConversationId, chat_of, is_id
from sidestream.store.log.fold import LogState, fold, joined, stream_of
from sidestream.tools.approvals import PendingApproval
from sidestream.tools.grants import Grant
from sidestream.turn.state import TurnStatus, status_after

MESSAGE_ID = "message_id"
"""Metadata key for the message id that the web UI assigned to a user message."""
MAX_LEAVES = 1000
_GRANT = b'"grant":{'
"""Marks the record of a decision with a remembered approval."""
_MAX_DEPTH = 100
"""Maximum depth of nested branches."""


class Fork(Struct, frozen=True):
    """The position at which a branch left its parent."""

    leaf: int
    before: int
    """Sequence number of the message in the parent's log that the branch replaces."""
    index: int
    """Number of messages that both branches share."""


class Leaf(Struct, frozen=True, kw_only=True):
    """A branch of a chat."""

    number: int
    id: str
    """Conversation id in the store."""
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
        """The sequence number of the message that opened the last turn."""
        return next((row.seq for row in reversed(self.rows) if row.kind == "message"), 1)

    @property
    def is_live(self) -> bool:
        """Whether a run is in progress in the branch, in any process."""
        return job_of(records.open_run(self.rows)) is not None

    @property
    def run_start(self) -> int:
        """The sequence number of the record that started or resumed the last run."""
        return next((row.seq for row in reversed(self.rows) if row.kind == "run-started"), 0)

    @property
    def run(self) -> str:
        """Id of the last run."""
        return next((row.run for row in reversed(self.rows) if row.kind == "run-started"), "")


class StoredChat:
    """One chat of one tenant, as of the time it was read."""

    def __init__(self, server: Server, owner: str, id: str, leaves: dict[int, Leaf]) -> None:
        self.server = server
        self.owner = owner
        self.id = id
        self.leaves = leaves

    @property
    def exists(self) -> bool:
        return bool(self.leaves)

    def leaf(self, number: int | None = None) -> Leaf:
        """Return a branch, or without a number the one that changed last. Raises RequestError(404) if there is none."""
        if not self.leaves:
            raise not_found("chat", self.id)
        if number is None:
            return max(self.leaves.values(), key=lambda leaf: (leaf.is_live, leaf.updated))
        if number not in self.leaves:
            raise not_found("branch", str(number), param="leaf")
        return self.leaves[number]

    def stored_id(self, leaf: int) -> str:
        """Return the store id of a branch."""
        return str(ConversationId(self.owner, self.id, leaf))

    def chain(self, leaf: Leaf) -> list[tuple[Leaf, Sequence[records.Row]]]:
        """Return the logs that make up a branch, oldest first, each with the rows that belong to the branch."""
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
        """Return the state of a branch, at its end or before a record."""
        rows = [row for row in leaf.rows if before is None or row.seq < before]
        return fold(joined([await self.server.store.record(row, load=row.kind != "step-finish") for row in rows]))

    def grants(self, leaf: Leaf) -> tuple[Grant, ...]:
        """Return the remembered approvals of a branch. Skips the fold for the many logs that have none."""
        if not any(
            row.kind == "grants" or (row.kind == "approval-decided" and _GRANT in row.body) for row in leaf.rows
        ):
            return ()
        return fold(joined([records.unpack(row) for row in leaf.rows])).grants

    def answer(self, leaf: Leaf, message: str) -> tuple[Job, ChatResult[str]]:
        """Return an answer of a branch, with the job that asked for it. Raises RequestError(404) if there is none."""
        rows = [row for _, part in self.chain(leaf) for row in part if row.run == run_of_message(message)]
        jobs = (job_in(_details(row)) for row in rows if row.kind == "run-started")
        job = next((job for job in jobs if job is not None), None)
        if job is None:
            raise not_found("message", message, param="message")
        folding = ChunkFold()
        stream = stream_of([records.unpack(row) for row in rows])
        return job, fold_chunks([chunk for part in stream for chunk in folding.feed(part)])

    def last_job(self, leaf: Leaf) -> Job | None:
        """Return the job of a branch's last run."""
        row = next((row for row in reversed(leaf.rows) if row.kind == "run-started"), None)
        return None if row is None else job_in(_details(row))


async def read_chat(server: Server, owner: str, id: str) -> StoredChat:
    """Read a chat with all its branches, which has no branches if it does not exist."""
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
    """Raise RequestError if a string is not a valid chat id."""
    if not is_id(id) or "/" in id or "~" in id or len(id) > 200 or id in (".", ".."):  # Not valid in a path.
        raise RequestError(400, "id must be a string of 1 to 200 characters without / and ~", param="id")


def message_id_of(run: str) -> str:
    """Return the id of the assistant's message, which is the same for all runs of a turn."""
    return f"msg_{run.removeprefix('run_')}"


def run_of_message(message: str) -> str:
    """Return the id of the run that an assistant's message belongs to."""
    return f"run_{message.removeprefix('msg_')}"


class TurnEncoder(Protocol):
    """Encodes the parts of a turn, and the state changes that no part reports, as the chunks of a protocol."""

    def feed(self, part: StreamPart, at: float | None = None, seq: int | None = None) -> list[Chunk]: ...
    def asked(self, approval: PendingApproval, at: float | None = None) -> list[Chunk]: ...
    def decided(self, approval_id: str, is_approved: bool, reason: str | None = None) -> list[Chunk]: ...
    def began(self, provider: str) -> list[Chunk]: ...
    def resumed(self, *, after_restart: bool = False) -> list[Chunk]: ...
    def cancelled(self) -> list[Chunk]: ...
    def failed(self, message: str) -> list[Chunk]: ...
    def rejoined(self) -> list[Chunk]: ...


def chunks_of(record: records.Record, encoder: TurnEncoder) -> list[Chunk]:
    """Return the chunks that a record adds to the stream of its turn."""
    match record.body:
        case records.Segment(parts=parts):
            return [chunk for part in parts for chunk in encoder.feed(part, record.time, record.seq)]
        case records.RunStarted(model=model, resumes=False, details=details):
            began = encoder.began(model.partition(":")[0])
            return began + _queued(job_in(details), record, encoder)
        case records.RunStarted(details=details):
            job = job_in(details)
            resumed = encoder.resumed(after_restart=job is not None and job.attempt > 1 and not job.has_expired)
            return resumed + _queued(job, record, encoder)
        case records.ApprovalAsked(approval=approval):
            return encoder.asked(approval, record.time)
        case records.ApprovalDecided(decision=decision):
            return encoder.decided(decision.approval_id, decision.is_approved, decision.reason)
        case records.RunCancelled():
            return encoder.cancelled()
        case _:
            return []


def _queued(job: Job | None, record: records.Record, encoder: TurnEncoder) -> list[Chunk]:
    """Return the chunks that report a run in the queue."""
    wait = job.queue_wait(record.time) if job is not None else None
    return [] if wait is None else encoder.feed(wait.part(), record.time, record.seq)


Link = Callable[[str], str]
"""Returns the URL of a blob for the client that reads it."""


def relative_link(digest: str) -> str:
    """Return the URL of a blob for pages of this server."""
    return PATH + digest


class Blobs:
    """The blobs named by the records of a stream, and their URLs on this server."""

    def __init__(self, link: Link = relative_link) -> None:
        self._known: set[str] = set()
        self._link = link

    def add(self, digests: Iterable[str]) -> None:
        """Add the digests that a record names."""
        self._known.update(digests)

    def url_of(self, digest: str) -> str | None:
        """Return the URL of a blob, or None if the digest is unknown."""
        return self._link(digest) if digest in self._known else None


async def loaded(server: Server, conversation: str, record: records.Record) -> records.Record:
    """Return the record, with its blobs loaded if it is an approval, because approvers need to see all arguments."""
    if not record.blobs or record.kind not in ("tool-approval-request", "approval-asked"):
        return record
    rows = await server.store.read(conversation, record.seq - 1)
    return await server.store.record(rows[0], load=True)


class Snapshot:
    """The messages of a branch as the web UI shows them."""

    def __init__(self, approval_s: float | None = None, link: Link = relative_link) -> None:
        self._approval_s = approval_s
        self.messages: list[JsonObject] = []
        self.run: JsonObject | None = None
        self.places: dict[str, tuple[Leaf, int, int]] = {}
        """Positions by message id: the log, the user message's sequence number in it, and the index in `messages`."""
        self._blobs = Blobs(link)
        self._turn: tuple[UIMessageEncoder, UIMessageFold] | None = None
        self._ended: list[tuple[UIMessageEncoder, UIMessageFold, int]] = []
        """Finished turns, with the index of their message."""

    async def add(self, server: Server, leaf: Leaf, rows: Iterable[records.Row], *, imported: bool) -> None:
        """Add the rows of a log."""
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
                case records.EvidenceChecked(claims=claims):
                    self._checked(claims, message_id_of(record.run))
                case _:
                    self._fold(record)

    def _checked(self, claims: Sequence[records.CheckedClaim], message: str) -> None:
        """Show what a check has established on the message of its run, or on the latest turn that has these claims."""
        turns = [entry for entry in self._ended if entry[2] < len(self.messages)]
        if self._turn is not None:
            turns.append((*self._turn, len(self.messages)))
        for encoder, folding, index in sorted(turns, key=lambda turn: (turn[0].message_id != message, -turn[2])):
            if chunks := encoder.blocks.checked(claims):
                folding.feed(chunks)
                if index < len(self.messages):
                    self.messages[index] = folding.message()
                return

    def finish(self) -> list[JsonObject]:
        """End the last turn and return all messages."""
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
            self._ended.append((*self._turn, len(self.messages)))
            self.messages.append(self._turn[1].message())
            self._turn = None


async def snapshot_of(chat: StoredChat, leaf: Leaf, link: Link = relative_link) -> Snapshot:
    """Return a snapshot of a branch's messages."""
    snapshot = Snapshot(chat.server.settings.approval_s, link)
    for log, rows in chat.chain(leaf):
        await snapshot.add(chat.server, log, rows, imported=log.fork is None)
    snapshot.finish()
    if snapshot.run is not None and leaf.is_live:
        snapshot.run["status"] = "running"
        if (job := chat.last_job(leaf)) is not None and job.attempt == 0 and job.at is not None:
            snapshot.run["at"] = job.at  # The message is scheduled for this time.
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
