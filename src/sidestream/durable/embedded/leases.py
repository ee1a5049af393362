"""Which claims have been silent for longer than their lease, by this process's own clock."""

from collections.abc import Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """A claim as the table shows it."""

    conversation: str
    token: str
    beats: int
    worker: str
    lease_s: float


class LeaseWatch:
    """Compares what the table shows now with what it showed before.

    No wall clock is involved: a claim is silent if its counter stands still between two readings that are a lease
    apart. Time in which the database did not answer does not count, since nobody could renew a lease then.
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
            if beats == claim.beats and asked_s - since_s >= claim.lease_s:
                found.append(claim)
        self._seen = seen
        return found

    def reset(self) -> None:
        """The database did not answer: every lease begins anew."""
        self._seen.clear()
