"""The runs of a server: each belongs to the process, not to the request that started it.

This is the embedded driver: it drives a run in this process until it ends or waits. Readers follow the log.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Unpack, cast

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.agent.chat import Chat
from sidestream.agent.settings import CallSettings
from sidestream.durable.jobs import Job, job_in
from sidestream.errors import ConflictError, SidestreamError, SteerError, StoreError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.messages.message import ChatMessage
from sidestream.run.prompts import Prompt
from sidestream.run.run import Run
from sidestream.server.caps import CapKeeper
from sidestream.server.decisions import MAX_REFUSALS, RefusedDecisionError, check_in_time
from sidestream.server.errors import RequestError, not_found
from sidestream.server.log import PublishedStore
from sidestream.server.readers import Readers
from sidestream.server.settings import Disconnect
from sidestream.store.expiry import branches_of
from sidestream.store.records import Body, Record, Row, RunStarted, unpack
from sidestream.store.writer import LogDetail, Writer, imported
from sidestream.tools.approvals import ApprovalError, Decision

UNSTORED = "unstored_"
"""How the ids of conversations begin, after their owner, that are deleted once their client has what it wanted."""

_log = get_logger(__name__)


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run as the log knows it."""

    id: str
    conversation: str
    """The id in the store, so with its owner."""
    start: int
    """The number of the record with which it began."""
    job: Job | None
    is_live: bool
    """True while this process drives it."""


class _LiveRun:
    """A run that this process drives."""

    def __init__(self, chat: Chat[Any]) -> None:
        self.chat = chat
        self.after = 0
        """The last record before the run."""
        self.job: Job | None = None
        self.run: Run[Any] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str | None:
        """The id of the run, once it is made."""
        return self.run.turn.state.run_id if self.run is not None else None

    @property
    def cost(self) -> float:
        """What the run has cost so far, in US dollars, as far as prices are known."""
        return (self.run.turn.state.usage.cost or 0.0) if self.run is not None else 0.0


