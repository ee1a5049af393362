"""Title, model and last record of a conversation for the list, and its text for searches, taken from the rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.parts import TextDelta, TextEnd, TextStart
from sidestream.store.records import INCREMENT, TEXT_KINDS, MessageAdded, Record, Row, Segment, unpack

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


def texts_in(rows: Iterable[Row]) -> Iterator[str]:
    """Yield what the rows say: the text of each message, and of each block of an answer with its increments joined.

    Damaged rows are skipped.
    """
    grown: dict[int, str] = {}
    """Position of an open block → its text so far."""
    for row in rows:
        try:
            record = unpack(row)
        except StoreError:
            continue
        body, said = record.body, said_in(record)
        if not isinstance(body, Segment):
            yield said
        elif body.kind == INCREMENT:
            if isinstance(body.parts[0], TextStart) and (left := grown.pop(body.place, "")):
                yield left  # A block of an abandoned step, which no record closes.
            grown[body.place] = grown.get(body.place, "") + said
        else:
            before = grown.pop(body.place, "")
            yield said if _final_text(body) is not None else before + said
    yield from grown.values()


def texts_with(rows: Iterable[Row], text: str) -> Iterator[str]:
    """Yield those of the texts in the rows that contain this one, ignoring case."""
    wanted = text.casefold()
    return (said for said in texts_in(rows) if wanted in said.casefold())


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
    final = _final_text(segment)
    return "".join(part.delta for part in segment.parts if isinstance(part, TextDelta)) if final is None else final


def _final_text(segment: Segment) -> str | None:
    return next((part.text for part in segment.parts if isinstance(part, TextEnd) and part.text is not None), None)
