"""Conversation ids.

A server stores the chat `abc` of a tenant as `owner/abc`, its branches as `owner/abc~2`, `owner/abc~3` and so on, and
chats that the client asked not to store as `owner/unstored_…`. Calls of stateless APIs are `owner/stateless_…`. The
owner may be empty. Memories keep their changes in
`~memory/…`. Any other id is a separate chat.
"""

import re

from msgspec import Struct

from sidestream.errors import ConfigurationError

MAX_ID = 256
"""Maximum characters of a conversation id, which is used in indexes and in notifications."""
RESERVED = "~memory/"
"""Prefix of memory ids. Lists of conversations omit them."""
UNSTORED = "unstored_"
"""Prefix of chats that are deleted once their client has the answer."""
STATELESS = "stateless_"
"""Prefix of conversations whose client has the history and does not continue them. Web UIs do not list them."""
PREFIX_END = "\U0010ffff"
"""Suffix that, appended to a prefix, sorts after every id that starts with the prefix."""

_BRANCH = re.compile(r"(.+)~([2-9]|[1-9][0-9]+)", re.DOTALL)


class ConversationId(Struct, frozen=True):
    """A conversation id, split into its parts."""

    owner: str | None
    """Tenant. None means that the id has no owner."""
    chat: str
    branch: int = 1

    @classmethod
    def parse(cls, id: str) -> "ConversationId":
        """Parse any id. Converting the result to a string returns the same id."""
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
    """Return the conversation that a branch belongs to, or the conversation itself if it is not a branch."""
    id = ConversationId.parse(conversation)
    return conversation if id.branch == 1 else str(ConversationId(id.owner, id.chat))


def owner_in(conversation: str) -> str:
    """Return the owner of a conversation, or an empty string if it has none."""
    return ConversationId.parse(conversation).owner or ""


def is_id(value: object) -> bool:
    """Return whether the value can be a conversation id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


def check_id(conversation: str) -> None:
    """Raise ConfigurationError if a value cannot be a conversation id."""
    if not is_id(conversation):
        shown = ascii(conversation)[:MAX_ID]
        raise ConfigurationError(
            f"a conversation id must be a string of 1 to {MAX_ID} printable characters, not {shown}"
        )
