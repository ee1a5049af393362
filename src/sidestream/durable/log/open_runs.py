"""Reads and ends runs that are in progress according to their logs."""

from collections.abc import Sequence

from sidestream.durable.log.jobs import MAX_ATTEMPTS, Job, job_in
from sidestream.parts import Error, Finish, StepFinish, StepStart, StreamStart, ToolApprovalRequest, Usage
from sidestream.store.log.writer import Writer
from sidestream.store.protocol import Store
from sidestream.store.records import STARTED, STEP_FINISH, Record, Row, RunCancelled, RunStarted, Segment, unpack
from sidestream.turn.ledger import has_unreported
from sidestream.turn.rounds import approval_request
from sidestream.turn.state import AwaitDecision, RunState

TOOL_RESULT = "tool-result"
NOT_RESUMED = "server_restarted"
"""Error code of runs that end because they cannot be resumed."""


def last_start(rows: Sequence[Row]) -> Row | None:
    """Return the record with which the last run was started or resumed."""
    return next((row for row in reversed(rows) if row.kind == STARTED), None)


def job_of(row: Row | None) -> Job | None:
    """Return the job in a run's first record, or None if it has none that this version understands."""
    body = None if row is None else unpack(row).body
    return job_in(body.details) if isinstance(body, RunStarted) else None


def next_attempt(job: Job, rows: Sequence[Row], *, is_takeover: bool) -> int:
    """Return the number of the next attempt, starting at 1.

    Only workers that died at the same position count. A worker that handed off the run or finished a step does not.
    """
    if job.attempt == 0:
        return 1
    start = last_start(rows)
    if start is not None and any(_is_progress(row) for row in rows if row.seq > start.seq):
        return 2
    return job.attempt + 1 if is_takeover else max(job.attempt, 2)


def refusal(job: Job, attempt: int) -> str | None:
    """Return why the run is not resumed, or None if it is."""
    if not job.is_resumable:
        return "the request held a secret, which is not stored; send it again"
    if attempt > MAX_ATTEMPTS:
        return f"it was interrupted {MAX_ATTEMPTS} times"
    return None


async def fail_run(
    store: Store, conversation: str, rows: Sequence[Row], reason: str, usage: Usage, *, error: Error | None = None
) -> int:
    """End the run in progress with an error, and return the last record's sequence number.

    Without `error`, the run ends with the error that it was abandoned and is not resumed for this reason. Raises
    StoreError if the write fails.
    """
    message = f"the server was restarted, and the run was not resumed: {reason}"
    error = error or Error("provider", message, code=NOT_RESUMED)
    writer = _writer(store, conversation, rows)
    writer.add(Segment("error", (error,)))
    if (step := _open_step([unpack(row) for row in rows if row.kind in ("step-start", STEP_FINISH)])) is not None:
        writer.add(Segment(STEP_FINISH, (StepFinish(step, "error", usage),)))
    writer.add(Segment("finish", (Finish("error", usage),)))
    return await written(writer)


async def finish_run(store: Store, conversation: str, rows: Sequence[Row]) -> int:
    """Write the end of a run whose worker died after the last step, and return the last record's sequence number."""
    run = last_start(rows)
    parts = steps_of(rows, run.run) if run is not None else []
    usage = Usage()
    for part in parts:
        usage = usage + part.usage
    writer = _writer(store, conversation, rows)
    writer.add(Segment("finish", (Finish(parts[-1].reason if parts else "stop", usage),)))
    return await written(writer)


def waits_for_decisions(state: RunState) -> bool:
    """Return whether an unfinished run has nothing left to do until its approvals are decided."""
    return isinstance(state.turn.command, AwaitDecision) and not has_unreported(state.turn)


async def suspend_run(store: Store, conversation: str, rows: Sequence[Row], state: RunState) -> int:
    """Write the end of a run that waits for decisions, and return the last record's sequence number.

    Its worker died or stopped before writing it. Approvals that the stream has not requested yet are requested.
    """
    start = last_start(rows)
    bodies = [unpack(row).body for row in rows if start is not None and row.seq > start.seq]
    parts = [part for body in bodies if isinstance(body, Segment) for part in body.parts]
    requested = {part.approval_id for part in parts if isinstance(part, ToolApprovalRequest)}
    callers = {entry.approval_id: id for id, call in state.turn.suspended.items() for entry in call.approvals}
    writer = _writer(store, conversation, rows)
    if not parts:
        writer.add(Segment("stream-start", (StreamStart(()),)))
    for entry in state.approvals:
        if entry.approval_id not in requested:
            request = approval_request(entry, callers.get(entry.approval_id))
            writer.add(Segment("tool-approval-request", (request,)))
    writer.add(Segment("finish", (Finish("approval", state.turn.usage),)))
    return await written(writer)


def steps_of(rows: Sequence[Row], run: str) -> list[StepFinish]:
    """Return the final part of each finished step of a run."""
    bodies = [unpack(row).body for row in rows if row.run == run and row.kind == STEP_FINISH]
    parts = [part for body in bodies if isinstance(body, Segment) for part in body.parts]
    return [part for part in parts if isinstance(part, StepFinish)]


async def cancel_run(store: Store, conversation: str, rows: Sequence[Row]) -> int:
    """Record that the last run was cancelled, and return the last record's sequence number.

    Raises StoreError if the write fails.
    """
    writer = _writer(store, conversation, rows)
    writer.add(RunCancelled())
    return await written(writer)


def _is_progress(row: Row) -> bool:
    """Return whether a resumed run would not repeat the work of this record."""
    if row.kind != TOOL_RESULT:
        return row.kind == STEP_FINISH
    body = unpack(row).body
    return isinstance(body, Segment) and not any(getattr(part, "preliminary", False) for part in body.parts)


def _writer(store: Store, conversation: str, rows: Sequence[Row]) -> Writer:
    start = last_start(rows)
    return Writer(store, conversation, rows[-1].seq, run=start.run if start is not None else "")


async def written(writer: Writer) -> int:
    """Commit a writer and return the last record's sequence number. Raises StoreError if the write fails."""
    await writer.commit()
    if writer.error is not None:
        raise writer.error
    return writer.head


def _open_step(records: Sequence[Record]) -> int | None:
    """Return the number of the interrupted step, or None if no step was interrupted."""
    for record in reversed(records):
        if isinstance(record.body, Segment):
            part = record.body.parts[0]
            if isinstance(part, StepStart | StepFinish):
                return part.step if isinstance(part, StepStart) else None
    return None
