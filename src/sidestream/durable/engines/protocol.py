"""The port of engines: who drives a conversation, and when."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, runtime_checkable

from msgspec import Struct

from sidestream.errors import SidestreamError

MODELS = "models"
"""The queue of runs whose agent is a model string: any worker that allows models can drive them."""


class EngineError(SidestreamError):
    """The engine does not answer, or refuses a request; `retryable` if it may answer in a moment."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class LeaseLostError(SidestreamError):
    """The engine has given the run to another worker, or ended it: this one must stop."""


class TaskHeldError(SidestreamError):
    """Another worker drives the conversation."""


class Task(Struct, frozen=True, kw_only=True):
    """Drive the last turn of a conversation until it waits or ends."""

    conversation: str
    position: int
    """The number of the last record, when it was enqueued. The same conversation and position are the same task."""
    queue: str = MODELS
    """Which workers can drive it: the name of an agent, with its version, or `MODELS`."""
    at: float | None = None
    """Not before this time, in seconds since 1970."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How far a conversation was driven. Never parts: those are in the log."""

    position: int
    """The number of the last record."""
    is_waiting: bool = False
    """True if it waits for a person; `Engine.wake` continues it."""
    until: float | None = None
    """When it is driven again although nobody has woken it, in seconds since 1970."""
    is_handed_over: bool = False
    """True if the worker stops: another one drives the rest, at once."""


class Claim(Protocol):
    """The right to drive a conversation, until its lease ends."""

    @property
    def task(self) -> Task:
        """What is to be driven."""
        ...

    @property
    def token(self) -> str:
        """Greater, as a text, than the token of every earlier claim on this conversation, by any engine."""
        ...

    @property
    def is_takeover(self) -> bool:
        """True if another worker had this task before, and did not report how far it came."""
        ...

    @property
    def lease_s(self) -> float:
        """How long the claim holds without a heartbeat."""
        ...

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError."""
        ...


class OwnClaim(Claim, Protocol):
    """A claim of the process that has begun the run, and that releases it."""

    @property
    def ended_at(self) -> int | None:
        """Sequence number of the last record, if this process has written that the run has ended, or waits."""
        ...

    async def release(self, outcome: Outcome | None) -> None:
        """End the claim. Without an outcome, another worker executes the rest."""
        ...


Drive = Callable[[Claim], Awaitable[Outcome]]
"""Drives a conversation. What it raises is a failure of this worker: the engine gives the task to another."""


class EngineStats(Struct, frozen=True, kw_only=True):
    """How an engine does."""

    queued: int
    """Tasks that are due, and that nobody drives."""
    running: int
    waiting: int
    """Tasks that wait to be woken, or for their time."""
    oldest_queued_s: float = 0.0
    oldest_lease_s: float = 0.0
    """Since the oldest heartbeat of a task that is driven."""
    takeovers: int = 0
    """How often tasks that are not over were taken from a worker that was silent."""


@runtime_checkable
class Engine(Protocol):
    """Gives each task to one worker at a time; one that is silent for longer than its lease loses it to another.

    Raises EngineError if it cannot be reached. `work` reconnects instead.
    """

    async def enqueue(self, task: Task) -> None:
        """There is something to drive. Does nothing if the engine has this task already.

        A task for the same conversation at a later position takes the place of one that waits.
        """
        ...

    async def wake(self, conversation: str, position: int) -> None:
        """A conversation that waits at this position is driven on. Not lost if it is only about to wait.

        Does nothing if it does not wait there.
        """
        ...

    async def cancel(self, conversation: str) -> None:
        """Nothing of the conversation is driven any more: what is queued or waits is removed, a claim is lost."""
        ...

    async def work(
        self, drive: Drive, *, queues: Collection[str], slots: int, stopping: asyncio.Event | None = None
    ) -> None:
        """Drives tasks of these queues, at most `slots` at once, until it is cancelled. Tasks in progress are cancelled
        with it, and their claims released at once where the engine can.

        Once `stopping` is set, nothing more is claimed; it returns when the tasks in progress have ended.
        """
        ...

    async def stats(self) -> EngineStats:
        """How many tasks there are."""
        ...

    async def aclose(self) -> None:
        """Closes the connections of the engine. Its tasks stay."""
        ...
