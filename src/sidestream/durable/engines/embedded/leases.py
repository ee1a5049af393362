"""Which claims have been silent for longer than their lease."""

from collections.abc import Sequence
from typing import NamedTuple

SEEN_OF_LEASE = 0.5
"""How much of a lease must have been seen here, if the database says that it is over: more than lies between two
heartbeats of a live worker, so that a clock that was set forward takes nothing from anybody."""


class Held(NamedTuple):
    """A claim as the table shows it."""

    conversation: str
    token: str
    beats: int
    worker: str
    lease_s: float
    fence: str = ""
    now: float = 0.0
    """The database's clock."""
    age_s: float = 0.0
    """Since its last heartbeat, by that clock."""


class LeaseWatch:
    """Compares what the table shows now with what it showed before.

    A claim is silent if its counter stands still between two readings that are a lease apart by this process's clock.
    Half a lease is enough if the lease is over by the database's clock, too: a worker that has just started need not
    wait a whole one. Time in which the database did not answer does not count, since nobody could renew a lease then.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        """The counter of each claim, and when it was first seen at this value."""

    def silent(self, held: Sequence[Held], asked_s: float, answered_s: float) -> list[Held]:
        """Those of the claims that were silent for their lease. Both times are monotonic."""
        seen: dict[tuple[str, str], tuple[int, float]] = {}
        found: list[Held] = []
        for claim in held:
            key = (claim.conversation, claim.token)
            beats, since_s = self._seen.get(key, (-1, 0.0))
            seen[key] = (beats, since_s) if beats == claim.beats else (claim.beats, answered_s)
            lease_s = claim.lease_s * (SEEN_OF_LEASE if claim.age_s >= claim.lease_s else 1.0)
            if beats == claim.beats and asked_s - since_s >= lease_s:
                found.append(claim)
        self._seen = seen
        return found

    def reset(self) -> None:
        """The database did not answer: every lease starts over."""
        self._seen.clear()
