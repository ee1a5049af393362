"""Passes of reconcilers: processes with the same queues take turns, and each pass shows which queues have a process."""

import time
from collections.abc import Collection

from sidestream.store.protocol import SharedStore

GONE_S = 600.0
"""A queue for which no pass was made for so long has no process any more."""


class Passes:
    """The last pass of each set of queues, as the store has it. Times are those of the database's clock."""

    def __init__(self, store: SharedStore, queues: Collection[str]) -> None:
        self._store = store
        self._name = " ".join(sorted(queues))
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last pass of each set of queues, and since when it has been the last, by this process's clock."""

    async def begin(self, interval_s: float) -> bool:
        """True if this process makes the next pass for its queues; False if the last was less than that ago."""
        return await self._store.take_lease(self._name, interval_s)

    async def look(self) -> None:
        """Reads which passes were the last."""
        now_s = time.monotonic()
        seen: dict[str, tuple[bytes, float]] = {}
        for name, last in (await self._store.leases()).items():
            before, since_s = self._seen.get(name, (b"", now_s))
            seen[name] = (last, since_s if before == last else now_s)
        self._seen = seen

    def is_gone(self, queue: str) -> bool:
        """True if no process with this queue has made a pass while this one looked, for `GONE_S`, or none ever has."""
        # A name may hold spaces.
        times = [since_s for name, (_, since_s) in self._seen.items() if f" {queue} " in f" {name} "]
        return all(time.monotonic() - since_s > GONE_S for since_s in times)
