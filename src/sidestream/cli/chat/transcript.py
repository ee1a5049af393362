"""Rendering of a conversation's log as text: messages, tool progress, approvals, files, errors."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sidestream import jsontext
from sidestream.cli.chat.approvals import escape_unprintable
from sidestream.cli.display import formatting
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen, one_line, strip_controls
from sidestream.errors import BlobError
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart
from sidestream.parts import Finish, Source, StepFinish, StreamPart, TextStart
from sidestream.store import records
from sidestream.store.protocol import Store
from sidestream.tools.approvals import Decision, PendingApproval


async def load_record(store: Store, row: records.Row) -> records.Record:
    """Load a row's record with its blobs, replacing a missing blob by a note with its digest."""
    blobs: dict[str, bytes] = {}
    for digest in records.content_of(row):
        try:
            blobs[digest] = await store.blob(digest)
        except BlobError:
            blobs[digest] = f"sha256:{digest} is missing from the store".encode()
    return records.unpack(row, blobs.__getitem__ if blobs else None)


class SourcesInPlace:
    """Reorders parts so that sources follow the start of their text.

    A log has each block of text at its end, so the sources come first.
    """

    def __init__(self) -> None:
        self._held: list[Source] = []
        self._begun: set[str | None] = {None}
        """Ids of the current step's text blocks."""

    def feed(self, part: StreamPart) -> list[StreamPart]:
        """Return the parts to render now."""
        if isinstance(part, Source) and part.text_id not in self._begun:
            self._held.append(part)
            return []
        if isinstance(part, TextStart):
            self._begun.add(part.id)
            mine = [source for source in self._held if source.text_id == part.id]
            self._held = [source for source in self._held if source.text_id != part.id]
            return [part, *mine]
        if not isinstance(part, StepFinish | Finish):
            return [part]
        held, self._held = self._held, []
        self._begun = {None}
        return [*held, part]


class Transcript:
    """Renders a log's records to a screen."""

    def __init__(self, screen: Screen, *, thinking: bool = False, verbose: bool = False, usage: bool = False) -> None:
        self._screen = screen
        detail = Detail(thinking=thinking, verbose=verbose, usage=usage, hints=False, prompts_for_approval=True)
        self._view = ProgressView(screen, detail=detail)
        self._order = SourcesInPlace()

    def feed(self, record: records.Record) -> None:
        """Render the next record."""
        _RENDERERS[type(record.body)](self, record.body, record)

    def close(self) -> None:
        """Finish open lines."""
        self._view.close()

    def message(self, body: records.MessageAdded, record: records.Record) -> None:
        """Render a message with its role and time."""
        self._view.close()
        self._screen.gap()
        self._screen.line(f"{body.message.role}, {format_time(record.time)}", "bold")
        for line in message_lines(body.message):
            self._screen.line(f"  {line}")

    def run_started(self, body: records.RunStarted, record: records.Record) -> None:
        """Render the run's model."""
        self._view.close()  # An interrupted run leaves its text open.
        verb = "resumes" if body.resumes else "answers"
        self._screen.line(f"{one_line(body.model)} {verb}", "dim")

    def segment(self, body: records.Segment, record: records.Record) -> None:
        """Render the segment's parts as the live view does."""
        ordered = [part for given in body.parts for part in self._order.feed(given)]
        for part in ordered:
            self._view.feed(part)
            if isinstance(part, Finish) and part.reason == "approval":
                self._screen.line("waiting for approval", "yellow")

    def tool_started(self, body: records.ToolStarted, record: records.Record) -> None:
        """Render the start of a local tool."""
        self._screen.line(f"{escape_unprintable(body.name)} started", "dim")

    def approval_requested(self, body: records.ApprovalAsked, record: records.Record) -> None:
        """Render an approval request."""
        call: PendingApproval = body.approval
        owner = f" of {escape_unprintable(call.server_label)}" if call.server_label else ""
        arguments = one_line(formatting.compact(call.input)) if call.input else ""
        title = "external result needed" if call.is_external else "approval requested"
        self._screen.line(f"{title}: {escape_unprintable(call.tool)}{owner} {arguments}".rstrip(), "yellow")
        self._screen.line(f"  {one_line(call.provenance, 400)}", "dim")

    def approval_decided(self, body: records.ApprovalDecided, record: records.Record) -> None:
        """Render a decision."""
        decision: Decision = body.decision
        verdict = "answered" if decision.output is not None else "approved" if decision.is_approved else "denied"
        reason = f": {one_line(decision.reason)}" if decision.reason else ""
        scope = " in this conversation" if decision.grant is not None else ""
        self._screen.line(f"{verdict} {escape_unprintable(decision.tool)}{scope}{reason}", "yellow")

    def approval_refused(self, body: records.ApprovalRefused, record: records.Record) -> None:
        """Render the refusal of a decision."""
        self._screen.line(f"a decision was refused: {one_line(body.reason)}", "yellow")

    def grants_set(self, body: records.GrantsSet, record: records.Record) -> None:
        """Render the tools that no longer need approval."""
        names = ", ".join(escape_unprintable(grant.tool) for grant in body.grants) or "none"
        self._screen.line(f"allowed in this conversation: {names}", "yellow")

    def cancelled(self, body: records.RunCancelled, record: records.Record) -> None:
        """Render a cancellation."""
        self._view.close()
        self._screen.line("cancelled", "yellow")

    def discarded(self, body: records.TurnDiscarded, record: records.Record) -> None:
        """Render that the turn was discarded."""
        self._screen.line("this turn was discarded", "yellow")

    def kept(self, body: records.TurnKept, record: records.Record) -> None:
        """Render nothing, because the turn's parts are already shown."""

    def tool_suspended(self, body: records.ToolSuspended, record: records.Record) -> None:
        """Render nothing, because the suspended subagent's approvals have their own records."""

    def unseen(self, body: records.Body, record: records.Record) -> None:
        """Render nothing, because the record is for programs."""

    def forked(self, body: records.Forked, record: records.Record) -> None:
        """Render where the conversation was forked from, and what was changed there."""
        self._screen.line(one_line(origin_line(body), 400), "yellow")

    def evidence_checked(self, body: records.EvidenceChecked, record: records.Record) -> None:
        """Render the checked claims and the pages that were kept."""
        self._screen.line("evidence:", "bold")
        for claim in body.claims:
            label = formatting.source(Source(claim.source, "url", url=claim.url, title=claim.title))
            formatting.print_evidence(self._screen, claim.text, label, claim.evidence)
        for page in body.snapshots:
            url = one_line(page.url, 400)
            self._screen.line(
                f"  page {url} of {one_line(page.retrieved_at, 40)}: sha256:{one_line(page.sha256)}", "dim"
            )


