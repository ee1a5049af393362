"""Responses as the log has them: where one begins and ends among the records, and its events as a fold of them.

A response is a part of a run: from its beginning, from where a client's answers resumed it, or from a message that
steered it, to the next such place. Its id names the run and the record with which it begins.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sidestream.durable.log.jobs import Job, job_in
from sidestream.jsontext import JsonObject, as_list, as_object, text_in
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import Dialect, ResponseHead
from sidestream.store import records
from sidestream.stream.parts import Error, Steer, StepStart, ToolApprovalRequest, ToolCall

API = "responses"
DELETED = "deleted"
"""The note of a response that was deleted: its id."""
METADATA = "metadata"
"""The note of a conversation's metadata."""

_ID = re.compile(r"resp_([0-9a-f]{32})([1-9a-f][0-9a-f]{0,11})")


def response_id(run: str, start: int) -> str:
    """The id of the response that begins with this record of the run."""
    return f"resp_{run.removeprefix('run_')}{start:x}"


def place_of(id: str) -> tuple[str, int] | None:
    """The run of a response, and the number of its first record; None for what is no id."""
    found = _ID.fullmatch(id)
    return (f"run_{found[1]}", int(found[2], 16)) if found else None


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """A response among the records of its conversation."""

    id: str
    conversation: str
    run: str
    first: int
    """The record with which its run began."""
    start: int
    end: int | None = None
    """The record with which something else begins; None for the last of its conversation."""
    job: Job
    parent: str | None = None
    """The response that a message of the user ended, where this one is what followed."""

    @property
    def details(self) -> JsonObject:
        """What the API remembers of it."""
        return as_object(self.job.details.get("response"))

    @property
    def is_stored(self) -> bool:
        return as_object(self.details.get("request")).get("store") is not False

    @property
    def outlives_readers(self) -> bool:
        """True if its run continues without readers: in the background, or as another response."""
        is_background = as_object(self.details.get("request")).get("background") is True
        return is_background or self.end is not None or self.details.get("splits") is True

    def head(self, created: float) -> ResponseHead:
        """What is known of it before it begins."""
        request = as_object(self.details.get("request"))
        if self.parent is not None:
            request = {**request, "previous_response_id": self.parent}
        model = text_in(self.details, "model") or self.job.agent
        return ResponseHead(id=self.id, model=model, created=int(created), request=request)


