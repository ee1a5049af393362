"""The output of an interaction besides text: citations as sources, media as files."""

from collections.abc import Callable

from sidestream.files import media_types
from sidestream.jsontext import JsonObject
from sidestream.providers.google.decode.state import GeminiBlock
from sidestream.providers.google.interactions import shapes
from sidestream.providers.google.interactions.state import InteractionState, Step
from sidestream.providers.google.values import some_text


def on_annotations(s: InteractionState, step: Step, value: shapes.AnnotationsDelta, raw: JsonObject) -> None:
    """`source`."""
    for annotation in value.annotations:
        kind = str(annotation.get("type"))
        if kind in SOURCES:
            _source(s, step.block, SOURCES[kind](annotation), annotation)
        elif kind not in NO_SOURCES:
            s.raw({"annotation": annotation})
        elif step.block is not None:
            step.block.annotations.append(annotation)


def _source(s: InteractionState, block: GeminiBlock | None, fields: JsonObject, annotation: JsonObject) -> None:
    place: JsonObject = {}
    start, end = annotation.get("start_index") or 0, annotation.get("end_index")
    if block is not None:
        block.annotations.append(annotation)
        place["text_id"] = block.id
        if type(start) is int and type(end) is int:
            place["start"], place["end"], cited = block.characters(start, end)
            place["cited_text"] = cited or None
    known = {"type", "start_index", "end_index", "url", "title", "name", "document_uri", "file_name"}
    s.source({**fields, **place}, {key: content for key, content in annotation.items() if key not in known})


SOURCES: dict[str, Callable[[JsonObject], JsonObject]] = {
    "url_citation": lambda a: {"kind": "url", "url": some_text(a, "url"), "title": some_text(a, "title")},
    "file_citation": lambda a: {
        "kind": "document",
        "url": some_text(a, "document_uri"),
        "file_id": some_text(a, "media_id"),
        "title": some_text(a, "file_name"),
    },
    "place_citation": lambda a: {
        "kind": "place",
        "url": some_text(a, "url"),
        "file_id": some_text(a, "place_id"),
        "title": some_text(a, "name"),
    },
}
"""Type of an annotation → the fields of its source."""

NO_SOURCES = {
    "speech_metadata": "is how text is spoken; an annotation of the `text-end`",
    "word_info": "is when a word is spoken; an annotation of the `text-end`",
}
"""Annotations that cite nothing, each with what it becomes."""


def on_file(s: InteractionState, step: Step, value: shapes.MediaDelta, raw: JsonObject) -> None:
    """`file`."""
    s.end_block(step)
    if not media(s, step, raw):
        s.raw(raw)


def media(s: InteractionState, step: Step, content: JsonObject) -> bool:
    """Emits a file. False if the content holds none."""
    data, uri = some_text(content, "data"), some_text(content, "uri")
    decoded = media_types.from_base64(data) if data else None
    if decoded is None and uri is None:
        return False
    claimed = some_text(content, "mime_type") or "application/octet-stream"
    mime_type = media_types.checked_type(decoded, claimed) if decoded else claimed
    kind = "image" if mime_type.startswith("image/") else "file"
    is_tools = step.kind != "model_output"
    s.file(
        mime_type,
        f"{kind}_{s.files}.{media_types.extension(mime_type)}",
        data=decoded,
        url=None if decoded else uri,
        tool=step.tool if is_tools else None,
        call_id=step.call_id if is_tools else None,
    )
    kept = {key: value for key, value in content.items() if key != "data"}
    step.content.append({**kept, "file": media_types.digest(decoded)} if decoded else kept)
    return True
