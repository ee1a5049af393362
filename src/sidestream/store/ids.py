"""Ids of conversations.

A server stores the chat `abc` of an owner as `owner/abc`, its branches as `owner/abc~2`, `owner/abc~3` and so on, and
what its client does not want to be stored as `owner/unstored_…`. The owner may be empty. Memories keep their changes
in `~memory/…`. Any other id is a chat of its own.
"""

import re

from msgspec import Struct

from sidestream.errors import ConfigurationError

MAX_ID = 256
"""Characters of a conversation's id: it is used in indexes and in notifications."""
RESERVED = "~memory/"
"""Start of the ids of memories. Lists of conversations leave them out."""
UNSTORED = "unstored_"
"""Start of chats that are deleted once their client has the answer."""
PREFIX_END = "\U0010ffff"
"""Follows every id that begins with the text before it."""

_BRANCH = re.compile(r"(.+)~([2-9]|[1-9][0-9]+)", re.DOTALL)


class ConversationId(Struct, frozen=True):
    """The id of a conversation, in its parts."""

    owner: str | None
    """None if the id has no owner."""
    chat: str
    branch: int = 1

    @classmethod
    def parse(cls, id: str) -> "ConversationId":
        """Parse any id; its text is the same again."""
        owner, slash, chat = id.rpartition("/")
        if not slash:
            return cls(None, id)
        found = _BRANCH.fullmatch(chat)
        return cls(owner, chat) if found is None else cls(owner, found[1], int(found[2]))

    def __str__(self) -> str:
        owner = "" if self.owner is None else f"{self.owner}/"
        return f"{owner}{self.chat}" if self.branch == 1 else f"{owner}{self.chat}~{self.branch}"

    @property
    def is_unstored(self) -> bool:
        """Whether the conversation is deleted once its client has the answer."""
        return self.owner is not None and self.chat.startswith(UNSTORED)


def chat_of(conversation: str) -> str:
    """Return the conversation that a branch belongs to; the conversation itself if it is not a branch."""
    id = ConversationId.parse(conversation)
    return conversation if id.branch == 1 else str(ConversationId(id.owner, id.chat))


def owner_in(conversation: str) -> str:
    """Return the owner of a conversation; empty if it has none."""
    return ConversationId.parse(conversation).owner or ""


def is_id(value: object) -> bool:
    """Whether the value can be the id of a conversation."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


def check_id(conversation: str) -> None:
    """Check a conversation id. Raises ConfigurationError if it cannot be one."""
    if not is_id(conversation):
        shown = ascii(conversation)[:MAX_ID]
        raise ConfigurationError(
            f"{shown} cannot be the id of a conversation: use a text of 1 to {MAX_ID} printable characters"
        )
