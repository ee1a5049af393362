"""A worker: drives the runs that an engine gives it, each under its claim."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.durable.fenced import FencedStore
from sidestream.durable.inbox import TOPIC, Post, clear_posts, posts_for, remove_post
from sidestream.durable.jobs import Job, job_in
from sidestream.durable.protocol import Claim, Engine, LeaseLostError, Outcome
from sidestream.errors import ConflictError, SidestreamError, SteerError, StoreError
from sidestream.logs import get_logger
from sidestream.redaction import redact
from sidestream.run.run import Run
from sidestream.store.protocol import SharedStore
from sidestream.store.records import RunStarted, unpack
from sidestream.store.writer import LogDetail

HEARTBEATS_PER_LEASE = 3
"""One that is lost, or comes late, does not cost the claim."""
_log = get_logger(__name__)


class Worker:
    """Drives runs in this process: `await engine.work(worker.drive, queues=worker.queues, slots=50)`.

    `agent_of` gives the agent of a name; it raises SidestreamError for one that this worker does not know.
    """

    def __init__(
        self,
        store: SharedStore,
        engine: Engine,
        agent_of: Callable[[str], Agent[Any]],
        *,
        detail: LogDetail | None = None,
        approval_s: float | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._agent_of = agent_of
        self._detail = detail or LogDetail(previews=True, inputs=True)
        self._approval_s = approval_s
        self._runs: dict[str, Run[Any]] = {}
        """By conversation."""
        self._is_draining = False

    @property
    def driving(self) -> Iterable[str]:
        """The conversations that are driven now."""
        return self._runs.keys()

    async def drain(self) -> None:
        """Hands over what is driven here: each run stops where it is, and another worker continues it at once."""
        self._is_draining = True
        for run in list(self._runs.values()):
            with suppress(SidestreamError):  # It is not recorded to its last part; what the log has counts.
                await run.leave()

    async def drive(self, claim: Claim) -> Outcome:
        """Drives a conversation until it waits or ends, or the claim is lost. Raises LeaseLostError then."""
        conversation = claim.task.conversation
        try:
            # First of all: from now on, whoever drove it before cannot write.
            await self._store.fence(conversation, claim.token)
            store = FencedStore(self._store, claim.token)
            job = await self._job(conversation)
            if job is None:
                return Outcome(position=claim.task.position)
            chat = Chat(self._agent_of(job.agent), store=store, id=conversation, log=self._detail)
            await chat.load()
            if chat.status != "unfinished":
                return await self._outcome(chat)
            chat.run_details = replace(job, attempt=job.attempt + 1).as_details()
            run = chat.resume_stream(output_type=job.output, errors="parts", **job.call_settings(chat.agent))
            await self._drive(claim, run)
            await chat.load()
            return await self._outcome(chat)
        except ConflictError as error:
            raise LeaseLostError(str(error)) from None

    async def _drive(self, claim: Claim, run: Run[Any]) -> None:
        conversation = claim.task.conversation
        self._runs[conversation] = run
        try:
            async with self._kept(claim, run):
                while await run.batch():
                    pass
        finally:
            del self._runs[conversation]
            await run.leave()

    @asynccontextmanager
    async def _kept(self, claim: Claim, run: Run[Any]) -> AsyncGenerator[None]:
        """Renews the lease while the block runs. Once it is lost, the run is left and LeaseLostError raised."""
        lost: list[LeaseLostError] = []

        async def beat() -> None:
            while True:
                await asyncio.sleep(claim.lease_s / HEARTBEATS_PER_LEASE)
                try:
                    await claim.heartbeat()
                except LeaseLostError as error:
                    lost.append(error)
                    with suppress(SidestreamError):
                        await run.leave()
                    return
                except SidestreamError as error:  # The engine does not answer: the lease may still hold.
                    _log.warning("conversation %s: no heartbeat: %s", claim.task.conversation, redact(str(error)))

        beating = asyncio.create_task(beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])
        if lost:
            raise lost[0]

    async def attend(self) -> None:
        """Passes posts on to the runs that are driven here, until it is cancelled."""
        while True:
            try:
                async for _ in self._store.changes(TOPIC):
                    for post in await posts_for(self._store, self._runs.keys()):
                        await self._deliver(post)
            except StoreError as error:
                _log.warning("posts cannot be read: %s", redact(str(error)))
                await asyncio.sleep(1.0)

    async def _deliver(self, post: Post) -> None:
        run = self._runs.get(post.conversation)
        if run is None:
            return
        try:
            if post.kind == "stop":
                await run.cancel()
            elif post.message is not None:
                await run.steer(post.message)
        except (SteerError, SidestreamError) as error:
            _log.info("conversation %s: %s was refused: %s", post.conversation, post.kind, redact(str(error)))
        await remove_post(self._store, post)

    async def _job(self, conversation: str) -> Job | None:
        """What the last run was started with."""
        rows = await self._store.read(conversation)
        for row in reversed(rows):
            if row.kind == "run-started":
                body = unpack(row).body
                return job_in(body.details) if isinstance(body, RunStarted) else None
        return None

    async def _outcome(self, chat: Chat[Any]) -> Outcome:
        if chat.status == "unfinished":
            return Outcome(position=chat.head, is_handed_over=True)
        if chat.status == "waiting":
            until = None if self._approval_s is None else time.time() + self._approval_s
            return Outcome(position=chat.head, is_waiting=True, until=until)
        await clear_posts(self._store, chat.id)
        return Outcome(position=chat.head)
