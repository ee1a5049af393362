"""Responses in the log: their first and last records, and their events.

A response is a section of a run. It starts with the run, where a client's answers resumed it, or at a steering message,
and it ends where the next response starts. Its id contains the run and its first record's sequence number.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sidestream.durable.log.jobs import Job, job_in
from sidestream.jsontext import JsonObject, as_list, as_object, text_in
from sidestream.parts import Custom, Error, Steer, StepStart, ToolApprovalRequest, ToolCall
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import Dialect, ResponseHead
from sidestream.store import records
from sidestream.transport.waits import WAITING, RequestWait

API = "responses"
DELETED = "deleted"
"""Note key for the ids of deleted responses."""
METADATA = "metadata"
"""Note key for a conversation's metadata."""

_ID = re.compile(r"resp_([0-9a-f]{32})([1-9a-f][0-9a-f]{0,11})")


def response_id(run: str, start: int) -> str:
    """Return the id of the response that starts with this record of the run."""
    return f"resp_{run.removeprefix('run_')}{start:x}"


def place_of(id: str) -> tuple[str, int] | None:
    """Return the run of a response and the sequence number of its first record, or None if the id is not valid."""
    found = _ID.fullmatch(id)
    return (f"run_{found[1]}", int(found[2], 16)) if found else None


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """A response among the records of its conversation."""

    id: str
    conversation: str
    run: str
    first: int
    """Sequence number of the run's first record."""
    start: int
    end: int | None = None
    """Sequence number of the record after the response. None means it is the last of its conversation."""
    job: Job
    parent: str | None = None
    """Id of the response that a steering message ended, if this response follows it."""

    @property
    def details(self) -> JsonObject:
        """The details that the API stores with the job."""
        return as_object(self.job.details.get("response"))

    @property
    def is_stored(self) -> bool:
        return as_object(self.details.get("request")).get("store") is not False

    @property
    def outlives_readers(self) -> bool:
        """Whether its run continues without subscribers, in the background or as another response."""
        is_background = as_object(self.details.get("request")).get("background") is True
        return is_background or self.end is not None or self.details.get("splits") is True

    def head(self, created: float) -> ResponseHead:
        """Return the fields that are known before the response starts."""
        request = as_object(self.details.get("request"))
        if self.parent is not None:
            request = {**request, "previous_response_id": self.parent}
        model = text_in(self.details, "model") or self.job.agent
        return ResponseHead(id=self.id, model=model, created=int(created), request=request)


class Boundaries:
    """Finds the records at which responses start, in one conversation read from the start of a run."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._has_step = False

    def begins(self, record: records.Record) -> bool:
        """Return whether a response starts with this record."""
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
    """Return the responses of a conversation in order, without deleted ones."""
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
    """Builds the events of a response from the records of its run."""

    def __init__(self, info: ResponseInfo, dialect: Dialect) -> None:
        self._info = info
        self._dialect: Dialect = dialect
        self._boundaries = Boundaries()
        self._early: list[ToolCall | ToolApprovalRequest] = []
        self.encoder: ResponsesEncoder | None = None
        self.steers: dict[str, Steer] = {}
        """Steering messages that no model request has included yet, by id."""
        self.accepted: list[str] = []
        """Ids of all accepted steering messages."""
        self.waits: list[Custom] = []
        """Waits of the run, for which the API has no events."""
        self._queue_wait: RequestWait | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the last event was returned."""
        return self._is_over

    @property
    def is_queued(self) -> bool:
        """Whether no worker has started it yet."""
        job = self._boundaries.job
        return not self.is_over and job is not None and job.attempt == 0

    @property
    def response(self) -> JsonObject | None:
        """The response object in its current state."""
        return self.encoder.response if self.encoder is not None else None

    def feed(self, record: records.Record) -> list[JsonObject]:
        """Return the events that a record adds."""
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
        """Return the events for a log that cannot be read or written."""
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
            namespaces={name: _texts(entry) for name, entry in as_object(details.get("namespaces")).items()},
            include=_texts(details.get("include")),
        )
        self._queued(record)
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
                    if isinstance(part, Custom) and part.kind == WAITING:
                        self.waits.append(part)
                    events += encoder.feed(part, record.time)
                return events
            case records.ToolStarted(call_id=call_id):
                return encoder.started(call_id)
            case records.RunStarted() if record.seq > self._info.start:
                self._queued(record)
                return encoder.resumed()
            case records.RunCancelled():
                encoder.at = record.time
                return encoder.cancelled()
            case records.MessageAdded():
                self._is_over = True
                return []
            case _:
                return []

    def _queued(self, record: records.Record) -> None:
        """Note that the run waits for a worker, or that one has come."""
        body = record.body
        job = job_in(body.details) if isinstance(body, records.RunStarted) else None
        wait = job.queue_wait(record.time) if job is not None else None
        if self._queue_wait is not None:
            self.waits.append(self._queue_wait.part(is_over=True))
        if wait is not None:
            self.waits.append(wait.part())
        self._queue_wait = wait

    def _steer(self, part: Steer) -> None:
        if part.status == "accepted":
            self.steers[part.id] = part
            self.accepted.append(part.id)
        else:
            self.steers.pop(part.id, None)

    def _remember(self, record: records.Record) -> None:
        """Keep the calls of the run's earlier responses, because their results may be reported in this one."""
        parts = record.body.parts if isinstance(record.body, records.Segment) else ()
        for part in parts:
            if isinstance(part, ToolCall | ToolApprovalRequest):
                self._early.append(part)


def _texts(value: object) -> list[str]:
    return [text for text in as_list(value) if isinstance(text, str)]


def notes_in(rows: Sequence[records.Row]) -> list[JsonObject]:
    """Return the notes of a conversation in order."""
    bodies = [records.unpack(row).body for row in rows if row.kind == "noted"]
    return [body.details for body in bodies if isinstance(body, records.Noted)]
