"""Deletion of chats that have not changed for the retention time, while the server runs."""

import asyncio
import time
from collections.abc import Callable

from sidestream.errors import StoreError
from sidestream.logs import get_logger
from sidestream.server.runs.service import Runs
from sidestream.store.expiry import expired_chats
from sidestream.store.log.follow import PublishedStore
from sidestream.store.protocol import ConversationInfo
from sidestream.text.redaction import redact

MAX_INTERVAL_S = 3600.0
MIN_INTERVAL_S = 1.0
BATCH = 100
"""Chats deleted together. No run can start in them meanwhile."""

_log = get_logger(__name__)


class Retention:
    """Deletes expired chats periodically."""

    def __init__(
        self, store: PublishedStore, runs: Runs, retention_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._runs = runs
        self._retention_s = retention_s
        self._now = now

    async def sweep(self) -> int:
        """Delete expired chats without a run in progress and return how many were deleted."""
        count = 0
        before = self._now() - self._retention_s
        batch: list[list[ConversationInfo]] = []
        async for chat in expired_chats(self._store, before):
            batch.append(chat)
            if len(batch) == BATCH:
                count += await self._runs.delete_expired(batch, before)
                batch = []
        count += await self._runs.delete_expired(batch, before)
        if count:
            _log.info("deleted %d expired chats", count)
        return count

    async def run(self) -> None:
        """Sweep periodically until cancelled."""
        interval_s = min(max(self._retention_s / 24, MIN_INTERVAL_S), MAX_INTERVAL_S)
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                _log.warning("could not delete expired chats: %s", redact(str(error)))
            await asyncio.sleep(interval_s)
