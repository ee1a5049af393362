"""Claims of a process that executes the runs it begins, without the queue."""

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
"""How often a conversation is tried whose run has ended, and whose claim has yet to be released."""


class RunClaim:
    """The claim on a conversation. One that does not exist yet is claimed with its first record."""

    def __init__(self, engine: EmbeddedEngine, conversation: str, queue: str) -> None:
        self._engine = engine
        self._task = Task(conversation=conversation, position=0, queue=queue)
        self._granted: EmbeddedClaim | None = None
        self._last = 0
        self._is_open = True

    @property
    def task(self) -> Task:
        """The task of the run."""
        return self._granted.task if self._granted is not None else self._task

    @property
    def token(self) -> str:
        """Token of the claim, greater than that of every earlier one; empty before there is a claim."""
        return self._granted.token if self._granted is not None else ""

    @property
    def is_takeover(self) -> bool:
        """Always False: the worker of the last run has reported how far it came."""
        return False

    @property
    def lease_s(self) -> float:
        """Seconds that the claim holds without a heartbeat."""
        return self._engine.lease_s

    @property
    def ended_at(self) -> int | None:
        """Sequence number of the last record, if this process has written that the run has ended, or waits."""
        return None if self._is_open else self._last

    def note(self, rows: Sequence[Row]) -> None:
        """Note what this process has written."""
        for row in rows:
            self._last = row.seq
            if row.kind == STARTED or row.kind in ENDINGS:
                self._is_open = row.kind == STARTED

    async def heartbeat(self) -> None:
        """Renew the lease. Raises LeaseLostError."""
        if self._granted is not None:
            await self._granted.heartbeat()

    async def take(self, position: int) -> None:
        """Claim the conversation, in which no run is in progress. Raises ConflictError if another process has it.

        The worker that has written the end of the last run may be about to release it, and is waited for.
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
        """End the claim. Without an outcome, another process executes the rest."""
        if self._granted is not None:
            granted, self._granted = self._granted, None
            await self._engine.release(granted, outcome)


class ClaimedStore(FencedStore):
    """The store of one run, whose conversation is claimed before its first append, or with it if it is new.

    With `is_new`, nothing is read before the first append.
    """

    def __init__(self, inner: Store, claim: RunClaim, *, is_new: bool = False) -> None:
        super().__init__(inner, claim.token)
        self.started: Callable[[int], None] = lambda _: None
        """Called with the sequence number of the record with which the run begins, once the log has it."""
        self._claim = claim
        self._is_new = is_new

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        """Return the rows after a number, in order."""
        return [] if self._is_new else await super().read(conversation, after)

    async def write(self, append: Append) -> None:
        """Append rows. The first ones of a conversation are followed by its claim."""
        self._is_new = False
        self.token = self._claim.token
        await super().write(append)
        self._claim.note(append.rows)
        if (start := next((row.seq for row in append.rows if row.kind == STARTED), None)) is not None:
            self.started(start)
        if not append.after and append.rows and not self._claim.token:
            await self._claim.take(append.rows[-1].seq)
