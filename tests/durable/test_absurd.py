"""The engine Absurd: its schema, its names of queues, its database when it fails, and the secrets that it must not show."""

import asyncio
import logging
import secrets
import statistics
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from postgres import Server, shared_server
from requirements import requirement
from sidestream.durable.absurd import AbsurdEngine
from sidestream.durable.absurd.queues import MAX_BYTES, absurd_queue
from sidestream.durable.protocol import Claim, EngineError, LeaseLostError, Outcome, Task
from sidestream.errors import ConfigurationError, MissingExtraError
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.sqlite.store import SqliteStore
from sidestream.store.wrapped import WrappedStore

CANARY = "c4n4ry-s3cret/pass"
BOUND_S = 30.0
NO_STORE = SqliteStore("unused.db")
"""Not used: the engine's tasks are elsewhere."""
TASK = Task(conversation="talk", position=1)
Opens = Callable[..., AbsurdEngine]


class Driven:
    """Drives claims as a test says."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[tuple[float, Claim]] = asyncio.Queue()
        self.outcomes: asyncio.Queue[Outcome | Exception] = asyncio.Queue()

    async def __call__(self, claim: Claim) -> Outcome:
        self.claims.put_nowait((time.perf_counter(), claim))
        outcome = await self.outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def claimed(self) -> Claim:
        async with asyncio.timeout(BOUND_S):
            return (await self.claims.get())[1]


@asynccontextmanager
async def working(
    engine: AbsurdEngine, drive: Callable[[Claim], Awaitable[Outcome]], queue: str = "models", slots: int = 4
) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(engine.work(drive, queues=[queue], slots=slots))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def database(postgres_server: Server) -> Generator[str]:
    """The name of an empty database."""
    name = f"engine_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def url(postgres_server: Server, database: str) -> str:
    return postgres_server.url(database)


@pytest.fixture
async def opens(url: str) -> AsyncGenerator[Opens]:
    """Engines on the same database, as other processes would have them."""
    opened: list[AbsurdEngine] = []

    def another(where: str = url) -> AbsurdEngine:
        opened.append(AbsurdEngine(NO_STORE, where, lease_s=1))
        return opened[-1]

    yield another
    for engine in opened:
        await engine.aclose()


async def execute(url: str, sql: str) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(sql.encode())
        return await cursor.fetchall() if cursor.description else []


async def until(check: Callable[[], bool]) -> None:
    """For what nobody announces."""
    async with asyncio.timeout(BOUND_S):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_stats(engine: AbsurdEngine, **expected: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while expected.items() - structs.asdict(await engine.stats()).items():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def opened(server: Server) -> AbsurdEngine:
    return AbsurdEngine(NO_STORE, server.url("postgres"))


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


# Names of queues


@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_names_of_queues_are_valid_and_different(names: list[str]):
    mapped = [absurd_queue("sidestream", name) for name in names]
    assert all(0 < len(name.encode()) <= MAX_BYTES for name in mapped)
    assert len({*mapped}) == 2


def test_plain_names_stay_readable():
    assert absurd_queue("sidestream", "support@2") == "sidestream.support@2"
    assert absurd_queue("sidestream", "Kunden Dienst").startswith("sidestream.Kunden-Dienst#")


def test_a_name_that_looks_like_a_mapped_one_is_mapped_too():
    mapped = absurd_queue("sidestream", "two words")
    assert absurd_queue("sidestream", mapped.removeprefix("sidestream.")) != mapped


@requirement("R160")
async def test_a_queue_of_any_name_works(opens: Opens):
    driven = Driven()
    name = "Größe 'x\" %s {schema} " + "y" * 80
    async with working(opens(), driven, name):
        await opens().enqueue(Task(conversation="talk", position=1, queue=name))
        claim = await driven.claimed()
        assert claim.task.queue == name
        driven.outcomes.put_nowait(Outcome(position=2))


# The schema


async def test_the_first_use_creates_the_schema_once_however_many_come_at_once(opens: Opens, url: str):
    await asyncio.gather(*(opens().enqueue(Task(conversation=f"talk-{n}", position=1)) for n in range(6)))
    assert (await opens().stats()).queued == 6
    found = await execute(url, "SELECT count(*) FROM absurd.queues")
    assert found == [(1,)]


async def test_a_schema_that_is_there_is_used(opens: Opens, url: str):
    from absurdctl import BUNDLED_SCHEMA_SQL

    await execute(url, BUNDLED_SCHEMA_SQL)
    await execute(url, "SELECT absurd.create_queue('of somebody else')")
    await opens().enqueue(TASK)
    assert (await opens().stats()).queued == 1


async def test_a_missing_schema_that_cannot_be_created_says_what_to_run(opens: Opens, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "absurdctl", None)
    with pytest.raises(ConfigurationError, match="absurdctl init"):
        await opens().enqueue(TASK)


async def test_a_schema_that_is_too_old_says_what_to_run(opens: Opens, url: str):
    await execute(url, "CREATE SCHEMA absurd")
    await execute(url, "CREATE FUNCTION absurd.get_schema_version() RETURNS text LANGUAGE sql AS $$SELECT '0.4.2'$$")
    with pytest.raises(ConfigurationError, match="absurdctl migrate"):
        await opens().enqueue(TASK)


async def test_a_user_who_may_not_create_the_schema_is_an_error_that_says_so(
    postgres_server: Server, database: str, opens: Opens
):
    user = f"user_{secrets.token_hex(4)}"
    await execute(postgres_server.url(database), f"CREATE ROLE {user} LOGIN PASSWORD '{CANARY}'")
    engine = opens(postgres_server.tcp_url(database, user, CANARY.replace("/", "%2F")))
    with pytest.raises(ConfigurationError, match="may not create it") as raised:
        await engine.enqueue(TASK)
    assert CANARY not in text_of(raised.value)
    assert user in str(raised.value)
    await execute(postgres_server.url("postgres"), f"DROP ROLE {user}")


async def test_two_namespaces_in_one_database_do_not_see_each_other(opens: Opens, url: str):
    ours, others = opens(f"{url}&schema=ours"), opens(f"{url}&schema=others")
    driven = Driven()
    async with working(others, driven):
        await ours.enqueue(TASK)
        await others.enqueue(Task(conversation="other", position=1))
        assert (await driven.claimed()).task.conversation == "other"
        assert driven.claims.empty()
        assert (await ours.stats()).queued == 1
        driven.outcomes.put_nowait(Outcome(position=2))


async def test_it_uses_the_database_of_the_store(url: str, tmp_path: Path):
    store = PostgresStore(f"{url}&schema=talks", blobs=tmp_path)
    engine = AbsurdEngine(WrappedStore(store))
    await engine.enqueue(TASK)
    assert await execute(url, "SELECT conversation FROM talks_absurd.conversations") == [("talk",)]
    await engine.aclose()


def test_a_store_elsewhere_is_an_error_that_says_what_to_use():
    with pytest.raises(ConfigurationError, match="absurd\\+postgresql://"):
        AbsurdEngine(NO_STORE)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("sidestream.durable.absurd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "absurd_sdk", None)
    with pytest.raises(MissingExtraError) as raised:
        import sidestream.durable.absurd  # noqa: F401
    assert raised.value.extra == "absurd"


# Claims


@requirement("R160")
async def test_a_token_is_greater_than_the_last_even_if_the_clock_was_set_back(opens: Opens, url: str):
    driven = Driven()
    engine = opens()
    await engine.enqueue(TASK)
    future = "0fffffffffff-00000007"
    await execute(url, f"UPDATE sidestream_absurd.conversations SET token = '{future}'")
    async with working(engine, driven):
        claim = await driven.claimed()
        assert claim.token > future
        driven.outcomes.put_nowait(Outcome(position=5))
        await until_stats(engine, running=0)
        await engine.enqueue(Task(conversation="talk", position=6))
        assert (await driven.claimed()).token > claim.token


@requirement("R160")
async def test_a_task_that_somebody_else_put_into_the_queue_is_cancelled(opens: Opens, url: str):
    driven = Driven()
    engine = opens()
    async with working(engine, driven):
        await engine.enqueue(TASK)
        await driven.claimed()
        await execute(url, "SELECT absurd.spawn_task('sidestream.models', 'drive', '[1]')")
        await engine.enqueue(Task(conversation="other", position=1))
        await driven.claimed()
    found = await execute(url, "SELECT state FROM absurd.\"t_sidestream.models\" WHERE params = '[1]'")
    assert found == [("cancelled",)]


@requirement("R160")
async def test_a_task_that_fails_again_and_again_is_given_up_and_can_be_enqueued_again(opens: Opens, url: str):
    driven = Driven()
    engine = opens()
    await engine.enqueue(TASK)
    await execute(url, "UPDATE sidestream_absurd.conversations SET failures = 11")
    async with working(engine, driven):
        await driven.claimed()
        driven.outcomes.put_nowait(RuntimeError("broken"))
        await until_stats(engine, running=0)
        assert (await engine.stats()).waiting == 0
        await engine.enqueue(TASK)
        await driven.claimed()
        driven.outcomes.put_nowait(Outcome(position=2))


async def test_what_was_over_long_ago_is_removed(opens: Opens, url: str):
    engine, driven = opens(), Driven()
    async with working(engine, driven):
        await engine.enqueue(TASK)
        await driven.claimed()
        driven.outcomes.put_nowait(Outcome(position=2))
        await until_stats(engine, running=0)
    tables = ('absurd."t_sidestream.models"', 'absurd."r_sidestream.models"', "sidestream_absurd.conversations")
    assert [await execute(url, f"SELECT count(*) FROM {table}") for table in tables] == [[(1,)]] * 3
    await execute(url, f"UPDATE {tables[1]} SET completed_at = completed_at - interval '2 days'")
    await execute(url, f"UPDATE {tables[2]} SET changed = changed - interval '2 days'")
    await engine._database.remove_old(["models"])
    assert [await execute(url, f"SELECT count(*) FROM {table}") for table in tables] == [[(0,)]] * 3


# The database fails


@requirement("R160", "F33")
async def test_connections_that_are_killed_cost_neither_tasks_nor_claims(opens: Opens, url: str, database: str):
    front, worker, driven = opens(), opens(), Driven()
    async with working(worker, driven):
        await front.enqueue(TASK)
        first = await driven.claimed()
        kill = (
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )
        assert len(await execute(url, kill)) >= 2
        await first.heartbeat()
        driven.outcomes.put_nowait(Outcome(position=4, is_waiting=True))
        await until_stats(front, waiting=1)
        await execute(url, kill)
        await front.wake("talk", 4)
        second = await driven.claimed()
        assert second.token > first.token
        assert not second.is_takeover
        driven.outcomes.put_nowait(Outcome(position=5))


@requirement("R160", "R161")
async def test_a_new_version_of_an_agent_gets_a_conversation_whose_last_worker_died_and_has_no_successor(opens: Opens):
    front, dead, worker, driven = opens(), opens(), opens(), Driven()
    await front.enqueue(Task(conversation="talk", position=1, queue="support@2"))
    (held,) = await dead._database.claim("support@2", 1)
    later = Task(conversation="talk", position=5, queue="support@3")
    await front.enqueue(later)  # The lease of the dead one is not over yet.
    async with working(worker, driven, "support@3"):

        async def enqueued() -> None:
            while driven.claims.empty():  # As a reconciler does, every half minute.
                await front.enqueue(later)
                await asyncio.sleep(0.05)

        async with asyncio.timeout(BOUND_S):
            await enqueued()
        claim = await driven.claimed()
        assert (claim.task.position, claim.task.queue) == (5, "support@3")
        assert claim.token > held.token
        with pytest.raises(LeaseLostError):
            await dead._database.renew(held)
        driven.outcomes.put_nowait(Outcome(position=9))


@requirement("R160")
async def test_a_worker_survives_a_restart_of_the_database_without_a_busy_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sidestream.durable.outages.REPEAT_S", 0.0)
    with shared_server(tmp_path) as server:
        front, worker, driven = opened(server), opened(server), Driven()
        async with working(worker, driven):
            await front.enqueue(TASK)
            claim = await driven.claimed()
            await asyncio.to_thread(server.stop)
            with pytest.raises(EngineError):
                await claim.heartbeat()
            used_s = time.process_time()
            await until(lambda: sum("tasks cannot be claimed" in record.message for record in caplog.records) >= 3)
            assert time.process_time() - used_s < 1.0
            assert len(caplog.records) < 40
            await asyncio.to_thread(server.start)
            while True:
                with suppress(EngineError):
                    await claim.heartbeat()
                    break
            driven.outcomes.put_nowait(Outcome(position=2))
            await front.enqueue(Task(conversation="other", position=1))
            assert (await driven.claimed()).task.conversation == "other"
        await front.aclose()
        await worker.aclose()


async def test_a_worker_whose_password_is_refused_says_so_at_once_and_never_shows_it(
    postgres_server: Server, opens: Opens, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    engine = opens(postgres_server.tcp_url("postgres", "postgres", CANARY.replace("/", "%2F")))
    with pytest.raises(EngineError) as raised:
        await engine.work(Driven(), queues=["models"], slots=1)
    assert not raised.value.retryable
    assert CANARY not in text_of(raised.value) + caplog.text + repr(engine)
    assert "127.0.0.1" in str(raised.value)
    assert "check the URL" in str(raised.value)


async def test_a_worker_that_cannot_connect_at_first_waits_for_the_database(
    opens: Opens, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sidestream.durable.absurd.loop.START_S", 0.2)
    with pytest.raises(EngineError) as raised:
        await opens("postgresql://postgres@127.0.0.1:1/postgres").work(Driven(), queues=["models"], slots=1)
    assert raised.value.retryable
    assert "tasks cannot be claimed" in caplog.text


async def test_an_error_with_the_password_in_it_is_stored_without(opens: Opens, url: str):
    from sidestream.redaction import register_secret

    register_secret(CANARY)
    engine, driven = opens(), Driven()
    async with working(engine, driven):
        await engine.enqueue(TASK)
        await driven.claimed()
        driven.outcomes.put_nowait(RuntimeError(f"the password {CANARY} was refused"))
        await driven.claimed()
    found = await execute(url, 'SELECT failure_reason FROM absurd."r_sidestream.models" WHERE failed_at IS NOT NULL')
    assert "RuntimeError" in str(found)
    assert CANARY not in str(found)


# Speed


@requirement("R160")
async def test_a_task_is_claimed_soon_after_it_was_enqueued(opens: Opens, record_property: Callable[..., None]):
    front, driven = opens(), Driven()
    await front.stats()
    took_ms: list[float] = []
    async with working(opens(), driven):
        for number in range(30):
            began_s = time.perf_counter()
            await front.enqueue(Task(conversation=f"talk-{number}", position=1))
            claimed_s, _ = await driven.claims.get()
            took_ms.append((claimed_s - began_s) * 1000)
            driven.outcomes.put_nowait(Outcome(position=2))
    print(f"enqueued to claimed: median {statistics.median(took_ms):.1f} ms, most {max(took_ms):.1f} ms")
    # Far below the interval at which tasks are looked for without a notification.
    assert statistics.median(took_ms) < 1000
