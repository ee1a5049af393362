"""What every engine must do."""

import asyncio
import time

import pytest

from requirements import requirement
from sidestream.durable.engines.protocol import Engine, Outcome, Task
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.errors import FencedError
from sidestream.store.protocol import SharedStore
from support.engines import BOUND_S, PATIENT_S, SLACK_S, Driven, Fleet, talk, until_stats, working
from support.stores import rows
from support.waiting import eventually

TASK = Task(conversation="talk", position=1)


@requirement("R162")
def test_engine_implements_protocol(engine: Engine):
    assert isinstance(engine, Engine)


@requirement("R160", "R162")
async def test_task_is_executed_once_when_enqueued_repeatedly(fleet: Fleet, engine: Engine, store: SharedStore):
    await talk(store)
    driven = Driven()
    await engine.enqueue(TASK)
    await engine.enqueue(TASK)
    async with working(engine, driven):
        [claim] = await driven.claimed()
        await fleet.another().enqueue(TASK)
        assert claim.task.conversation == "talk"
        assert claim.lease_s == PATIENT_S
        assert not claim.is_takeover
        driven.end(Outcome(position=5))
        await until_stats(engine, queued=0, running=0, waiting=0)
        await engine.enqueue(TASK)
        await engine.enqueue(Task(conversation="talk", position=6))
        _, second = await driven.claimed(2)
        assert second.task.position == 6
        assert second.token > claim.token
        driven.end(Outcome(position=7))
        await until_stats(engine, queued=0, running=0, waiting=0)
    assert len(driven.claims) == 2


@requirement("R160", "R162")
async def test_one_of_two_workers_gets_each_task(fleet: Fleet, engine: Engine, store: SharedStore):
    first, second = Driven(), Driven()
    async with working(engine, first, slots=20), working(fleet.another(), second, slots=20):
        for number in range(20):
            await talk(store, f"talk-{number}")
            await engine.enqueue(Task(conversation=f"talk-{number}", position=1))
        await until_stats(engine, running=20)

        async def all_driven() -> bool:
            return len(first.claims) + len(second.claims) == 20

        await eventually(all_driven)  # An engine counts a task as running before the worker has begun to drive it.
        claims = [*first.claims, *second.claims]
        assert {claim.task.conversation for claim in claims} == {f"talk-{number}" for number in range(20)}
        for driven in (first, second):
            for _ in driven.claims:
                driven.end(Outcome(position=2))
        await until_stats(engine, queued=0, running=0)
    assert len(first.claims) + len(second.claims) == 20


@requirement("R160", "R162")
async def test_heartbeats_keep_claim_beyond_its_lease(fleet: Fleet, brief: Engine, store: SharedStore):
    await talk(store)
    await brief.enqueue(TASK)
    first, second = Driven(), Driven()
    async with working(brief, first):
        await first.claimed()
        async with working(fleet.another(), second):
            await first.heartbeats(12)  # At least three leases.
            assert (await brief.stats()).takeovers == 0
            first.end(Outcome(position=2))
            await until_stats(brief, running=0, queued=0)
    assert second.claims == first.lost == []


@requirement("R161", "R162")
async def test_unresponsive_worker_loses_task_and_cannot_write(fleet: Fleet, brief: Engine, store: SharedStore):
    await talk(store)
    await brief.enqueue(TASK)
    silent, other = Driven(beats=False), Driven()
    async with working(brief, silent):
        [old] = await silent.claimed()
        await store.fence("talk", old.token)
        before = FencedStore(store, old.token)
        await before.append("talk", 1, rows(2, 2))
        async with working(fleet.another(), other):
            began_s = time.monotonic()
            [new] = await other.claimed()
            assert time.monotonic() - began_s < 2 * fleet.lease_s + SLACK_S
            assert new.is_takeover
            assert new.token > old.token
            await store.fence("talk", new.token)
            with pytest.raises(FencedError):
                await before.append("talk", 2, rows(3, 3))
            await FencedStore(store, new.token).append("talk", 2, rows(3, 3))
            other.end(Outcome(position=3))
            await until_stats(brief, running=0, queued=0)


