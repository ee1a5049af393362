"""The runs of a server. Each belongs to the log, not to the request or process that started it.

The server starts runs and an engine executes them, by default the embedded one with a worker in this process.
Subscribers tail the log, whichever process writes it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.forking import Forking, ForkPlan
from sidestream.agent.settings import CallSettings
from sidestream.durable.beginning import Begun
from sidestream.durable.dispatcher import DispatchedRun, Dispatcher
from sidestream.durable.engines.protocol import Task
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of, waits_for_decisions, written
from sidestream.durable.log.run_control import RunControl, is_over
from sidestream.errors import ConflictError, SidestreamError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.messages.container_files import for_code
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt, user_message
from sidestream.server.errors import RequestError, not_found
from sidestream.server.request_policy import RequestPolicy
from sidestream.server.runs.decisions import MAX_REFUSALS, RefusedDecisionError, check_in_time
from sidestream.server.runs.execution import Execution
from sidestream.server.runs.quotas import CapKeeper
from sidestream.server.settings import Disconnect
from sidestream.store.expiry import branches_of, still_expired
from sidestream.store.ids import ConversationId, chat_of, owner_in
from sidestream.store.log.follow import Following, PublishedStore
from sidestream.store.log.forking import Changes
from sidestream.store.log.writer import LogDetail, Writer, imported
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import ENDINGS, FORKED, STARTED, Body, EvidenceChecked, Record, Row, RunStarted, open_run
from sidestream.tools.approvals import ApprovalError, Decision
from sidestream.tools.grants import Grant
from sidestream.tools.server_side import CodeInterpreter

RETRY_S = 5
MAX_CHECKS = 8
"""Maximum checks of citations at the same time, one per tenant."""


class Readers:
    """Counts the open streams of a server."""

    def __init__(self, max_open: int | None) -> None:
        self._max_open = max_open
        self._by_owner: Counter[str] = Counter()
        self._by_conversation: Counter[str] = Counter()

    def admit(self, owner: str) -> None:
        """Raise RequestError(429) if the tenant has reached its limit of open streams."""
        if self._max_open is not None and self._by_owner[owner] >= self._max_open:
            raise RequestError(
                429,
                f"too many open streams: the maximum is {self._max_open}",
                type="rate_limit_error",
                code="too_many_streams",
                headers={"Retry-After": str(RETRY_S)},
            )

    @contextmanager
    def counted(self, owner: str, conversation: str) -> Generator[None]:
        """Count one open stream while the block runs."""
        self._by_owner[owner] += 1
        self._by_conversation[conversation] += 1
        try:
            yield
        finally:
            _decrease(self._by_owner, owner)
            _decrease(self._by_conversation, conversation)

    def count(self, conversation: str) -> int:
        """Return the number of open streams of a conversation."""
        return self._by_conversation[conversation]


def _decrease(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


_log = get_logger(__name__)


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run as recorded in the log."""

    id: str
    conversation: str
    """Conversation id in the store, which includes the tenant."""
    start: int
    """Sequence number of the run's first record."""
    job: Job | None
    is_live: bool
    """Whether the run is in progress, in any process."""
    forked: Row | None = None
    """Record that says where the run was forked from. None means that it was not forked."""


