"""Helpers shared by the UI encoders, which convert files, usage, sources and errors to JSON without null fields."""

import mimetypes
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import quote

from sidestream import jsontext
from sidestream.evidence.verdict import Evidence
from sidestream.files import media_types
from sidestream.jsontext import Json, JsonObject, without_none
from sidestream.messages.message import Content, DataPart, LinkPart, TextPart
from sidestream.parts import Error, File, Source, ToolResult, Usage
from sidestream.results import tool_facts

UrlOf = Callable[[str], str | None]
"""Function from a blob's digest to its URL at the web UI's origin; None if there is no such blob."""

ADDRESS = "sha256:"
"""Prefix of blob addresses, before the hex digest. Records read without their blobs have addresses instead."""
_ADDRESS_LENGTH = len(ADDRESS) + 64
_MAX_ERROR_CHARS = 4000
TRACEBACK = "The server's log has the traceback."
"""What users learn of an exception of a tool, of which the model sees only the type."""


def filled(**fields: Json) -> JsonObject:
    """Return the fields that are not None, because UIs reject null in optional fields."""
    return without_none(fields)


def blob_url(data: bytes | str, url_of: UrlOf | None) -> str | None:
    """Return the URL of a blob address, or None if `data` is content."""
    if url_of is None or len(data) != _ADDRESS_LENGTH:
        return None
    text = data if isinstance(data, str) else data.decode("latin-1")
    return url_of(text.removeprefix(ADDRESS)) if text.startswith(ADDRESS) else None


def file_url(data: bytes | None, url: str | None, mime_type: str, name: str | None, url_of: UrlOf | None) -> str:
    """Return a file's URL, which is the UI's own blob URL, a data URL or the provider's URL."""
    if data is None:
        return url or ""
    if (own := blob_url(data, url_of)) is not None:
        return f"{own}{'&' if '?' in own else '?'}name={quote(name, safe='')}" if name else own
    return media_types.data_url(data, mime_type)


def url_of_file(file: File, url_of: UrlOf | None) -> str:
    """Return the URL of a file part."""
    return file_url(file.data, file.url, file.mime_type, file.name, url_of)


def with_urls(value: Any, url_of: UrlOf | None) -> Any:
    """Replace the blob addresses in a JSON value with URLs, so that UIs get no bytes."""
    if url_of is None:
        return value
    match value:
        case str():
            return blob_url(value, url_of) or value
        case dict():
            return {key: with_urls(inner, url_of) for key, inner in cast(JsonObject, value).items()}
        case list() | tuple():
            return [with_urls(inner, url_of) for inner in cast(list[Any], value)]
        case _:
            return value


def user_parts(content: Iterable[Content], url_of: UrlOf | None) -> list[JsonObject]:
    """Convert a user's content to the parts of a UI message."""
    parts: list[JsonObject] = []
    for part in content:
        match part:
            case TextPart():
                parts.append({"type": "text", "text": part.text})
            case DataPart():
                url = file_url(part.data, None, part.mime_type, part.name, url_of)
                parts.append(filled(type="file", mediaType=part.mime_type, url=url, filename=part.name))
            case LinkPart():
                kind = part.mime_type or "application/octet-stream"
                parts.append(filled(type="file", mediaType=kind, url=part.url, filename=part.name))
    return parts


def tokens(usage: Usage) -> JsonObject:
    """Convert usage to the AI SDK's fields."""
    return filled(
        inputTokens=usage.input.total,
        outputTokens=usage.output.total,
        totalTokens=usage.input.total + usage.output.total,
        reasoningTokens=usage.output.reasoning or None,
        cachedInputTokens=usage.input.cache_read or None,
        cacheWriteInputTokens=usage.input.cache_write or None,
    )


def error_text(part: ToolResult) -> str:
    """Return a tool's error message, truncated unless the result is a string."""
    if isinstance(part.result, str):
        return part.result
    result = jsontext.as_object(part.result)
    message = result.get("message")
    if not part.provider_executed and message is None and isinstance(raised := result.get("error"), str):
        return f"{raised[:_MAX_ERROR_CHARS]}. {TRACEBACK}"
    return (message if isinstance(message, str) and message else tool_facts.error_in(part.result))[:_MAX_ERROR_CHARS]


def is_denial(part: ToolResult) -> bool:
    """Return whether the result says that the user or a policy denied the call."""
    return part.is_error and not part.provider_executed and jsontext.as_object(part.result).get("error") == "Denied"


def error_fields(part: Error) -> JsonObject:
    """Return an error's fields, from which UIs choose a message."""
    return filled(
        kind=part.kind,
        message=part.message,
        code=part.code,
        status=part.status,
        retryable=part.retryable or None,
        param=part.param,
    )


def evidence_of(found: Evidence) -> JsonObject | None:
    """Return the state and reason of a citation that was checked, and what a model thinks of it, or None."""
    if found.state == "unchecked":
        return None
    judge = None if found.judge is None else found.judge.summary
    return filled(state=found.state, reason=found.reason or None, judge=judge)


def source_of(part: Source, spans: JsonObject | None = None, block: str | None = None) -> JsonObject:
    """Convert a source to a citation. Spans count UTF-16 units, as JavaScript strings do."""
    details = filled(
        kind=part.kind,
        block=block,
        **(spans or {}),
        citedText=part.cited_text,
        evidence=evidence_of(part.evidence),
        fileId=part.file_id,
        url=part.url if part.kind != "url" else None,
    )
    metadata = {"sidestream": details}
    if part.url is not None and part.kind in ("url", "place"):
        return filled(
            type="source", sourceType="url", id=part.id, url=part.url, title=part.title, providerMetadata=metadata
        )
    title = part.title or part.file_id or part.url or part.id
    kind = mimetypes.guess_type(title)[0] or "application/octet-stream"
    return filled(
        type="source",
        sourceType="document",
        id=part.id,
        mediaType=kind,
        title=title,
        filename=part.title,
        providerMetadata=metadata,
    )


def source_chunk(source: JsonObject) -> JsonObject:
    """Return the chunk that adds a source to the message."""
    fields = {key: value for key, value in source.items() if key not in ("type", "sourceType", "id")}
    return {"type": f"source-{source['sourceType']}", "sourceId": source["id"], **fields}


def utf16(text: str, index: int) -> int:
    """Convert a character index to UTF-16 units."""
    return index + sum(character > "\uffff" for character in text[:index]) if not text.isascii() else index


def data_part(type: str, key: str, /, **fields: Json) -> JsonObject:
    """Return a `data-*` chunk, which replaces an earlier one with the same key."""
    return {"type": f"data-{type}", "id": key, "data": filled(**fields)}
