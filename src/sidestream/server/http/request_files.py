"""Files in requests, as base64, data URLs or links."""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from mimetypes import guess_type
from urllib.parse import urlsplit

from sidestream.files.media_types import sniff
from sidestream.messages.message import DataPart, LinkPart, MessagePart, TextPart
from sidestream.server.errors import RequestError

UNKNOWN = "application/octet-stream"

_DATA_URL = re.compile(r"data:([\w.+/-]+)?(?:;[\w=.-]+)*;base64,", re.IGNORECASE)


def file_at(url: str, param: str, *, mime_type: str | None = None, name: str | None = None) -> DataPart | LinkPart:
    """Convert a URL to a file part. Raises RequestError if it is neither an http nor a data URL."""
    if url.startswith(("https://", "http://")):
        return LinkPart(url, mime_type, name)
    found = _DATA_URL.match(url)
    if found is None:
        raise RequestError(400, "the URL must be http, https, or data: with base64", param=param, code="invalid_url")
    return file_in(url[found.end() :], param, mime_type=found[1] or mime_type or "application/octet-stream", name=name)


def file_in(data: str, param: str, *, mime_type: str, name: str | None = None) -> DataPart:
    """Decode a base64 file. Raises RequestError if it is not valid base64."""
    try:
        return DataPart(b64decode(data, validate=True), mime_type, name)
    except (Base64Error, ValueError):
        raise RequestError(400, "the data is not valid base64", param=param, code="invalid_base64") from None


def document_in(data: str, param: str, *, name: str | None = None) -> DataPart | LinkPart:
    """Decode a document from a data URL or from bare base64, whose type is detected from content and name."""
    if data.startswith("data:"):
        return file_at(data, param, mime_type="application/pdf", name=name)
    found = file_in(data, param, mime_type="application/pdf", name=name)
    kind = sniff(found.data, name)
    return found if kind == UNKNOWN else DataPart(found.data, kind, name)


def document_at(url: str, param: str, *, name: str | None = None) -> DataPart | LinkPart:
    """Convert a document's URL to a file part, guessing its type from the name or the path."""
    kind = guess_type(name or urlsplit(url).path)[0] if url.startswith("http") else None
    return file_at(url, param, mime_type=kind or "application/pdf", name=name)


def is_empty(parts: Sequence[MessagePart]) -> bool:
    """Return whether a message is empty, with no file and no non-empty text."""
    return all(isinstance(part, TextPart) and not part.text for part in parts)
