"""One conversation of a store: its records, as a list or as they are written, and the state they fold to."""

from collections.abc import AsyncGenerator

from sidestream.messages.message import ChatMessage
from sidestream.store.log import LogState, UnresolvedCall, fold
from sidestream.store.protocol import Store
from sidestream.store.records import STEP_FINISH, Record, Row, unpack


class Conversation:
    """The log of a conversation. Nothing is cached: each call reads the store."""

    def __init__(self, store: Store, id: str) -> None:
        self.store = store
        self.id = id

    async def records(self, after: int = 0, *, load: bool = True) -> list[Record]:
        """The records after a number. Without `load`, blobs are not read, and their addresses are returned instead."""
        rows = await self.store.read(self.id, after)
        return [await self._record(row, load) for row in rows]

    async def tail(self, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """The records after a number, then each new one as it is written, without end."""
        rows = self.store.tail(self.id, after)
        try:
            async for row in rows:
                yield await self._record(row, load)
        finally:
            await rows.aclose()

    async def state(self) -> LogState:
        """The state that the log folds to: the history, the status of the last turn, unresolved calls."""
        return fold(await self.records())

    async def messages(self) -> tuple[ChatMessage, ...]:
        """The history."""
        return (await self.state()).messages

    async def unresolved_tool_calls(self) -> tuple[UnresolvedCall, ...]:
        """Client tool calls of the last turn without a result."""
        return (await self.state()).unresolved

    async def _record(self, row: Row, load: bool) -> Record:
        if not row.blobs or not load or row.kind == STEP_FINISH:
            return unpack(row)
        found = {digest: await self.store.blob(digest) for digest in row.blobs}
        return unpack(row, found.__getitem__)
