"""Writes a run into the log while it streams."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from sidestream.errors import ConflictError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.limits import MAX_UNSTORED_BYTES
from sidestream.logs import get_logger
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import blobs_of
from sidestream.store.log.flush_schedule import Moments, moments
from sidestream.store.log.segments import SegmentFold
from sidestream.store.protocol import Store
from sidestream.store.records import (
    STEP_FINISH,
    ApprovalAsked,
    ApprovalDecided,
    Body,
    GrantsSet,
    MessageAdded,
    RequestPrepared,
    Row,
    RunCancelled,
    RunStarted,
    ToolStarted,
    ToolSuspended,
    kind_of,
    pack,
    unpack,
)
from sidestream.stream.parts import Custom, StreamPart, ToolCall
from sidestream.tools.approvals import Decision, PendingApproval, Suspended, already_used
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy

NOT_STORED = "sidestream.not-stored"
"""The kind of the custom part that reports, once, that the run is no longer recorded."""

INCREMENT_BYTES = 16 * 1024
"""More than this is written at once, unless something was written just before."""
INCREMENT_GAP_S = 0.02
"""How long after a write that is. A stream that comes faster than any provider sends is not slowed down by its log."""

RETRY_WAIT_S = 2.0
"""How long the next turn waits for a store that failed: a server that does not respond must not block it."""

OUTAGE_S = 30.0
"""How long a run waits for a server that is away, such as one that restarts, before it continues without its log."""
OUTAGE_WAIT_S = 2.0
"""The longest wait between two attempts meanwhile."""
FAILED_WAIT_S = 5.0
"""How long after a failure a run that streams without its log tries to write again."""

_UNFLUSHED = frozenset(
    [
        "message",
        "run-started",
        "stream-start",
        "step-start",
        "response-metadata",
        "text-delta",
        "reasoning-delta",
        "tool-input",
        "tool-event",
        "source",
    ]
)
"""Records that need only outlive the process: the beginning of a turn, and what a resumed turn requests again."""

_URGENT = frozenset(["custom"])
"""Records that are written as soon as the store is free: among them is the id of an answer in the background, without
which whoever resumes the run would request a second answer."""

_log = get_logger(__name__)


class LogDetail(Struct, frozen=True, kw_only=True):
    """How closely a log follows its runs."""

    interval_s: float = 0.25
    """What has come is written after this time: followers see it, and a killed process has not lost it."""
    previews: bool = False
    """Whether previews are kept, such as an image's first versions."""
    inputs: bool = False
    """Whether it is kept how the inputs of tools are written, delta by delta; the calls have them anyway."""


USUAL_DETAIL = LogDetail()


