"""After a restart: runs that a process left are resumed, or end with a reason. None stays in progress for ever."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.durable.jobs import MAX_ATTEMPTS, Job, job_in
from sidestream.errors import SidestreamError, StoreError
from sidestream.logs import get_logger
from sidestream.redaction import redact
from sidestream.server.errors import RequestError
from sidestream.server.log import PublishedStore
from sidestream.server.runs import UNSTORED, Runs
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import STEP_FINISH, Record, RunStarted, Segment
from sidestream.store.writer import Writer
from sidestream.stream.parts import Error, Finish, StepFinish, StepStart, Usage

SERVER_RESTARTED = "server_restarted"
"""The code of the error with which a run ends that cannot be resumed."""
_ENDED = frozenset({"finish", "cancelled", "discarded", "kept", "message"})
"""Kinds of a conversation's last record after which no run is in progress."""
_PAGE = 200

_log = get_logger(__name__)


async def recover(store: PublishedStore, runs: Runs, agent_of: Callable[[str], Agent[Any]]) -> int:
    """Resumes every run that was in progress when its process ended; returns how many there were.

    Conversations that were not to be stored are deleted: nobody can ask for them any more.
    """
    count = 0
    unstored: list[str] = []
    async for info in _listed(store):
        if f"/{UNSTORED}" in info.id:
            unstored.append(info.id)
            continue
        if info.last in _ENDED:
            continue
        try:
            count += await _recover_one(store, runs, agent_of, info.id)
        except StoreError as error:
            _log.warning("conversation %s cannot be resumed: %s", info.id, redact(str(error)))
    for id in unstored:
        await store.delete(id)
    return count


async def _listed(store: PublishedStore) -> AsyncGenerator[ConversationInfo]:
    before: float | None = None
    while page := await store.conversations(_PAGE, before):
        for info in page:
            yield info
        before = page[-1].updated


async def _recover_one(store: PublishedStore, runs: Runs, agent_of: Callable[[str], Agent[Any]], id: str) -> bool:
    conversation = store.conversation(id)
    started = [record for record in await conversation.records(load=False) if isinstance(record.body, RunStarted)]
    last = started[-1] if started else None
    job = job_in(last.body.details) if last is not None and isinstance(last.body, RunStarted) else None
    state = await conversation.state()
    if last is None or job is None or state.status != "unfinished" or state.run_state is None:
        return False  # Not a server's: the program that wrote it may still be there.
    if (reason := _refusal(job)) is None:
        try:
            await runs.resume(agent_of(job.agent), id, (), replace(job, attempt=job.attempt + 1))
            _log.info("conversation %s: run %s resumed", id, last.run)
        except (SidestreamError, RequestError) as error:
            reason = redact(str(error))
    if reason is not None:
        await _fail(store, id, last.run, reason, state.run_state.turn.usage)
        _log.warning("conversation %s: run %s failed: %s", id, last.run, reason)
    return True


def _refusal(job: Job) -> str | None:
    if not job.is_resumable:
        return "the request held a secret, which is not stored; send it again"
    if job.attempt >= MAX_ATTEMPTS:
        return f"it was interrupted {MAX_ATTEMPTS} times"
    return None


async def _fail(store: PublishedStore, id: str, run: str, reason: str, usage: Usage) -> None:
    """Ends a run with an error, where its process left it."""
    records = await store.conversation(id).records(load=False)
    writer = Writer(store, id, records[-1].seq, run=run)
    error = Error("provider", f"the server was restarted, and the run was not resumed: {reason}", code=SERVER_RESTARTED)
    writer.add(Segment("error", (error,)))
    if (step := _open_step(records)) is not None:
        writer.add(Segment(STEP_FINISH, (StepFinish(step, "error", usage),)))
    writer.add(Segment("finish", (Finish("error", usage),)))
    await writer.commit()
    if writer.error is not None:
        raise writer.error


def _open_step(records: Sequence[Record]) -> int | None:
    """The step that was interrupted."""
    for record in reversed(records):
        if isinstance(record.body, Segment):
            part = record.body.parts[0]
            if isinstance(part, StepStart | StepFinish):
                return part.step if isinstance(part, StepStart) else None
    return None
