"""What stores know of the rows they keep: whether they may be appended, and what a list shows of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.store.records import Row

MAX_ID = 256
"""Characters of a conversation's id: it stands in indexes and in notifications."""
_TITLE = 80


class Summary(Struct, frozen=True, kw_only=True):
    """What appended rows change in the list of conversations; an empty text changes nothing."""

    head: int
    created: float
    updated: float
    title: str
    model: str
    last: str


def check_id(conversation: str) -> None:
    """Raises ConfigurationError where a text cannot be the id of a conversation."""
    if not conversation or len(conversation) > MAX_ID or not conversation.isprintable():
        raise ConfigurationError(
            f"{conversation[:MAX_ID]!r} cannot be the id of a conversation: "
            f"use 1 to {MAX_ID} characters that can be printed"
        )


def check_rows(conversation: str, after: int, rows: Sequence[Row]) -> None:
    """Raises ConfigurationError where rows cannot be appended after a number, whatever the store holds."""
    check_id(conversation)
    if after < 0 or [row.seq for row in rows] != list(range(after + 1, after + 1 + len(rows))):
        raise ConfigurationError(f"the rows for {conversation!r} are not numbered from {after + 1} without gaps")


def summarize(rows: Sequence[Row], blobs: Mapping[str, bytes]) -> Summary:
    """What these rows, of which there is at least one, say about their conversation."""
    titles = (_title(row, blobs) for row in rows if row.kind == "message")
    models = (_model(row) for row in reversed(rows) if row.kind == "run-started")
    return Summary(
        head=rows[-1].seq,
        created=rows[0].time,
        updated=rows[-1].time,
        title=next(filter(None, titles), ""),
        model=next(filter(None, models), ""),
        last=rows[-1].kind,
    )


def _title(row: Row, blobs: Mapping[str, bytes]) -> str:
    message = jsontext.as_object(_object(row).get("message"))
    # Instructions that stand before the conversation say nothing about it.
    if message.get("role") == "system":
        return ""
    for part in map(jsontext.as_object, jsontext.as_list(message.get("parts"))):
        if part.get("type") == "text" and (title := _line(_text(part.get("text"), blobs))):
            return title
    return ""


def _model(row: Row) -> str:
    model = _object(row).get("model")
    return _line(model) if isinstance(model, str) else ""


def _object(row: Row) -> dict[str, Any]:
    try:
        return jsontext.as_object(jsontext.loads(row.body))
    except ValueError:
        return {}


def _text(value: object, blobs: Mapping[str, bytes]) -> str:
    """A text that stands in the record, or in one of its blobs because it is long."""
    match value:
        case str():
            return value
        case {"$text": str(digest)} if digest in blobs:
            return blobs[digest][: 16 * _TITLE].decode("utf-8", "ignore")
        case _:
            return ""


def _line(text: str) -> str:
    """The beginning of a text on one line, without what a database or a terminal cannot take."""
    words = " ".join(text[: 16 * _TITLE].split())
    return "".join(character for character in words[:_TITLE] if character.isprintable()).rstrip()
