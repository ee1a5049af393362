"""A worker that executes the runs assigned to it by an engine, each under a claim."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.durable.beginning import Beginning
from sidestream.durable.engines.protocol import Claim, Engine, LeaseLostError, Outcome, OwnClaim
from sidestream.durable.log import open_runs
from sidestream.durable.log.approval_deadlines import OnExpiry, denials, expires_at
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.jobs import Job, driven_details
from sidestream.durable.log.run_control import Post, posts_for
from sidestream.durable.outages import Outage
from sidestream.errors import ConfigurationError, ConflictError, FencedError, SidestreamError, SteerError, StoreError
from sidestream.logs import get_logger
from sidestream.parts import Error
from sidestream.run.run import Run
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.flush_schedule import moments
from sidestream.store.log.writer import LogDetail
from sidestream.store.protocol import SharedStore
from sidestream.store.queries import POSTS
from sidestream.store.records import Row, open_run
from sidestream.text.redaction import redact
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.state import AwaitDecision

INTERVAL_S = 0.05
"""Seconds between writes of a run's output to the log, which is when subscribers see it."""
PACED_RUNS = 40
"""Number of runs from which streams are read when the log is written, not whenever a packet arrives.

Subscribers read the log, so they see nothing later, and waking up for an event costs more than handling it.
"""
FAST_PARTS = 64
"""Parts in one batch from which a stream is not paced, so that fast streams are not slowed down."""
HEARTBEATS_PER_LEASE = 3
"""Heartbeats per lease. A lost or late one does not cost the claim."""
_log = get_logger(__name__)


class _Driven:
    """A run that this worker executes."""

    def __init__(self, run: Run[Any], *, has_posts: bool = True) -> None:
        self.run = run
        self.is_begun = False
        self.has_posts = has_posts
        """Whether control messages may have arrived before the run started."""
        self.ended = asyncio.Event()


