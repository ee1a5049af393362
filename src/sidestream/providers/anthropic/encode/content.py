"""Files and links as content, and results of client tools.

Images and PDFs are sent as such, text files as documents. Of a file that the API does not accept, the name is sent.
"""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.messages.message import (
    BROWSER_STATE,
    NOT_EXECUTED,
    DataPart,
    LinkPart,
    TextPart,
    ToolResultPart,
    content_of_result,
)
from sidestream.providers.anthropic.files import FILE_SCHEME
from sidestream.providers.shared.attachments import as_base64, link_text, link_type, stored_id, text_of

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
_RESULT_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_reference", BROWSER_STATE})


def content_of(part: DataPart | LinkPart, *, citations: bool) -> JsonObject:
    """The part as a block of a user's message."""
    return _data(part, citations) if isinstance(part, DataPart) else _link(part, citations)


def can_show(part: DataPart | LinkPart) -> bool:
    """False for a file that the API does not accept: only its name is sent."""
    return isinstance(part, LinkPart) or part.mime_type in (*IMAGES, PDF) or _text_of(part) is not None


def _data(part: DataPart, citations: bool) -> JsonObject:
    if part.mime_type in IMAGES:
        return {"type": "image", "source": _base64(part)}
    if part.mime_type == PDF:
        return _document(_base64(part), part.name, citations)
    text = _text_of(part)
    if text is not None:
        return _document({"type": "text", "media_type": "text/plain", "data": text}, part.name, citations)
    return {"type": "text", "text": f"[A file that cannot be shown: {part.name or 'unnamed'}, {part.mime_type}]"}


def _text_of(part: DataPart) -> str | None:
    return text_of(part, part.mime_type.partition(";")[0].strip()) or None


def _base64(part: DataPart) -> JsonObject:
    return {"type": "base64", "media_type": part.mime_type, "data": as_base64(part)}


def _document(source: JsonObject, title: str | None, citations: bool) -> JsonObject:
    named = {"title": title} if title else {}
    return {"type": "document", "source": source, **named, **({"citations": {"enabled": True}} if citations else {})}


def _link(part: LinkPart, citations: bool) -> JsonObject:
    scheme = part.url.partition(":")[0]
    kind = link_type(part)
    if scheme in ("http", "https"):
        source = {"type": "url", "url": part.url}
        if kind in IMAGES:
            return {"type": "image", "source": source}
        if kind == PDF:
            return _document(source, part.name, citations)
    if file_id := stored_id(part, FILE_SCHEME):
        stored = {"type": "file", "file_id": file_id}
        is_image = (kind or "").startswith("image/")
        return {"type": "image", "source": stored} if is_image else _document(stored, part.name, citations)
    return {"type": "text", "text": link_text(part)}


def result_content(result: Any) -> str | list[JsonObject]:
    """A tool's result as content: text and blocks of the API unchanged, other values as JSON."""
    if isinstance(result, str):
        return result
    if shown := content_of_result(result):
        blocks = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else content_of(part, citations=False)
            for part in shown
        ]
        return [*blocks, *(entry for entry in result if is_object(entry) and entry.get("type") == BROWSER_STATE)]
    entries: list[Any] = result if is_array(result) else [result]
    blocks = [entry for entry in entries if is_object(entry) and entry.get("type") in _RESULT_BLOCKS]
    if blocks and len(blocks) == len(entries):
        return blocks
    picture = result.get("image_url") if is_object(result) else None
    if isinstance(picture, str):
        return [_picture(picture)]
    return jsontext.dumps(result).decode()


def _picture(url: str) -> JsonObject:
    """A screenshot, by its URL or inline from a `data:` URL."""
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma:
        mime_type = head[5:].partition(";")[0] or "image/png"
        return {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def tool_result(call: JsonObject, result: ToolResultPart | None) -> JsonObject:
    """The result block of a call; without a result, an error block."""
    toolset = {"toolset_name": call["toolset_name"]} if call.get("toolset_name") else {}
    content: str | list[JsonObject] = NOT_EXECUTED if result is None else result_content(result.result)
    failed = {"is_error": True} if result is None or result.is_error else {}
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content, **failed, **toolset}
