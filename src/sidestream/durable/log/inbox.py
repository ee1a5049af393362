"""Messages for the worker that drives a conversation, whichever it is: steer the run, stop it, or withdraw a grant."""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from sidestream.messages.message import ChatMessage, messages_from_json, messages_to_json
from sidestream.store.protocol import SharedStore

TOPIC = "posts"
"""The topic of the store on which new posts are announced."""


class Post(Struct, frozen=True, kw_only=True):
    """A message that no worker has taken yet."""

    id: int
    conversation: str
    kind: Literal["steer", "stop", "withdraw"]
    message: ChatMessage | None = None
    """What the run is steered with."""
    grant: str = ""
    """The id of the grant that is withdrawn."""


async def post_steer(store: SharedStore, conversation: str, message: ChatMessage) -> None:
    """The run of the conversation gets this message, once its worker has seen the post."""
    await _post(store, conversation, "steer", messages_to_json([message]).encode())


async def post_stop(store: SharedStore, conversation: str) -> None:
    """The run of the conversation is stopped by its worker."""
    await _post(store, conversation, "stop", b"")


async def post_withdrawal(store: SharedStore, conversation: str, grant: str) -> None:
    """The run of the conversation loses this grant, once its worker has seen the post."""
    await _post(store, conversation, "withdraw", grant.encode())


async def posts_for(store: SharedStore, conversations: Collection[str]) -> list[Post]:
    """The posts for these conversations, oldest first."""
    if not conversations:
        return []
    values = {f"id_{number}": conversation for number, conversation in enumerate(conversations)}
    names = ", ".join(f":{name}" for name in values)
    sql = f"SELECT id, conversation, kind, body FROM {{posts}} WHERE conversation IN ({names}) ORDER BY id"
    found = await store.execute(sql, values)
    return [
        Post(
            id=id,
            conversation=conversation,
            kind=kind,
            message=messages_from_json(body)[0] if kind == "steer" else None,
            grant=bytes(body).decode() if kind == "withdraw" else "",
        )
        for id, conversation, kind, body in found
    ]


async def remove_post(store: SharedStore, post: Post) -> None:
    """The post had its effect."""
    await store.execute("DELETE FROM {posts} WHERE id = :id", {"id": post.id})


async def clear_posts(store: SharedStore, conversation: str) -> None:
    """Removes what no run will take any more."""
    await store.execute("DELETE FROM {posts} WHERE conversation = :id", {"id": conversation})


async def _post(store: SharedStore, conversation: str, kind: str, body: bytes) -> None:
    values = {"conversation": conversation, "kind": kind, "body": body}
    sql = "INSERT INTO {posts} (conversation, kind, body) VALUES (:conversation, :kind, :body)"
    await store.execute(sql, values, notify=TOPIC)
