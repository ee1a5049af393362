"""The writer that records a run in the log while it streams."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, ValidationError, convert, to_builtins

from sidestream.errors import ConflictError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.limits import MAX_UNSTORED_BYTES
from sidestream.logs import get_logger
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import blobs_of
from sidestream.parts import Custom, StreamPart, ToolCall
from sidestream.store.log.flush_schedule import Moments, moments
from sidestream.store.log.requests import SAYS, RequestLog
from sidestream.store.log.segments import SegmentFold
from sidestream.store.protocol import Store
from sidestream.store.records import (
    REQUEST,
    STEP_FINISH,
    ApprovalAsked,
    ApprovalDecided,
    Body,
    EvidenceChecked,
    GrantsSet,
    MessageAdded,
    RequestPrepared,
    RequestSent,
    ResponseReceived,
    Row,
    RunCancelled,
    RunStarted,
    ToolStarted,
    ToolSuspended,
    kind_of,
    pack,
    unpack,
)
from sidestream.tools.approvals import Decision, PendingApproval, Suspended, already_used
from sidestream.tools.grants import Grant
from sidestream.tools.interruption import InterruptionPolicy

NOT_STORED = "sidestream.not-stored"
"""Kind of the custom part that reports, once, that the run is no longer recorded."""

INCREMENT_BYTES = 16 * 1024
"""Bytes of pending records that trigger a write, unless the last write was less than `INCREMENT_GAP_S` ago."""
INCREMENT_GAP_S = 0.05
"""Minimum seconds between writes triggered by size, so that a very fast stream is not slowed down by its log. A worker
writes the logs of slow streams as often."""

RETRY_WAIT_S = 2.0
"""Maximum seconds that the next turn waits for a failed store, so that an unresponsive server does not block it."""

OUTAGE_S = 30.0
"""Maximum seconds that a run waits for an unreachable server, for example during a restart, before it continues without
its log."""
OUTAGE_WAIT_S = 2.0
"""Maximum seconds between two attempts during an outage."""
FAILED_WAIT_S = 5.0
"""Seconds after a failure before a run that streams without its log tries to write again."""

_UNFLUSHED = frozenset(
    [
        "message",
        "run-started",
        "request-sent",
        "response-received",
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
"""Records that need only survive the process: the start of a turn, and what a resumed turn requests again."""

_URGENT = frozenset(["custom"])
"""Records that are written as soon as the store is free. They include the id of a background response, without which a
resumed run would request a second response."""

_log = get_logger(__name__)


class LogDetail(Struct, frozen=True, kw_only=True):
    """The level of detail of a log."""

    interval_s: float = 0.25
    """Maximum seconds before received parts are written, for subscribers to see and a killed process to keep."""
    previews: bool = False
    """Whether to keep previews, such as an image's first versions."""
    inputs: bool = False
    """Whether to keep the deltas of tool inputs. The calls contain the complete inputs anyway."""
    wire: bool = False
    """Whether to keep the provider's own bytes of each response, compressed."""


USUAL_DETAIL = LogDetail()


