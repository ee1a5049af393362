"""Runs for workers: begun here, executed by a worker, followed by any process."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.durable.dispatcher import Dispatcher
from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of, last_start
from sidestream.durable.log.queues import queue_of
from sidestream.durable.log.run_control import RunControl
from sidestream.errors import ConfigurationError
from sidestream.run.prompts import Prompt, user_message
from sidestream.store.log.follow import follow
from sidestream.store.protocol import Store
from sidestream.store.records import Record
from sidestream.store.wrapped import shared
from sidestream.tools.approvals import Decision, PendingApproval


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
        self._dispatcher = Dispatcher(self._store, lambda job: queue_of(job.agent, {name}), engine.enqueue)
        self._control = RunControl(self._store, engine)

    async def start(self, conversation: str, prompt: Prompt, *, at: float | None = None) -> str:
        """Begins a turn; returns the id of its run once the log and the engine have it. A worker drives it.

        With `at`, in seconds since 1970, not before that time. Raises ConfigurationError while the last turn is in
        progress or waits.
        """
        async with self._dispatcher.reserved(self._agent, conversation, Job(agent=self._name), at=at) as run:
            await run.beginning.load()
            run.beginning.start(prompt, at=at)
            return (await self._dispatcher.dispatch(run)).id

    async def approvals(self, conversation: str) -> tuple[PendingApproval, ...]:
        """Return what waits for a decision in a conversation."""
        chat = Chat(self._agent, store=self._store, id=conversation)
        await chat.load()
        return chat.approvals

    async def decide(self, conversation: str, decisions: Iterable[Decision]) -> None:
        """Record decisions on pending approvals, and wake the run. Raises ApprovalError."""
        job = job_of(last_start(await self._store.read(conversation))) or Job(agent=self._name)
        async with self._dispatcher.reserved(self._agent, conversation, job) as run:
            await run.beginning.load()
            run.beginning.resume(decisions)
            await self._dispatcher.dispatch(run)

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
