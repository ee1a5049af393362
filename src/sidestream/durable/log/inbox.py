"""Control messages for a conversation's worker: steer the run, stop it, or revoke a remembered approval."""

from collections.abc import Collection
from typing import Literal, cast

from msgspec import Struct

from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.store.protocol import SharedStore

Kind = Literal["steer", "stop", "withdraw"]


class Post(Struct, frozen=True, kw_only=True):
    """A control message that no worker has taken yet."""

    id: int
    conversation: str
    kind: Kind
    message: ChatMessage | None = None
    """Message to steer the run with."""
    grant: str = ""
    """Id of the remembered approval to revoke."""


async def post_steer(store: SharedStore, conversation: str, message: ChatMessage) -> None:
    """Ask the conversation's worker to pass this message to the run."""
    await store.post(conversation, "steer", messages_to_json([message]).encode())


async def post_stop(store: SharedStore, conversation: str) -> None:
    """Ask the conversation's worker to stop the run."""
    await store.post(conversation, "stop", b"")


async def post_withdrawal(store: SharedStore, conversation: str, grant: str) -> None:
    """Ask the conversation's worker to revoke a remembered approval."""
    await store.post(conversation, "withdraw", grant.encode())


async def posts_for(store: SharedStore, conversations: Collection[str]) -> list[Post]:
    """Return the control messages for these conversations, oldest first."""
    return [
        Post(
            id=id,
            conversation=conversation,
            kind=cast(Kind, kind),
            message=messages_from_json(body)[0] if kind == "steer" else None,
            grant=body.decode() if kind == "withdraw" else "",
        )
        for id, conversation, kind, body in await store.posts(conversations)
    ]
