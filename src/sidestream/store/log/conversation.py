"""One conversation of a store, with its records and the state they fold to."""

from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage
from sidestream.store.log.fold import LogState, UnresolvedCall, fold, joined
from sidestream.store.log.requests import ConversationRequest, requests_in
from sidestream.store.log.writer import Writer
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import (
    REQUEST,
    ApprovalRefused,
    Body,
    GrantsSet,
    Record,
    Row,
    TurnDiscarded,
    content_of,
    unpack,
)
from sidestream.tools.grants import without_grant
from sidestream.turn.state import TurnStatus, status_after


class Conversation:
    """The log of a conversation. Each call reads the store, without a cache.

    ```python
    conversation = Conversation(open_store("talks.db"), "support-42")
    for message in await conversation.messages():
        print(message.role, message.text)
    ```
    """

    def __init__(self, store: Store, id: str) -> None:
        self.store = store
        self.id = id

    async def records(self, after: int = 0, *, load: bool = True) -> list[Record]:
        """Return the records after a sequence number, with a block's increments merged into the record that closed it.

        Without `load`, blobs are replaced by their addresses.
        """
        rows = await self.store.read(self.id, after)
        return joined([await self._record(row, load) for row in rows])

    async def tail(self, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
        """Yield the records after a sequence number, then each new one as it is written, indefinitely.

        An open block arrives in increments, of the kinds `text-delta` and `reasoning-delta`. With `load`, blobs are
        read too.
        """
        rows = self.store.tail(self.id, after)
        try:
            async for row in rows:
                yield await self._record(row, load)
        finally:
            await rows.aclose()

    async def state(self, rows: Sequence[Row] | None = None) -> LogState:
        """Return the state that the log folds to, with the history, the last turn's status and unresolved calls.

        `rows` is the whole log, for a caller that has just read it. Raises StoreError if the records contradict each
        other, as after a changed byte.
        """
        rows = await self.store.read(self.id) if rows is None else rows
        records = joined([await self._record(row, True) for row in rows])
        try:
            state = fold(records)
            # The records of tool inputs are omitted, even at the end of a log whose writer died there.
            return replace(state, head=rows[-1].seq) if rows else state
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
            message = f"the log of {self.id!r} is damaged: its records contradict each other; restore it from a backup"
            raise StoreError(message) from error

    async def requests(self, rows: Sequence[Row] | None = None) -> list[ConversationRequest]:
        """Return the requests of the conversation in order, with their whole bodies.

        `rows` is the whole log, for a caller that has just read it. A log of an older version has no requests.
        """
        rows = await self.store.read(self.id) if rows is None else rows
        digests = {digest for row in rows if row.kind == REQUEST for digest in row.blobs}
        return requests_in(rows, {digest: await self.store.blob(digest) for digest in digests})

    async def request(self, seq: int) -> ConversationRequest:
        """Return the request whose record has this sequence number. Raises StoreError if there is none."""
        found = [request for request in await self.requests() if request.seq == seq]
        if not found:
            raise StoreError(f"conversation {self.id!r} has no request with the sequence number {seq}")
        return found[0]

    async def status(self, info: ConversationInfo | None = None) -> TurnStatus:
        """Return the status of the last turn.

        With the conversation's list entry, usually only its last record is read.
        """
        if info is not None and info.last == "finish":
            for row in await self.store.read(self.id, info.records - 1):
                for part in _parts_of(row):
                    return status_after(part.get("reason"))
        return fold(await self.records(load=False)).status

    async def discard(self) -> bool:
        """Drop the last turn, or return False if it is complete.

        Raises ConflictError if the turn is still being written.
        """
        state = await self.state()
        if state.status == "complete":
            return False
        await self._append(state.head, TurnDiscarded())
        return True

    async def log_refusal(self, approval_id: str, reason: str) -> None:
        """Record that a decision was refused. Raises ConflictError if a run writes at the same time."""
        if rows := await self.store.read(self.id):
            await self._append(rows[-1].seq, ApprovalRefused(approval_id, reason), run=rows[-1].run)

    async def withdraw(self, grant: str) -> bool:
        """Revoke a remembered approval by its id, or return False if it does not exist.

        Raises ConflictError if a run writes at the same time.
        """
        rows = await self.store.read(self.id)
        state = await self.state(rows)
        left = without_grant(state.grants, grant)
        if left == state.grants:
            return False
        await self._append(state.head, GrantsSet(left), run=rows[-1].run)
        return True

    async def _append(self, head: int, body: Body, run: str = "") -> None:
        writer = Writer(self.store, self.id, head, run=run)
        writer.add(body)
        await writer.commit()
        if writer.error is not None:
            raise writer.error

    async def messages(self) -> tuple[ChatMessage, ...]:
        """Return the history."""
        return (await self.state()).messages

    async def unresolved_tool_calls(self) -> tuple[UnresolvedCall, ...]:
        """Return client tool calls of the last turn without a result."""
        return (await self.state()).unresolved

    async def _record(self, row: Row, load: bool) -> Record:
        digests = content_of(row) if load else ()
        if not digests:
            return unpack(row)
        found = {digest: await self.store.blob(digest) for digest in digests}
        return unpack(row, found.__getitem__)


def _parts_of(row: Row) -> list[jsontext.JsonObject]:
    """Return the parts in a record, or none if it is damaged, which unpacking it reports."""
    try:
        return jsontext.objects(jsontext.as_object(jsontext.loads(row.body)).get("parts"))
    except (ValueError, RecursionError):
        return []