class Runs:
    """Starts, resumes, stops, steers and tails runs."""

    def __init__(
        self,
        store: PublishedStore,
        execution: Execution,
        *,
        policy: RequestPolicy,
        detail: LogDetail,
        caps: CapKeeper,
        readers: Readers,
        approval_s: float | None = None,
        on_disconnect: Disconnect = "detach",
    ) -> None:
        self._store = store
        self.execution = execution
        self._dispatcher = Dispatcher(
            store,
            execution.queue_of,
            execution.enqueue,
            worker=execution.worker,
            claims=execution.claims,
            is_worker=execution.is_worker,
            detail=detail,
            errors="parts",
            ended=self._ended,
        )
        self.policy = policy
        self._control = RunControl(store, execution.engine, execution.worker)
        self._caps = caps
        self._checking = set[str]()
        """Tenants whose citations are being checked."""
        self.readers = readers
        self._approval_s = approval_s
        self._on_disconnect = on_disconnect
        self._stopping: set[asyncio.Task[bool]] = set()
        """Runs being stopped because their last subscriber left."""
        self._is_closing = False

    @property
    def live(self) -> Mapping[str, str]:
        """Ids of the runs that this process executes, by conversation id."""
        runs = self.execution.worker.runs.items()
        return {id: run.turn.state.run_id for id, run in runs if not is_over(run)}

    async def start(
        self,
        agent: Agent[Any],
        conversation: str,
        prompt: Prompt,
        job: Job,
        *,
        beginning: Iterable[ChatMessage] = (),
        grants: Iterable[Grant] = (),
        between: Iterable[ChatMessage] = (),
        at: float | None = None,
        is_new: bool = False,
        head: int | None = None,
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Start a turn, returning once the log has its first record.

        A new conversation gets `beginning` as its history, and `grants` as its remembered approvals. `between` holds
        messages after the last turn and before the prompt. `call` holds settings that are not stored with the job.
        With `at`, in seconds since 1970, the message is recorded now and sent to the model at that time. `is_new`
        means that the conversation cannot exist yet, and `head` that its last record must have this sequence number.
        If a tool runs code, attachments that models do not see or hear go to its container only.

        Raises ConflictError while another run is in progress or if `head` is outdated, RequestError(403) if the request
        adds what the agent does not allow, RequestError(429) if the tenant has reached a quota, and the errors of
        `Chat.stream`.
        """
        beginning, between = tuple(beginning), tuple(between)
        job = self.policy.admit(agent, job, (*beginning, *between))
        self._check_storable(job, call, at)
        await self._admit(conversation)
        if any(isinstance(tool, CodeInterpreter) for tool in call.get("server_side_tools") or job.hosted_tools(agent)):
            prompt = for_code(user_message(prompt))
            beginning, between = tuple(map(for_code, beginning)), tuple(map(for_code, between))
        reserved = self._dispatcher.reserved(
            agent, conversation, job, messages=beginning, call=call, at=at, is_new=is_new and self._store.has_written
        )
        async with reserved as dispatched:
            await dispatched.beginning.load()
            chat = dispatched.chat
            if head not in (None, chat.head):
                raise ConflictError(conversation)
            self.policy.check_history(job, chat.messages)
            await self._check_free(chat, job)
            await dispatched.take()
            if grants and not chat.head:
                await chat._set_grants(grants)  # pyright: ignore[reportPrivateUsage]
            if chat.status in ("cancelled", "failed"):
                await chat.keep()  # Keep the partial answer: the user has seen it, so the model should too.
            if added := imported(between):
                await append(dispatched.beginning.store, conversation, added)
                await chat.load()
            dispatched.beginning.start(prompt, at=at)
            return _info(dispatched, await self._dispatcher.dispatch(dispatched))

    async def resume(
        self,
        agent: Agent[Any],
        conversation: str,
        decisions: Iterable[Decision],
        job: Job,
        *,
        head: int | None = None,
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Resume the last turn, which is waiting, after decisions. `head` is that of `start`.

        Raises the errors of `start` and `Chat.resume_stream`. Records decisions that are refused or come too late.
        """
        decisions = tuple(decisions)
        job = self.policy.admit(agent, replace(job, has_expired=False, at=None))
        self._check_storable(job, call)
        await self._admit(conversation)
        async with self._dispatcher.reserved(agent, conversation, job, call=call) as dispatched:
            await dispatched.beginning.load()
            chat = dispatched.chat
            if chat.status == "unfinished" or head not in (None, chat.head):
                raise ConflictError(conversation)
            self.policy.check_history(job, chat.messages)
            await dispatched.take()
            try:
                if decisions and self._approval_s is not None:
                    check_in_time(await self._store.read(conversation), decisions, self._approval_s)
                dispatched.beginning.resume(decisions)
            except (ApprovalError, RefusedDecisionError) as error:
                named = [error.approval_id] if isinstance(error, RefusedDecisionError) else []
                for id in named or [decision.approval_id for decision in decisions[:1]]:
                    await chat._log_refusal(id, str(error))  # pyright: ignore[reportPrivateUsage]
                raise
            return _info(dispatched, await self._dispatcher.dispatch(dispatched))

    async def fork(
        self, agent: Agent[Any], parent: str, conversation: str, at: int, changes: Changes, job: Job
    ) -> str | None:
        """Copy the conversation `parent` up to the record `at` to a new one with these changes, and continue it there.

        Returns the id of the run, or None if its turn is complete. Raises ConfigurationError if a change does not fit
        the log, and the errors of `resume`; then nothing is kept.
        """
        job = self.policy.admit(agent, job)
        self._check_storable(job, {})
        await self._admit(conversation)
        plan = ForkPlan(store=self._store, conversation=parent, at=at, changes=changes)
        made = await Forking(agent, plan).build()
        await self._store.append(conversation, 0, made.rows, made.blobs)
        try:
            async with self._dispatcher.reserved(agent, conversation, job) as dispatched:
                await dispatched.beginning.load()
                self.policy.check_history(job, dispatched.chat.messages)
                if (state := dispatched.chat.run_state) is None:
                    return None
                if not waits_for_decisions(state):
                    await dispatched.take()
                    dispatched.beginning.resume(())
                    return (await self._dispatcher.dispatch(dispatched)).id
            # Any worker makes it wait, so that its approvals expire.
            started = RunStarted(
                f"{agent.model.provider}:{agent.model.name}", resumes=True, details=replace(job, attempt=0).as_details()
            )
            await append(self._store, conversation, [started], state.turn.run_id)
            queue = self.execution.queue_of(job)
            await self.execution.enqueue(Task(conversation=conversation, position=len(made.rows) + 1, queue=queue))
            return state.turn.run_id
        except (SidestreamError, RequestError):
            await self._store.delete(conversation)
            raise

    async def log_refusal(self, conversation: str, approval_id: str, reason: str) -> None:
        """Record a decision that was refused before it reached the run, up to `MAX_REFUSALS` per conversation."""
        rows = await self._store.read(conversation)
        if sum(row.kind == "approval-refused" for row in rows) >= MAX_REFUSALS:
            return
        dispatched = self._dispatcher.runs.get(conversation)
        try:
            if dispatched is not None:
                await dispatched.chat._log_refusal(approval_id, reason)  # pyright: ignore[reportPrivateUsage]
            else:
                await self._store.conversation(conversation).log_refusal(approval_id, reason)
        except StoreError as error:
            _log.warning("conversation %s: could not record a refused decision: %s", conversation, str(error))

    async def find(self, owner: str, run_id: str) -> RunInfo:
        """Return a run of this tenant. Raises RequestError(404) if there is none with this id."""
        found = await self._store.find_run(run_id)
        if found is None or ConversationId.parse(found[0]).owner != owner:
            raise not_found("run", run_id)
        conversation, start = found
        rows = await self._store.read(conversation, max(start - 2, 0))
        started = open_run(rows)
        # The copied records of a fork have no job.
        jobs = (job_of(row) for row in rows if row.kind == STARTED and row.run == run_id)
        forks = [row for row in rows if row.kind == FORKED and (row.run == run_id or row.seq < start)]
        return RunInfo(
            id=run_id,
            conversation=conversation,
            start=start,
            job=next((job for job in jobs if job is not None), None),
            is_live=started is not None and started.run == run_id,
            forked=forks[-1] if forks else None,
        )

    def in_progress(self, owner: str) -> list[JsonObject]:
        """Return the tenant's runs that this process executes, with their store conversation id as `chat`."""
        return [
            {
                "id": dispatched.run_id,
                "chat": conversation,
                "api": dispatched.job.api,
                "model": dispatched.job.agent,
                "cost": dispatched.cost,
                "readers": self.readers.count(conversation),
            }
            for conversation, dispatched in self._dispatcher.runs.items()
            if dispatched.run_id is not None and owner_in(conversation) == owner
        ]

    async def stop(self, conversation: str) -> bool:
        """Stop a conversation's run, in any process, and wait for its end. Return False if there is none."""
        await self._dispatcher.begun(conversation)
        return await self._control.stop(conversation)

    async def delete(self, conversation: str) -> bool:
        """Stop the runs of a chat, and delete all its branches and the blobs that only they named.

        `conversation` is any of its branches. Returns False if none of them exists.
        """
        branches = {info.id for info in await branches_of(self._store, conversation)}
        with self._dispatcher.blocked(branches):
            for branch in branches:
                await self.stop(branch)
                await self.execution.forget(branch)
            return any([await self._store.delete(branch) for branch in branches])

    async def delete_expired(self, chats: Sequence[Sequence[ConversationInfo]], before: float) -> int:
        """Delete the given chats that have not changed since `before` and have no run in progress, and return how many.

        Deletes them together to save statements.
        """
        listed = {info.id for chat in chats for info in chat}
        with self._dispatcher.blocked(listed):
            names = [chat_of(chat[0].id) for chat in chats]
            found = await still_expired(self._store, names, before)
            idle = [chat for chat in found if not any([await self._is_open(info) for info in chat])]
            ids = [info.id for chat in idle for info in chat]
            if self.execution.claims is None:  # An engine without claims does not notice the deletion.
                for id in ids:
                    await self.execution.forget(id)
            await self._store.delete_all(ids, before=before)  # Another server may just have continued one.
            return len(idle)

    async def _is_open(self, info: ConversationInfo) -> bool:
        """Return `is_busy`, reading the log only if the last record does not already tell."""
        return (info.id in self._dispatcher.runs or info.last not in ENDINGS) and await self.is_busy(info.id)

    async def is_busy(self, conversation: str) -> bool:
        """Return whether a run is in progress in a conversation or about to start."""
        dispatched = self._dispatcher.runs.get(conversation)
        if dispatched is not None and not dispatched.is_over:
            return True
        return open_run(await self._store.read(conversation)) is not None

    async def steer(self, conversation: str, message: Prompt) -> str:
        """Pass a message to a conversation's run and return its id. Raises SteerError if there is no such run."""
        await self._dispatcher.begun(conversation)
        return await self._control.steer(conversation, user_message(message))

    async def withdraw(self, conversation: str, grant: str) -> bool:
        """Revoke a remembered approval, also in a run in progress in any process. Return False if there is none."""
        await self._dispatcher.begun(conversation)
        return await self._control.withdraw(conversation, grant)

    @asynccontextmanager
    async def checking(self, conversation: str) -> AsyncGenerator[None]:
        """Count a check of citations, which reads pages, as a run of its tenant.

        Raises RequestError(429) if the tenant has reached a quota or checks something else.
        """
        owner = owner_in(conversation)
        if owner in self._checking or len(self._checking) >= MAX_CHECKS:
            raise RequestError(
                429,
                "other citations are being checked; try again soon",
                type="rate_limit_error",
                code="too_many_checks",
                headers={"Retry-After": str(RETRY_S)},
            )
        self._checking.add(owner)
        try:
            await self._admit(conversation)
            yield
        finally:
            self._checking.discard(owner)

    async def add_check(self, conversation: str, run: str, check: EvidenceChecked, pages: Mapping[str, bytes]) -> None:
        """Write a check of a run's citations to a conversation. Raises ConflictError if a run is in progress there."""
        with self._dispatcher.blocked({conversation}):
            rows = await self._store.read(conversation)
            if not rows or await self.is_busy(conversation):
                raise ConflictError(conversation)
            writer = Writer(self._store, conversation, rows[-1].seq, run=run)
            writer.checked(check, pages)
            if await writer.commit() is not None:
                raise StoreError("the check could not be stored")

    async def read(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[list[Record]]:
        """Yield the records of `follow` in batches for a client, counting its stream.

        With `on_disconnect="cancel"`, the run is stopped when its last client leaves.
        """
        is_over = False
        try:
            with self.readers.counted(owner_in(conversation), conversation):
                async with aclosing(self.following(conversation, after).batches(load=load)) as batches:
                    async for batch in batches:
                        yield batch
            is_over = True
        finally:
            if self._on_disconnect == "cancel" and not is_over and not self.readers.count(conversation):
                self._stop_soon(conversation)

    def _stop_soon(self, conversation: str) -> None:
        # In a task, because closing the stream of a client that has left must not block.
        stopping = asyncio.create_task(self.stop(conversation))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """Yield a conversation's records after a sequence number, until no run is in progress there.

        A record is yielded once it is safely in the log, whichever process has written it. With `load`, it includes the
        content of its blobs instead of references. Raises StoreError if the log cannot be written.
        """
        return self.following(conversation, after).records(load=load)

    def following(self, conversation: str, after: int = 0) -> Following:
        """Return a subscriber to a conversation, for single records or batches."""
        return Following(self._store, conversation, after, self._dispatcher.runs.get, lambda: self._is_closing)

    async def aclose(self) -> None:
        """Detach from all runs. Another server on the same store, or this one after a restart, resumes them."""
        self._is_closing = True
        self.execution.stop()  # Otherwise this process's worker would claim the runs that it hands off.
        await self._dispatcher.aclose()
        stopping = [*self._stopping]
        for task in stopping:
            task.cancel()
        if stopping:
            await asyncio.wait(stopping)
        await self.execution.aclose()
        self._store.wake_all()

    async def _admit(self, conversation: str) -> None:
        """Raise RequestError(429) if the conversation's tenant must not start a run now."""
        owner = owner_in(conversation)
        self.readers.admit(owner)
        await self._caps.prepare(owner)
        runs = self._dispatcher.runs.items()
        running = {run.run_id or id: run.cost for id, run in runs if owner_in(id) == owner}
        if not self.execution.is_worker:
            running |= dict.fromkeys(await self.execution.running(owner), 0.0)
        self._caps.admit(owner, running)

    def _check_storable(self, job: Job, call: Mapping[str, Any], at: float | None = None) -> None:
        """Raise RequestError if a request that cannot be stored is scheduled or needs a worker in another process."""
        if job.is_resumable and not call:
            return
        if at is not None:
            raise RequestError(
                400, "requests with secrets, such as an MCP server's token, cannot be scheduled", param="at"
            )
        if self.execution.claims is None:
            message = "secrets, such as an MCP server's token, are not stored, so workers cannot execute the request"
            raise RequestError(400, message, param="tools", code="not_storable")

    async def _check_free(self, chat: Chat[Any], job: Job) -> None:
        """Raise ConflictError or RequestError(409) unless the last turn is finished."""
        if chat.status == "unfinished":
            raise ConflictError(chat.id)
        if chat.status == "waiting":
            until = await self.execution.expires_at(chat.id, chat.approvals)
            if until is not None and until < time.time():  # The engine may not know; the task denies the calls now.
                task = Task(conversation=chat.id, position=chat.head, queue=self.execution.queue_of(job))
                await self.execution.enqueue(task)
            raise RequestError(409, "the last turn is waiting for a decision", type="conflict", code="waiting")

    def _ended(self, dispatched: DispatchedRun) -> None:
        """Record the cost of a run of this process and wake its subscribers."""
        if dispatched.claim is not None and dispatched.task is not None and dispatched.run_id is not None:
            self._caps.ended(owner_in(dispatched.chat.id), dispatched.run_id, dispatched.cost)
        self._store.wake(dispatched.chat.id)


def _info(dispatched: DispatchedRun, begun: Begun) -> RunInfo:
    return RunInfo(
        id=begun.id, conversation=dispatched.chat.id, start=begun.start, job=dispatched.job, is_live=begun.is_live
    )


async def append(store: Store, conversation: str, bodies: Iterable[Body], run: str = "") -> None:
    """Append records to a conversation without a run in progress. Raises StoreError if they cannot be written."""
    rows = await store.read(conversation)
    writer = Writer(store, conversation, rows[-1].seq if rows else 0, run=run)
    for body in bodies:
        writer.add(body)
    await written(writer)
