"""The workflow of a conversation, which decides when its run is executed, and in which queue.

Temporal replays the workflow from its history, so it must not use the clock, randomness or I/O. Histories of earlier
versions are replayed too: a change of its actions or their order needs `workflow.patched`. The histories in
`tests/durable/engines/histories` check that.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

CONVERSATION = "sidestream-conversation"
DRIVE = "sidestream-drive"
ENQUEUE = "enqueue"
WAKE = "wake"
MAX_EVENTS = 400
"""Number of events after which a workflow continues as a new one, since every decision replays the history."""
SILENT_OF_LEASE = 0.5
"""Fraction of a lease that a worker may be unresponsive. The service may next assign the task to another dead worker,
and even then the task must move on within two leases."""
RETRY_S = 0.1
"""Seconds until a task of an unresponsive worker goes to another, however often that has happened."""
LONGEST = timedelta(days=3650)
"""Time limit of a task, in effect none: a task may run for as long as its worker sends heartbeats."""


@dataclass
class Due:
    """The task to execute, and its time."""

    position: int
    queue: str
    at: float | None = None
    is_waiting: bool = False
    """Whether it waits at this position to be woken, or for its time."""


@dataclass
class State:
    """The whole state of a workflow. The conversation's next workflow starts with it."""

    conversation: str
    prefix: str
    lease_s: float
    due: Due | None
    reached: int = -1
    """Position that the last worker reported."""
    woken: list[int] = field(default_factory=list[int])
    """Positions at which it does not wait once it gets there."""
    token: str = ""
    """Token of the last claim with a report."""
    is_takeover: bool = False
    """Whether a worker was unresponsive, and the next one released the task without executing it."""


@dataclass
class Drive:
    """The input of a worker's activity."""

    conversation: str
    position: int
    queue: str
    token: str
    """Token of an earlier claim."""
    is_takeover: bool


@dataclass
class Driven:
    """The result of a worker's activity."""

    position: int
    token: str
    is_waiting: bool = False
    until: float | None = None
    is_handed_over: bool = False
    is_takeover: bool = False
    """Whether the task was taken from an unresponsive worker, and then released without being executed."""


def activity_queue(prefix: str, queue: str) -> str:
    """Return the task queue of the workers that serve this queue."""
    return f"{prefix}/{queue}"


@workflow.defn(name=CONVERSATION)
class ConversationWorkflow:
    """Has one worker at a time execute the conversation's tasks, as long as there are any."""

    @workflow.init
    def __init__(self, state: State) -> None:
        self._state = state

    @workflow.run
    async def run(self, _state: State) -> int:
        """Run until no task is left, and return the position reached."""
        while (due := await self._next()) is not None:
            await self._drive(due)
        return self._state.reached

    @workflow.signal(name=ENQUEUE)
    def enqueue(self, due: Due) -> None:
        """Enqueue a task. It replaces one at an earlier position."""
        known = self._state.reached if self._state.due is None else max(self._state.reached, self._state.due.position)
        if due.position > known:
            self._state.due = due

    @workflow.signal(name=WAKE)
    def wake(self, position: int) -> None:
        """Wake the conversation at this position, now or as soon as it waits there."""
        if position >= self._state.reached and position not in self._state.woken:
            self._state.woken.append(position)

    async def _next(self) -> Due | None:
        """Wait until a task is due or woken, and return it. Until then a task at a later position may replace it."""
        while (due := self._state.due) is not None:
            if self._is_long():
                workflow.continue_as_new(self._state)
            left_s = None if due.at is None else due.at - workflow.time()
            if self._is_now(due) or (left_s is not None and left_s <= 0):
                # Use a wake-up only once, since the conversation may wait at the same position again.
                self._state.woken = [position for position in self._state.woken if position > due.position]
                return due
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda due=due: self._state.due is not due or self._is_now(due) or self._is_long(), timeout=left_s
                )
        return None

    def _is_now(self, due: Due) -> bool:
        return due.position in self._state.woken if due.is_waiting else due.at is None

    async def _drive(self, due: Due) -> None:
        state = self._state
        driving = workflow.start_activity(
            DRIVE,
            Drive(state.conversation, due.position, due.queue, state.token, state.is_takeover),
            task_queue=activity_queue(state.prefix, due.queue),
            result_type=Driven,
            start_to_close_timeout=LONGEST,
            heartbeat_timeout=timedelta(seconds=state.lease_s * SILENT_OF_LEASE),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=RETRY_S), backoff_coefficient=1.0),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
        )

        def is_elsewhere() -> bool:
            """Return whether a later task is in another queue, in which case this one may have no workers left."""
            newest = self._state.due
            return newest is not None and newest.queue != due.queue and newest.at is None

        await workflow.wait_condition(lambda: driving.done() or is_elsewhere())
        if not driving.done():
            driving.cancel()
            with suppress(ActivityError, asyncio.CancelledError):
                await driving
            state.reached = max(state.reached, due.position)
            return
        self._note(due, await driving)

    def _note(self, driven: Due, result: Driven) -> None:
        state = self._state
        state.reached = result.position
        state.token, state.is_takeover = result.token, result.is_takeover
        state.woken = [position for position in state.woken if position >= result.position]
        newest = state.due or driven
        if newest.position > max(result.position, driven.position):
            return
        if result.is_handed_over:
            state.due = Due(result.position, newest.queue)
        elif result.is_waiting:
            state.due = Due(result.position, newest.queue, result.until, is_waiting=True)
        else:
            state.due = None

    def _is_long(self) -> bool:
        info = workflow.info()
        return info.get_current_history_length() > MAX_EVENTS or info.is_continue_as_new_suggested()
