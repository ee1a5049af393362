"""Runs for workers: begun here, driven elsewhere, followed by anybody."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.durable.engines.protocol import Engine, Task
from sidestream.durable.log.inbox import post_steer
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of, last_start
from sidestream.durable.log.remote_control import stop_run
from sidestream.errors import ConfigurationError, SteerError
from sidestream.run.prompts import Prompt, user_message
from sidestream.store.log.follow import follow
from sidestream.store.protocol import Store
from sidestream.store.records import Record, open_run
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
        self._engine = engine

    async def start(self, conversation: str, prompt: Prompt, *, at: float | None = None) -> str:
        """Begins a turn; returns the id of its run once the log and the engine have it. A worker drives it.

        With `at`, in seconds since 1970, not before that time. Raises ConfigurationError while the last turn is in
        progress or waits.
        """
        chat = await self._chat(conversation)
        chat.run_details = Job(agent=self._name, attempt=0, at=at).as_details()
        run = chat.stream(prompt)
        await run.begin()
        if chat.store_error is not None:
            raise chat.store_error
        await self._engine.enqueue(Task(conversation=conversation, position=chat.head, queue=self._name, at=at))
        return run.turn.state.run_id

    async def approvals(self, conversation: str) -> tuple[PendingApproval, ...]:
        """What waits for a person in a conversation."""
        return (await self._chat(conversation)).approvals

    async def decide(self, conversation: str, decisions: Iterable[Decision]) -> None:
        """Records decisions on pending approvals, and wakes the run. Raises ApprovalError."""
        chat = await self._chat(conversation)
        position = chat.head
        job = job_of(last_start(await self._store.read(conversation))) or Job(agent=self._name)
        chat.run_details = replace(job, attempt=0).as_details()
        await chat.resume_stream(decisions).begin()
        await self._engine.wake(conversation, position)

    async def steer(self, conversation: str, message: Prompt) -> None:
        """Passes a message to the run in progress, whoever drives it. Raises SteerError if there is none."""
        if open_run(await self._store.read(conversation)) is None:
            raise SteerError("no run is in progress in this conversation")
        await post_steer(self._store, conversation, user_message(message))

    async def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """The records of a conversation after a number, as they are written, until no run is in progress there.

        With `load`, records have the bytes of their files; without, the addresses of the blobs.
        """
        if not await self._store.read(conversation):
            raise ConfigurationError(f"there is no conversation {conversation!r}")
        async with aclosing(follow(self._store, conversation, after, load=load)) as records:
            async for record in records:
                yield record

    async def stop(self, conversation: str) -> bool:
        """Ends the run of a conversation, whoever drives it; False if none is in progress."""
        return await stop_run(self._store, self._engine, conversation)

    async def _chat(self, conversation: str) -> Chat[Any]:
        chat = Chat(self._agent, store=self._store, id=conversation)
        await chat.load()
        return chat
