"""The table of tasks, with one row per conversation, changed by single statements that every database understands.

`state` is `queued`, `running`, `waiting`, `done` or `failed`. A claim compares the row's token, so that only one of two
competing workers gets it. All times are those of the database's clock.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from sidestream.durable.engines.protocol import EngineStats, Outcome, Task
from sidestream.durable.log.jobs import token_after
from sidestream.errors import StoreError
from sidestream.store.protocol import SharedStore

TOPIC = "tasks"
"""Store topic on which claimable tasks are announced."""
MAX_FAILURES = 12
"""Maximum consecutive failures of a task. With the delays between them, they take about ten minutes."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 120.0

_ENQUEUE = (
    "INSERT INTO {tasks} AS task (conversation, queue, position, state, due, since) "
    "SELECT id, :queue, :position, 'queued', coalesce(CAST(:at AS double precision), {now}), {now} "
    "FROM {conversations} WHERE id = :conversation "
    "ON CONFLICT (conversation) DO UPDATE SET queue = excluded.queue, due = excluded.due, "
    "later = CASE task.state WHEN 'running' THEN excluded.position ELSE 0 END, "
    "position = CASE task.state WHEN 'running' THEN task.position ELSE excluded.position END, "
    "since = CASE task.state WHEN 'running' THEN task.since ELSE excluded.since END, "
    # A failed task at this position gets one more attempt; a new position resets the count.
    "failures = CASE WHEN excluded.position > task.position THEN 0 ELSE task.failures END, "
    "state = CASE task.state WHEN 'running' THEN task.state ELSE 'queued' END "
    "WHERE (excluded.position > task.position AND excluded.position > task.later) "
    "OR (task.state = 'failed' AND excluded.position = task.position) RETURNING state"
)
_WAKE = (
    # Only a current worker can have missed the reason for the wake-up.
    "UPDATE {tasks} SET woken = CASE state WHEN 'running' THEN :position ELSE 0 END, "
    "due = CASE WHEN state = 'waiting' AND position = :position THEN {now} ELSE due END, "
    "since = CASE WHEN state = 'waiting' AND position = :position THEN {now} ELSE since END, "
    "state = CASE WHEN state = 'waiting' AND position = :position THEN 'queued' ELSE state END "
    "WHERE conversation = :conversation AND state IN ('running', 'waiting')"
)
_GRANTED = "conversation, position, queue, failures"
_DUE = (
    "SELECT task.conversation, task.token, coalesce(talk.fence, ''), {{now}} FROM {{tasks}} AS task "
    "JOIN {{conversations}} AS talk ON talk.id = task.conversation "
    "WHERE task.state IN ('queued', 'waiting') AND task.due <= {{now}} AND task.queue IN ({queues}) "
    "ORDER BY task.due LIMIT :limit"
)
_NEXT_DUE = (
    "SELECT min(due) - {{now}} FROM {{tasks}} WHERE state IN ('queued', 'waiting') AND due > {{now}} "
    "AND queue IN ({queues})"
)
_HELD = (
    "SELECT task.conversation, task.token, task.beats, task.worker, task.lease, coalesce(talk.fence, ''), {{now}}, "
    "{{now}} - task.since FROM {{tasks}} AS task JOIN {{conversations}} AS talk ON talk.id = task.conversation "
    "WHERE task.state = 'running' AND task.queue IN ({queues})"
)
_HOLDERS = "SELECT conversation, worker FROM {{tasks}} WHERE state = 'running' AND conversation IN ({conversations})"
# Skip rows that another statement has locked: two statements waiting for each other's rows would deadlock.
_CLAIM = (
    "UPDATE {{tasks}} SET state = 'running', worker = :worker, lease = :lease, beats = 0, woken = 0, since = {{now}}, "
    "token = CASE conversation {tokens} END, takeovers = takeovers + CASE state WHEN 'running' THEN 1 ELSE 0 END "
    "WHERE conversation IN (SELECT conversation FROM {{tasks}} WHERE ({seen}) AND "
)
_CLAIM_DUE = _CLAIM + "state IN ('queued', 'waiting') AND due <= {{now}} {{skip_locked}}) RETURNING " + _GRANTED
_CLAIM_SILENT = _CLAIM + "state = 'running' {{skip_locked}}) RETURNING " + _GRANTED
# A single statement, since another worker could claim the task between an insert and an update.
_CLAIM_IDLE = (
    "INSERT INTO {{tasks}} AS task (conversation, queue, position, state, due, since, worker, token, lease) "
    "VALUES (:conversation, :queue, :position, 'running', {{now}}, {{now}}, :worker, :token, :lease) "
    "ON CONFLICT (conversation) DO UPDATE SET queue = excluded.queue, state = 'running', worker = excluded.worker, "
    "token = excluded.token, lease = excluded.lease, since = excluded.since, beats = 0, woken = 0, later = 0, "
    "failures = CASE WHEN excluded.position > task.position THEN 0 ELSE task.failures END, "
    "position = CASE WHEN excluded.position > task.position THEN excluded.position ELSE task.position END "
    "WHERE task.token = :seen AND task.state <> 'running' RETURNING " + _GRANTED
)
_CLAIMED = f"SELECT {_GRANTED} FROM {{{{tasks}}}} WHERE worker = :worker AND ({{held}})"
_ROW = (
    "SELECT coalesce(task.state, ''), coalesce(task.token, ''), coalesce(task.beats, 0), coalesce(task.worker, ''), "
    "coalesce(task.lease, 0), talk.fence, {now}, coalesce({now} - task.since, 0) FROM {conversations} AS talk "
    "LEFT JOIN {tasks} AS task ON task.conversation = talk.id WHERE talk.id = :conversation"
)
_BEAT = (
    "UPDATE {{tasks}} SET beats = beats + 1, since = {{now}} "
    "WHERE worker = :worker AND state = 'running' AND conversation IN ({conversations}) RETURNING conversation, token"
)
_RELEASE = (
    "UPDATE {tasks} SET worker = '', later = 0, woken = 0, failures = 0, since = {now}, "
    "state = CASE WHEN later > :position THEN 'queued' WHEN woken = :position THEN :woken ELSE :state END, "
    "due = CASE WHEN later > :position THEN due WHEN woken = :position THEN {now} "
    "ELSE coalesce(CAST(:due AS double precision), {now}) END, "
    "position = CASE WHEN later > :position THEN later ELSE :position END "
    "WHERE conversation = :conversation AND token = :token AND state = 'running' RETURNING state"
)
_FAIL = (
    "UPDATE {tasks} SET worker = '', failures = :failures, since = {now}, due = {now} + :delay, state = :state, "
    "position = CASE WHEN later > position THEN later ELSE position END, later = 0 "
    "WHERE conversation = :conversation AND token = :token AND state = 'running' RETURNING state"
)
_STATS = (
    "SELECT coalesce(sum(CASE WHEN state <> 'running' AND due <= {now} THEN 1 ELSE 0 END), 0), "
    "coalesce(sum(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0), "
    "coalesce(sum(CASE WHEN state <> 'running' AND due > {now} THEN 1 ELSE 0 END), 0), "
    "coalesce(max(CASE WHEN state <> 'running' AND due <= {now} THEN {now} - due END), 0), "
    "coalesce(max(CASE WHEN state = 'running' THEN {now} - since END), 0), coalesce(sum(takeovers), 0) "
    "FROM {tasks} WHERE state IN ('queued', 'running', 'waiting')"
)


