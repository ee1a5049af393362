"""What fronts do with tasks: enqueue, wake, cancel, count."""

from collections.abc import Iterable

import msgspec
from psycopg import sql

from sidestream.durable.absurd.queues import prefix
from sidestream.durable.absurd.schema import AbsurdServer
from sidestream.durable.absurd.table import TaskTable, event
from sidestream.durable.protocol import EngineStats, Task
from sidestream.store.postgres.server import Connection

KEPT = "1 day"
"""How long tasks that are over stay in Absurd, and tokens in our table."""
_BATCH = 1000
_COUNTS = (
    "SELECT count(*) FILTER (WHERE state <> 'running' AND available_at <= clock_timestamp()), "
    "count(*) FILTER (WHERE state = 'running'), "
    "count(*) FILTER (WHERE state <> 'running' AND available_at > clock_timestamp()), "
    "coalesce(extract(epoch FROM clock_timestamp() - min(available_at) "
    "FILTER (WHERE state <> 'running' AND available_at <= clock_timestamp())), 0)::float8, "
    "coalesce(max(lease_s - extract(epoch FROM claim_expires_at - clock_timestamp())) "
    "FILTER (WHERE state = 'running' AND is_held), 0)::float8 "
    "FROM {runs} LEFT JOIN {conversations} ON task = task_id WHERE state IN ('pending', 'running', 'sleeping')"
)


async def create_queues(server: AbsurdServer, connection: Connection, queues: Iterable[str]) -> None:
    """Creates those that are missing."""
    table = TaskTable(server, connection)
    missing = {table.absurd_queue(queue) for queue in queues}.difference(await table.absurd().list_queues())
    if not missing:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (server.lock_key,))
        # Read again: one that was created meanwhile is in use, and creating it again would deadlock.
        for name in missing.difference(await table.absurd().list_queues()):
            await table.absurd().create_queue(name, cleanup_ttl=KEPT)


async def enqueue(server: AbsurdServer, connection: Connection, task: Task) -> None:
    """Spawns a task, unless there is one that drives the conversation at least as far."""
    table = TaskTable(server, connection)
    async with connection.transaction():
        row = await table.lock_or_create(task)
        state = None if row.task is None else await table.state(row)
        # Perhaps nobody works its queue any more: then nobody would ever report how far it came.
        is_left = state == "left" and task.queue != row.queue and task.position > row.position
        if row.has(task) and not is_left and (state is not None or row.task is None):
            return
        if state is None:
            await table.spawn(task, row)
        elif state in ("running", "left") and not is_left:
            # Not at the same time as the one in progress; the claim's report continues with it.
            await table.execute(
                "UPDATE {schema}.conversations SET later = %s WHERE conversation = %s",
                msgspec.json.encode(task).decode(),
                task.conversation,
            )
        else:
            await table.absurd(row.queue).cancel_task(str(row.task))
            await table.spawn(task, row)


async def wake(server: AbsurdServer, connection: Connection, conversation: str, position: int) -> None:
    """Emits the event for which the conversation waits, or will wait if it is driven now."""
    table = TaskTable(server, connection)
    async with connection.transaction():
        row = await table.lock(conversation)
        if row is None or row.task is None or not (row.is_held or row.waits == position):
            return
        await table.absurd(row.queue).emit_event(event(conversation, position, row.token), {"position": position})
        await table.announce(row.queue)


async def cancel(server: AbsurdServer, connection: Connection, conversation: str) -> None:
    """Cancels the task of the conversation, and forgets it."""
    table = TaskTable(server, connection)
    async with connection.transaction():
        row = await table.lock(conversation)
        if row is None or row.task is None:
            return
        if await table.state(row) is not None:
            await table.absurd(row.queue).cancel_task(str(row.task))
        await table.execute(
            "UPDATE {schema}.conversations SET task = NULL, position = -1, waits = NULL, later = NULL, "
            "is_held = false, takeovers = 0, failures = 0, changed = clock_timestamp() WHERE conversation = %s",
            conversation,
        )


async def stats(server: AbsurdServer, connection: Connection) -> EngineStats:
    """Counts the tasks of all queues of the namespace."""
    queued = running = waiting = 0
    oldest_queued_s = oldest_lease_s = 0.0
    for name in await TaskTable(server, connection).absurd().list_queues():
        if not name.startswith(prefix(server.namespace)):
            continue
        query = sql.SQL(_COUNTS).format(
            runs=sql.Identifier("absurd", f"r_{name}"), conversations=sql.Identifier(server.schema, "conversations")
        )
        row = await (await connection.execute(query)).fetchone()
        assert row is not None
        queued, running, waiting = queued + row[0], running + row[1], waiting + row[2]
        oldest_queued_s = max(oldest_queued_s, row[3])
        oldest_lease_s = max(oldest_lease_s, row[4])
    count = server.sql("SELECT coalesce(sum(takeovers), 0)::bigint FROM {schema}.conversations WHERE task IS NOT NULL")
    takeovers = await (await connection.execute(count)).fetchone()
    return EngineStats(
        queued=queued,
        running=running,
        waiting=waiting,
        oldest_queued_s=oldest_queued_s,
        oldest_lease_s=oldest_lease_s,
        takeovers=takeovers[0] if takeovers else 0,
    )


async def remove_old(server: AbsurdServer, connection: Connection, queues: Iterable[str]) -> None:
    """Removes what is over for longer than it is kept."""
    table = TaskTable(server, connection)
    for queue in queues:
        removed = _BATCH
        while removed >= _BATCH:
            cleanup = "SELECT tasks_deleted, events_deleted FROM absurd.cleanup_all_queues(%s)"
            row = await (await connection.execute(cleanup, (table.absurd_queue(queue),))).fetchone()
            removed = max(row) if row else 0
    await table.execute(
        "DELETE FROM {schema}.conversations WHERE task IS NULL AND changed < clock_timestamp() - %s::interval", KEPT
    )
