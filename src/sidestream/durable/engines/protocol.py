"""The engine protocol. An engine decides which worker executes a conversation's run, and when."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, runtime_checkable

from msgspec import Struct

from sidestream.errors import SidestreamError

MODELS = "models"
"""Queue of runs whose agent is a model string. Any worker that allows models can execute them."""


class EngineError(SidestreamError):
    """The engine does not respond or rejects a request. `retryable` means that it may respond later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class LeaseLostError(SidestreamError):
    """The engine has assigned the run to another worker or ended it, so this worker must stop."""


class TaskHeldError(SidestreamError):
    """Another worker holds the claim on the conversation."""


class Task(Struct, frozen=True, kw_only=True):
    """A request to execute the last turn of a conversation until it waits or finishes."""

    conversation: str
    position: int
    """Sequence number of the last record when it was enqueued. With the conversation it identifies the task."""
    queue: str = MODELS
    """Queue of the workers that can execute it: an agent's name with its version, or `MODELS`."""
    at: float | None = None
    """Earliest start, in seconds since 1970. None means at once."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How far a worker executed a conversation's run. The output itself is only in the log."""

    position: int
    """Sequence number of the last record."""
    is_waiting: bool = False
    """Whether it waits for a decision. `Engine.wake` continues it."""
    until: float | None = None
    """Time at which it continues without being woken, in seconds since 1970. None means never."""
    is_handed_over: bool = False
    """Whether the worker stopped, so that another one executes the rest at once."""


class Claim(Protocol):
    """The right to execute a conversation's run until the lease expires."""

    @property
    def task(self) -> Task:
        """The task to execute."""
        ...

    @property
    def token(self) -> str:
        """Token of this claim. As a string, it is greater than that of every earlier claim on the conversation."""
        ...

    @property
    def is_takeover(self) -> bool:
        """Whether an earlier worker had this task and did not report how far it came."""
        ...

    @property
    def lease_s(self) -> float:
        """Seconds that the claim is valid without a heartbeat."""
        ...

    async def heartbeat(self) -> None:
        """Renew the lease. Raises LeaseLostError if the claim is lost."""
        ...


class OwnClaim(Claim, Protocol):
    """A claim held by the process that started the run, which also releases it."""

    @property
    def ended_at(self) -> int | None:
        """Sequence number of the last record, or None until this process has written that the run ended or waits."""
        ...

    async def release(self, outcome: Outcome | None) -> None:
        """Release the claim. Without an outcome, another worker executes the rest."""
        ...


Drive = Callable[[Claim], Awaitable[Outcome]]
"""Function that executes the claimed task. If it raises, the engine assigns the task to another worker."""


class EngineStats(Struct, frozen=True, kw_only=True):
    """Engine statistics."""

    queued: int
    """Tasks that are due but have no worker yet."""
    running: int
    waiting: int
    """Tasks that wait to be woken, or for their start time."""
    oldest_queued_s: float = 0.0
    oldest_lease_s: float = 0.0
    """Seconds since the oldest heartbeat of a running task."""
    takeovers: int = 0
    """Failovers of unfinished tasks from unresponsive workers."""


@runtime_checkable
class Engine(Protocol):
    """Assigns each task to one worker at a time, and to another if that worker is unresponsive for its lease.

    Methods raise EngineError if the engine cannot be reached, except `work`, which reconnects.
    """

    async def enqueue(self, task: Task) -> None:
        """Enqueue a task. Does nothing if the engine already has it.

        A task for the same conversation at a later position replaces one that waits.
        """
        ...

    async def wake(self, conversation: str, position: int) -> None:
        """Continue a conversation that waits at this position, or is about to.

        Does nothing if it does not wait there.
        """
        ...

    async def cancel(self, conversation: str) -> None:
        """Remove a conversation's queued and waiting tasks, and revoke the claim on a running one."""
        ...

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Execute tasks of these queues, at most `slots` at once, until cancelled.

        Cancelling it also cancels the tasks in progress and, if the engine can, releases their claims at once. Once
        `stopping` is set, it claims no more tasks and returns when those in progress have ended.
        """
        ...

    async def stats(self) -> EngineStats:
        """Return the engine's statistics."""
        ...

    async def aclose(self) -> None:
        """Close the engine's connections. Its tasks remain."""
        ...
