"""Conversion of messages that the user sends during a run to parts of the stream and back."""

from collections.abc import Sequence

from msgspec import convert, to_builtins

from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage, Content, DataPart, LinkPart, TextPart
from sidestream.parts import Steer

STEER = "steer"
"""Metadata key of a user message sent during a run; its value is the id of the `Steer`."""


def steer_of(message: ChatMessage, steer_id: str) -> Steer:
    """Return the part that reports the message as accepted.

    Raises ConfigurationError if the message is empty, not the user's, or has other parts than text, files and links.
    """
    if message.role != "user":
        raise ConfigurationError(f"a steering message must have the role 'user', not {message.role!r}")
    for part in message.parts:
        if not isinstance(part, TextPart | DataPart | LinkPart):
            raise ConfigurationError(
                f"a steering message must contain text, files and links only, not a {type(part).__name__}"
            )
    parts = [part for part in message.parts if not isinstance(part, TextPart) or part.text.strip()]
    if not parts:
        raise ConfigurationError("the steering message is empty; pass text, a file or a link")
    is_text = len(parts) == 1 and isinstance(parts[0], TextPart)
    return Steer(steer_id, "accepted", message.text, () if is_text else tuple(map(to_builtins, parts)))


def steered_message(steer: Steer) -> ChatMessage:
    """Return the user's message as it appears in the history."""
    parts = convert(steer.content, tuple[Content, ...]) if steer.content else (TextPart(steer.text),)
    return ChatMessage("user", parts, {STEER: steer.id})


def is_steer(message: ChatMessage) -> bool:
    """Return whether the message was sent during a run."""
    return STEER in message.metadata


def opening_role(messages: Sequence[ChatMessage]) -> str | None:
    """Return the role of the last message that is not a steer."""
    return next((message.role for message in reversed(messages) if not is_steer(message)), None)
