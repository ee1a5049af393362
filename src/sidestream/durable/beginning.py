"""Starts runs. No other module writes the first record of a run."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.settings import CallSettings
from sidestream.durable.log.jobs import Job, driven_details
from sidestream.durable.log.open_runs import last_start, written
from sidestream.durable.log.summaries import RunSummary
from sidestream.errors import ConfigurationError
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage
from sidestream.parts import Finish, StreamPart, StreamStart, Usage
from sidestream.run.prompts import Prompt
from sidestream.run.run import Run
from sidestream.run.settings import StreamErrors
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.writer import LogDetail, Writer
from sidestream.store.protocol import Store
from sidestream.store.records import STARTED, Body, Row, RunStarted, Segment, open_run, unpack
from sidestream.tools.approvals import Decision
from sidestream.turn.machine import Turn


class Begun(Struct, frozen=True, kw_only=True):
    """A run whose first record is in the log."""

    id: str
    start: int
    """Sequence number of its first record."""
    position: int
    """Sequence number of the last record."""
    is_live: bool
    """Whether anything is left to execute."""


class Beginning:
    """A run that is being started, with its conversation and its first records.

    `call` holds settings that are not stored with the job. With `is_offered`, this process's worker executes the run;
    otherwise `record` leaves it to any worker. `messages` become the history of a new conversation.
    """

    def __init__(
        self,
        agent: Agent[Any],
        job: Job,
        conversation: str,
        *,
        store: Store,
        messages: Iterable[ChatMessage] = (),
        detail: LogDetail | None = None,
        is_offered: bool = False,
        errors: StreamErrors = "raise",
        call: CallSettings | None = None,
    ) -> None:
        self.job = job
        self.store = store
        self.chat = Chat(agent, messages, store=store, id=conversation, log=detail)
        self.after = 0
        """Sequence number of the last record before the run."""
        self.at: float | None = None
        """Time at which a worker executes the run, in seconds since 1970. None means at once."""
        self._run: Run[Any] | None = None
        self._is_offered = is_offered
        self._errors: StreamErrors = errors
        self._call = call or CallSettings()

    @property
    def run(self) -> Run[Any] | None:
        """The run, or None until it is started or resumed."""
        return self._run

    async def load(self) -> None:
        """Load the conversation from the store."""
        await self.chat.load()
        self.after = self.chat.head

    def start(self, prompt: Prompt, *, at: float | None = None) -> Run[Any]:
        """Start a turn that a worker executes at the time `at`. Raises the errors of `Chat.stream`."""
        self._note(at)
        self._run = self.chat.stream(prompt, output_type=self.job.output, errors=self._errors, **self._settings())
        return self._run

    def resume(self, decisions: Iterable[Decision]) -> Run[Any]:
        """Resume the last turn with decisions. Raises the errors of `Chat.resume_stream`."""
        self._note(None)
        self._run = self.chat.resume_stream(
            decisions, output_type=self.job.output, errors=self._errors, **self._settings()
        )
        return self._run

    async def record(self) -> Begun:
        """Write the run's first records and leave the rest to a worker. Raises StoreError if the write fails."""
        assert self._run is not None
        await self._run.begin()
        if self.chat.store_error is not None:
            raise self.chat.store_error
        rows = await self.store.read(self.chat.id, self.after)
        started = next(row for row in rows if row.kind == STARTED)
        is_live = open_run(rows) is not None
        return Begun(id=started.run, start=started.seq, position=rows[-1].seq, is_live=is_live)

    def _note(self, at: float | None) -> None:
        """Put the job into the run's first record, and this process's name if it executes the run."""
        self.at = at
        self.chat.run_details = driven_details(self.job) if self._is_offered else _queued_details(self.job, at)

    def _settings(self) -> CallSettings:
        return cast(CallSettings, {**self.job.call_settings(self.chat.agent), **self._call})


async def begin_again(store: Store, run: RunSummary, decisions: Sequence[Decision] = ()) -> int:
    """Record that an abandoned, stopped or failed run continues, and return the last record's sequence number.

    A run that waits continues with `decisions` on all its pending calls. Raises ConfigurationError if the run cannot
    be continued, ConflictError if a worker is executing it.
    """
    if run.status == "complete":
        raise ConfigurationError("the run is complete; there is nothing to resume")
    if run.status == "waiting" and not decisions:
        raise ConfigurationError(
            "the run waits for a decision; use `sidestream runs approve` or `sidestream runs deny`"
        )
    if run.job is None:
        raise ConfigurationError("the run's log holds no job to continue it with; use `sidestream logs resume`")
    if run.status == "unfinished":
        return run.position
    rows = await store.read(run.conversation)
    writer = Writer(store, run.conversation, rows[-1].seq)
    writer.run_details = _queued_details(run.job, run.job.at)
    metadata = _started(rows).message_metadata
    effects = await _effects(store, run, decisions) if decisions else ()
    writer.begin(run.id, model=run.model, opening=(), message_metadata=metadata, decisions=decisions)
    writer.feed(effects)
    return await written(writer)


async def _effects(store: Store, run: RunSummary, decisions: Sequence[Decision]) -> list[StreamPart]:
    """Return the parts that report decisions. Raises ApprovalError if they do not match the pending approvals."""
    state = (await Conversation(store, run.conversation).state()).run_state
    assert state is not None
    reported = Turn(state=state.turn, tools=None).resumed(decisions)
    # The agent's limits are checked by its worker.
    return [part for part in reported if not isinstance(part, Finish)]


def empty_run(agent: Agent[Any], job: Job) -> list[Body]:
    """Return the records of a run without output."""
    return [
        RunStarted(f"{agent.model.provider}:{agent.model.name}", details=job.as_details()),
        Segment("stream-start", (StreamStart(()),)),
        Segment("finish", (Finish("stop", Usage()),)),
    ]


def _queued_details(job: Job, at: float | None) -> JsonObject:
    """Return the details of a run that no worker has executed yet."""
    return replace(job, attempt=0, at=at).as_details()


def _started(rows: Sequence[Row]) -> RunStarted:
    start = last_start(rows)
    body = unpack(start).body if start is not None else None
    assert isinstance(body, RunStarted)
    return body