class Writer:
    """Appends the records of one conversation, in order, each batch after the one before.

    Someone else who writes to the conversation makes it stop with ConflictError, so turns never interleave. While a run
    streams, its log is at most `LogDetail.interval_s` or `INCREMENT_BYTES` behind, as fast as the store writes. A
    server that is away is waited for, up to `OUTAGE_S`. What could not be written is kept, up to `MAX_UNSTORED_BYTES`,
    and written once the store works again.
    """

    def __init__(
        self,
        store: Store,
        conversation: str,
        head: int,
        *,
        detail: LogDetail = USUAL_DETAIL,
        gap_s: float = INCREMENT_GAP_S,
        run: str = "",
    ) -> None:
        self.conversation = conversation
        self.head = head
        """The number of the last record that is safe."""
        self.error: StoreError | None = None
        """Why nothing is written at the moment; None while the next attempt may succeed."""
        self._failure: StoreError | None = None
        """Of the last attempt."""
        self._is_given_up = False
        """True if something was not kept: what follows would leave a gap."""
        self._store = store
        self._run = run
        self._decisions: tuple[Decision, ...] = ()
        """Those that the run begins with."""
        self._detail = detail
        self._segments = SegmentFold(previews=detail.previews, inputs=detail.inputs)
        self.run_details: JsonObject = {}
        """What the next run's first record says of it."""
        self._next = head
        self._rows: list[Row] = []
        self._size = 0
        """Bytes of these rows."""
        self._blobs: dict[str, bytes] = {}
        self._unsafe: dict[str, bytes] = {}
        """Blobs that are being written, or never will be."""
        self._writing: asyncio.Future[None] | None = None
        """The append that is under way: its task, or what whoever makes it sets at its end."""
        self._is_uncertain = False
        """True if an append that failed, or was cancelled, may have been stored."""
        self._gap_s = gap_s
        self._written_s = 0.0
        """When the last write began, by the clock of the loop."""
        self._moments: Moments | None = None
        """Set while there is something to write at the next one."""
        self._is_due = False
        """True if more is to be written as soon as the store is free."""
        self._is_reported = False

    def begin(
        self,
        run_id: str,
        *,
        model: str,
        opening: Sequence[ChatMessage],
        message_metadata: MessageMetadata,
        decisions: Sequence[Decision],
    ) -> None:
        """The run begins with its opening messages, or, without any, resumes after these decisions.

        Raises StoreError, with nothing recorded, if one of them cannot be stored.
        """
        self._retry()
        self._run = run_id
        self._decisions = tuple(decisions)
        self._segments = SegmentFold(previews=self._detail.previews, inputs=self._detail.inputs)
        started = RunStarted(model, message_metadata, resumes=not opening, details=self.run_details)
        bodies: list[Body] = [*map(MessageAdded, opening), started, *map(ApprovalDecided, decisions)]
        for body, packed in [(body, pack(body)) for body in bodies]:
            self._add(kind_of(body), *packed)

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """The next parts of the stream."""
        fold = self._segments
        is_urgent = False
        for segment in fold.feed(parts):
            self.add(segment)
            is_urgent = is_urgent or segment.kind in _URGENT
        loop = asyncio.get_running_loop()
        if self.error is not None:
            if loop.time() >= self._written_s + FAILED_WAIT_S:
                self._retry()
            return
        if not fold.size and not self._rows:
            return
        is_large = fold.size + self._size >= INCREMENT_BYTES and loop.time() >= self._written_s + self._gap_s
        if is_large or is_urgent:
            self.write_due()
        elif self._moments is None:
            self._moments = moments(self._detail.interval_s, self.conversation)
            self._moments.add(self)

    def tool_started(self, call: ToolCall, key: str, policy: InterruptionPolicy) -> None:
        """A client tool is about to run."""
        self.add(ToolStarted(call.id, call.name, key, policy))

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """A request is about to be sent that differs from the usual one."""
        self.add(RequestPrepared(tuple(sorted(without)), defers_output))

    def asked(self, approval: PendingApproval) -> None:
        """A call waits for a person."""
        self.add(ApprovalAsked(approval))

    def granted(self, grants: Sequence[Grant]) -> None:
        """These tools are allowed in the conversation from now on."""
        self.add(GrantsSet(tuple(grants)))

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """A tool waits for a person, or for work that is done elsewhere."""
        self.add(ToolSuspended(call_id, suspended))

    def left(self) -> None:
        """The run is left where it is: what has come of open blocks is written now, and nothing later."""
        for segment in self._segments.end():
            self.add(segment)

    def cancelled(self) -> None:
        """The run is left before its end."""
        for segment in self._segments.end():
            self.add(segment)
        self.add(RunCancelled())

    async def add_history(self, messages: Iterable[ChatMessage]) -> None:
        """Adds the messages that the conversation begins with. What they refer to in this store is kept for it too."""
        for body in imported(messages):
            self.add(body, await self.read_blobs(blobs_of(body.message)))

    def add(self, body: Body, referred: Mapping[str, bytes] | None = None) -> None:
        """Adds a record, with blobs that it refers to without holding them; it is safe after the next `commit`.

        One that could not be read again is not written, and neither is what follows: `commit` reports it.
        """
        try:
            data, blobs = pack(body)
        except StoreError as error:
            self._give_up(error)
            return
        self._add(kind_of(body), data, {**blobs, **referred} if referred else blobs)

    def _add(self, kind: str, data: bytes, blobs: dict[str, bytes]) -> None:
        if self._is_given_up:
            self._unsafe |= blobs if kind == STEP_FINISH else {}
            return
        self._next += 1
        row = Row(seq=self._next, time=time.time(), run=self._run, kind=kind, body=data, blobs=tuple(blobs))
        self._rows.append(row)
        self._size += len(data)
        if blobs:
            self._size += sum(map(len, blobs.values()))
            self._blobs |= blobs
        if self._failure is not None and self._size > MAX_UNSTORED_BYTES:
            self._give_up(self._failure)

    async def commit(self) -> StreamPart | None:
        """Waits until everything so far is safe; gives a notice, once, where it cannot be.

        Raises ConflictError if someone else has written, and ApprovalError if they have used the same decision.
        """
        while self.error is None and (self._rows or self._writing is not None):
            # The tools of a round commit side by side: one of them appends for all.
            if self._writing is None:
                await self._append_here()
            else:
                await asyncio.shield(self._writing)
        if not self._segments.size:
            self._stop_waiting()
        if isinstance(self.error, ConflictError):
            await self._check_unused()
            raise self.error
        if self.error is None or self._is_reported:
            return None
        self._is_reported = True
        return Custom(NOT_STORED, {"message": f"the conversation is no longer recorded: {self.error}"})

    async def recover(self) -> StoreError | None:
        """Writes what a failing store did not take; returns why it still fails. Waits at most `RETRY_WAIT_S`."""
        self._retry()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=RETRY_WAIT_S)
        return self.error

    async def _check_unused(self) -> None:
        """Raises ApprovalError where the conflict is that someone else has used a decision of this run."""
        if self._decisions:
            rows = await self._store.read(self.conversation, self.head)
            bodies = [unpack(row).body for row in rows if row.kind == "approval-decided"]
            used = {body.decision.key for body in bodies if isinstance(body, ApprovalDecided)}
            for decision in self._decisions:
                if decision.key in used:
                    raise already_used(decision)

    def write_due(self) -> None:
        """Writes all that has come, open blocks included, once the store is free."""
        self._stop_waiting()
        if self.error is not None:
            return
        self._is_due = self._writing is not None
        if not self._is_due:
            for segment in self._segments.increments():
                self.add(segment)
            self._write()

    async def read_blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """What messages refer to: from the store, or from here while it is not safe yet. What is lost is left out."""
        here = self._unsafe | self._blobs
        found = {digest: here[digest] for digest in digests if digest in here}
        for digest in digests:
            if digest not in found:
                with suppress(StoreError):
                    found[digest] = await self._store.blob(digest)
        return found

    def _write(self) -> None:
        """Hands the rows to the store, unless it is still busy with earlier ones."""
        if self._writing is None and self._rows:
            self._writing = asyncio.create_task(self._append())

    async def _append_here(self) -> None:
        """Appends without a task, whose beginning and end would each wait for their turn in the event loop."""
        writing = self._writing = asyncio.get_running_loop().create_future()
        try:
            await self._append()
        finally:
            writing.set_result(None)

    def _retry(self) -> None:
        """Tries once more to write, if the last attempt failed."""
        if self.error is not None:
            self._write()

    async def _append(self) -> None:
        """Stores the rows. Cancelled, it leaves them for the next append."""
        clock = asyncio.get_running_loop().time
        self._written_s = clock()
        deadline_s, wait_s = self._written_s + OUTAGE_S, 0.1
        try:
            while not await self._attempt(may_pass=clock() + wait_s < deadline_s):
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, OUTAGE_WAIT_S)
        finally:
            self._writing = None
        if self._is_due:
            self.write_due()

    async def _attempt(self, *, may_pass: bool) -> bool:
        """Writes all that there is; False if that is to be tried again soon, which `may_pass` allows."""
        rows, self._rows, self._size = self._rows, [], 0
        blobs, self._blobs = self._blobs, {}
        self._unsafe |= blobs
        try:
            await self._store_rows(rows, blobs)
        except StoreError as error:
            self._keep(error, rows, blobs)
            if may_pass and error.retryable and not self._is_given_up:
                return False
            self._failed(error)
            return True
        except BaseException:  # The store completes what it has begun, but nobody has heard of it.
            self._put_back(rows, blobs)
            raise
        if not self._is_given_up:
            self.error = self._failure = None
            self._is_reported = self._is_uncertain = False
            self._unsafe = {}
        return True

    async def _store_rows(self, rows: list[Row], blobs: Mapping[str, bytes]) -> None:
        stored: list[Row] = []
        if self._is_uncertain:
            # The last attempt may have been committed before its response was lost.
            stored = await self._store.read(self.conversation, self.head)
            if stored != rows[: len(stored)]:
                raise ConflictError(self.conversation)
            self.head += len(stored)
        if rows := rows[len(stored) :]:
            flush = any(row.kind not in _UNFLUSHED for row in rows)
            try:
                await self._store.append(self.conversation, self.head, rows, blobs, flush=flush)
            except ConflictError:
                if self._failure is None or await self._store.read(self.conversation, self.head):
                    raise
                # Nobody has written: the beginning is gone, and what is here is all there is.
                raise StoreError(f"the store lost the first {self.head} records of {self.conversation!r}") from None
            self.head = rows[-1].seq

    def _keep(self, error: StoreError, rows: list[Row], blobs: dict[str, bytes]) -> None:
        """Keeps what was not written for another attempt."""
        if self._failure is None:
            # As text: whoever keeps the record would keep the frames of the exception, and with them the store, open.
            _log.warning("conversation %s is not written: %s", self.conversation, str(error))
        self._failure = error
        self._put_back(rows, blobs)
        if isinstance(error, ConflictError) or self._size > MAX_UNSTORED_BYTES:
            self._give_up(error)

    def _put_back(self, rows: list[Row], blobs: dict[str, bytes]) -> None:
        self._is_uncertain = True
        self._rows = [row for row in rows if row.seq > self.head] + self._rows
        self._blobs = blobs | self._blobs
        self._size = sum(len(row.body) for row in self._rows) + sum(map(len, self._blobs.values()))

    def _failed(self, error: StoreError) -> None:
        """The conversation continues in memory."""
        if self.error is None:
            _log.error("conversation %s: %s", self.conversation, str(error))
        self.error = error
        self._stop_waiting()

    def _give_up(self, error: StoreError) -> None:
        """Keeps only what messages refer to: what follows would leave a gap."""
        if self._is_given_up:
            return
        self._failed(error)
        self._is_given_up = True
        self._unsafe |= self._blobs
        self._rows, self._blobs, self._size = [], {}, 0

    def _stop_waiting(self) -> None:
        awaited, self._moments = self._moments, None
        if awaited is not None:
            awaited.discard(self)


def imported(messages: Iterable[ChatMessage]) -> list[MessageAdded]:
    """A history that a conversation begins with."""
    return [MessageAdded(message, opens_turn=False) for message in messages]
