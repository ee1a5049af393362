"""The runs of a server: each belongs to the log, not to the request or the process that started it.

By default this process drives the runs that its requests start, each under a claim. With an engine whose workers are
elsewhere, it writes how a run begins, and enqueues it. Readers follow the log either way.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Unpack

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.settings import CallSettings
from sidestream.durable.client import Beginning
from sidestream.durable.engines.embedded.run_claims import ClaimedStore, RunClaim
from sidestream.durable.engines.protocol import Outcome, Task
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.open_runs import job_of
from sidestream.durable.log.run_control import RunControl, is_over
from sidestream.errors import ConflictError, SidestreamError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt, user_message
from sidestream.server.errors import RequestError, not_found
from sidestream.server.runs.decisions import MAX_REFUSALS, RefusedDecisionError, check_in_time
from sidestream.server.runs.drivers import Driving
from sidestream.server.runs.live import LiveRun, RunInfo
from sidestream.server.runs.quotas import CapKeeper
from sidestream.server.runs.readers import Readers
from sidestream.server.settings import Disconnect
from sidestream.store.expiry import branches_of, still_expired
from sidestream.store.ids import ConversationId, chat_of, owner_in
from sidestream.store.log.follow import Following, PublishedStore
from sidestream.store.log.writer import LogDetail, Writer, imported
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import ENDINGS, Body, Record, RunStarted, open_run
from sidestream.tools.approvals import ApprovalError, Decision
from sidestream.tools.grants import Grant

CLOSING_S = 5.0
"""How long runs have to be handed over when the server is stopped."""

_log = get_logger(__name__)


class Runs:
    """Starts, resumes, stops and steers runs, and follows them."""

    def __init__(
        self,
        store: PublishedStore,
        driving: Driving,
        *,
        detail: LogDetail,
        caps: CapKeeper,
        readers: Readers,
        approval_s: float | None = None,
        on_disconnect: Disconnect = "detach",
    ) -> None:
        self._store = store
        self.driving = driving
        self._control = RunControl(store, driving.engine, driving.worker)
        self._caps = caps
        self.readers = readers
        self._approval_s = approval_s
        self._on_disconnect = on_disconnect
        self._stopping: set[asyncio.Task[bool]] = set()
        """Runs that are stopped because nobody reads them."""
        self._detail = detail
        self._live: dict[str, LiveRun] = {}
        """By conversation."""
        self._deleting: set[str] = set()
        """Conversations in which no run may begin now."""
        self._is_closing = False

    @property
    def live(self) -> Mapping[str, str]:
        """Conversation → the id of the run that this process drives there."""
        runs = {id: live.run for id, live in self._live.items() if live.claim is not None}
        runs |= {id: self.driving.worker.run_in(id) for id in self.driving.worker.driving}
        return {id: run.turn.state.run_id for id, run in runs.items() if run is not None and not is_over(run)}

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
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Starts a turn; a new conversation has `beginning` as its history, and these `grants`.

        `call` is what is not stored with the job.

        `between` are messages after the last turn and before the prompt. With `at`, in seconds since 1970, the message
        is recorded now and the model called then.

        Returns once the log has its beginning. Raises ConflictError while another run is in progress, RequestError(429)
        if the owner has reached a cap, and what `Chat.stream` raises.
        """
        is_here = self._is_driven_here(job, call, at)
        await self._admit(conversation)
        async with self._reserved(conversation, job, is_here=is_here) as (live, store):
            begins = live.beginning = self._beginning(agent, job, conversation, store, is_here, call, beginning)
            await begins.load()
            chat = begins.chat
            await self._check_free(chat, job)
            await _claimed(live, chat)
            if grants and not chat.head:
                await chat.set_grants(grants)
            if chat.status in ("cancelled", "failed"):
                await chat.keep()  # The person has seen it, so the model knows it too.
            if added := imported(between):
                await append(store, conversation, added)
                await chat.load()
            begins.start(prompt, at=at)
            return await (self._execute(live, begins) if is_here else self._enqueue(begins, at))

    async def resume(
        self,
        agent: Agent[Any],
        conversation: str,
        decisions: Iterable[Decision],
        job: Job,
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Resumes the last turn, which waits, after decisions.

        Raises like `start`, and like `Chat.resume_stream`. A decision that is refused, or comes too late, is recorded.
        """
        decisions = tuple(decisions)
        job = replace(job, has_expired=False, at=None)
        is_here = self._is_driven_here(job, call)
        await self._admit(conversation)
        async with self._reserved(conversation, job, is_here=is_here) as (live, store):
            begins = live.beginning = self._beginning(agent, job, conversation, store, is_here, call)
            await begins.load()
            chat = begins.chat
            if chat.status == "unfinished":
                raise ConflictError(conversation)
            await _claimed(live, chat)
            try:
                if decisions and self._approval_s is not None:
                    check_in_time(await self._store.read(conversation), decisions, self._approval_s)
                begins.resume(decisions)
            except (ApprovalError, RefusedDecisionError) as error:
                named = [error.approval_id] if isinstance(error, RefusedDecisionError) else []
                for id in named or [decision.approval_id for decision in decisions[:1]]:
                    await chat.log_refusal(id, str(error))
                raise
            return await (self._execute(live, begins) if is_here else self._enqueue(begins))

    async def log_refusal(self, conversation: str, approval_id: str, reason: str) -> None:
        """Records that a decision was refused before it reached the run. The log keeps `MAX_REFUSALS` of them."""
        rows = await self._store.read(conversation)
        if sum(row.kind == "approval-refused" for row in rows) >= MAX_REFUSALS:
            return
        live = self._live.get(conversation)
        try:
            if live is not None and live.chat is not None:
                await live.chat.log_refusal(approval_id, reason)
            else:
                await self._store.conversation(conversation).log_refusal(approval_id, reason)
        except StoreError as error:
            _log.warning("conversation %s: a refused decision is not recorded: %s", conversation, str(error))

    async def find(self, owner: str, run_id: str) -> RunInfo:
        """A run of this owner. Raises RequestError(404)."""
        found = await self._store.find_run(run_id)
        if found is None or ConversationId.parse(found[0]).owner != owner:
            raise not_found("run", run_id)
        conversation, start = found
        rows = await self._store.read(conversation, start - 1)
        started = open_run(rows)
        return RunInfo(
            id=run_id,
            conversation=conversation,
            start=start,
            job=job_of(rows[0]) if rows else None,
            is_live=started is not None and started.run == run_id,
        )

    def in_progress(self, owner: str) -> list[JsonObject]:
        """The owner's runs that this process drives, with their conversation in the store as `chat`."""
        return [
            {
                "id": live.run_id,
                "chat": conversation,
                "api": live.job.api if live.job is not None else None,
                "model": live.job.agent if live.job is not None else None,
                "cost": live.cost,
                "readers": self.readers.count(conversation),
            }
            for conversation, live in self._live.items()
            if live.run_id is not None and owner_in(conversation) == owner
        ]

    async def stop(self, conversation: str) -> bool:
        """Stops the run of a conversation, wherever it is driven, and waits for its end; False if there is none."""
        await self._begun(conversation)
        return await self._control.stop(conversation)

    async def delete(self, conversation: str) -> bool:
        """Removes a chat: all its branches, their runs in progress, and the blobs that only they named.

        `conversation` is any of its branches. False if there is none of them.
        """
        branches = {info.id for info in await branches_of(self._store, conversation)}
        self._deleting |= branches
        try:
            for branch in branches:
                await self.stop(branch)
                await self.driving.forget(branch)
            return any([await self._store.delete(branch) for branch in branches])
        finally:
            self._deleting -= branches

    async def delete_expired(self, chats: Sequence[Sequence[ConversationInfo]], before: float) -> int:
        """Removes those chats that still have not changed since a moment, and in which no run is in progress; returns
        how many. They are removed together: hardly any chat takes a statement of its own.
        """
        listed = {info.id for chat in chats for info in chat}
        self._deleting |= listed  # From here on nothing begins in them.
        try:
            names = [chat_of(chat[0].id) for chat in chats]
            found = await still_expired(self._store, names, before)
            idle = [chat for chat in found if not any([await self._is_open(info) for info in chat])]
            ids = [info.id for chat in idle for info in chat]
            if self.driving.claims is None:  # An engine elsewhere does not see that the conversation is gone.
                for id in ids:
                    await self.driving.forget(id)
            await self._store.delete_all(ids, before=before)  # Another server may just have continued one.
            return len(idle)
        finally:
            self._deleting -= listed

    async def _is_open(self, info: ConversationInfo) -> bool:
        """`is_busy`, which for most conversations follows from their last record."""
        return (info.id in self._live or info.last not in ENDINGS) and await self.is_busy(info.id)

    async def is_busy(self, conversation: str) -> bool:
        """True if a run is in progress there, or is about to begin."""
        live = self._live.get(conversation)
        if live is not None and not live.is_over:
            return True
        return open_run(await self._store.read(conversation)) is not None

    async def steer(self, conversation: str, message: Prompt) -> str:
        """Passes a message to the run of a conversation; returns its id. Raises SteerError."""
        await self._begun(conversation)
        return await self._control.steer(conversation, user_message(message))

    async def withdraw(self, conversation: str, grant: str) -> bool:
        """Withdraws a grant, also from the run in progress, wherever it is driven; False if there is none."""
        await self._begun(conversation)
        return await self._control.withdraw(conversation, grant)

    async def read(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[list[Record]]:
        """What `follow` yields, in batches, for a client: its stream counts, and the last client may end the run."""
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
        # In a task: whoever closes the stream of a client that has left may not wait.
        stopping = asyncio.create_task(self.stop(conversation))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """The records of a conversation after a number, until no run is in progress there.

        A record comes once it is safe in the log, whichever process has written it. With `load`, it has the content of
        its blobs instead of their addresses. Raises StoreError if the log cannot be written.
        """
        return self.following(conversation, after).records(load=load)

    def following(self, conversation: str, after: int = 0, *, is_current: bool = False) -> Following:
        """Return a subscriber of a conversation, for `follow`, or for its batches."""
        return Following(
            self._store, conversation, after, self._live.get, lambda: self._is_closing, is_current=is_current
        )

    async def aclose(self) -> None:
        """Leaves all runs; another server on the same store, or this one after a restart, resumes them."""
        self._is_closing = True
        for live in list(self._live.values()):
            if live.run is not None:
                with suppress(SidestreamError):  # It is not recorded to its end; what the log has counts.
                    await live.run.leave()
        tasks: list[asyncio.Task[Any]] = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING_S)
        tasks += self._stopping
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.driving.aclose()
        self._store.wake_all()

    async def _admit(self, conversation: str) -> None:
        """Raises RequestError(429) if the owner of the conversation may start no run now."""
        owner = owner_in(conversation)
        self.readers.admit(owner)
        await self._caps.prepare(owner)
        running = {live.run_id or id: live.cost for id, live in self._live.items() if owner_in(id) == owner}
        if not self.driving.is_here:
            running |= dict.fromkeys(await self.driving.running(owner), 0.0)
        self._caps.admit(owner, running)

    def _is_driven_here(self, job: Job, call: Mapping[str, Any], at: float | None = None) -> bool:
        """Raises RequestError for what neither this process nor another one may drive."""
        if job.is_resumable and not call:
            return self.driving.is_here and (at is None or at <= time.time())
        if at is not None:
            raise RequestError(
                400, "what holds a secret, such as a token of a server, cannot be sent later", param="at"
            )
        if self.driving.claims is None:
            message = "this request holds what is not stored, such as a token of a server: its workers cannot drive it"
            raise RequestError(400, message, param="tools", code="not_storable")
        return True

    @asynccontextmanager
    async def _reserved(
        self, conversation: str, job: Job, *, is_here: bool
    ) -> AsyncGenerator[tuple[LiveRun, ClaimedStore | PublishedStore]]:
        """The conversation is this run's, until it ends, or fails to begin."""
        while (last := self._live.get(conversation)) is not None and last.is_over and last.task is not None:
            await asyncio.wait([last.task])
        if last is not None or conversation in self._deleting or self._is_closing:
            raise ConflictError(conversation)
        live = self._live[conversation] = LiveRun()
        store: ClaimedStore | PublishedStore = self._store
        if is_here and self.driving.claims is not None:
            live.claim = RunClaim(self.driving.claims, conversation, self.driving.queue_of(job))
            store = ClaimedStore(self._store, live.claim)
        try:
            yield live, store
        finally:
            if live.task is None:
                if live.claim is not None:
                    await live.claim.release(Outcome(position=live.after))
                self._release(conversation)

    async def _check_free(self, chat: Chat[Any], job: Job) -> None:
        """Raises ConflictError or RequestError(409) unless the last turn is over."""
        if chat.status == "unfinished":
            raise ConflictError(chat.id)
        if chat.status == "waiting":
            until = await self.driving.expires_at(chat.id, chat.approvals)
            if until is not None and until < time.time():  # The engine may not know it: it denies the calls now.
                task = Task(conversation=chat.id, position=chat.head, queue=self.driving.queue_of(job))
                await self.driving.enqueue(task)
            raise RequestError(409, "the last turn waits for a decision", type="conflict", code="waiting")

    def _beginning(
        self,
        agent: Agent[Any],
        job: Job,
        conversation: str,
        store: ClaimedStore | PublishedStore,
        is_here: bool,
        call: CallSettings,
        messages: Iterable[ChatMessage] = (),
    ) -> Beginning:
        return Beginning(
            agent,
            job,
            conversation,
            store=store,
            messages=messages,
            detail=self._detail,
            is_offered=is_here,
            errors="parts",
            call=call,
        )

    async def _execute(self, live: LiveRun, begins: Beginning) -> RunInfo:
        """Execute a run in this process; return once the log has its beginning."""
        chat = begins.chat
        live.task = asyncio.create_task(self._offer(live, begins))
        try:
            async for record in self.following(chat.id, begins.after, is_current=True).records(load=False):
                if isinstance(record.body, RunStarted):
                    return _info(begins, live.run_id or "", record.seq)
        finally:
            live.begun.set()
        raise live.error or chat.store_error or ConflictError(chat.id)

    async def _enqueue(self, begins: Beginning, at: float | None = None) -> RunInfo:
        """Record how a run begins, and enqueue it for a worker."""
        begun = await begins.record()
        if begun.is_live:
            queue = self.driving.queue_of(begins.job)
            await self.driving.enqueue(Task(conversation=begins.chat.id, position=begun.position, queue=queue, at=at))
        return _info(begins, begun.id, begun.start, is_live=begun.is_live)

    async def _offer(self, live: LiveRun, begins: Beginning) -> None:
        assert live.claim is not None
        assert begins.run is not None
        conversation = begins.chat.id
        try:
            live.error = await self.driving.worker.offer(live.claim, begins.run, begins.after)
        finally:
            self._caps.ended(owner_in(conversation), begins.run.turn.state.run_id, live.cost)
            self._release(conversation)

    async def _begun(self, conversation: str) -> None:
        """Wait for a run that is about to begin: a request to stop or steer it may overtake the one that starts it."""
        if (live := self._live.get(conversation)) is not None:
            await live.begun.wait()

    def _release(self, conversation: str) -> None:
        if (live := self._live.pop(conversation, None)) is not None:
            live.begun.set()
        self._store.wake(conversation)


async def _claimed(live: LiveRun, chat: Chat[Any]) -> None:
    """Claims the conversation of a run that this process drives. Raises ConflictError if another one does."""
    if live.claim is not None and chat.head:
        await live.claim.take(chat.head)


def _info(begins: Beginning, id: str, start: int, *, is_live: bool = True) -> RunInfo:
    return RunInfo(id=id, conversation=begins.chat.id, start=start, job=begins.job, is_live=is_live)


async def append(store: Store, conversation: str, bodies: Iterable[Body], run: str = "") -> None:
    """Appends records to a conversation in which no run is in progress. Raises StoreError."""
    rows = await store.read(conversation)
    writer = Writer(store, conversation, rows[-1].seq if rows else 0, run=run)
    for body in bodies:
        writer.add(body)
    await writer.commit()
    if writer.error is not None:
        raise writer.error
