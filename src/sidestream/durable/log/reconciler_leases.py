"""Reconciler leases, with which processes that share queues take turns and show which queues are served."""

import time
from collections.abc import Collection

from sidestream.store.protocol import SharedStore

GONE_S = 600.0
"""Seconds without a pass after which a queue counts as no longer served by any process."""


class Passes:
    """The last pass of each set of queues, read from the store's leases."""

    def __init__(self, store: SharedStore, queues: Collection[str]) -> None:
        self._store = store
        self._name = " ".join(sorted(queues))
        self._seen: dict[str, tuple[bytes, float]] = {}
        """Last pass of each set of queues, and the monotonic time at which this process first saw it."""

    async def begin(self, interval_s: float) -> bool:
        """Return whether this process makes the next pass. False if the last was under `interval_s` seconds ago."""
        return await self._store.take_lease(self._name, interval_s)

    async def look(self) -> None:
        """Read the last passes from the store."""
        now_s = time.monotonic()
        seen: dict[str, tuple[bytes, float]] = {}
        for name, last in (await self._store.leases()).items():
            before, since_s = self._seen.get(name, (b"", now_s))
            seen[name] = (last, since_s if before == last else now_s)
        self._seen = seen

    def is_gone(self, queue: str) -> bool:
        """Return whether no process has served the queue for `GONE_S` seconds, or none ever has."""
        # A name may hold spaces.
        times = [since_s for name, (_, since_s) in self._seen.items() if f" {queue} " in f" {name} "]
        return all(time.monotonic() - since_s > GONE_S for since_s in times)
