"""A conversation's log for people: messages, what tools did, approvals, files, errors."""

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any

from sidestream.cli import formatting
from sidestream.cli.approvals import visible
from sidestream.cli.render import ProgressView
from sidestream.cli.terminal import Screen, one_line, strip_controls
from sidestream.errors import BlobError
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart
from sidestream.store.protocol import Store
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    MessageAdded,
    Record,
    Row,
    RunCancelled,
    RunStarted,
    Segment,
    ToolStarted,
    ToolSuspended,
    TurnDiscarded,
    unpack,
)
from sidestream.stream.parts import Finish
from sidestream.tools.approvals import Decision, PendingApproval


async def load_record(store: Store, row: Row) -> Record:
    """The record of a row, with its blobs; addresses stand in place of those that are lost."""
    found: dict[str, bytes] = {}
    for digest in row.blobs:
        try:
            found[digest] = await store.blob(digest)
        except BlobError:
            found[digest] = f"sha256:{digest} is missing from the store".encode()
    return unpack(row, found.__getitem__)


async def records_of(store: Store, rows: Iterable[Row]) -> AsyncIterator[Record]:
    """The records of rows, one by one."""
    for row in rows:
        yield await load_record(store, row)


class Transcript:
    """Writes records, in order, to a screen."""

    def __init__(self, screen: Screen, *, thinking: bool = False, verbose: bool = False) -> None:
        self._screen = screen
        self._view = ProgressView(screen, thinking=thinking, verbose=verbose, hints=False, asks=True)
        self._tools: dict[str, str] = {}

    def feed(self, record: Record) -> None:
        """The next record."""
        _SHOW[type(record.body)](self, record.body, record)

    def close(self) -> None:
        """Ends what is open."""
        self._view.close()

    def message(self, body: MessageAdded, record: Record) -> None:
        """What was said, by whom and when."""
        self._view.close()
        self._screen.gap()
        self._screen.line(f"{body.message.role}, {when(record.time)}", "bold")
        for line in _lines(body.message):
            self._screen.line(f"  {line}")

    def run_started(self, body: RunStarted, record: Record) -> None:
        """Which model answers."""
        verb = "goes on" if body.resumes else "answers"
        self._screen.line(f"{one_line(body.model)} {verb}", "dim")

    def segment(self, body: Segment, record: Record) -> None:
        """What the stream told; it is shown as it was then."""
        for part in body.parts:
            self._view.feed(part)
            if isinstance(part, Finish) and part.reason == "approval":
                self._screen.line("waits for approvals", "yellow")

    def tool_started(self, body: ToolStarted, record: Record) -> None:
        """A tool began to run here."""
        self._screen.line(f"{visible(body.name)} was started", "dim")

    def asked(self, body: ApprovalAsked, record: Record) -> None:
        """A call waited for a person."""
        call: PendingApproval = body.approval
        self._tools[call.approval_id] = visible(call.tool)
        owner = f" of {visible(call.server_label)}" if call.server_label else ""
        given = one_line(formatting.compact(call.input)) if call.input else ""
        self._screen.line(f"approval asked: {visible(call.tool)}{owner} {given}".rstrip(), "yellow")
        self._screen.line(f"  {one_line(call.provenance, 400)}", "dim")

    def decided(self, body: ApprovalDecided, record: Record) -> None:
        """What the person said."""
        decision: Decision = body.decision
        verdict = "approved" if decision.is_approved else "denied"
        reason = f": {one_line(decision.reason)}" if decision.reason else ""
        self._screen.line(f"{verdict} {visible(decision.tool)}{reason}", "yellow")

    def cancelled(self, body: RunCancelled, record: Record) -> None:
        """The run was left."""
        self._view.close()
        self._screen.line("cancelled", "yellow")

    def discarded(self, body: TurnDiscarded, record: Record) -> None:
        """The turn counts no more."""
        self._screen.line("this turn was dropped", "yellow")

    def suspended(self, body: ToolSuspended, record: Record) -> None:
        """An agent that is a tool waits; what it waits for is told by itself."""


_SHOW: dict[type, Callable[[Transcript, Any, Record], None]] = {
    MessageAdded: Transcript.message,
    RunStarted: Transcript.run_started,
    Segment: Transcript.segment,
    ToolStarted: Transcript.tool_started,
    ToolSuspended: Transcript.suspended,
    ApprovalAsked: Transcript.asked,
    ApprovalDecided: Transcript.decided,
    RunCancelled: Transcript.cancelled,
    TurnDiscarded: Transcript.discarded,
}
"""Type of a record's body → how it is shown."""


def when(time: float) -> str:
    """A moment, by the clock on the wall."""
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "?"


def _lines(message: ChatMessage) -> list[str]:
    lines: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                lines += strip_controls(part.text).split("\n")
            case DataPart():
                name = one_line(part.name or "file", 120)
                lines.append(f"[{name}: {one_line(part.mime_type, 60)}, {formatting.file_size(len(part.bytes))}]")
            case LinkPart():
                lines.append(f"[{one_line(part.url, 400)}]")
            case _:
                lines.append(f"[{part.__struct_config__.tag}]")
    return lines