class Runs:
    """Starts, resumes, stops and steers runs, and follows them."""

    def __init__(
        self,
        store: PublishedStore,
        *,
        interval_s: float,
        caps: CapKeeper,
        readers: Readers,
        approval_s: float | None = None,
        on_disconnect: Disconnect = "detach",
    ) -> None:
        self._store = store
        self._caps = caps
        self.readers = readers
        self._approval_s = approval_s
        self._on_disconnect = on_disconnect
        self._stopping: set[asyncio.Task[bool]] = set()
        """Runs that are stopped because nobody reads them."""
        self._detail = LogDetail(interval_s=interval_s, previews=True, inputs=True)
        self._live: dict[str, _LiveRun] = {}
        """By conversation."""
        self._deleting: set[str] = set()
        """Conversations in which no run may begin now."""
        self._is_closing = False

    @property
    def live(self) -> Mapping[str, str]:
        """Conversation → the id of the run that is in progress there."""
        return {
            conversation: live.run.turn.state.run_id
            for conversation, live in self._live.items()
            if live.run is not None
        }

    async def start(
        self,
        agent: Agent[Any],
        conversation: str,
        prompt: Prompt,
        job: Job,
        *,
        beginning: Iterable[ChatMessage] = (),
        between: Iterable[ChatMessage] = (),
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Starts a turn; a new conversation has `beginning` as its history. `call` is what is not stored with the job.

        `between` are messages after the last turn and before the prompt.

        Returns once the log has its beginning. Raises ConflictError while another run is in progress, RequestError(429)
        if the owner has reached a cap, and what `Chat.stream` raises.
        """
        await self._admit(conversation)
        chat = Chat(agent, beginning, store=self._store, id=conversation, log=self._detail)
        with self._claimed(conversation, chat) as live:
            await chat.load()
            live.after = chat.head
            if chat.status == "waiting":
                raise RequestError(409, "the last turn waits for a decision", type="conflict", code="waiting")
            if chat.status in ("cancelled", "failed"):
                await chat.keep()  # The person has seen it, so the model knows it too.
            if added := imported(between):
                await append(self._store, conversation, added)
                await chat.load()
            chat.run_details = job.as_details()
            settings = cast(CallSettings, {**job.call_settings(agent), **call})
            live.run = chat.stream(prompt, output_type=job.output, errors="parts", **settings)
            return await self._begin(live, job)

    async def resume(
        self,
        agent: Agent[Any],
        conversation: str,
        decisions: Iterable[Decision],
        job: Job,
        **call: Unpack[CallSettings],
    ) -> RunInfo:
        """Resumes the last turn: after decisions, or where another process left it.

        Raises like `start`, and like `Chat.resume_stream`. A decision that is refused, or comes too late, is recorded.
        """
        decisions = tuple(decisions)
        if job.attempt == 1:  # After a restart, it was admitted already.
            await self._admit(conversation)
        chat = Chat(agent, store=self._store, id=conversation, log=self._detail)
        with self._claimed(conversation, chat) as live:
            await chat.load()
            live.after = chat.head
            chat.run_details = job.as_details()
            settings = cast(CallSettings, {**job.call_settings(agent), **call})
            try:
                if decisions and self._approval_s is not None:
                    check_in_time(await self._store.read(conversation), decisions, self._approval_s)
                live.run = chat.resume_stream(decisions, output_type=job.output, errors="parts", **settings)
            except (ApprovalError, RefusedDecisionError) as error:
                id = error.approval_id if isinstance(error, RefusedDecisionError) else decisions[0].approval_id
                await chat.log_refusal(id, str(error))
                raise
            return await self._begin(live, job)

    async def log_refusal(self, conversation: str, approval_id: str, reason: str) -> None:
        """Records that a decision was refused before it reached the run. The log keeps `MAX_REFUSALS` of them."""
        rows = await self._store.read(conversation)
        if sum(row.kind == "approval-refused" for row in rows) >= MAX_REFUSALS:
            return
        live = self._live.get(conversation)
        try:
            if live is not None:
                await live.chat.log_refusal(approval_id, reason)
            else:
                await self._store.conversation(conversation).log_refusal(approval_id, reason)
        except StoreError as error:
            _log.warning("conversation %s: a refused decision is not recorded: %s", conversation, str(error))

    async def find(self, owner: str, run_id: str) -> RunInfo:
        """A run of this owner. Raises RequestError(404)."""
        found = await self._store.find_run(run_id)
        if found is None or not found[0].startswith(f"{owner}/"):
            raise not_found("run", run_id)
        conversation, start = found
        rows = await self._store.read(conversation, start - 1)
        return RunInfo(
            id=run_id,
            conversation=conversation,
            start=start,
            job=job_of(rows[0]) if rows else None,
            is_live=self.live.get(conversation) == run_id,
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
        """Stops the run of a conversation and waits for its end; False if none is in progress."""
        live = self._live.get(conversation)
        if live is None or live.run is None or live.task is None:
            return False
        with suppress(SidestreamError):  # A provider that does not confirm it; the run has ended here.
            await live.run.cancel()
        await asyncio.wait([live.task])
        return True

    async def delete(self, conversation: str) -> bool:
        """Removes a chat: all its branches, their runs in progress, and the blobs that only they named.

        `conversation` is any of its branches. False if there is none of them.
        """
        branches = {info.id for info in await branches_of(self._store, conversation)}
        self._deleting |= branches
        try:
            for branch in branches:
                await self.stop(branch)
            return any([await self._store.delete(branch) for branch in branches])
        finally:
            self._deleting -= branches

    def is_busy(self, conversation: str) -> bool:
        """True if a run is in progress there, or is about to begin."""
        return conversation in self._live

    async def steer(self, conversation: str, message: Prompt) -> str:
        """Passes a message to the run of a conversation; returns its id. Raises SteerError."""
        live = self._live.get(conversation)
        if live is None or live.run is None:
            raise SteerError("no run is in progress in this conversation")
        return await live.run.steer(message)

    async def read(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """What `follow` yields, for a client: its stream counts, and the last client that leaves may end the run."""
        is_over = False
        try:
            with self.readers.counted(owner_in(conversation), conversation):
                async with aclosing(self.follow(conversation, after, load=load)) as records:
                    async for record in records:
                        yield record
            is_over = True
        finally:
            if self._on_disconnect == "cancel" and not is_over and not self.readers.count(conversation):
                self._stop_soon(conversation)

    def _stop_soon(self, conversation: str) -> None:
        # In a task: whoever closes the stream of a client that has left may not wait.
        stopping = asyncio.create_task(self.stop(conversation))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    async def follow(self, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """The records of a conversation after a number, until no run is in progress there.

        A record comes once it is safe in the log. With `load`, it has the content of its blobs instead of their
        addresses. Raises StoreError if the log cannot be written.
        """
        with self._store.subscribed(conversation) as feed:
            while True:
                live = self._live.get(conversation)
                # What is appended from now on is in the feed.
                for row in await self._store.read(conversation, after):
                    yield await self._store.record(row, load=load)
                    after = row.seq
                if live is None:
                    return
                has_gap = False
                while self._live.get(conversation) is live and not has_gap:
                    for row in await feed.take():
                        has_gap = row.seq > after + 1
                        if has_gap:
                            break
                        if row.seq > after:
                            yield await self._store.record(row, load=load)
                            after = row.seq
                    if live.chat.store_error is not None:
                        raise live.chat.store_error

    async def aclose(self) -> None:
        """Leaves all runs; a server that starts on the same store resumes them."""
        self._is_closing = True
        for live in list(self._live.values()):
            if live.run is not None:
                with suppress(SidestreamError):  # It is not recorded to its end; what the log has counts.
                    await live.run.leave()
        tasks: list[asyncio.Task[Any]] = [live.task for live in self._live.values() if live.task is not None]
        tasks += self._stopping
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _admit(self, conversation: str) -> None:
        """Raises RequestError(429) if the owner of the conversation may start no run now."""
        owner = owner_in(conversation)
        self.readers.admit(owner)
        await self._caps.prepare(owner)
        running = [(id, live) for id, live in self._live.items() if owner_in(id) == owner]
        self._caps.admit(owner, {live.run_id or id: live.cost for id, live in running})

    @contextmanager
    def _claimed(self, conversation: str, chat: Chat[Any]) -> Generator[_LiveRun]:
        """The conversation is this run's, until it ends, or fails to begin."""
        if conversation in self._live or conversation in self._deleting or self._is_closing:
            raise ConflictError(conversation)
        live = self._live[conversation] = _LiveRun(chat)
        try:
            yield live
        except BaseException:
            if live.task is None:
                self._release(conversation)
            raise

    async def _begin(self, live: _LiveRun, job: Job) -> RunInfo:
        run, conversation = live.run, live.chat.id
        assert run is not None
        live.job = job
        live.task = asyncio.create_task(self._drive(live, run))
        run_id = run.turn.state.run_id
        async for record in self.follow(conversation, live.after):
            if isinstance(record.body, RunStarted):
                return RunInfo(id=run_id, conversation=conversation, start=record.seq, job=job, is_live=True)
        if live.task.done() and not live.task.cancelled() and (error := live.task.exception()) is not None:
            raise error
        raise live.chat.store_error or ConflictError(conversation)

    async def _drive(self, live: _LiveRun, run: Run[Any]) -> None:
        conversation = live.chat.id
        try:
            while await run.batch():
                pass
        except ConflictError:
            raise
        except StoreError as error:
            _log.warning("conversation %s: %s", conversation, str(error))
        finally:
            try:
                await run.aclose()
            finally:
                self._caps.ended(owner_in(conversation), run.turn.state.run_id, live.cost)
                self._release(conversation)

    def _release(self, conversation: str) -> None:
        self._live.pop(conversation, None)
        self._store.wake(conversation)


async def append(store: PublishedStore, conversation: str, bodies: Iterable[Body], run: str = "") -> None:
    """Appends records to a conversation in which no run is in progress. Raises StoreError."""
    rows = await store.read(conversation)
    writer = Writer(store, conversation, rows[-1].seq if rows else 0, run=run)
    for body in bodies:
        writer.add(body)
    await writer.commit()
    if writer.error is not None:
        raise writer.error


def owner_in(conversation: str) -> str:
    """The owner of a conversation, by its id in the store."""
    return conversation.partition("/")[0]


def job_of(row: Row) -> Job | None:
    """The job in the first record of a run."""
    body = unpack(row).body
    return job_in(body.details) if isinstance(body, RunStarted) else None
