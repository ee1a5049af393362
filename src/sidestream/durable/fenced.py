"""A store as the holder of a claim uses it: every append carries the token."""

from collections.abc import Mapping, Sequence

from sidestream.store.protocol import SharedStore
from sidestream.store.records import Row
from sidestream.store.wrapped import WrappedStore


class FencedStore(WrappedStore):
    """The store for one claim. A later claim, whose token is greater, ends its writing."""

    def __init__(self, inner: SharedStore, token: str) -> None:
        super().__init__(inner)
        self._token = token

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
        token: str | None = None,
    ) -> None:
        """Appends rows. Raises FencedError once a later claim is known."""
        await self.shared.append(conversation, after, rows, blobs, flush=flush, token=token or self._token)
