"""Follows the log of a conversation, whichever process drives its run."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sidestream.durable.log.open_runs import ENDINGS, open_run
from sidestream.errors import ConfigurationError
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import Store
from sidestream.store.records import Record


async def follow_run(store: Store, conversation: str, after: int = 0, *, load: bool = False) -> AsyncGenerator[Record]:
    """The records of a conversation after a number, as they are written, until no run is in progress there.

    Raises ConfigurationError for a conversation that does not exist.
    """
    rows = await store.read(conversation)
    if not rows:
        raise ConfigurationError(f"there is no conversation {conversation!r}")
    if open_run(rows) is None and rows[-1].seq <= after:
        return
    async with aclosing(Conversation(store, conversation).tail(after, load=load)) as records:
        async for record in records:
            yield record
            if record.kind in ENDINGS and record.seq >= rows[-1].seq:
                return
