"""What workers do with tasks: claim, renew, report."""

import json
import math
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from msgspec import Struct
from psycopg import sql

from sidestream.durable.absurd.schema import AbsurdServer
from sidestream.durable.absurd.table import Row, TaskTable, event, seconds_until
from sidestream.durable.protocol import LeaseLostError, Outcome, Task
from sidestream.durable.tokens import token_after
from sidestream.redaction import redact
from sidestream.store.postgres.server import Connection

MAX_FAILURES = 12
"""How often in a row driving may fail. With the waits between them, that takes about ten minutes."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 120.0
_LOST = re.compile("AB00[12]|P0001")
"""What Absurd raises for a run that was cancelled, has failed, or is not driven."""
_NEXT = (
    "SELECT least((SELECT min(available_at) FROM {runs} WHERE state = 'pending'), "
    "(SELECT min(available_at) FROM {runs} WHERE state = 'sleeping'), "
    "(SELECT min(claim_expires_at) FROM {runs} WHERE state = 'running')) AS due"
)


class Held(Struct, frozen=True, kw_only=True):
    """A claim, as Absurd and our table know it."""

    task: Task
    token: str
    is_takeover: bool
    absurd_task: UUID
    run: UUID


async def claim(
    server: AbsurdServer, connection: Connection, queue: str, *, worker: str, lease_s: int, count: int
) -> list[Held]:
    """Claims tasks that are due, or whose lease has ended; none if there are none."""
    table = TaskTable(server, connection)
    found = await table.absurd(queue).claim_tasks(count, lease_s, worker)
    return await _hold(table, queue, found, lease_s) if found else []


async def _hold(table: TaskTable, queue: str, found: Sequence[Any], lease_s: int) -> list[Held]:
    """Gives claims their tokens. Tasks that are not those of their conversations any more are cancelled.

    In a transaction of its own: a wake that comes before it is about records that will be read after it. All together:
    if this worker dies before it has begun to drive them, they wait for the end of their leases once more.
    """
    held: list[Held] = []
    async with table.connection.transaction():
        now = await table.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        rows = await table.lock_all({_conversation(claimed["params"]) for claimed in found})
        for claimed in found:
            conversation = _conversation(claimed["params"])
            row = rows.get(conversation)
            if row is not None and row.task == claimed["task_id"]:
                held.append(
                    Held(
                        task=Task(conversation=conversation, position=row.position, queue=row.queue),
                        token=token_after(row.token, now[0][0]),
                        is_takeover=row.is_held or row.failures > 0,
                        absurd_task=claimed["task_id"],
                        run=claimed["run_id"],
                    )
                )
        await table.execute(
            "UPDATE {schema}.conversations AS known SET token = given.token, is_held = true, lease_s = %s, "
            "waits = NULL, takeovers = takeovers + is_held::integer, changed = clock_timestamp() "
            "FROM unnest(%s::text[], %s::text[]) AS given (conversation, token) "
            "WHERE known.conversation = given.conversation",
            lease_s,
            [each.task.conversation for each in held],
            [each.token for each in held],
        )
    ours = {each.absurd_task for each in held}
    for claimed in found:
        if claimed["task_id"] not in ours:  # It was replaced, or is none of ours.
            await table.absurd(queue).cancel_task(claimed["task_id"])
    return held


def _conversation(params: object) -> str:
    try:
        return msgspec.convert(params, Task).conversation
    except msgspec.ValidationError:  # A task that somebody else has put into our queue.
        return ""


async def next_due_s(server: AbsurdServer, connection: Connection, queues: Iterable[str]) -> float:
    """In how many seconds a task of these queues is due, or its lease ends; infinite if there is none."""
    table = TaskTable(server, connection)
    each = [sql.SQL(_NEXT).format(runs=sql.Identifier("absurd", f"r_{table.absurd_queue(queue)}")) for queue in queues]
    if not each:
        return math.inf
    query = sql.SQL(
        "SELECT extract(epoch FROM min(due))::float8 - extract(epoch FROM clock_timestamp())::float8 FROM ("
    )
    row = await (await connection.execute(query + sql.SQL(" UNION ALL ").join(each) + sql.SQL(") AS each"))).fetchone()
    return math.inf if row is None or row[0] is None else row[0]


async def renew(server: AbsurdServer, connection: Connection, held: Held, lease_s: int) -> None:
    """Renews the lease. Raises LeaseLostError."""
    table = TaskTable(server, connection)
    with _lost(held):
        found = await table.execute(
            "SELECT absurd.extend_claim(%s, %s, %s) FROM {schema}.conversations "
            "WHERE conversation = %s AND token = %s AND is_held",
            table.absurd_queue(held.task.queue),
            held.run,
            lease_s,
            held.task.conversation,
            held.token,
        )
    if not found:
        raise _lease_lost(held)


async def report(server: AbsurdServer, connection: Connection, held: Held, outcome: Outcome) -> None:
    """Ends the claim: the task is over, sleeps until it is woken, or is due for another worker.

    Raises LeaseLostError if the claim had ended before. Reporting twice has no effect.
    """
    table = TaskTable(server, connection)
    with _lost(held):
        async with connection.transaction():
            row = await _held_row(table, held)
            if not row.is_held:
                return
            later = row.later if row.later and row.later.position > outcome.position else None
            is_over = later is not None or not (outcome.is_waiting or outcome.is_handed_over)
            waits = False
            if is_over:
                await connection.execute(
                    "SELECT absurd.complete_run(%s, %s, %s)",
                    (
                        table.absurd_queue(held.task.queue),
                        held.run,
                        json.dumps({"position": outcome.position}),
                    ),
                )
            elif outcome.is_handed_over:
                await _continue_now(table, held)
            else:
                waits = await _wait(table, held, outcome)
            await table.execute(
                "UPDATE {schema}.conversations SET is_held = false, failures = 0, waits = %s, later = NULL, "
                "position = %s, task = CASE WHEN %s THEN NULL ELSE task END, "
                "takeovers = CASE WHEN %s THEN 0 ELSE takeovers END, changed = clock_timestamp() "
                "WHERE conversation = %s",
                outcome.position if waits else None,
                max(outcome.position, row.position),
                is_over,
                is_over,
                held.task.conversation,
            )
            if later is not None:
                await table.spawn(later, row)


async def _wait(table: TaskTable, held: Held, outcome: Outcome) -> bool:
    """Suspends the task until it is woken; False if it was woken already, and is due."""
    name = event(held.task.conversation, outcome.position, held.token)
    timeout_s = None if outcome.until is None else math.ceil(seconds_until(outcome.until))
    found = await table.connection.execute(
        "SELECT should_suspend FROM absurd.await_event(%s, %s, %s, %s, %s, %s)",
        (table.absurd_queue(held.task.queue), held.absurd_task, held.run, name, name, timeout_s),
    )
    row = await found.fetchone()
    if row is not None and row[0]:
        if timeout_s is not None:
            await table.announce(held.task.queue)
        return True
    await _continue_now(table, held)
    return False


async def _continue_now(table: TaskTable, held: Held) -> None:
    await table.connection.execute(
        "SELECT absurd.schedule_run(%s, %s, absurd.current_time())", (table.absurd_queue(held.task.queue), held.run)
    )
    await table.announce(held.task.queue)


async def fail(server: AbsurdServer, connection: Connection, held: Held, error: Exception) -> float | None:
    """Ends the claim after an error: another attempt is made, later each time, until the task is given up.

    Returns in how many seconds; None if it was given up. Raises LeaseLostError if the claim had ended before.
    """
    table = TaskTable(server, connection)
    reason = json.dumps({"name": type(error).__name__, "message": redact(str(error))})
    with _lost(held):
        async with connection.transaction():
            row = await _held_row(table, held)
            delay_s = min(FIRST_BACKOFF_S * 2.0 ** min(row.failures, MAX_FAILURES), MAX_BACKOFF_S)
            await connection.execute(
                "SELECT absurd.fail_run(%s, %s, %s, absurd.current_time() + make_interval(secs => %s))",
                (table.absurd_queue(held.task.queue), held.run, reason, delay_s),
            )
            is_given_up = row.failures + 1 >= MAX_FAILURES
            if is_given_up or row.later is not None:
                await table.absurd(held.task.queue).cancel_task(str(held.absurd_task))
            await table.execute(
                "UPDATE {schema}.conversations SET is_held = false, failures = failures + 1, "
                "task = CASE WHEN %s THEN NULL ELSE task END, changed = clock_timestamp() WHERE conversation = %s",
                is_given_up,
                held.task.conversation,
            )
            if row.later is not None:
                await table.spawn(row.later, row)  # Perhaps for other workers.
            else:
                await table.announce(held.task.queue)
    return None if is_given_up and row.later is None else delay_s


async def _held_row(table: TaskTable, held: Held) -> Row:
    row = await table.lock(held.task.conversation)
    if row is None or row.token != held.token:
        raise _lease_lost(held)
    return row


def _lease_lost(held: Held) -> LeaseLostError:
    return LeaseLostError(f"another worker drives conversation {held.task.conversation}, or nobody any more")


@contextmanager
def _lost(held: Held) -> Generator[None]:
    """Raises LeaseLostError for what Absurd raises if the claim is gone."""
    try:
        yield
    except psycopg.Error as error:
        if _LOST.fullmatch(error.sqlstate or ""):
            raise _lease_lost(held) from None
        raise
