"""The records of a run as JSON for the web UI's timeline, and exports of a run."""

from collections.abc import Iterable

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_object, objects
from sidestream.protocols.markdown import to_markdown
from sidestream.store.log.fold import stream_of
from sidestream.store.records import Record, Row
from sidestream.text.redaction import REDACTED, redact


def record_json(row: Row) -> JsonObject:
    """Convert a record to JSON, with the `parts` of the stream or a `fact`.

    Blobs appear as `{"$bytes": digest}` and the like. `blobs` lists their digests, because other content could look the
    same.
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
    # The decoder's outcome is internal.
    parts = [{key: value for key, value in part.items() if key != "outcome"} for part in objects(body.get("parts"))]
    return {**shown, "parts": parts}


def parts_text(records: Iterable[Record]) -> tuple[str, int]:
    """Return a run's parts, one line of JSON each, and the number of secrets that were redacted."""
    return _redacted("".join(f"{part.to_json()}\n" for part in stream_of(records)))


def markdown_text(records: Iterable[Record]) -> tuple[str, int]:
    """Return a run as Markdown, and the number of secrets that were redacted."""
    return _redacted(to_markdown(records))


def _redacted(text: str) -> tuple[str, int]:
    clean = redact(text)
    return clean, clean.count(REDACTED) - text.count(REDACTED)
