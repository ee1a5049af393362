"""Summaries of the runs in a store, built from their logs."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of, last_start, steps_of
from sidestream.parts import Finish, Usage
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import FORKED, Forked, Row, RunStarted, Segment, unpack
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.state import TurnStatus


class LoggedRun(Struct, frozen=True, kw_only=True):
    """The last run of a conversation, as recorded in its log."""

    id: str
    conversation: str
    began: float
    """Time at which it was first started, in seconds since 1970."""
    updated: float
    position: int
    """Sequence number of the last record."""
    starts: int
    """Times a process has started or resumed it."""
    worker: str = ""
    """Name of its current or last worker; empty before its first."""
    steps: int = 0
    """Finished steps. Those that a fork copied from another log are not counted, here and in `usage`."""
    usage: Usage = Usage()
    reason: str | None = None
    """Finish reason. None means that it has not finished."""
    job: Job | None = None


class RunSummary(LoggedRun, frozen=True, kw_only=True):
    """The last run of a conversation and its status."""

    status: TurnStatus
    model: str
    title: str
    waiting: tuple[PendingApproval, ...] = ()
    forked_from: Forked | None = None
    """Origin of the conversation, if it was forked from another one."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to execute or decide."""
        return self.status in ("complete", "cancelled", "failed")


async def summary_of(store: Store, info: ConversationInfo) -> RunSummary | None:
    """Return the last run of a conversation, or None if it has none. Raises StoreError if it cannot be read."""
    rows = await store.read(info.id)
    logged = logged_run(info.id, rows)
    if logged is None:
        return None
    state = await Conversation(store, info.id).state(rows)
    return RunSummary(
        **asdict(logged),
        status=state.status,
        model=info.model,
        title=info.title,
        waiting=state.run_state.approvals if state.run_state is not None and state.status == "waiting" else (),
        forked_from=state.forked_from,
    )


def logged_run(conversation: str, rows: Sequence[Row]) -> LoggedRun | None:
    """Return the last run in these rows, or None if there is none."""
    start = last_start(rows)
    if start is None:
        return None
    own = [row for row in rows if row.run == start.run]
    starts = [row for row in own if row.kind == start.kind]
    copied = max((index for index, row in enumerate(rows) if row.kind == FORKED), default=-1) + 1
    steps = steps_of(rows[copied:], start.run)
    usage = Usage()
    for step in steps:
        usage = usage + step.usage
    return LoggedRun(
        id=start.run,
        conversation=conversation,
        began=starts[0].time,
        updated=rows[-1].time,
        position=rows[-1].seq,
        starts=len(starts),
        worker=str(_start(start).details.get("worker", "")),
        steps=len(steps),
        usage=usage,
        reason=_reason(own),
        job=job_of(start),
    )


def _start(row: Row) -> RunStarted:
    body = unpack(row).body
    assert isinstance(body, RunStarted)
    return body


def _reason(rows: Sequence[Row]) -> str | None:
    """Return the finish reason in these rows, or None if the run has not finished."""
    last = next((unpack(row).body for row in reversed(rows) if row.kind == "finish"), None)
    parts = last.parts if isinstance(last, Segment) else ()
    return next((part.reason for part in parts if isinstance(part, Finish)), None)
