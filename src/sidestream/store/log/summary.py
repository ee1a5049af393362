"""Title, model and last record of a conversation for the list, and its text for searches, taken from the rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.parts import TextDelta, TextEnd
from sidestream.store.records import TEXT_KINDS, MessageAdded, Record, Row, Segment, unpack

_TITLE = 80


class ListingChange(Struct, frozen=True, kw_only=True):
    """A change that appended rows make to the list of conversations. An empty title or model changes nothing."""

    head: int
    created: float
    updated: float
    title: str
    model: str
    last: str


def summarize(rows: Sequence[Row], blobs: Mapping[str, bytes]) -> ListingChange:
    """Summarize one or more rows."""
    model = ""
    for row in rows:
        if row.kind == "run-started":
            model = _model(row) or model
    title, last = first_title(rows, blobs), rows[-1]
    return ListingChange(
        head=last.seq, created=rows[0].time, updated=last.time, title=title, model=model, last=last.kind
    )


def first_title(rows: Iterable[Row], blobs: Mapping[str, bytes] | None = None) -> str:
    """Return the start of the first message with text, or an empty string if the rows have none."""
    return next((title for row in rows if row.kind == "message" and (title := _title(row, blobs or {}))), "")


def _title(row: Row, blobs: Mapping[str, bytes]) -> str:
    message = jsontext.as_object(_object(row).get("message"))
    # Instructions before the conversation are not its title.
    if message.get("role") == "system":
        return ""
    for part in map(jsontext.as_object, jsontext.as_list(message.get("parts"))):
        if part.get("type") == "text" and (title := title_line(_text(part.get("text"), blobs))):
            return title
    return ""


def _model(row: Row) -> str:
    model = _object(row).get("model")
    return title_line(model) if isinstance(model, str) else ""


def _object(row: Row) -> dict[str, Any]:
    try:
        return jsontext.as_object(jsontext.loads(row.body))
    except (ValueError, RecursionError):
        return {}


def _text(value: object, blobs: Mapping[str, bytes]) -> str:
    """Return a string of the record, or the start of the blob that holds it if it is long."""
    match value:
        case str():
            return value
        case {"$text": str(digest)} if digest in blobs:
            return blobs[digest][: 16 * _TITLE].decode("utf-8", "ignore")
        case _:
            return ""


def title_line(text: str) -> str:
    """Return the start of a string on one line, without unprintable characters."""
    line = " ".join(text[: 16 * _TITLE].split())[:_TITLE]
    return (line if line.isprintable() else "".join(filter(str.isprintable, line))).rstrip()


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
        case Segment(kind=kind) if kind in TEXT_KINDS:
            return _segment_text(record.body)
        case _:
            return ""


def text_of(message: ChatMessage) -> str:
    """Return the text parts of a message, one per line."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _segment_text(segment: Segment) -> str:
    final = next((part.text for part in segment.parts if isinstance(part, TextEnd) and part.text is not None), None)
    return "".join(part.delta for part in segment.parts if isinstance(part, TextDelta)) if final is None else final
