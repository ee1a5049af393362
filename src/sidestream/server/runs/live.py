"""Runs of a server: what is known of one, and one that this process begins for a request."""

import asyncio
from typing import Any

from msgspec import Struct

from sidestream.agent.chat import Chat
from sidestream.durable.client import Beginning
from sidestream.durable.engines.embedded.run_claims import RunClaim
from sidestream.durable.log.jobs import Job
from sidestream.durable.log.run_control import is_over
from sidestream.errors import SidestreamError, StoreError
from sidestream.run.run import Run


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run as the log knows it."""

    id: str
    conversation: str
    """The id in the store, so with its owner."""
    start: int
    """The number of the record with which it began."""
    job: Job | None
    is_live: bool
    """True while it is in progress, in whichever process."""


class LiveRun:
    """A run that a request of this process starts or resumes, until it is enqueued, or has ended here."""

    def __init__(self) -> None:
        self.beginning: Beginning | None = None
        self.claim: RunClaim | None = None
        """None if a worker executes it."""
        self.error: SidestreamError | None = None
        """Why it did not come to its end here."""
        self.task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        """Set once the log has the run's beginning, or the run could not begin."""

    @property
    def run(self) -> Run[Any] | None:
        """The run, once it is made."""
        return self.beginning.run if self.beginning is not None else None

    @property
    def chat(self) -> Chat[Any] | None:
        """The chat of the run, once it is known."""
        return self.beginning.chat if self.beginning is not None else None

    @property
    def job(self) -> Job | None:
        """The job of the run, once it is known."""
        return self.beginning.job if self.beginning is not None else None

    @property
    def after(self) -> int:
        """The number of the last record before the run."""
        return self.beginning.after if self.beginning is not None else 0

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
