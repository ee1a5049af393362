"""Conversion of documents to text: HTML, PDF, Word, Markdown, source code and plain text, with offsets and limits.

`read` converts bytes. It parses them in another process, within time and memory limits, since any document may be made
to exhaust both; this process imports no parser. Short UTF-8 text is only decoded.
"""

from sidestream.errors import DocumentError
from sidestream.files import media_types
from sidestream.portable.documents.charset import plain_utf8, text_document
from sidestream.portable.documents.document import (
    IN_PLACE_BYTES,
    LIBRARIES,
    PAGE_LIMITS,
    Document,
    DocumentLimits,
    is_readable,
    mime_type_of,
    others,
    why_empty,
)

__all__ = ["PAGE_LIMITS", "Document", "DocumentLimits", "is_readable", "mime_type_of", "read", "why_empty"]


async def read(
    data: bytes,
    *,
    mime_type: str | None = None,
    name: str = "",
    charset: str | None = None,
    url: str | None = None,
    limits: DocumentLimits | None = None,
) -> Document:
    """Return the text of a document.

    Its format is the declared one, else that of its name, unless the content shows another. It is parsed in another
    process, which is killed if this call is cancelled. Raises DocumentError if the format is unknown, or if the
    document is damaged, too large, or takes too much time or memory. Raises MissingExtraError if its library is not
    installed.
    """
    limits = limits or DocumentLimits()
    if len(data) > limits.max_bytes:
        raise DocumentError(f"it is larger than {limits.max_bytes} bytes", "too-large")
    kind = _kind(data, mime_type or mime_type_of(name))
    if not is_readable(kind):
        raise DocumentError(f"its format, {kind[:100]}, cannot be read as text", "format")
    is_parsed = kind in LIBRARIES or kind in others()
    if not is_parsed and len(data) <= IN_PLACE_BYTES and (text := plain_utf8(data, charset)) is not None:
        return text_document(text, limits, kind)
    from sidestream.portable.documents.isolated import read_isolated

    return await read_isolated(kind, data, limits, charset=charset, url=url)


def _kind(data: bytes, claimed: str | None) -> str:
    """Return the mime type.

    The first bytes take precedence over a claim, which servers and names get wrong.
    """
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    claimed = (claimed or "").partition(";")[0].strip().lower()
    if claimed and claimed != "application/octet-stream":
        return claimed
    head = data[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    sniffed = media_types.sniff(data)
    return "text/plain" if sniffed == "application/octet-stream" and b"\x00" not in data[:8192] else sniffed
