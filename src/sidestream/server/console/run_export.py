"""The records of a run, as the timeline of the page reads them, and a run as a file to keep."""

from collections.abc import Iterable

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_object, objects
from sidestream.protocols.markdown import to_markdown
from sidestream.store.log.fold import stream_of
from sidestream.store.records import Record, Row
from sidestream.text.redaction import REDACTED, redact


def record_json(row: Row) -> JsonObject:
    """A record as JSON: `parts` of the stream, or a `fact`. Blobs stand in it as `{"$bytes": digest}` and the like.

    The names of those that do are in `blobs`: the content of a record could look like an address.
    """
    shown: JsonObject = {"seq": row.seq, "time": row.time, "kind": row.kind}
    if row.blobs:
        shown["blobs"] = list(row.blobs)
    try:
        body = as_object(jsontext.loads(row.body))
    except (ValueError, RecursionError):
        return {**shown, "damaged": True}
    if body.get("type") != "segment":
        return {**shown, "fact": body}
    # What a decoder says to the turn is internal.
    parts = [{key: value for key, value in part.items() if key != "outcome"} for part in objects(body.get("parts"))]
    return {**shown, "parts": parts}


def parts_text(records: Iterable[Record]) -> tuple[str, int]:
    """The part stream of a run, one line of JSON for each part, and how many secrets were replaced in it."""
    return _redacted("".join(f"{part.to_json()}\n" for part in stream_of(records)))


def markdown_text(records: Iterable[Record]) -> tuple[str, int]:
    """A run as Markdown, for people, and how many secrets were replaced in it."""
    return _redacted(to_markdown(records))


def _redacted(text: str) -> tuple[str, int]:
    clean = redact(text)
    return clean, clean.count(REDACTED) - text.count(REDACTED)
