"""Writes a run into the log while it streams."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sidestream.errors import ConflictError, StoreError
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage
from sidestream.store.protocol import Store
from sidestream.store.records import (
    STEP_FINISH,
    ApprovalAsked,
    ApprovalDecided,
    Body,
    MessageAdded,
    RequestPrepared,
    Row,
    RunCancelled,
    RunStarted,
    ToolStarted,
    ToolSuspended,
    kind_of,
    pack,
)
from sidestream.store.segments import SegmentFold
from sidestream.stream.parts import Custom, StreamPart, ToolCall
from sidestream.tools.approvals import Decision, PendingApproval, Suspended

NOT_STORED = "sidestream.not-stored"
"""The kind of the custom part that reports, once, that the run is no longer recorded."""

_CAN_WAIT = frozenset({"stream-start", "step-start", "response-metadata", "tool-event", "source"})
"""Segments that are written with what comes next, not for their own sake."""

_OPENING = frozenset({"message", "run-started", "stream-start"})

_log = logging.getLogger(__name__)


class Writer:
    """Appends the records of one conversation, in order, each batch after the one before.

    Someone else who writes to the conversation makes it stop with ConflictError, so turns never interleave.
    """

    def __init__(self, store: Store, conversation: str, head: int) -> None:
        self.conversation = conversation
        self.head = head
        """The number of the last record that is safe."""
        self.error: StoreError | None = None
        """Why nothing is written any more."""
        self._store = store
        self._run = ""
        self._segments = SegmentFold()
        self._next = head
        self._rows: list[Row] = []
        self._blobs: dict[str, bytes] = {}
        self._unsafe: dict[str, bytes] = {}
        """Blobs that are being written, or could not be."""
        self._writing: asyncio.Task[None] | None = None
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
        """The run begins with its opening messages, or, without any, resumes after these decisions."""
        self._run = run_id
        self._segments = SegmentFold()
        for message in opening:
            self.add(MessageAdded(message))
        self.add(RunStarted(model, message_metadata, resumes=not opening))
        for decision in decisions:
            self.add(ApprovalDecided(decision))

    def feed(self, parts: Iterable[StreamPart]) -> None:
        """The next parts of the stream."""
        segments = self._segments.feed(parts)
        if not segments:
            return
        for segment in segments:
            self.add(segment)
        if any(segment.kind not in _CAN_WAIT for segment in segments):
            self._write()

    def tool_started(self, call: ToolCall) -> None:
        """A client tool is about to run."""
        self.add(ToolStarted(call.id, call.name))

    def prepared(self, without: frozenset[str], *, defers_output: bool) -> None:
        """A request is about to be sent that differs from the usual one."""
        self.add(RequestPrepared(tuple(sorted(without)), defers_output))

    def asked(self, approval: PendingApproval) -> None:
        """A call waits for a person."""
        self.add(ApprovalAsked(approval))

    def tool_suspended(self, call_id: str, suspended: Suspended) -> None:
        """A tool that is an agent waits for a person."""
        self.add(ToolSuspended(call_id, suspended))

    def cancelled(self) -> None:
        """The run is left before its end."""
        for segment in self._segments.end():
            self.add(segment)
        self.add(RunCancelled())

    def add(self, body: Body) -> None:
        """Adds a record; it is safe after the next `commit`."""
        data, blobs = pack(body)
        if self.error is not None:
            self._unsafe |= blobs if kind_of(body) == STEP_FINISH else {}
            return
        self._next += 1
        row = Row(seq=self._next, time=time.time(), run=self._run, kind=kind_of(body), body=data, blobs=tuple(blobs))
        self._rows.append(row)
        self._blobs |= blobs

    async def commit(self) -> StreamPart | None:
        """Waits until everything so far is safe; gives a notice, once, where it cannot be. Raises ConflictError."""
        while self._rows or self._writing is not None:
            # In a task, so that the tools of a round, which commit side by side, wait for one and the same append.
            self._write()
            if self._writing is not None:
                await asyncio.shield(self._writing)
        if isinstance(self.error, ConflictError):
            raise self.error
        if self.error is None or self._is_reported:
            return None
        self._is_reported = True
        return Custom(NOT_STORED, {"message": f"the conversation is no longer recorded: {self.error}"})

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

    async def _append(self) -> None:
        rows, self._rows = self._rows, []
        blobs, self._blobs = self._blobs, {}
        self._unsafe = blobs
        try:
            # Until a turn has emitted something, its beginning need only outlive the process.
            flush = rows[-1].kind not in _OPENING
            await self._store.append(self.conversation, self.head, rows, blobs, flush=flush)
            self.head = rows[-1].seq
            self._unsafe = {}
        except StoreError as error:
            self.error = error
            # The conversation continues in memory, and with it what its messages refer to.
            self._unsafe |= self._blobs
            self._rows, self._blobs = [], {}
            _log.error("conversation %s: %s", self.conversation, error)
        finally:
            self._writing = None


def imported(messages: Iterable[ChatMessage]) -> list[MessageAdded]:
    """A history that a conversation begins with."""
    return [MessageAdded(message, opens_turn=False) for message in messages]
