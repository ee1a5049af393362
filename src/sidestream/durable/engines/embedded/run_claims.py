"""Claims for a process that executes the runs it starts, without the queue."""

import asyncio
import time
from collections.abc import Callable, Sequence

from sidestream.durable.engines.embedded.engine import EmbeddedEngine
from sidestream.durable.engines.embedded.work import EmbeddedClaim
from sidestream.durable.engines.protocol import Outcome, Task, TaskHeldError
from sidestream.durable.log.fenced_store import FencedStore
from sidestream.errors import ConflictError
from sidestream.store.protocol import Append, Store
from sidestream.store.records import ENDINGS, STARTED, Row

RELEASE_POLL_S = 0.02
"""Seconds between attempts to claim a conversation whose run has ended but whose claim is not released yet."""


class RunClaim:
    """A claim on a conversation. A new conversation is claimed with its first record."""

    def __init__(self, engine: EmbeddedEngine, conversation: str, queue: str) -> None:
        self._engine = engine
        self._task = Task(conversation=conversation, position=0, queue=queue)
        self._granted: EmbeddedClaim | None = None
        self._last = 0
        self._is_open = True

    @property
    def task(self) -> Task:
        """The run's task."""
        return self._granted.task if self._granted is not None else self._task

    @property
    def token(self) -> str:
        """Token of the claim, or empty before the conversation is claimed."""
        return self._granted.token if self._granted is not None else ""

    @property
    def is_takeover(self) -> bool:
        """Always False, since the last run's worker has reported how far it came."""
        return False

    @property
    def lease_s(self) -> float:
        """Seconds that the claim is valid without a heartbeat."""
        return self._engine.lease_s

    @property
    def ended_at(self) -> int | None:
        """Sequence number of the last record, or None until this process has written that the run ended or waits."""
        return None if self._is_open else self._last

    def note(self, rows: Sequence[Row]) -> None:
        """Update `ended_at` from rows that this process has written."""
        for row in rows:
            self._last = row.seq
            if row.kind == STARTED or row.kind in ENDINGS:
                self._is_open = row.kind == STARTED

    async def heartbeat(self) -> None:
        """Renew the lease. Raises LeaseLostError if the claim is lost."""
        if self._granted is not None:
            await self._granted.heartbeat()

    async def take(self, position: int) -> None:
        """Claim the conversation, in which no run is in progress. Raises ConflictError if another process holds it.

        Waits up to a lease for the last run's worker, which may be about to release the conversation.
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
        """Release the claim. Without an outcome, another process executes the rest."""
        if self._granted is not None:
            granted, self._granted = self._granted, None
            await self._engine.release(granted, outcome)


class ClaimedStore(FencedStore):
    """A store for one run, whose conversation is claimed before its first append, or with it if it is new.

    With `is_new`, `read` returns no rows before the first append.
    """

    def __init__(self, inner: Store, claim: RunClaim, *, is_new: bool = False) -> None:
        super().__init__(inner, claim.token)
        self.started: Callable[[int], None] = lambda _: None
        """Callback that receives the sequence number of the run's first record, once it is in the log."""
        self._claim = claim
        self._is_new = is_new

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after sequence number `after`, in order."""
        return [] if self._is_new else await super().read(conversation, after)

    async def write(self, append: Append) -> None:
        """Append rows, and claim the conversation after its first ones."""
        self._is_new = False
        self.token = self._claim.token
        await super().write(append)
        self._claim.note(append.rows)
        if (start := next((row.seq for row in append.rows if row.kind == STARTED), None)) is not None:
            self.started(start)
        if not append.after and append.rows and not self._claim.token:
            await self._claim.take(append.rows[-1].seq)
