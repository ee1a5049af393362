"""Whole chats with their branches, and the ones that have expired."""

from collections.abc import AsyncGenerator, Collection, Sequence

from sidestream.store.ids import PREFIX_END, chat_of
from sidestream.store.protocol import ConversationInfo, SharedStore, Store

_PAGE = 200
_CHATS_AT_ONCE = 50
"""Maximum chats whose branches one statement finds."""
_SELECT = "SELECT id, head, created, updated, title, model, last FROM {conversations} WHERE "
_OF_CHAT = "id = :chat{0} OR (id >= :first{0} AND id < :last{0})"


async def branches_of(store: Store, conversation: str) -> list[ConversationInfo]:
    """Return all conversations of a chat, given any of them."""
    chat = chat_of(conversation)
    return [info async for info in _listed(store, prefix=chat) if chat_of(info.id) == chat]


async def expired_chats(store: Store, before: float) -> AsyncGenerator[list[ConversationInfo]]:
    """Yield the chats that have not changed since `before`, each with all its branches, in batches."""
    seen: set[str] = set()
    last = before
    while page := await store.conversations(_PAGE, last):
        chats = [chat for chat in dict.fromkeys(chat_of(info.id) for info in page) if chat not in seen]
        seen.update(chats)
        for branches in await still_expired(store, chats, before):
            yield branches
        last = page[-1].updated


async def still_expired(store: Store, chats: Sequence[str], before: float) -> list[list[ConversationInfo]]:
    """Return those of the chats that have not changed since `before`, each with all its branches."""
    found: dict[str, list[ConversationInfo]] = {}
    for start in range(0, len(chats), _CHATS_AT_ONCE):
        for info in await conversations_of(store, chats[start : start + _CHATS_AT_ONCE]):
            found.setdefault(chat_of(info.id), []).append(info)
    return [branches for branches in found.values() if all(branch.updated < before for branch in branches)]


async def conversations_of(store: Store, chats: Collection[str]) -> list[ConversationInfo]:
    """Return all conversations of these chats, with one statement if the store supports it."""
    if not isinstance(store, SharedStore):
        return [info for chat in chats for info in await branches_of(store, chat)]
    values = {f"chat{number}": chat for number, chat in enumerate(chats)}
    values |= {f"first{number}": f"{chat}~" for number, chat in enumerate(chats)}
    values |= {f"last{number}": f"{chat}~{PREFIX_END}" for number, chat in enumerate(chats)}
    query = _SELECT + " OR ".join(_OF_CHAT.format(number) for number in range(len(chats)))
    fields = ConversationInfo.__struct_fields__
    rows = [ConversationInfo(**dict(zip(fields, row, strict=True))) for row in await store.execute(query, values)]
    return [info for info in rows if chat_of(info.id) in chats]


async def delete_all(store: Store, conversations: Sequence[str], before: float) -> None:
    """Delete the conversations that have not changed since `before`, in large transactions if the store supports it."""
    if isinstance(store, SharedStore):
        await store.delete_all(conversations, before=before)
        return
    for conversation in conversations:
        listed = [info async for info in _listed(store, prefix=conversation) if info.id == conversation]
        if all(info.updated < before for info in listed):
            await store.delete(conversation)


async def _listed(store: Store, *, prefix: str) -> AsyncGenerator[ConversationInfo]:
    before: float | None = None
    while page := await store.conversations(_PAGE, before, prefix=prefix):
        for info in page:
            yield info
        before = page[-1].updated
