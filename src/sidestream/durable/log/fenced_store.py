"""A store as the holder of a claim uses it: every append carries the token, and outlasts a short failure."""

import asyncio
import time

from sidestream.errors import ConflictError, FencedError, NewerSchemaError, StoreError
from sidestream.logs import get_logger
from sidestream.store.protocol import Append, Store
from sidestream.store.wrapped import WrappedStore
from sidestream.text.redaction import redact

RETRY_DELAYS_S = (0.05, 0.1, 0.2, 0.5)
"""Before each new attempt to append; the last one repeats."""

_log = get_logger(__name__)


class FencedStore(WrappedStore):
    """The store for one claim. A later claim, whose token is greater, ends its writing.

    With `patience_s`, an append that fails is retried for so long. After that the claim counts as lost: a run that is
    not recorded must not continue, since another worker would do the same again.
    """

    def __init__(self, inner: Store, token: str, *, patience_s: float | None = None) -> None:
        super().__init__(inner)
        self.token = token
        """Empty before there is a claim."""
        self.failure: StoreError | None = None
        """Why the store failed for longer than that."""
        self._patience_s = patience_s

    async def write(self, append: Append) -> None:
        """Append rows. Raises FencedError once a later claim is known, or the store has failed for too long."""
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
                # An attempt that failed may have been committed before its response was lost.
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
                    _log.warning("conversation %s: append is retried: %s", conversation, redact(str(error)))
            await asyncio.sleep(RETRY_DELAYS_S[min(attempts, len(RETRY_DELAYS_S) - 1)])
            attempts += 1
