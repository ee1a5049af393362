"""The workflow of a conversation: when it is driven, and in which queue.

Temporal replays it from its history: no clock, no randomness, no I/O. Histories of earlier versions are replayed too,
so a change of what it does, in which order, needs `workflow.patched`; `tests/durable/engines/histories` holds it to
that.
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
"""After so many events a workflow continues as a new one: every decision replays the history."""
SILENT_OF_LEASE = 0.5
"""How much of a lease a worker may be silent. The service may give its task to others that are gone, too, and finds
that out in the same way: even then the task must move within two leases."""
RETRY_S = 0.1
"""How soon a task whose worker was silent goes to another, however often that has happened."""
LONGEST = timedelta(days=3650)
"""A task may be driven for as long as its worker sends heartbeats."""


@dataclass
class Due:
    """What is to be driven, and when."""

    position: int
    queue: str
    at: float | None = None
    is_waiting: bool = False
    """True if it waits at this position to be woken, or for its time."""


@dataclass
class State:
    """All that a workflow knows; the next one of the same conversation begins with it."""

    conversation: str
    prefix: str
    lease_s: float
    due: Due | None
    reached: int = -1
    """How far it was driven."""
    woken: list[int] = field(default_factory=list[int])
    """Positions at which it does not wait, when it gets there."""
    token: str = ""
    """Of the last claim that reported something."""
    is_takeover: bool = False
    """True if a worker was silent, and the one that got its task gave it back undriven."""


@dataclass
class Drive:
    """What a worker gets."""

    conversation: str
    position: int
    queue: str
    token: str
    """Of an earlier claim."""
    is_takeover: bool


@dataclass
class Driven:
    """What a worker reports."""

    position: int
    token: str
    is_waiting: bool = False
    until: float | None = None
    is_handed_over: bool = False
    is_takeover: bool = False
    """True if the task was given back undriven, and had been taken from a worker that was silent."""


def activity_queue(prefix: str, queue: str) -> str:
    """The task queue of the workers that can drive this."""
    return f"{prefix}/{queue}"


@workflow.defn(name=CONVERSATION)
class ConversationWorkflow:
    """Has the conversation driven by one worker at a time, as often as there is something to drive."""

    @workflow.init
    def __init__(self, state: State) -> None:
        self._state = state

    @workflow.run
    async def run(self, _state: State) -> int:
        """Ends when nothing is left to drive; returns how far it came."""
        while (due := await self._next()) is not None:
            await self._drive(due)
        return self._state.reached

    @workflow.signal(name=ENQUEUE)
    def enqueue(self, due: Due) -> None:
        """A later position takes the place of an earlier one."""
        known = self._state.reached if self._state.due is None else max(self._state.reached, self._state.due.position)
        if due.position > known:
            self._state.due = due

    @workflow.signal(name=WAKE)
    def wake(self, position: int) -> None:
        """Counts now, or when the conversation waits at this position."""
        if position >= self._state.reached and position not in self._state.woken:
            self._state.woken.append(position)

    async def _next(self) -> Due | None:
        """What is due, as soon as its time has come, or it was woken; something later may take its place until then."""
        while (due := self._state.due) is not None:
            if self._is_long():
                workflow.continue_as_new(self._state)
            left_s = None if due.at is None else due.at - workflow.time()
            if self._is_now(due) or (left_s is not None and left_s <= 0):
                # A wake counts once: it may wait at the same position again.
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
            """True if something later belongs to other workers: perhaps none is left that knows this queue."""
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
