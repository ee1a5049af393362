"""Control of runs in progress: stop and steer them and revoke grants, whichever process executes them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Protocol

from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.inbox import post_steer, post_stop, post_withdrawal, posts_for
from sidestream.durable.log.open_runs import cancel_run, job_of
from sidestream.durable.log.tokens import token_after
from sidestream.errors import ConflictError, SidestreamError, SteerError
from sidestream.messages.message import ChatMessage
from sidestream.run.run import Run
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.follow import follow
from sidestream.store.protocol import SharedStore
from sidestream.store.records import GrantsSet, Record, Row, Segment, open_run
from sidestream.stream.parts import Steer
from sidestream.turn.state import AwaitDecision, Over

STOP_WAIT_S = 5.0
"""How long the worker of a run has to stop it. After that it is ended without its worker."""
STEER_WAIT_S = 10.0
WITHDRAWALS = 3
"""How often a grant is tried to be withdrawn: runs end and begin meanwhile."""


class LocalRuns(Protocol):
    """The runs that this process executes."""

    def run_in(self, conversation: str) -> Run[Any] | None:
        """Return the run of a conversation, until its claim is released."""
        ...

    async def ended(self, conversation: str) -> None:
        """Wait until no run of the conversation is executed here."""
        ...


class RunControl:
    """Controls the runs of a store: those of `local` directly, others by a message for their worker.

    What it returns is in the log.
    """

    def __init__(self, store: SharedStore, engine: Engine, local: LocalRuns | None = None) -> None:
        self._store = store
        self._engine = engine
        self._local = local

    async def stop(self, conversation: str) -> bool:
        """End the run of a conversation and wait for its end; return False if none is in progress.

        A run that has no worker, or whose worker does not stop it in time, is ended in its log.
        """
        if self._local is not None and (run := self._local.run_in(conversation)) is not None:
            with suppress(SidestreamError):  # The provider does not confirm it; the run has ended here.
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
        """End the run of a conversation that waits for a decision; return False if it does not wait."""
        log = Conversation(self._store, conversation)
        if await log.status() != "waiting":
            return False
        rows, fenced = await self._fenced(conversation)
        if (await log.state(rows)).status != "waiting":  # The decision was made meanwhile.
            return await self.stop(conversation)
        await cancel_run(fenced, conversation, rows)
        return True

    async def steer(self, conversation: str, message: ChatMessage) -> str:
        """Pass a message to the run of a conversation; return its id once the run has it. Raises SteerError."""
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
        raise SteerError("the run did not take the message in time: send it as the next one")

    async def send(self, conversation: str, message: ChatMessage) -> list[Row]:
        """Leave a message for the run of a conversation; return its rows so far. Raises SteerError if there is none."""
        rows = await self._store.read(conversation)
        if open_run(rows) is None:
            raise SteerError("no run is in progress in this conversation")
        await post_steer(self._store, conversation, message)
        return rows

    async def withdraw(self, conversation: str, grant: str) -> bool:
        """Withdraw a grant of a conversation, also from its run in progress; return False if there is none.

        Raises ConflictError if the run's worker did not see it in time.
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
                # A run may begin just now: then its worker is the one to write it.
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
        """Return the log, and the store for what ends its run: its worker cannot write from now on."""
        await self._engine.cancel(conversation)
        # Only just later than that of the last claim: those of later claims must be later than this one.
        token = token_after(await self._store.fence_of(conversation), 0.0)
        await self._store.fence(conversation, token)
        return await self._store.read(conversation), FencedStore(self._store, token)


def is_over(run: Run[Any]) -> bool:
    """Whether a run has come to its end, or waits."""
    return isinstance(run.turn.command, Over | AwaitDecision)


def _accepted(record: Record, message: ChatMessage) -> str | None:
    for part in record.body.parts if isinstance(record.body, Segment) else ():
        if isinstance(part, Steer) and part.status == "accepted" and part.text == message.text:
            return part.id
    return None
