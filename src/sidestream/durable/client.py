"""Runs for workers: begun here, executed by a worker, followed by any process."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.settings import CallSettings
from sidestream.durable.engines.protocol import Engine, Task
from sidestream.durable.log.jobs import Job, driven_details
from sidestream.durable.log.open_runs import job_of, last_start
from sidestream.durable.log.run_control import RunControl
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt, user_message
from sidestream.run.run import Run
from sidestream.run.settings import StreamErrors
from sidestream.store.log.follow import follow
from sidestream.store.log.writer import LogDetail
from sidestream.store.protocol import Store
from sidestream.store.records import STARTED, Record, open_run
from sidestream.store.wrapped import shared
from sidestream.tools.approvals import Decision, PendingApproval


class Begun(Struct, frozen=True, kw_only=True):
    """A run whose beginning is in the log."""

    id: str
    start: int
    """The number of the record with which it began."""
    position: int
    """The number of the last record."""
    is_live: bool
    """False if nothing is left to execute."""


class Beginning:
    """The beginning of a run: its conversation, and what the log says of the run before it is executed.

    `call` are settings that are not stored with the job. With `is_offered`, this process executes the run itself;
    without, `record` writes the beginning for a worker. A new conversation has `messages` as its history.
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
        self.chat = Chat(agent, messages, store=store, id=conversation, log=detail)
        self.after = 0
        """The number of the last record before the run."""
        self.run: Run[Any] | None = None
        """The run, once it was started or resumed here."""
        self._store = store
        self._is_offered = is_offered
        self._errors: StreamErrors = errors
        self._call = call or CallSettings()

    async def load(self) -> None:
        """Read the conversation."""
        await self.chat.load()
        self.after = self.chat.head

    def start(self, prompt: Prompt, *, at: float | None = None) -> Run[Any]:
        """Start a turn; `at` is when a worker executes it. Raises what `Chat.stream` raises."""
        self._note(at)
        self.run = self.chat.stream(prompt, output_type=self.job.output, errors=self._errors, **self._settings())
        return self.run

    def resume(self, decisions: Iterable[Decision]) -> Run[Any]:
        """Resume the last turn after decisions. Raises what `Chat.resume_stream` raises."""
        self._note(None)
        self.run = self.chat.resume_stream(
            decisions, output_type=self.job.output, errors=self._errors, **self._settings()
        )
        return self.run

    async def record(self) -> Begun:
        """Record how the run begins, and leave it to a worker. Raises StoreError."""
        assert self.run is not None
        await self.run.begin()
        if self.chat.store_error is not None:
            raise self.chat.store_error
        rows = await self._store.read(self.chat.id, self.after)
        started = next(row for row in rows if row.kind == STARTED)
        is_live = open_run(rows) is not None
        return Begun(id=started.run, start=started.seq, position=rows[-1].seq, is_live=is_live)

    def _note(self, at: float | None) -> None:
        """Say in the first record of the run what its job is, and which process executes it, if that is this one."""
        waiting = replace(self.job, attempt=0, at=at)
        self.chat.run_details = driven_details(self.job) if self._is_offered else waiting.as_details()

    def _settings(self) -> CallSettings:
        return cast(CallSettings, {**self.job.call_settings(self.chat.agent), **self._call})


class RunClient:
    """Begins runs of one agent that workers drive, and follows them.

    `name` is the agent's name at the workers: `sidestream worker --agent support@2=shop:agent`. The agent is needed
    here too, for what the log must say of a run before anybody drives it; it sends no requests.

    ```python
    store = open_store("talks.db")
    client = RunClient(agent, "support", store=store, engine=open_engine("embedded", store))
    await client.start("ticket-7", "Where is my parcel?")
    async for record in client.follow("ticket-7"):
        print(record.kind)
    ```
    """

    def __init__(self, agent: Agent[Any], name: str, *, store: Store, engine: Engine) -> None:
        self._agent = agent
        self._name = name
        self._store = shared(store)
        self._engine = engine
        self._control = RunControl(self._store, engine)

    async def start(self, conversation: str, prompt: Prompt, *, at: float | None = None) -> str:
        """Begins a turn; returns the id of its run once the log and the engine have it. A worker drives it.

        With `at`, in seconds since 1970, not before that time. Raises ConfigurationError while the last turn is in
        progress or waits.
        """
        beginning = await self._loaded(conversation, Job(agent=self._name))
        beginning.start(prompt, at=at)
        begun = await beginning.record()
        await self._engine.enqueue(Task(conversation=conversation, position=begun.position, queue=self._name, at=at))
        return begun.id

    async def approvals(self, conversation: str) -> tuple[PendingApproval, ...]:
        """Return what waits for a decision in a conversation."""
        return (await self._loaded(conversation, Job(agent=self._name))).chat.approvals

    async def decide(self, conversation: str, decisions: Iterable[Decision]) -> None:
        """Record decisions on pending approvals, and wake the run. Raises ApprovalError."""
        job = job_of(last_start(await self._store.read(conversation))) or Job(agent=self._name)
        beginning = await self._loaded(conversation, job)
        beginning.resume(decisions)
        await beginning.record()
        await self._engine.wake(conversation, beginning.after)

    async def steer(self, conversation: str, message: Prompt) -> None:
        """Pass a message to the run in progress, whichever worker has it. Raises SteerError if there is none."""
        await self._control.send(conversation, user_message(message))

    async def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """Yield the records of a conversation after a number, as they are written, until no run is in progress there.

        With `load`, records have the bytes of their files; without, the addresses of the blobs.
        """
        if not await self._store.read(conversation):
            raise ConfigurationError(f"there is no conversation {conversation!r}")
        async with aclosing(follow(self._store, conversation, after, load=load)) as records:
            async for record in records:
                yield record

    async def stop(self, conversation: str) -> bool:
        """End the run of a conversation, whichever worker has it; return False if none is in progress."""
        return await self._control.stop(conversation)

    async def _loaded(self, conversation: str, job: Job) -> Beginning:
        beginning = Beginning(self._agent, job, conversation, store=self._store)
        await beginning.load()
        return beginning
