"""Stops and steers runs, and revokes remembered approvals, whichever process executes the run."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from typing import Any, Literal, Protocol, cast

from msgspec import Struct

from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.jobs import token_after
from sidestream.durable.log.open_runs import cancel_run, job_of
from sidestream.errors import ConflictError, SidestreamError, SteerError
from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.parts import Steer
from sidestream.run.run import Run
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.follow import follow
from sidestream.store.protocol import SharedStore
from sidestream.store.records import GrantsSet, Record, Row, Segment, open_run
from sidestream.turn.state import AwaitDecision, Over

STOP_WAIT_S = 5.0
"""Seconds a worker has to stop its run, before the run is ended without it."""
STEER_WAIT_S = 10.0
WITHDRAWALS = 3
"""Attempts to revoke a remembered approval, since runs may start and end in between."""


Kind = Literal["steer", "stop", "withdraw"]


class Post(Struct, frozen=True, kw_only=True):
    """A control message that no worker has taken yet."""

    id: int
    conversation: str
    kind: Kind
    message: ChatMessage | None = None
    """Message to steer the run with."""
    grant: str = ""
    """Id of the remembered approval to revoke."""


class LocalRuns(Protocol):
    """The runs executed by this process."""

    def run_in(self, conversation: str) -> Run[Any] | None:
        """Return the run of a conversation, or None once its claim is released."""
        ...

    async def ended(self, conversation: str) -> None:
        """Wait until this process executes no run of the conversation."""
        ...


class RunControl:
    """Controls the runs of a store: those of `local` directly, others by a control message to their worker.

    Methods return once their effect is in the log.
    """

    def __init__(self, store: SharedStore, engine: Engine, local: LocalRuns | None = None) -> None:
        self._store = store
        self._engine = engine
        self._local = local

    async def stop(self, conversation: str) -> bool:
        """Stop the run of a conversation, wait for its end, and return whether one was in progress.

        A run without a worker, or whose worker does not stop it in time, is ended in the log.
        """
        if self._local is not None and (run := self._local.run_in(conversation)) is not None:
            with suppress(SidestreamError):  # The run has ended locally, even if the provider does not confirm it.
                await run.cancel()
            await self._local.ended(conversation)
            return True
        rows = await self._store.read(conversation)
        started = open_run(rows)
        if started is None:
            return False
        job = job_of(started)
        if job is None or job.attempt > 0:  # Otherwise no worker has it yet.
            await post_stop(self._store, conversation)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WAIT_S), aclosing(self._records(conversation, rows)) as records:
                    async for _ in records:
                        pass
        if open_run(await self._store.read(conversation)) is not None:
            rows, fenced = await self._fenced(conversation)
            if open_run(rows) is not None:
                await cancel_run(fenced, conversation, rows)
        await self._store.clear_posts(conversation)
        return True

    async def stop_waiting(self, conversation: str) -> bool:
        """End the run of a conversation that waits for a decision, and return whether there was one."""
        log = Conversation(self._store, conversation)
        if await log.status() != "waiting":
            return False
        rows, fenced = await self._fenced(conversation)
        if (await log.state(rows)).status != "waiting":  # It was decided in the meantime.
            return await self.stop(conversation)
        await cancel_run(fenced, conversation, rows)
        return True

    async def steer(self, conversation: str, message: ChatMessage) -> str:
        """Send a message to the run of a conversation, and return the message's id once the run has accepted it.

        Raises SteerError if no run is in progress or the run does not accept the message in time.
        """
        if self._local is not None and (run := self._local.run_in(conversation)) is not None:
            return await run.steer(message)
        rows = await self.send(conversation, message)
        with suppress(TimeoutError):
            async with asyncio.timeout(STEER_WAIT_S), aclosing(self._records(conversation, rows)) as records:
                async for record in records:
                    if (id := _accepted(record, message)) is not None:
                        return id
        for post in await posts_for(self._store, [conversation]):
            if post.message == message:
                await self._store.remove_post(post.id)
        raise SteerError(f"the run did not accept the message within {STEER_WAIT_S:g} s; send it as the next prompt")

    async def send(self, conversation: str, message: ChatMessage) -> list[Row]:
        """Enqueue a message for the run of a conversation, and return the conversation's rows so far.

        Raises SteerError if no run is in progress.
        """
        rows = await self._store.read(conversation)
        if open_run(rows) is None:
            raise SteerError("no run is in progress in this conversation")
        await post_steer(self._store, conversation, message)
        return rows

    async def withdraw(self, conversation: str, grant: str) -> bool:
        """Revoke a remembered approval, also in the run in progress, and return False if it does not exist.

        Raises ConflictError if the run's worker does not react in time.
        """
        if self._local is not None and (run := self._local.run_in(conversation)) is not None:
            if any(each.id == grant for each in run.turn.state.grants) and await run.withdraw(grant):
                return True
            if is_over(run):  # It is about to release the conversation.
                await self._local.ended(conversation)
        log = Conversation(self._store, conversation)
        for _ in range(WITHDRAWALS):
            rows = await self._store.read(conversation)
            if all(grant != each.id for each in (await log.state(rows)).grants):
                return False
            if open_run(rows) is None:
                # If a run starts at this moment, its worker must write the change.
                with suppress(ConflictError):
                    return await log.withdraw(grant)
                continue
            await post_withdrawal(self._store, conversation, grant)
            with suppress(TimeoutError):
                async with asyncio.timeout(STEER_WAIT_S), aclosing(self._records(conversation, rows)) as records:
                    async for record in records:
                        if isinstance(record.body, GrantsSet) and all(grant != each.id for each in record.body.grants):
                            return True
        raise ConflictError(conversation)

    def _records(self, conversation: str, rows: list[Row]) -> AsyncGenerator[Record]:
        return follow(self._store, conversation, rows[-1].seq)

    async def _fenced(self, conversation: str) -> tuple[list[Row], FencedStore]:
        """Fence off the conversation's worker, and return its rows and a store to end its run with."""
        await self._engine.cancel(conversation)
        # The smallest token after the last claim's, since later claims need greater ones.
        token = token_after(await self._store.fence_of(conversation), 0.0)
        await self._store.fence(conversation, token)
        return await self._store.read(conversation), FencedStore(self._store, token)