@requirement("R160", "R162")
async def test_superseded_claim_does_not_end_task(fleet: Fleet, brief: Engine, store: SharedStore):
    await talk(store)
    await brief.enqueue(TASK)
    silent, other = Driven(beats=False), Driven()
    async with working(brief, silent):
        await silent.claimed()
        async with working(fleet.another(), other):
            await other.claimed()
            silent.end(Outcome(position=2))
            silent_again = Driven(beats=False)
            async with working(fleet.another(), silent_again):
                await until_stats(brief, running=1)
            other.end(Outcome(position=2))
            await until_stats(brief, running=0, queued=0, waiting=0)


@requirement("R160", "R162")
async def test_waiting_task_continues_when_woken(fleet: Fleet, engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        driven.end(Outcome(position=4, is_waiting=True))
        await until_stats(engine, waiting=1)
        await fleet.another().wake("talk", 3)
        await until_stats(engine, waiting=1)
        await fleet.another().wake("talk", 4)
        _, second = await driven.claimed(2)
        assert not second.is_takeover
        await engine.wake("talk", 4)
        driven.end(Outcome(position=6, is_waiting=True))
        await until_stats(engine, waiting=1)
        await engine.wake("talk", 6)
        await driven.claimed(3)
        driven.end(Outcome(position=8))
        await until_stats(engine, running=0, queued=0, waiting=0)


@requirement("R160", "R162")
async def test_wake_before_wait_is_not_lost(fleet: Fleet, engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        await fleet.another().wake("talk", 4)
        driven.end(Outcome(position=4, is_waiting=True))
        await driven.claimed(2)
        driven.end(Outcome(position=4, is_waiting=True))
        await until_stats(engine, waiting=1, queued=0, running=0)


@requirement("R160", "R162")
async def test_task_waits_for_its_time(engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(Task(conversation="talk", position=1, at=time.time() + 3600.0))
    driven = Driven()
    async with working(engine, driven):
        await until_stats(engine, waiting=1, queued=0)
        at = time.time() + 0.5
        await engine.enqueue(Task(conversation="talk", position=2, at=at))
        await driven.claimed()
        assert time.time() >= at - 0.05
        until = time.time() + 0.5
        driven.end(Outcome(position=3, is_waiting=True, until=until))
        await driven.claimed(2)
        assert time.time() >= until - 0.05
        driven.end(Outcome(position=4))
        await until_stats(engine, running=0, queued=0, waiting=0)


@requirement("R160", "R162")
async def test_later_task_replaces_waiting_one(engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        driven.end(Outcome(position=4, is_waiting=True))
        await until_stats(engine, waiting=1)
        await engine.enqueue(Task(conversation="talk", position=7))
        _, second = await driven.claimed(2)
        assert second.task.position == 7
        driven.end(Outcome(position=9))
        await until_stats(engine, running=0, queued=0, waiting=0)


@requirement("R160", "R162")
async def test_task_enqueued_during_execution_follows(engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        await engine.enqueue(Task(conversation="talk", position=7))
        driven.end(Outcome(position=5))
        _, second = await driven.claimed(2)
        assert second.task.position == 7
        await engine.enqueue(Task(conversation="talk", position=8))
        driven.end(Outcome(position=9))  # Driven past it already.
        await until_stats(engine, running=0, queued=0, waiting=0)
    assert len(driven.claims) == 2


@requirement("R160", "R162")
async def test_cancelled_task_is_not_executed_and_loses_claim(fleet: Fleet, engine: Engine, store: SharedStore):
    await talk(store)
    await talk(store, "other")
    await engine.enqueue(Task(conversation="other", position=1))
    await engine.cancel("other")
    await until_stats(engine, queued=0)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        await fleet.another().cancel("talk")
        [lost] = await driven.lost_claims()
        assert lost.task.conversation == "talk"
        await until_stats(engine, queued=0, running=0, waiting=0)
        await engine.enqueue(Task(conversation="talk", position=2))
        await driven.claimed(2)
        driven.end(Outcome(position=3))
        await until_stats(engine, queued=0, running=0, waiting=0)


@requirement("R160", "R162")
async def test_worker_gets_only_tasks_of_its_queues(fleet: Fleet, engine: Engine, store: SharedStore):
    support, sales = Driven(), Driven()
    for id in ("a", "b"):
        await talk(store, id)
    await engine.enqueue(Task(conversation="a", position=1, queue="support@2"))
    await engine.enqueue(Task(conversation="b", position=1, queue="sales"))
    async with working(engine, sales, "sales", "other"):
        [claim] = await sales.claimed()
        assert claim.task == Task(conversation="b", position=1, queue="sales")
        await until_stats(engine, running=1, queued=1)
        async with working(fleet.another(), support, "support@2"):
            [claim] = await support.claimed()
            assert claim.task.conversation == "a"
            for driven in (support, sales):
                driven.end(Outcome(position=2))
            await until_stats(engine, running=0, queued=0)


@requirement("R160", "R162")
async def test_stopping_worker_hands_off_its_tasks(fleet: Fleet, engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    first, second = Driven(), Driven()
    async with working(engine, first):
        [old] = await first.claimed()
    assert first.cancelled == [old]
    async with working(fleet.another(), second):
        [new] = await second.claimed()
        assert new.token > old.token
        second.end(Outcome(position=1, is_handed_over=True))
        async with working(engine, first):
            await first.claimed(2)
            assert not first.claims[1].is_takeover
            first.end(Outcome(position=2))
            await until_stats(engine, running=0, queued=0)


@requirement("R160", "R162")
async def test_draining_worker_claims_nothing_and_finishes_its_tasks(brief: Engine, store: SharedStore):
    for id in ("talk", "other"):
        await talk(store, id)
    await brief.enqueue(TASK)
    driven, stopping = Driven(), asyncio.Event()
    work = asyncio.create_task(brief.work(driven, queues=["models"], slots=4, stopping=stopping))
    await driven.claimed()
    stopping.set()
    await brief.enqueue(Task(conversation="other", position=1))
    await driven.heartbeats(4)
    assert not work.done()
    assert len(driven.claims) == 1
    driven.end(Outcome(position=2))
    async with asyncio.timeout(BOUND_S):
        await work
    await until_stats(brief, queued=1, running=0)


@requirement("R160", "R162")
async def test_worker_has_no_more_tasks_than_slots(engine: Engine, store: SharedStore):
    for number in range(6):
        await talk(store, f"talk-{number}")
        await engine.enqueue(Task(conversation=f"talk-{number}", position=1))
    driven = Driven()

    async def is_bounded() -> bool:
        return (await engine.stats()).running <= 2

    async with working(engine, driven, slots=2):
        for ended in range(6):
            await driven.claimed(min(ended + 2, 6))
            await eventually(is_bounded)  # Figures may lag behind; what is driven at once may not, see below.
            driven.end(Outcome(position=2))
        await until_stats(engine, running=0, queued=0)
    assert driven.most_at_once == 2


@requirement("R161", "R162")
async def test_failed_task_is_retried_after_delay(engine: Engine, store: SharedStore):
    await talk(store)
    await engine.enqueue(TASK)
    driven = Driven()
    async with working(engine, driven):
        await driven.claimed()
        began_s = time.monotonic()
        driven.end(RuntimeError("a bug of this worker"))
        _, second = await driven.claimed(2)
        assert time.monotonic() - began_s > 0.2
        assert second.is_takeover
        driven.end(Outcome(position=2))
        await until_stats(engine, running=0, queued=0)
