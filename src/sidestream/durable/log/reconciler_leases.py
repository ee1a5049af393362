"""Passes of reconcilers: processes with the same queues take turns, and each pass shows which queues have a process."""

import time
from collections.abc import Collection

from sidestream.store.protocol import SharedStore

GONE_S = 600.0
"""A queue for which no pass was made for so long has no process any more."""

# They are written where posts are, to no conversation.
_PASS = "pass "
_LAST = "FROM {posts} WHERE conversation = '' AND kind = :kind"
# One in the future was made before the clock was set back.
_BEGIN = (
    "UPDATE {posts} SET body = :now "
    f"WHERE id IN (SELECT id {_LAST}) AND (body <= :before OR body > :now) RETURNING id"
)
_BEGIN_FIRST = (
    "INSERT INTO {posts} (conversation, kind, body) SELECT '', :kind, :now "
    f"WHERE NOT EXISTS (SELECT 1 {_LAST}) RETURNING id"
)
_ALL = "SELECT kind, body FROM {posts} WHERE conversation = '' AND kind >= 'pass ' AND kind < 'pass!'"
_NOW = "SELECT {now}"


class Passes:
    """The last pass of each set of queues, as the store has it. Times are those of the database's clock."""

    def __init__(self, store: SharedStore, queues: Collection[str]) -> None:
        self._store = store
        self._kind = _PASS + " ".join(sorted(queues))
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last pass of each kind, and since when it has been the last, by this process's clock."""

    async def begin(self, interval_s: float) -> bool:
        """True if this process makes the next pass for its queues; False if the last was less than that ago."""
        found = await self._store.execute(_NOW)
        now_s = float(found[0][0]) if found else time.time()  # Before the first write there may be no database yet.
        times = {"now": _sortable(now_s), "before": _sortable(now_s - interval_s)}
        if await self._store.execute(_BEGIN, {"kind": self._kind, **times}):
            return True
        return bool(await self._store.execute(_BEGIN_FIRST, {"kind": self._kind, "now": times["now"]}))

    async def look(self) -> None:
        """Reads which passes were the last."""
        now_s = time.monotonic()
        seen: dict[str, tuple[bytes, float]] = {}
        for kind, body in await self._store.execute(_ALL):
            last = bytes(body)
            before, since_s = self._seen.get(kind, (b"", now_s))
            seen[kind] = (last, since_s if before == last else now_s)
        self._seen = seen

    def is_gone(self, queue: str) -> bool:
        """True if no process with this queue has made a pass while this one looked, for `GONE_S`, or none ever has."""
        # A name may hold spaces.
        times = [since_s for kind, (_, since_s) in self._seen.items() if f" {queue} " in f"{kind} "]
        return all(time.monotonic() - since_s > GONE_S for since_s in times)


def _sortable(time_s: float) -> bytes:
    return b"%017.3f" % time_s