def is_over(run: Run[Any]) -> bool:
    """Return whether a run has finished or waits for a decision."""
    return isinstance(run.turn.command, Over | AwaitDecision)


def _accepted(record: Record, message: ChatMessage) -> str | None:
    for part in record.body.parts if isinstance(record.body, Segment) else ():
        if isinstance(part, Steer) and part.status == "accepted" and part.text == message.text:
            return part.id
    return None


# Control messages


async def post_steer(store: SharedStore, conversation: str, message: ChatMessage) -> None:
    """Ask the conversation's worker to pass this message to the run."""
    await store.post(conversation, "steer", messages_to_json([message]).encode())


async def post_stop(store: SharedStore, conversation: str) -> None:
    """Ask the conversation's worker to stop the run."""
    await store.post(conversation, "stop", b"")


async def post_withdrawal(store: SharedStore, conversation: str, grant: str) -> None:
    """Ask the conversation's worker to revoke a remembered approval."""
    await store.post(conversation, "withdraw", grant.encode())


async def posts_for(store: SharedStore, conversations: Collection[str]) -> list[Post]:
    """Return the control messages for these conversations, oldest first."""
    return [
        Post(
            id=id,
            conversation=conversation,
            kind=cast(Kind, kind),
            message=messages_from_json(body)[0] if kind == "steer" else None,
            grant=body.decode() if kind == "withdraw" else "",
        )
        for id, conversation, kind, body in await store.posts(conversations)
    ]