class Boundaries:
    """Finds the records with which responses begin, in one conversation, read from a run's beginning."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._has_step = False

    def begins(self, record: records.Record) -> bool:
        """True if a response begins with this record."""
        match record.body:
            case records.RunStarted(details=details, resumes=resumes):
                job = job_in(details)
                if resumes and self.job is not None and self.job.is_continued_by(job):
                    self.job = job
                    return False
                self.job, self._has_step = job, False
                return job is not None and job.api == API
            case records.Segment(parts=(StepStart(), *_)):
                self._has_step = True
                return False
            case records.Segment(parts=(Steer(status="applied"), *_)):
                splits = self.job is not None and as_object(self.job.details.get("response")).get("splits") is True
                is_new, self._has_step = splits and self._has_step, False
                return is_new
            case _:
                return False


_SCANNED = frozenset({"run-started", "steer", "step-start", "noted"})


def responses_in(conversation: str, rows: Iterable[records.Row]) -> list[ResponseInfo]:
    """The responses of a conversation, in order, without those that were deleted."""
    found: list[ResponseInfo] = []
    deleted: set[str] = set()
    boundaries = Boundaries()
    is_open = False
    first: dict[str, int] = {}
    for row in rows:
        if row.kind == "message" and is_open:
            found[-1] = _ended(found[-1], row.seq)
            is_open = False
        if row.kind not in _SCANNED:
            continue
        record = records.unpack(row)
        if isinstance(record.body, records.Noted):
            deleted |= {id for id in as_list(record.body.details.get(DELETED)) if isinstance(id, str)}
            continue
        if isinstance(record.body, records.RunStarted):
            first.setdefault(row.run, row.seq)
        if not boundaries.begins(record) or boundaries.job is None:
            continue
        parent = None
        if is_open:
            found[-1] = _ended(found[-1], row.seq)
            parent = found[-1].id if row.kind == "steer" else None
        id, start = response_id(row.run, row.seq), first.get(row.run, row.seq)
        found.append(
            ResponseInfo(
                id=id,
                conversation=conversation,
                run=row.run,
                first=start,
                start=row.seq,
                job=boundaries.job,
                parent=parent,
            )
        )
        is_open = True
    return [info for info in found if info.id not in deleted]


def _ended(info: ResponseInfo, end: int) -> ResponseInfo:
    return replace(info, end=end) if info.end is None else info


class ResponseFold:
    """The events of a response, as a fold of the records from the beginning of its run."""

    def __init__(self, info: ResponseInfo, dialect: Dialect) -> None:
        self._info = info
        self._dialect: Dialect = dialect
        self._boundaries = Boundaries()
        self._early: list[ToolCall | ToolApprovalRequest] = []
        self.encoder: ResponsesEncoder | None = None
        self.steers: dict[str, Steer] = {}
        """Messages of the user that no request has taken yet."""
        self.accepted: list[str] = []
        """All of them, by id."""
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """True after its last event."""
        return self._is_over

    @property
    def is_queued(self) -> bool:
        """True if no worker has begun with it yet."""
        job = self._boundaries.job
        return not self.is_over and job is not None and job.attempt == 0

    @property
    def response(self) -> JsonObject | None:
        """The response object as it is now."""
        return self.encoder.response if self.encoder is not None else None

    def feed(self, record: records.Record) -> list[JsonObject]:
        """The events that a record adds."""
        begins = self._boundaries.begins(record)
        if record.seq < self._info.start:
            self._remember(record)
            return []
        if self.encoder is None:
            return self._begin(record)
        if begins:
            self._is_over = True
            return self.encoder.split()
        events = self._events(self.encoder, record)
        self._is_over = self._is_over or self.encoder.is_over
        return events

    def failed(self, message: str) -> list[JsonObject]:
        """The log cannot be read or written."""
        self._is_over = True
        if self.encoder is None:
            return []
        return self.encoder.failed(Error("provider", message, code="not_stored"))

    def _begin(self, record: records.Record) -> list[JsonObject]:
        details = self._info.details
        encoder = self.encoder = ResponsesEncoder(
            self._info.head(record.time),
            dialect=self._dialect,
            functions=_texts(details.get("functions")),
            custom=_texts(details.get("custom")),
            include=_texts(details.get("include")),
        )
        for part in self._early:
            if isinstance(part, ToolCall):
                encoder.tools.knows(part)
            else:
                encoder.tools.asked_before(part)
        return [*encoder.begin(), *self._events(encoder, record)]

    def _events(self, encoder: ResponsesEncoder, record: records.Record) -> list[JsonObject]:
        match record.body:
            case records.Segment(parts=parts):
                events: list[JsonObject] = []
                for part in parts:
                    if isinstance(part, Steer):
                        self._steer(part)
                    events += encoder.feed(part, record.time)
                return events
            case records.ToolStarted(call_id=call_id):
                return encoder.started(call_id)
            case records.RunStarted() if record.seq > self._info.start:
                return encoder.resumed()
            case records.RunCancelled():
                encoder.at = record.time
                return encoder.cancelled()
            case records.MessageAdded():
                self._is_over = True
                return []
            case _:
                return []

    def _steer(self, part: Steer) -> None:
        if part.status == "accepted":
            self.steers[part.id] = part
            self.accepted.append(part.id)
        else:
            self.steers.pop(part.id, None)

    def _remember(self, record: records.Record) -> None:
        """Calls of earlier responses of the run: what they came to may be reported in this one."""
        parts = record.body.parts if isinstance(record.body, records.Segment) else ()
        for part in parts:
            if isinstance(part, ToolCall | ToolApprovalRequest):
                self._early.append(part)


def _texts(value: object) -> list[str]:
    return [text for text in as_list(value) if isinstance(text, str)]


def notes_in(rows: Sequence[records.Row]) -> list[JsonObject]:
    """What programs have noted in a conversation, in order."""
    bodies = [records.unpack(row).body for row in rows if row.kind == "noted"]
    return [body.details for body in bodies if isinstance(body, records.Noted)]