_RENDERERS: dict[type, Callable[[Transcript, Any, records.Record], None]] = {
    records.MessageAdded: Transcript.message,
    records.RunStarted: Transcript.run_started,
    records.Segment: Transcript.segment,
    records.ToolStarted: Transcript.tool_started,
    records.ToolSuspended: Transcript.tool_suspended,
    records.ApprovalAsked: Transcript.approval_requested,
    records.ApprovalDecided: Transcript.approval_decided,
    records.ApprovalRefused: Transcript.approval_refused,
    records.GrantsSet: Transcript.grants_set,
    records.RunCancelled: Transcript.cancelled,
    records.TurnDiscarded: Transcript.discarded,
    records.TurnKept: Transcript.kept,
    records.RequestPrepared: Transcript.unseen,
    records.RequestSent: Transcript.unseen,
    records.ResponseReceived: Transcript.unseen,
    records.Noted: Transcript.unseen,
    records.Forked: Transcript.forked,
    records.EvidenceChecked: Transcript.evidence_checked,
}
"""Rendering methods, by type of the record's body."""


def origin_line(origin: records.Forked) -> str:
    """Return where a conversation was forked from, and what was changed there, as one line."""
    changes = ", ".join(f"{kind} {jsontext.shown(value)}" for kind, value in origin.changes.items())
    replayed = f"; {formatting.things(origin.equal, 'request')} replayed" if origin.equal else ""
    parted = f"; parted at {origin.parted}" if origin.parted else ""
    return f"forked from {origin.conversation} at record {origin.seq}: {changes or 'unchanged'}{replayed}{parted}"


def format_time(time: float) -> str:
    """Format a timestamp as local time."""
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "?"


def message_lines(message: ChatMessage) -> list[str]:
    """Return the parts of a message as lines of text."""
    lines: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                lines += strip_controls(part.text).split("\n")
            case DataPart():
                name = one_line(part.name or "file", 120)
                lines.append(f"[{name}: {one_line(part.mime_type, 60)}, {formatting.file_size(len(part.data))}]")
            case LinkPart():
                lines.append(f"[{one_line(part.url, 400)}]")
            case _:
                lines.append(f"[{part.__struct_config__.tag}]")
    return lines
