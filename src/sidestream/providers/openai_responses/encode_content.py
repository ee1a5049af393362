"""Files and links as content of a message.

Images are shown to the model, other bytes are attached as files. A link is an image or a file if its type, given or
guessed from its path, says so; a link to a page, or to nothing that can be told, is text that the model reads.
"""

import base64
import mimetypes
from urllib.parse import urlsplit

from sidestream import deliverables
from sidestream.jsontext import JsonObject
from sidestream.messages.message import DataPart, LinkPart

_PAGES = frozenset({"text/html", "application/xhtml+xml"})


def content_of(part: DataPart | LinkPart, image_detail: str) -> JsonObject:
    """The part as content of an input message."""
    if isinstance(part, DataPart):
        url = f"data:{part.mime_type};base64,{base64.b64encode(part.bytes).decode()}"
        return _image(url, image_detail) if _is_image(part.mime_type) else _file(url, part.mime_type, part.name)
    return _link(part, image_detail)


def _link(part: LinkPart, image_detail: str) -> JsonObject:
    scheme = part.url.partition(":")[0].lower()
    kind = part.mime_type or _guess(part.url)
    if kind and scheme in ("http", "https", "data"):
        if _is_image(kind):
            return _image(part.url, image_detail)
        if scheme == "data":
            return _file(part.url, kind, part.name)
        if kind not in _PAGES:
            return {"type": "input_file", "file_url": part.url}
    return {"type": "input_text", "text": f"{part.name}: {part.url}" if part.name else part.url}


def _guess(url: str) -> str | None:
    if url.startswith("data:"):
        return url[5:].split(",", 1)[0].split(";", 1)[0] or "text/plain"
    try:
        return mimetypes.guess_type(urlsplit(url).path)[0]
    except ValueError:
        return None


def _is_image(kind: str) -> bool:
    # An SVG is text to the API; it does not draw it.
    return kind.lower().startswith("image/") and not kind.lower().startswith("image/svg")


def _image(url: str, detail: str) -> JsonObject:
    return {"type": "input_image", "image_url": url, "detail": detail}


def _file(url: str, kind: str, name: str | None) -> JsonObject:
    return {"type": "input_file", "filename": name or f"file.{deliverables.extension(kind)}", "file_data": url}
