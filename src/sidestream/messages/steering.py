"""Messages that the user sends while a run is in progress, as parts of the stream and back."""

from collections.abc import Sequence

from msgspec import convert, to_builtins

from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage, Content, DataPart, LinkPart, TextPart
from sidestream.stream.parts import Steer

STEER = "steer"
"""The metadata key of a user message that was sent while a run was in progress; its value is the id of the `Steer`."""


def steer_of(message: ChatMessage, steer_id: str) -> Steer:
    """The part that reports this message as accepted. Raises ConfigurationError for what a user cannot say."""
    if message.role != "user":
        raise ConfigurationError(f"a run is steered with a message of the user, not of the role {message.role!r}")
    for part in message.parts:
        if not isinstance(part, TextPart | DataPart | LinkPart):
            raise ConfigurationError(f"a run is steered with texts, files and links, not with a {type(part).__name__}")
    parts = [part for part in message.parts if not isinstance(part, TextPart) or part.text.strip()]
    if not parts:
        raise ConfigurationError("the message is empty")
    is_text = len(parts) == 1 and isinstance(parts[0], TextPart)
    return Steer(steer_id, "accepted", message.text, () if is_text else tuple(map(to_builtins, parts)))


def steered_message(steer: Steer) -> ChatMessage:
    """The user's message, as the history has it."""
    parts = convert(steer.content, tuple[Content, ...]) if steer.content else (TextPart(steer.text),)
    return ChatMessage("user", parts, {STEER: steer.id})


def is_steer(message: ChatMessage) -> bool:
    """True for a message that was sent while a run was in progress."""
    return STEER in message.metadata


def opening_role(messages: Sequence[ChatMessage]) -> str | None:
    """The role of the last message that is not a steer."""
    return next((message.role for message in reversed(messages) if not is_steer(message)), None)
