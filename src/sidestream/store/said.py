"""The text of records that people search for: messages and the model's answers."""

from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.store.records import MessageAdded, Record, Row, Segment, unpack
from sidestream.stream.parts import TextDelta, TextEnd

KINDS = ("message", "text", "text-delta")
"""Kinds of the records that have such text."""


def says(row: Row, text: str) -> bool:
    """Return whether the text of a row contains this one, ignoring case. A damaged row contains none."""
    try:
        return text.casefold() in said_in(unpack(row)).casefold()
    except StoreError:
        return False


def said_in(record: Record) -> str:
    """Return the text of a message, or of a block of an answer."""
    match record.body:
        case MessageAdded():
            return text_of(record.body.message)
        case Segment(kind=kind) if kind in KINDS:
            return _segment_text(record.body)
        case _:
            return ""


def text_of(message: ChatMessage) -> str:
    """Return the text parts of a message, one per line."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _segment_text(segment: Segment) -> str:
    final = next((part.text for part in segment.parts if isinstance(part, TextEnd) and part.text is not None), None)
    return "".join(part.delta for part in segment.parts if isinstance(part, TextDelta)) if final is None else final
