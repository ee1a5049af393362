"""Chats as a whole: their branches, and which chats are older than a moment.

A server keeps the chat `abc` of an owner as the conversation `owner/abc`, and its branches as `owner/abc~2`,
`owner/abc~3` and so on. Any other conversation is a chat of its own.
"""

import re
from collections.abc import AsyncGenerator, Sequence

from sidestream.store.database import DatabaseStore
from sidestream.store.protocol import ConversationInfo, Store

_BRANCH = re.compile(r"(.*/.+)~\d+", re.DOTALL)
_PAGE = 200


def chat_of(conversation: str) -> str:
    """The conversation that a branch belongs to; the conversation itself if it is no branch."""
    found = _BRANCH.fullmatch(conversation)
    return conversation if found is None else found[1]


async def branches_of(store: Store, conversation: str) -> list[ConversationInfo]:
    """All conversations of a chat, given any of them."""
    chat = chat_of(conversation)
    return [info async for info in _listed(store, prefix=chat) if chat_of(info.id) == chat]


async def expired_chats(store: Store, before: float) -> AsyncGenerator[list[ConversationInfo]]:
    """The chats in which nothing has changed since a moment, each with all its branches."""
    seen: set[str] = set()
    async for info in _listed(store, before=before):
        chat = chat_of(info.id)
        if chat in seen:
            continue
        seen.add(chat)
        branches = await branches_of(store, chat) if "/" in chat else [info]
        if branches and all(branch.updated < before for branch in branches):
            yield branches


async def delete_all(store: Store, conversations: Sequence[str]) -> None:
    """Deletes conversations, many in a transaction if the store can."""
    if isinstance(store, DatabaseStore):
        await store.delete_all(conversations)
    else:
        for conversation in conversations:
            await store.delete(conversation)


async def _listed(store: Store, *, before: float | None = None, prefix: str = "") -> AsyncGenerator[ConversationInfo]:
    while page := await store.conversations(_PAGE, before, prefix=prefix):
        for info in page:
            yield info
        before = page[-1].updated
