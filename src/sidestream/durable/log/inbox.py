"""Messages for the worker that drives a conversation, whichever it is: steer the run, stop it, or withdraw a grant."""

from collections.abc import Collection
from typing import Literal, cast

from msgspec import Struct

from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.store.protocol import SharedStore

Kind = Literal["steer", "stop", "withdraw"]


class Post(Struct, frozen=True, kw_only=True):
    """A message that no worker has taken yet."""

    id: int
    conversation: str
    kind: Kind
    message: ChatMessage | None = None
    """What the run is steered with."""
    grant: str = ""
    """The id of the grant that is withdrawn."""


async def post_steer(store: SharedStore, conversation: str, message: ChatMessage) -> None:
    """The run of the conversation gets this message, once its worker has seen the post."""
    await store.post(conversation, "steer", messages_to_json([message]).encode())


async def post_stop(store: SharedStore, conversation: str) -> None:
    """The run of the conversation is stopped by its worker."""
    await store.post(conversation, "stop", b"")


async def post_withdrawal(store: SharedStore, conversation: str, grant: str) -> None:
    """The run of the conversation loses this grant, once its worker has seen the post."""
    await store.post(conversation, "withdraw", grant.encode())


async def posts_for(store: SharedStore, conversations: Collection[str]) -> list[Post]:
    """Return the posts for these conversations, oldest first."""
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
