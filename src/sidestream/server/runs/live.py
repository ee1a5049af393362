"""Runs of a server: what is known of one, and one that this process drives for a request."""

import asyncio
import time
from typing import Any

from msgspec import Struct

from sidestream.agent.chat import Chat
from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.embedded.claims import EmbeddedClaim
from sidestream.durable.engines.protocol import Outcome, Task, TaskHeldError
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.durable.log.jobs import Job
from sidestream.errors import ConflictError, SidestreamError, StoreError
from sidestream.run.run import Run
from sidestream.store.protocol import Append, Store
from sidestream.turn.state import Over, Wait

RELEASE_POLL_S = 0.02
"""How often a conversation is tried whose run has ended, and whose claim has yet to be released."""


class RunClaim:
    """The claim on a conversation. One that does not exist yet is claimed with its first record."""

    def __init__(self, engine: EmbeddedEngine, conversation: str, queue: str) -> None:
        self._engine = engine
        self._task = Task(conversation=conversation, position=0, queue=queue)
        self._granted: EmbeddedClaim | None = None

    @property
    def task(self) -> Task:
        """What is driven."""
        return self._granted.task if self._granted is not None else self._task

    @property
    def token(self) -> str:
        """Greater than that of every earlier claim; empty before there is one."""
        return self._granted.token if self._granted is not None else ""

    @property
    def is_takeover(self) -> bool:
        """Whoever drove the conversation before has reported how far it came."""
        return False

    @property
    def lease_s(self) -> float:
        """How long the claim holds without a heartbeat."""
        return self._engine.lease_s

    async def heartbeat(self) -> None:
        """Renews the lease. Raises LeaseLostError."""
        if self._granted is not None:
            await self._granted.heartbeat()

    async def take(self, position: int) -> None:
        """Claims the conversation, in which no run is in progress. Raises ConflictError if another process drives it.

        Whoever has written the end of the last run may be about to release it, and is waited for.
        """
        task = Task(conversation=self._task.conversation, position=position, queue=self._task.queue)
        deadline_s = time.monotonic() + self._engine.lease_s
        while True:
            try:
                self._granted = await self._engine.claim(task)
                return
            except TaskHeldError:
                if time.monotonic() >= deadline_s:
                    raise ConflictError(task.conversation) from None
            await asyncio.sleep(RELEASE_POLL_S)

    async def release(self, outcome: Outcome | None) -> None:
        """Ends the claim; without an outcome, another process drives the rest."""
        if self._granted is not None:
            granted, self._granted = self._granted, None
            await self._engine.release(granted, outcome)


class ClaimedStore(FencedStore):
    """The store of one run, whose conversation is claimed before its first append, or with it if it is new."""

    def __init__(self, inner: Store, claim: RunClaim) -> None:
        super().__init__(inner, claim.token)
        self._claim = claim

    async def write(self, append: Append) -> None:
        """Append rows. The first ones of a conversation are followed by its claim."""
        self.token = self._claim.token
        await super().write(append)
        if not append.after and append.rows and not self._claim.token:
            await self._claim.take(append.rows[-1].seq)


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run as the log knows it."""

    id: str
    conversation: str
    """The id in the store, so with its owner."""
    start: int
    """The number of the record with which it began."""
    job: Job | None
    is_live: bool
    """True while it is in progress, wherever it is driven."""


class LiveRun:
    """A run that a request of this process has started, or resumed, while it is driven here."""

    def __init__(self) -> None:
        self.chat: Chat[Any] | None = None
        self.after = 0
        """The last record before the run."""
        self.job: Job | None = None
        self.run: Run[Any] | None = None
        self.claim: RunClaim | None = None
        """None where others drive it."""
        self.error: SidestreamError | None = None
        """Why it was not driven to its end."""
        self.task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        """Set once the log has the run's beginning, or the run could not begin."""

    @property
    def store_error(self) -> StoreError | None:
        """Why the run is not recorded, if so."""
        return self.chat.store_error if self.chat is not None else None

    @property
    def is_over(self) -> bool:
        """True once the run has come to its end, or waits: its claim is about to be released."""
        return self.run is not None and is_over(self.run)

    @property
    def run_id(self) -> str | None:
        """The id of the run, once it is made."""
        return self.run.turn.state.run_id if self.run is not None else None

    @property
    def cost(self) -> float:
        """What the run has cost so far, in US dollars, as far as prices are known."""
        return (self.run.turn.state.usage.cost or 0.0) if self.run is not None else 0.0


def is_over(run: Run[Any]) -> bool:
    """True once a run has come to its end, or waits."""
    return isinstance(run.turn.command, Over | Wait)
