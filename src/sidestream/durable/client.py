"""A client that starts runs for workers to execute and follows them from any process."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from math import isfinite
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.durable.dispatcher import Dispatcher
from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.jobs import Job, queue_of
from sidestream.durable.log.open_runs import job_of, last_start
from sidestream.durable.log.run_control import RunControl
from sidestream.errors import ConfigurationError
from sidestream.run.prompts import Prompt, user_message
from sidestream.store.log.follow import follow
from sidestream.store.protocol import Store
from sidestream.store.records import Record
from sidestream.store.wrapped import shared
from sidestream.text.reprs import shown
from sidestream.tools.approvals import Decision, PendingApproval


class RunClient:
    """A client that starts runs of one agent for workers to execute, and follows them.

    `name` is the name that the workers give the agent: `sidestream worker --agent support@2=shop:agent`. The client
    needs the agent only to write a run's first records; it sends no requests to the model.

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
        self._dispatcher = Dispatcher(self._store, lambda job: queue_of(job.agent, {name}), engine.enqueue)
        self._control = RunControl(self._store, engine)

    async def start(self, conversation: str, prompt: Prompt, *, at: datetime | float | None = None) -> str:
        """Start a turn for a worker to execute, and return its run id once it is recorded and enqueued.

        With `at`, the turn does not run before that time. It is a datetime (without a time zone, in local time), or
        seconds since 1970. Raises ConfigurationError if the last turn is in progress or waits for a decision.
        """
        at_s = _seconds(at)
        async with self._dispatcher.reserved(self._agent, conversation, Job(agent=self._name), at=at_s) as run:
            await run.beginning.load()
            run.beginning.start(prompt, at=at_s)
            return (await self._dispatcher.dispatch(run)).id

    async def approvals(self, conversation: str) -> tuple[PendingApproval, ...]:
        """Return the pending approvals of a conversation."""
        chat = Chat(self._agent, store=self._store, id=conversation)
        await chat.load()
        return chat.approvals

    async def decide(self, conversation: str, decisions: Iterable[Decision]) -> None:
        """Record decisions on pending approvals and wake the run. Raises ApprovalError if they do not match."""
        job = job_of(last_start(await self._store.read(conversation))) or Job(agent=self._name)
        async with self._dispatcher.reserved(self._agent, conversation, job) as run:
            await run.beginning.load()
            run.beginning.resume(decisions)
            await self._dispatcher.dispatch(run)

    async def steer(self, conversation: str, message: Prompt) -> None:
        """Send a message to the run in progress, whichever worker executes it. Raises SteerError if there is no run."""
        await self._control.send(conversation, user_message(message))

    async def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """Yield the records after sequence number `after` as they are written, until no run is in progress.

        With `load`, records contain the bytes of their files; otherwise they contain blob URLs. Raises
        ConfigurationError if the conversation does not exist.
        """
        if not await self._store.read(conversation):
            raise ConfigurationError(f"there is no conversation {conversation!r}")
        async with aclosing(follow(self._store, conversation, after, load=load)) as records:
            async for record in records:
                yield record

    async def stop(self, conversation: str) -> bool:
        """Stop the run of a conversation, whichever worker executes it, and return whether one was in progress."""
        return await self._control.stop(conversation)


def _seconds(at: object) -> float | None:
    """Convert a time to seconds since 1970. Raises ConfigurationError for anything else, before a run is recorded."""
    seconds = at.timestamp() if isinstance(at, datetime) else at
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
        raise ConfigurationError(f"at must be a datetime or seconds since 1970, not {shown(at)}")
    return float(seconds)
