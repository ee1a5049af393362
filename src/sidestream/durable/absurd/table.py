"""The table that finds the task of a conversation, as one transaction uses it.

Locks are taken in this order by everybody: the row of the conversation, then Absurd's events, runs and tasks.
"""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from absurd_sdk import AsyncAbsurd
from psycopg import sql

from sidestream.durable.absurd.queues import absurd_queue
from sidestream.durable.absurd.schema import AbsurdServer
from sidestream.durable.protocol import Task
from sidestream.store.postgres.server import Connection

TASK_NAME = "drive"
UNLIMITED = 2**31 - 1
"""Attempts: a worker that dies must not use up those of its runs."""


class Row(NamedTuple):
    """What is known of a conversation."""

    queue: str
    task: UUID | None
    """The task in Absurd; None if nothing is to be driven."""
    position: int
    waits: int | None
    """Where it waits; None if it does not."""
    later: Task | None
    """Enqueued while the task was driven."""
    token: str
    """Of the latest claim."""
    is_held: bool
    """True while somebody has the claim: nobody has reported how far it came."""
    failures: int
    """In a row."""

    def has(self, task: Task) -> bool:
        """True if the conversation was driven from this position on, or will be."""
        last = max(self.position, self.waits or 0, self.later.position if self.later else 0)
        is_given_up = self.task is None and self.failures > 0
        return task.position < last or (task.position == last and not is_given_up)


class TaskTable:
    """The rows of conversations, and their tasks in Absurd. Every method is called inside a transaction."""

    def __init__(self, server: AbsurdServer, connection: Connection) -> None:
        self._server = server
        self.connection = connection

    async def lock(self, conversation: str) -> Row | None:
        """The row, which nobody else changes before the transaction ends; None if there is none."""
        return (await self.lock_all([conversation])).get(conversation)

    async def lock_all(self, conversations: Iterable[str]) -> dict[str, Row]:
        """The rows of several conversations, as far as there are any."""
        found = await self.execute(
            "SELECT conversation, queue, task, position, waits, later, token, is_held, failures "
            "FROM {schema}.conversations WHERE conversation = ANY(%s) ORDER BY conversation FOR UPDATE",
            list(conversations),
        )
        return {
            conversation: Row(queue, task, position, waits, _task(later), token, is_held, failures)
            for conversation, queue, task, position, waits, later, token, is_held, failures in found
        }

    async def lock_or_create(self, task: Task) -> Row:
        """The row of the task's conversation, whether it was there or not."""
        await self.execute(
            "INSERT INTO {schema}.conversations (conversation, queue, position) VALUES (%s, %s, -1) "
            "ON CONFLICT (conversation) DO UPDATE SET changed = clock_timestamp()",
            task.conversation,
            task.queue,
        )
        row = await self.lock(task.conversation)
        assert row is not None, "it is locked since the insert"
        return row

    async def spawn(self, task: Task, row: Row) -> None:
        """A new task in Absurd, which is that of the conversation from now on."""
        queue = self.absurd_queue(task.queue)
        params = {"conversation": task.conversation, "position": task.position, "queue": task.queue}
        spawned = await self.absurd().spawn(TASK_NAME, params, queue=queue, max_attempts=UNLIMITED)
        if task.at is not None:
            # Absurd has no tasks for later: its own way is a worker that takes the task and lets it sleep.
            runs = sql.Identifier("absurd", f"r_{queue}")
            await self.connection.execute(
                sql.SQL(
                    "UPDATE {} SET available_at = available_at + make_interval(secs => %s) WHERE run_id = %s"
                ).format(runs),
                (seconds_until(task.at), spawned["run_id"]),
            )
        await self.execute(
            "UPDATE {schema}.conversations SET queue = %s, task = %s, position = %s, waits = NULL, later = NULL, "
            "is_held = false, takeovers = 0, failures = %s, changed = clock_timestamp() WHERE conversation = %s",
            task.queue,
            spawned["task_id"],
            task.position,
            # What was given up gets one more attempt at the same position.
            row.failures if task.position == row.position else 0,
            task.conversation,
        )
        await self.announce(task.queue)

    async def state(self, row: Row) -> str | None:
        """The state of the run of its task, which is locked; `left` if it runs, but its lease is over. None if Absurd
        has nothing to run."""
        runs = sql.Identifier("absurd", f"r_{self.absurd_queue(row.queue)}")
        query = sql.SQL(
            "SELECT CASE WHEN state = 'running' AND claim_expires_at <= clock_timestamp() THEN 'left' ELSE state END "
            "FROM {} WHERE task_id = %s AND state IN ('pending', 'running', 'sleeping') FOR UPDATE"
        )
        found = await (await self.connection.execute(query.format(runs), (row.task,))).fetchone()
        return found[0] if found else None

    async def announce(self, queue: str) -> None:
        """Those who work this queue look again, once the transaction is committed."""
        await self.connection.execute("SELECT pg_notify(%s, %s)", (self._server.due, queue))

    async def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs a statement on our tables; returns its rows."""
        cursor = await self.connection.execute(self._server.sql(statement), values)
        return await cursor.fetchall() if cursor.description is not None else []

    def absurd(self, queue: str | None = None) -> AsyncAbsurd:
        """Absurd's own client, on this connection, for one of our queues."""
        name = self.absurd_queue(queue) if queue is not None else "default"
        return AsyncAbsurd(self.connection, queue_name=name)

    def absurd_queue(self, queue: str) -> str:
        """The name of one of our queues in Absurd."""
        return absurd_queue(self._server.namespace, queue)


def _task(text: str | None) -> Task | None:
    return None if text is None else msgspec.json.decode(text, type=Task)


def event(conversation: str, position: int, token: str) -> str:
    """The name of the event that wakes a conversation at this position.

    The token of the claim is part of it: an event happens once in Absurd, and a conversation may wait again where it
    waited before.
    """
    return f"{conversation}:{position}:{token}"


def seconds_until(time_s: float) -> float:
    """From now to a time of this machine's clock. The database adds them to its own, so that skew has no effect."""
    return max(time_s - time.time(), 0.0)