class Writer:
    """Appends the records of one conversation in order, one batch at a time.

    It stops with ConflictError if someone else writes to the conversation, so turns never interleave. While a run
    streams, its log is at most `LogDetail.interval_s` or `INCREMENT_BYTES` behind, as fast as the store writes. It
    waits up to `OUTAGE_S` for an unreachable server. Records that could not be written are kept, up to
    `MAX_UNSTORED_BYTES`, and written once the store works again.
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
        before_store: Callable[[JsonObject], JsonObject] | None = None,
        rows: Sequence[Row] = (),
    ) -> None:
        self._before_store = before_store
        self._requests = RequestLog(rows)
        self.conversation = conversation
        self.head = head
        """Sequence number of the last stored record."""
        self.error: StoreError | None = None
        """Reason why writing has stopped. None means that the next attempt may succeed."""
        self._failure: StoreError | None = None
        """Error of the last attempt."""
        self._is_given_up = False
        """Whether a record was dropped, so that later ones would leave a gap."""
        self._store = store
        self._run = run
        self._decisions: tuple[Decision, ...] = ()
        """Decisions that the run starts with."""
        self._detail = detail
        self._segments = SegmentFold(previews=detail.previews, inputs=detail.inputs)
        self.run_details: JsonObject = {}
        """Details for the first record of the next run."""
        self._next = head
        self._rows: list[Row] = []
        self._size = 0
        """Bytes of these rows and their blobs."""
        self._blobs: dict[str, bytes] = {}
        self._unsafe: dict[str, bytes] = {}
        """Blobs that are being written, or were dropped."""
        self._writing: asyncio.Future[None] | None = None
        """The append in progress: its task, or a future that `_append_here` resolves."""
        self._is_uncertain = False
        """Whether a failed or cancelled append may have been stored."""
        self._gap_s = gap_s
        self._written_s = 0.0
        """Time at which the last write began, by the loop's clock."""
        self._moments: Moments | None = None
        """Flush schedule that this writer waits for; None means that it waits for none."""
        self._is_due = False
        """Whether to write more as soon as the store is free."""
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
        """Start the run with its opening messages, or, without any, resume it after these decisions.

        Raises StoreError, with nothing recorded, if one of them cannot be stored.
        """
        self._retry()
        self._run = run_id
        self._decisions = tuple(decisions)
        self._segments = SegmentFold(previews=self._detail.previews, inputs=self._detail.inputs)
        started = RunStarted(model, message_metadata, resumes=not opening, details=self.run_details)
        bodies: list[Body] = [*map(MessageAdded, opening), started, *map(ApprovalDecided, decisions)]
        given = [self._redacted(body) for body in bodies]
        for body, packed in [(body, pack(body)) for body in given]:
            self._add(kind_of(body), *packed)
            if type(body) is MessageAdded:
                self._requests.note(self._next, body)

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """Record the next parts of the stream."""
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
        """Record that a client tool is about to run."""
        self.add(ToolStarted(call.id, call.name, key, policy))

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """Record that a request that differs from the usual one is about to be sent."""
        self.add(RequestPrepared(tuple(sorted(without)), defers_output))

    @property
    def keeps_responses(self) -> bool:
        """Whether the log has the provider's own bytes of each response."""
        return self._detail.wire

    def sent(self, body: bytes | None, *, model: str, path: str, step: int) -> None:
        """Record that a request with this body is about to be sent, unless the body is not a JSON object."""
        request = (
            None if body is None else self._requests.request(body, self._next + 1, model=model, path=path, step=step)
        )
        if request is None:
            self._requests.forget()
            return
        try:
            redacted = self._redacted(request)
            assert isinstance(redacted, RequestSent)
            packed = pack(self._requests.referring(redacted))
        except StoreError as error:
            self._give_up(error)
            return
        self._add(REQUEST, *packed)

    def received(self, content: bytes, *, step: int, status: int, is_stream: bool) -> None:
        """Record the provider's own bytes of a response."""
        self.add(ResponseReceived(content, step, status, is_stream))

    def asked(self, approval: PendingApproval) -> None:
        """Record that a call waits for approval."""
        self.add(ApprovalAsked(approval))

    def granted(self, grants: Sequence[Grant]) -> None:
        """Record the remembered approvals that apply from now on."""
        self.add(GrantsSet(tuple(grants)))

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """Record that a tool waits for the user or for work in another process."""
        self.add(ToolSuspended(call_id, suspended))

    def checked(self, check: EvidenceChecked, pages: Mapping[str, bytes]) -> None:
        """Record a check of citations, with the pages that were read."""
        self.add(check, pages)

    def left(self) -> None:
        """Leave the run where it is, recording what has arrived of open blocks."""
        for segment in self._segments.end():
            self.add(segment)

    def cancelled(self) -> None:
        """Record that the run was abandoned, with what has arrived of open blocks."""
        for segment in self._segments.end():
            self.add(segment)
        self.add(RunCancelled())

    async def add_history(self, messages: Iterable[ChatMessage]) -> None:
        """Add an imported history.

        Blobs in this store that its messages refer to are kept for this conversation too.
        """
        for body in imported(messages):
            self.add(body, await self.read_blobs(blobs_of(body.message)))

    def add(self, body: Body, referred: Mapping[str, bytes] | None = None) -> None:
        """Add a record, with blobs that it refers to but does not hold. It is safe after the next `commit`.

        If the record cannot be serialized, neither it nor later ones are written, and `commit` reports the error.
        """
        try:
            body = self._redacted(body)
            data, blobs = pack(body)
        except StoreError as error:
            self._give_up(error)
            return
        self._add(kind := kind_of(body), data, {**blobs, **referred} if referred else blobs)
        if kind in SAYS:
            self._requests.note(self._next, body)

    def _redacted(self, body: Body) -> Body:
        """Return the body that the program lets the log have."""
        return body if self._before_store is None else changed_by(body, self._before_store)

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
        """Wait until all records are safe, or return a notice, once, if they cannot be stored.

        Raises ConflictError if someone else has written, and ApprovalError if they have used the same decision.
        """
        while self.error is None and (self._rows or self._writing is not None):
            # The tools of a round commit concurrently; one of them appends for all.
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
        """Retry records that could not be written, for at most `RETRY_WAIT_S`.

        Returns the error if that still fails.
        """
        self._retry()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=RETRY_WAIT_S)
        return self.error

    async def _check_unused(self) -> None:
        """Raise ApprovalError if the conflict is that someone else has used a decision of this run."""
        if self._decisions:
            rows = await self._store.read(self.conversation, self.head)
            bodies = [unpack(row).body for row in rows if row.kind == "approval-decided"]
            used = {body.decision.key for body in bodies if isinstance(body, ApprovalDecided)}
            for decision in self._decisions:
                if decision.key in used:
                    raise already_used(decision)

    def write_due(self) -> None:
        """Write everything that has arrived, including open blocks, once the store is free."""
        self._stop_waiting()
        if self.error is not None:
            return
        self._is_due = self._writing is not None
        if not self._is_due:
            if self._before_store is None:  # It sees texts whole.
                for segment in self._segments.increments():
                    self.add(segment)
            self._write()

    async def read_blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Return the blobs that messages refer to, from the store or from those not yet stored.

        Lost blobs are omitted.
        """
        here = self._unsafe | self._blobs
        found = {digest: here[digest] for digest in digests if digest in here}
        for digest in digests:
            if digest not in found:
                with suppress(StoreError):
                    found[digest] = await self._store.blob(digest)
        return found

    def _write(self) -> None:
        """Start writing the rows, unless the store is still busy with earlier ones."""
        if self._writing is None and self._rows:
            self._writing = asyncio.create_task(self._append())

    async def _append_here(self) -> None:
        """Append without a task, whose start and end would each wait for a turn of the event loop."""
        writing = self._writing = asyncio.get_running_loop().create_future()
        try:
            await self._append()
        finally:
            writing.set_result(None)

    def _retry(self) -> None:
        """Try once more to write, if the last attempt failed."""
        if self.error is not None:
            self._write()

    async def _append(self) -> None:
        """Store the rows. If cancelled, leave them for the next append."""
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
        """Write all pending rows, or return False to retry soon, which happens only if `may_pass`."""
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
        except BaseException:  # The store completes the append, but its outcome is lost.
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
                # No concurrent writer: the start of the log is missing.
                raise StoreError(f"the store lost the first {self.head} records of {self.conversation!r}") from None
            self.head = rows[-1].seq

    def _keep(self, error: StoreError, rows: list[Row], blobs: dict[str, bytes]) -> None:
        """Keep unwritten records for another attempt."""
        if self._failure is None:
            # Format the error here: a log record that holds the exception would keep its frames, and so the store,
            # alive.
            _log.warning("conversation %s: append failed: %s", self.conversation, str(error))
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
        """Continue the conversation in memory only."""
        if self.error is None:
            _log.error("conversation %s: no longer recorded: %s", self.conversation, str(error))
        self.error = error
        self._stop_waiting()

    def _give_up(self, error: StoreError) -> None:
        """Drop pending records, which would leave a gap, and keep only the blobs that messages refer to."""
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
    """Return the records of an imported history."""
    return [MessageAdded(message, opens_turn=False) for message in messages]


def changed_by(body: Body, function: Callable[[JsonObject], JsonObject]) -> Body:
    """Return a body as a function changes its JSON. Raises StoreError if the result is not a record of its kind."""
    plain = to_builtins(body, builtin_types=(bytes,))
    try:
        found = convert(function(plain), Body, builtin_types=(bytes,))
    except ValidationError as error:
        raise StoreError(f"before_store made a record ({kind_of(body)}) invalid: {error}") from error
    if kind_of(found) != kind_of(body):
        raise StoreError(f"before_store must not change the kind of a record: {kind_of(body)} became {kind_of(found)}")
    return found
