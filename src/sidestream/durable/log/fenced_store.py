"""A store for the holder of a claim. Every append carries the claim's token and is retried after a short failure."""

import asyncio
import time

from sidestream.errors import ConflictError, FencedError, NewerSchemaError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import Append, Store
from sidestream.store.wrapped import WrappedStore
from sidestream.text.redaction import redact

RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5)
"""Seconds before each retry of an append; the last one repeats."""

_log = get_logger(__name__)


class FencedStore(WrappedStore):
    """A store for one claim, whose writes fail once a newer claim exists.

    With `patience_s`, a failed append is retried for that many seconds. Then the claim counts as lost: an unrecorded
    run must not continue, since another worker would repeat its work.
    """

    def __init__(self, inner: Store, token: str, *, patience_s: float | None = None) -> None:
        super().__init__(inner)
        self.token = token
        """Token of the claim, or empty before the conversation is claimed."""
        self.failure: StoreError | None = None
        """Store error that outlasted `patience_s`."""
        self._patience_s = patience_s

    async def write(self, append: Append) -> None:
        """Append rows. Raises FencedError if a newer claim exists or the store has failed for too long."""
        began_s, attempts = time.monotonic(), 0
        append = append._replace(token=append.token or self.token or None)
        conversation = append.conversation
        while True:
            try:
                await super().write(append)
                return
            except NewerSchemaError:
                raise
            except ConflictError:
                # A failed attempt may have been committed before its response was lost.
                if attempts and await self.read(conversation, append.after) == list(append.rows):
                    return
                raise
            except StoreError as error:
                if self._patience_s is None:
                    raise
                if time.monotonic() - began_s >= self._patience_s:
                    self.failure = error
                    raise FencedError(conversation) from error
                if not attempts:
                    _log.warning("conversation %s: append failed, retrying: %s", conversation, redact(str(error)))
            await asyncio.sleep(RETRY_DELAYS_S[min(attempts, len(RETRY_DELAYS_S) - 1)])
            attempts += 1