class Held(NamedTuple):
    """A worker's claim, as read from the table."""

    conversation: str
    token: str
    beats: int
    worker: str
    lease_s: float
    fence: str = ""
    now: float = 0.0
    """Time by the database's clock, in seconds since 1970."""
    age_s: float = 0.0
    """Seconds since its last heartbeat, by that clock."""


class Candidate(Struct, frozen=True):
    """A task that can be claimed, as read from the table."""

    conversation: str
    token: str
    fence: str
    now: float


class Granted(Struct, frozen=True):
    """A claimed task."""

    task: Task
    token: str
    failures: int
    """Consecutive failures."""
    is_takeover: bool


class TaskTable:
    """The tasks in a store's database, as used by one worker."""

    def __init__(self, store: SharedStore, worker: str, lease_s: float) -> None:
        self._store = store
        self._worker = worker
        self._lease_s = lease_s

    async def enqueue(self, task: Task) -> None:
        """Add a task unless there is one for this position or a later one."""
        if not await self._store.execute(_ENQUEUE, _values(task), notify=TOPIC):
            await self._row(task.conversation)

    async def wake(self, conversation: str, position: int) -> None:
        """Make a task due that waits at this position, or is about to."""
        values = {"conversation": conversation, "position": position}
        await self._store.execute(_WAKE, values, notify=TOPIC)

    async def cancel(self, conversation: str) -> None:
        """Remove a task, even if a worker holds it."""
        sql = "DELETE FROM {tasks} WHERE conversation = :conversation"
        await self._store.execute(sql, {"conversation": conversation}, notify=TOPIC)

    async def due(self, queues: Collection[str], limit: int) -> list[Candidate]:
        """Return the tasks that can be claimed, oldest first."""
        names, values = _listed("queue", queues)
        found = await self._store.execute(_DUE.format(queues=names), values | {"limit": limit})
        return [Candidate(*row) for row in found]

    async def next_due_s(self, queues: Collection[str]) -> float:
        """Return the seconds until the next task is due, or infinity if none is scheduled."""
        names, values = _listed("queue", queues)
        found = await self._store.execute(_NEXT_DUE.format(queues=names), values)
        seconds = found[0][0] if found else None  # A new store has no tables yet.
        return math.inf if seconds is None else float(seconds)

    async def held(self, queues: Collection[str]) -> list[Held]:
        """Return all workers' claims on tasks of these queues."""
        names, values = _listed("queue", queues)
        return [Held(*row) for row in await self._store.execute(_HELD.format(queues=names), values)]

    async def holders(self, conversations: Collection[str]) -> dict[str, str]:
        """Return the names of the workers that execute these conversations, by conversation id."""
        if not conversations:
            return {}
        names, values = _listed("conversation", conversations)
        return dict(await self._store.execute(_HOLDERS.format(conversations=names), values))

    async def claim_due(self, candidates: Sequence[Candidate]) -> list[Granted]:
        """Claim due tasks, and return those that no other worker has claimed first."""
        seen = [
            f"conversation = :conversation_{number} AND token = :seen_{number}" for number in range(len(candidates))
        ]
        return await self._claim(_CLAIM_DUE, candidates, seen)

    async def claim_silent(self, silent: Sequence[Held]) -> list[Granted]:
        """Claim tasks of unresponsive workers.

        Returns those whose worker has sent no heartbeat since, and that no other worker has claimed first.
        """
        seen = [
            f"conversation = :conversation_{number} AND token = :seen_{number} AND beats = :beats_{number}"
            for number in range(len(silent))
        ]
        candidates = [Candidate(held.conversation, held.token, held.fence, held.now) for held in silent]
        beats = {f"beats_{number}": held.beats for number, held in enumerate(silent)}
        return await self._claim(_CLAIM_SILENT, candidates, seen, beats)

    async def claim_idle(self, task: Task) -> Granted | Held | None:
        """Claim a conversation that has no worker, whatever its task, or return its worker's claim.

        Returns None if the task changed in between.
        """
        held, candidate = await self._row(task.conversation)
        if held is not None:
            return held
        values = {"conversation": task.conversation, "seen": candidate.token, "token": _token(candidate)}
        known = {"queue": task.queue, "position": task.position}
        granted = await self._claim(_CLAIM_IDLE, [candidate], [], {**values, **known})
        return granted[0] if granted else None

    async def _row(self, conversation: str) -> tuple[Held | None, Candidate]:
        found = await self._store.execute(_ROW, {"conversation": conversation})
        if not found:
            raise StoreError(f"there is no conversation {conversation!r}")
        [[state, token, beats, worker, lease_s, fence, now, age_s]] = found
        held = Held(conversation, token, beats, worker, lease_s, fence, now, age_s) if state == "running" else None
        return held, Candidate(conversation, token, fence, now)

    async def _claim(
        self, sql: str, seen: Sequence[Candidate], as_seen: Sequence[str], more: Mapping[str, object] | None = None
    ) -> list[Granted]:
        if not seen:
            return []
        tokens = {candidate.conversation: _token(candidate) for candidate in seen}
        values: dict[str, object] = {"worker": self._worker, "lease": self._lease_s, **(more or {})}
        for number, candidate in enumerate(seen):
            values[f"conversation_{number}"] = candidate.conversation
            values[f"seen_{number}"] = candidate.token
            values[f"token_{number}"] = tokens[candidate.conversation]
        whens = " ".join(f"WHEN :conversation_{number} THEN :token_{number}" for number in range(len(seen)))
        found = await self._store.execute(sql.format(tokens=whens, seen=" OR ".join(as_seen)), values)
        if len(found) < len(seen):
            # The statement may have been retried after a broken connection, so that the first try claimed the tasks.
            held = [f"conversation = :conversation_{number} AND token = :token_{number}" for number in range(len(seen))]
            found = await self._store.execute(_CLAIMED.format(held=" OR ".join(held)), values)
        return [
            Granted(
                Task(conversation=conversation, position=position, queue=queue),
                tokens[conversation],
                failures,
                is_takeover=sql is _CLAIM_SILENT or failures > 0,
            )
            for conversation, position, queue, failures in found
        ]

    async def beat(self, conversations: Sequence[str]) -> set[tuple[str, str]]:
        """Renew this worker's leases on these conversations, and return the claims that it still holds."""
        names, values = _listed("conversation", conversations)
        found = await self._store.execute(_BEAT.format(conversations=names), values | {"worker": self._worker})
        return {(conversation, token) for conversation, token in found}

    async def release(self, granted: Granted, outcome: Outcome) -> bool:
        """Release a claim, and return False if it was lost."""
        states = ("queued", "queued") if outcome.is_handed_over else ("done", "done")
        due: float | None = None
        if outcome.is_waiting:
            states, due = ("waiting", "queued"), math.inf if outcome.until is None else outcome.until
        values: dict[str, object] = {
            "conversation": granted.task.conversation,
            "token": granted.token,
            "position": outcome.position,
            "state": states[0],
            "woken": states[1],
            "due": due,
        }
        return bool(await self._store.execute(_RELEASE, values, notify=TOPIC))

    async def fail(self, granted: Granted) -> bool:
        """Release a claim whose task failed, and retry it after a delay. Returns False after too many failures."""
        failures = granted.failures + 1
        values: dict[str, object] = {
            "conversation": granted.task.conversation,
            "token": granted.token,
            "failures": failures,
            "delay": min(FIRST_BACKOFF_S * 2.0**granted.failures, MAX_BACKOFF_S),
            "state": "queued" if failures < MAX_FAILURES else "failed",
        }
        await self._store.execute(_FAIL, values, notify=TOPIC)
        return failures < MAX_FAILURES

    async def stats(self) -> EngineStats:
        """Return the statistics of all tasks."""
        found = await self._store.execute(_STATS) or [(0, 0, 0, 0, 0, 0)]
        [[queued, running, waiting, oldest_queued_s, oldest_lease_s, takeovers]] = found
        return EngineStats(
            queued=int(queued),
            running=int(running),
            waiting=int(waiting),
            oldest_queued_s=max(float(oldest_queued_s), 0.0),
            oldest_lease_s=max(float(oldest_lease_s), 0.0),
            takeovers=int(takeovers),
        )


def _token(candidate: Candidate) -> str:
    """Return a token for a claim on this conversation, greater than all before it."""
    return token_after(max(candidate.token, candidate.fence), candidate.now)


def _values(task: Task) -> dict[str, object]:
    return {"conversation": task.conversation, "queue": task.queue, "position": task.position, "at": task.at}


def _listed(name: str, texts: Collection[str]) -> tuple[str, dict[str, object]]:
    """Return the placeholders of an SQL list, and their values."""
    values: dict[str, object] = {f"{name}_{number}": text for number, text in enumerate(texts)}
    return ", ".join(f":{key}" for key in values), values
