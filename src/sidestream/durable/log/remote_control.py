"""Stops and steers runs that another process drives, withdraws grants, and waits until their log says so."""

import asyncio
from contextlib import aclosing, suppress

from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.inbox import post_steer, post_stop, post_withdrawal, posts_for
from sidestream.durable.log.open_runs import cancel_run, job_of
from sidestream.durable.log.tokens import token_after
from sidestream.errors import ConflictError, SteerError
from sidestream.messages.message import ChatMessage
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.follow import follow
from sidestream.store.protocol import SharedStore
from sidestream.store.records import GrantsSet, Record, Row, Segment, open_run
from sidestream.stream.parts import Steer

STOP_WAIT_S = 5.0
"""How long the worker of a run has to stop it. After that it is ended without its worker."""
STEER_WAIT_S = 10.0
WITHDRAWALS = 3
"""How often a grant is tried to be withdrawn: runs end and begin meanwhile."""


async def stop_run(store: SharedStore, engine: Engine, conversation: str) -> bool:
    """Ends the run of a conversation, whoever drives it, if anybody; False if none is in progress."""
    rows = await store.read(conversation)
    started = open_run(rows)
    if started is None:
        return False
    job = job_of(started)
    if job is None or job.attempt > 0:  # Else nobody has driven it yet.
        await post_stop(store, conversation)
        try:
            async with asyncio.timeout(STOP_WAIT_S), aclosing(follow(store, conversation, rows[-1].seq)) as records:
                async for _ in records:
                    pass
        except TimeoutError:
            pass
    if open_run(await store.read(conversation)) is not None:
        rows, fenced = await _fenced(store, engine, conversation)
        if open_run(rows) is not None:
            await cancel_run(fenced, conversation, rows)
    await store.clear_posts(conversation)
    return True


async def stop_waiting(store: SharedStore, engine: Engine, conversation: str) -> bool:
    """Ends the run of a conversation that waits for a decision; False if it does not wait. Raises StoreError."""
    log = Conversation(store, conversation)
    if await log.status() != "waiting":
        return False
    rows, fenced = await _fenced(store, engine, conversation)
    if (await log.state(rows)).status != "waiting":  # Somebody has decided meanwhile.
        return await stop_run(store, engine, conversation)
    await cancel_run(fenced, conversation, rows)
    return True


async def _fenced(store: SharedStore, engine: Engine, conversation: str) -> tuple[list[Row], FencedStore]:
    """What the log has, and the store for what ends its run: from now on, whoever drives it cannot write."""
    await engine.cancel(conversation)
    # Only just later than that of the last claim: those of later claims must be later than this one.
    token = token_after(await store.fence_of(conversation), 0.0)
    await store.fence(conversation, token)
    return await store.read(conversation), FencedStore(store, token)


async def steer_elsewhere(store: SharedStore, conversation: str, message: ChatMessage) -> str:
    """Passes a message to the run of a conversation; returns its id once the log has it. Raises SteerError."""
    rows = await store.read(conversation)
    if open_run(rows) is None:
        raise SteerError("no run is in progress in this conversation")
    await post_steer(store, conversation, message)
    try:
        async with asyncio.timeout(STEER_WAIT_S), aclosing(follow(store, conversation, rows[-1].seq)) as records:
            async for record in records:
                if (id := _accepted(record, message)) is not None:
                    return id
    except TimeoutError:
        pass
    for post in await posts_for(store, [conversation]):
        if post.message == message:
            await store.remove_post(post.id)
    raise SteerError("the run did not take the message in time: send it as the next one")


async def withdraw_grant(store: SharedStore, conversation: str, grant: str) -> bool:
    """Withdraws a grant of a conversation, whoever drives its run, if anybody; False if there is none.

    Raises ConflictError if the run's worker did not see it in time.
    """
    log = Conversation(store, conversation)
    for _ in range(WITHDRAWALS):
        rows = await store.read(conversation)
        if all(grant != each.id for each in (await log.state(rows)).grants):
            return False
        if open_run(rows) is None:
            # A run may begin just now: then its driver is the one to write it.
            with suppress(ConflictError):
                return await log.withdraw(grant)
            continue
        await post_withdrawal(store, conversation, grant)
        with suppress(TimeoutError):
            async with asyncio.timeout(STEER_WAIT_S), aclosing(follow(store, conversation, rows[-1].seq)) as records:
                async for record in records:
                    if isinstance(record.body, GrantsSet) and all(grant != each.id for each in record.body.grants):
                        return True
    raise ConflictError(conversation)


def _accepted(record: Record, message: ChatMessage) -> str | None:
    for part in record.body.parts if isinstance(record.body, Segment) else ():
        if isinstance(part, Steer) and part.status == "accepted" and part.text == message.text:
            return part.id
    return None