class Worker:
    """Executes runs in this process: `await engine.work(worker.drive, queues=queues, slots=50)`.

    `agent_of` returns the agent with a name, and raises SidestreamError if this worker does not know it. Calls wait
    `approval_s` seconds for their approval, after which `on_expiry` applies. They wait `answer_s` seconds for the
    result of a client, after which the run is stopped.
    """

    def __init__(
        self,
        store: SharedStore,
        engine: Engine,
        agent_of: Callable[[str], Agent[Any]],
        *,
        detail: LogDetail | None = None,
        approval_s: float | None = None,
        on_expiry: OnExpiry = "deny",
        answer_s: float | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._agent_of = agent_of
        self._detail = detail or LogDetail(interval_s=INTERVAL_S, previews=True, inputs=True)
        self._approval_s = approval_s if on_expiry != "wait" else None
        self._on_expiry = on_expiry
        self._answer_s = answer_s
        self._driven: dict[str, _Driven] = {}
        """Runs being executed, by conversation id."""
        self._offered: dict[str, _Driven] = {}
        """Offered runs, by conversation id, until their claim is released."""
        self._is_draining = False

    @property
    def driving(self) -> Collection[str]:
        """Conversations whose runs are being executed."""
        return self._driven.keys()

    @property
    def runs(self) -> Mapping[str, Run[Any]]:
        """Runs of this worker, by conversation id. Offered runs stay until their claim is released."""
        return {conversation: driven.run for conversation, driven in {**self._driven, **self._offered}.items()}

    def run_in(self, conversation: str) -> Run[Any] | None:
        """Return this worker's run of a conversation. An offered run stays until its claim is released."""
        driven = self._offered.get(conversation) or self._driven.get(conversation)
        return driven.run if driven is not None else None

    async def ended(self, conversation: str) -> None:
        """Wait until this worker executes no run of the conversation."""
        if (driven := self._offered.get(conversation) or self._driven.get(conversation)) is not None:
            await driven.ended.wait()

    async def drain(self) -> None:
        """Hand off all runs. Each stops where it is, and another worker continues it at once."""
        self._is_draining = True
        for driven in list(self._driven.values()):
            with suppress(SidestreamError):  # Its last parts may be unrecorded; the log decides where it continues.
                await driven.run.leave()

    async def drive(self, claim: Claim) -> Outcome:
        """Execute a conversation's run until it waits or finishes. Raises LeaseLostError if the claim is lost."""
        store = FencedStore(self._store, claim.token, patience_s=claim.lease_s)
        try:
            # Fence off the previous worker first.
            if not await self._fence(claim):
                return Outcome(position=claim.task.position)
            outcome = await self._drive(claim, store)
            while outcome.is_handed_over and await self._is_continued(claim.task.conversation):
                # A decision has already been made, so continue here.
                outcome = await self._drive(claim, store)
            return outcome
        except ConflictError as error:
            raise store.failure or LeaseLostError(str(error)) from None

    async def carry(self, claim: Claim, run: Run[Any], *, is_offered: bool = False) -> None:
        """Execute a run until it finishes, waits or is handed off. Raises LeaseLostError if the claim is lost."""
        conversation = claim.task.conversation
        # Control messages are only sent to runs in the log, so none can precede an offered run.
        driven = self._driven[conversation] = _Driven(run, has_posts=not is_offered)
        try:
            if self._is_draining:
                return  # It was claimed just before draining.
            paced = moments(self._detail.interval_s, conversation)
            async with self._kept(claim, run):
                while parts := await run.batch():
                    if not driven.is_begun:
                        driven.is_begun = True
                        if driven.has_posts:
                            await self._deliver([conversation])
                    if len(self._driven) >= PACED_RUNS and len(parts) < FAST_PARTS and run.is_streaming:
                        await paced.wait(run)
        finally:
            if self._driven.get(conversation) is driven:
                del self._driven[conversation]
            await run.leave()
            driven.ended.set()

    async def offer(self, claim: OwnClaim, beginning: Beginning) -> SidestreamError | None:
        """Execute a run that this process has started, without the engine's queue, and release its claim.

        Returns an error if the store failed or the claim was lost; another worker then continues the run.
        """
        assert beginning.run is not None
        conversation, run, outcome = claim.task.conversation, beginning.run, None
        offered = self._offered[conversation] = _Driven(run)
        try:
            await self.carry(claim, run, is_offered=True)
            outcome = await self._offered_outcome(claim, run, beginning)
        except (StoreError, LeaseLostError) as error:
            _log.warning("conversation %s: %s", conversation, redact(str(error)))
            return error
        except Exception as error:  # The request could not be made, and no other worker could make it either.
            _log.warning("conversation %s: %s", conversation, redact(f"{type(error).__name__}: {error}"))
            outcome = await self._broken_outcome(claim, run, beginning.after, error)
        finally:
            try:
                await claim.release(outcome)
            finally:
                del self._offered[conversation]
                offered.ended.set()
        return None

    async def _offered_outcome(self, claim: OwnClaim, run: Run[Any], beginning: Beginning) -> Outcome | None:
        """Return how far an offered run came, without reading its chat again."""
        conversation = claim.task.conversation
        if (position := claim.ended_at) is None:
            rows = await self._store.read(conversation, beginning.after)
            if not rows or open_run(rows) is not None:
                return Outcome(position=rows[-1].seq, is_handed_over=True) if rows else None
            position = rows[-1].seq
        if await self._store.posts([conversation]):
            await self._store.clear_posts(conversation)
        if not isinstance(run.turn.command, AwaitDecision):
            return Outcome(position=position)
        store = FencedStore(self._store, claim.token)
        return await self._waiting(store, conversation, position, run.state.approvals, beginning.job)

    async def _waiting(
        self, store: SharedStore, conversation: str, position: int, pending: Sequence[PendingApproval], job: Job | None
    ) -> Outcome:
        """Return the outcome of a run that waits, or end it if only a client could answer that will not come back."""
        if job is not None and job.is_stateless and all(entry.is_external for entry in pending):
            rows = await store.read(conversation)
            return Outcome(position=await open_runs.cancel_run(store, conversation, rows))
        has_limit = any((self._answer_s if entry.is_external else self._approval_s) is not None for entry in pending)
        rows = await self._store.read(conversation) if has_limit else []
        until = expires_at(rows, pending, self._approval_s, self._answer_s)
        return Outcome(position=position, is_waiting=True, until=until)

    async def _broken_outcome(self, claim: Claim, run: Run[Any], after: int, cause: Exception) -> Outcome | None:
        """End an offered run that has raised something other than its own errors."""
        conversation = claim.task.conversation
        rows = await self._store.read(conversation, after)
        if not rows or open_run(rows) is None:
            return None
        reason = redact(str(cause)) or type(cause).__name__
        error = Error("provider", reason, code=type(cause).__name__)
        store = FencedStore(self._store, claim.token)
        return Outcome(
            position=await open_runs.fail_run(store, conversation, rows, reason, run.turn.state.usage, error=error)
        )

    async def outcome(self, chat: Chat[Any], store: SharedStore, job: Job) -> Outcome:
        """Return how far a conversation has come according to its log. Raises StoreError if it cannot be read."""
        await chat.load()
        if chat.status == "unfinished":
            return Outcome(position=chat.head, is_handed_over=True)
        if chat.status == "waiting":
            return await self._waiting(store, chat.id, chat.head, chat.approvals, job)
        await self._store.clear_posts(chat.id)
        return Outcome(position=chat.head)

    async def _is_continued(self, conversation: str) -> bool:
        """Return whether another process has started the next turn, which this worker can execute."""
        if self._is_draining:
            return False
        job = open_runs.job_of(open_run(await self._store.read(conversation)))
        return job is not None and job.attempt == 0 and job.at is None

    async def attend(self) -> None:
        """Deliver control messages to this worker's runs until cancelled."""
        reading = Outage("cannot read control messages")
        while True:
            try:
                async for _ in self._store.changes(POSTS):
                    await self._deliver(self._driven.keys())
                    reading.worked()
            except StoreError as error:
                reading.failed(error)
                await asyncio.sleep(1.0)

    async def _fence(self, claim: Claim) -> bool:
        """Fence off the previous worker, or return False if the conversation was deleted."""
        conversation = claim.task.conversation
        try:
            await self._store.fence(conversation, claim.token)
        except FencedError:
            raise
        except StoreError:
            if await self._store.read(conversation):
                raise
            return False
        return True

    async def _drive(self, claim: Claim, store: FencedStore) -> Outcome:
        conversation = claim.task.conversation
        rows = await store.read(conversation)
        job = open_runs.job_of(open_runs.last_start(rows))
        if job is None:
            return Outcome(position=rows[-1].seq)  # It belongs to a program, which may still be executing it.
        attempt = open_runs.next_attempt(job, rows, is_takeover=claim.is_takeover)
        if (reason := open_runs.refusal(job, attempt)) is not None and open_run(rows) is not None:
            return await self._failed(store, conversation, rows, reason)
        try:
            chat = Chat(self._agent_of(job.agent), store=store, id=conversation, log=self._detail)
            await chat.load()
            if chat.status == "waiting":
                return await self._waited(claim, chat, store, rows, job)
            if chat.status == "unfinished":
                if chat.run_state is not None and open_runs.waits_for_decisions(chat.run_state):
                    await open_runs.suspend_run(store, conversation, rows, chat.run_state)
                    return await self.outcome(chat, store, job)
                chat.run_details = driven_details(replace(job, attempt=attempt, has_expired=False))
                call = job.call_settings(chat.agent)
                run = chat.resume_stream(output_type=job.output, errors="parts", **call)
                return await self._carried(claim, chat, run, store, job)
        except ConfigurationError as error:
            return await self._failed(store, conversation, rows, redact(str(error)))
        if chat.status == "complete" and open_run(rows) is not None:
            await open_runs.finish_run(store, conversation, rows)
        return await self.outcome(chat, store, job)

    async def _waited(self, claim: Claim, chat: Chat[Any], store: FencedStore, rows: list[Row], job: Job) -> Outcome:
        """Apply `on_expiry` to a waiting turn if its approvals have timed out, or keep waiting."""
        until = expires_at(rows, chat.approvals, self._approval_s, self._answer_s)
        if until is None or time.time() < until:
            return Outcome(position=chat.head, is_waiting=True, until=until)
        if self._on_expiry == "stop" or any(entry.is_external for entry in chat.approvals):
            return Outcome(position=await open_runs.cancel_run(store, chat.id, rows))
        _log.info("conversation %s: approval timed out", chat.id)
        chat.run_details = driven_details(replace(job, attempt=2, has_expired=True))
        call = job.call_settings(chat.agent)
        run = chat.resume_stream(denials(chat.approvals), output_type=job.output, errors="parts", **call)
        return await self._carried(claim, chat, run, store, job)

    async def _carried(self, claim: Claim, chat: Chat[Any], run: Run[Any], store: FencedStore, job: Job) -> Outcome:
        """Execute a run, and return how far its conversation has come."""
        await self.carry(claim, run)
        # A run that was left is over in this process, but not in its log.
        if chat.status != "complete" or chat.store_error is not None:
            return await self.outcome(chat, store, job)
        await self._store.clear_posts(chat.id)
        return Outcome(position=chat.head)  # The log has the whole run, so it need not be read again.

    async def _failed(self, store: FencedStore, conversation: str, rows: list[Row], reason: str) -> Outcome:
        """End a turn that cannot be executed, giving the reason, unless it has already ended or waits."""
        state = await Conversation(store, conversation).state()
        if state.status != "unfinished" or state.run_state is None:
            return Outcome(position=state.head, is_waiting=state.status == "waiting")
        _log.warning("conversation %s: not resumed: %s", conversation, reason)
        return Outcome(position=await open_runs.fail_run(store, conversation, rows, reason, state.run_state.turn.usage))

    @asynccontextmanager
    async def _kept(self, claim: Claim, run: Run[Any]) -> AsyncGenerator[None]:
        """Renew the lease while the block runs. If it is lost, leave the run and raise LeaseLostError."""
        lost: list[LeaseLostError] = []

        async def keep() -> None:
            lost.append(await until_lost(claim))
            with suppress(SidestreamError):
                await run.leave()

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
        if lost:
            raise lost[0]

    async def _deliver(self, conversations: Collection[str]) -> None:
        """Deliver the control messages for these conversations, keeping those for runs that have not started yet."""
        for post in await posts_for(self._store, conversations):
            driven = self._driven.get(post.conversation)
            if driven is None:
                continue
            driven.has_posts = True
            if driven.is_begun:
                await self._pass_on(post, driven.run)

    async def _pass_on(self, post: Post, run: Run[Any]) -> None:
        try:
            if post.kind == "stop":
                await run.cancel()
            elif post.message is not None:
                await run.steer(post.message)
            elif post.kind == "withdraw":
                await run.withdraw(post.grant)
        except (SteerError, SidestreamError) as error:
            _log.info("conversation %s: could not deliver %s: %s", post.conversation, post.kind, redact(str(error)))
        await self._store.remove_post(post.id)


async def until_lost(claim: Claim) -> LeaseLostError:
    """Send heartbeats until the claim is lost, or until none has succeeded for the length of a lease."""
    renewed_s = time.monotonic()
    beating: asyncio.Task[None] | None = None
    try:
        while (left_s := renewed_s + claim.lease_s - time.monotonic()) > 0:
            await asyncio.sleep(min(claim.lease_s / HEARTBEATS_PER_LEASE, left_s))
            began_s = time.monotonic()
            beating = asyncio.create_task(claim.heartbeat())
            # An unresponsive database may block a heartbeat for longer than the lease. A process that was suspended for
            # that long tries once more.
            left_s = max(renewed_s + claim.lease_s - began_s, claim.lease_s / HEARTBEATS_PER_LEASE)
            await asyncio.wait([beating], timeout=left_s)
            if not beating.done():
                break
            try:
                beating.result()
                renewed_s = began_s
            except LeaseLostError as error:
                return error
            except SidestreamError as error:
                _log.warning("conversation %s: heartbeat failed: %s", claim.task.conversation, redact(str(error)))
        return LeaseLostError("the lease could not be renewed in time")
    finally:
        if beating is not None:
            beating.cancel()
            beating.add_done_callback(lambda task: task.cancelled() or task.exception())
