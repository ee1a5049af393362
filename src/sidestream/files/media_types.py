"""Bytes, media types and encodings of files."""

import base64
import binascii

import msgspec

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (4, b"ftyp", "video/mp4"),
)
"""Offset, signature at that offset, media type."""

_OFFICE = {
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
_TEXTUAL = ("application/json", "application/xml", "application/javascript")
_TEXT_BYTES = bytes((*b"\t\n\r\x0c\x1b", *range(32, 256)))
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}


def sniff(data: bytes, name: str | None = None) -> str:
    """Detect the media type from the content, or from the name's extension if the content does not show it."""
    for offset, signature, mime_type in _SIGNATURES:
        if data.startswith(signature, offset):
            if mime_type == "application/zip" and name:
                return _OFFICE.get(_extension_of(name), mime_type)
            return mime_type
    if _looks_like_svg(data):
        return "image/svg+xml"
    import mimetypes

    claimed = mimetypes.guess_type(name or "")[0] or ""
    claims_text = claimed.startswith("text/") or claimed in _TEXTUAL
    if is_text(data):
        return claimed if claims_text else "text/plain"
    # Ignore a type that the content would have shown.
    is_checked = claims_text or any(claimed == mime_type for _, _, mime_type in _SIGNATURES)
    return "application/octet-stream" if is_checked or not claimed else claimed


_SHOWN = ("image/", "video/mp4", "application/pdf", "application/zip", "application/gzip")


def checked_type(data: bytes, claimed: str, name: str | None = None) -> str:
    """Return the claimed media type, or the detected one if the content contradicts the claim."""
    found = sniff(data, name)
    essence = claimed.partition(";")[0].strip().lower()
    if found.lower() == essence:
        return claimed
    if found == "application/octet-stream":
        return found if essence.startswith(_SHOWN) else claimed
    is_textual = essence.startswith("text/") or essence.endswith(("json", "xml", "javascript", "csv"))
    return claimed if found == "text/plain" and is_textual else found


def is_text(data: bytes) -> bool:
    """Return whether the first kibibyte is UTF-8 text without control characters."""
    head = data[:1024]
    if head.translate(None, _TEXT_BYTES) != b"":
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(data) > len(head)
    return True


def extension(mime_type: str) -> str:
    """Return the usual file extension, without its dot."""
    essence = mime_type.partition(";")[0].strip().lower()
    import mimetypes

    known = _EXTENSIONS.get(essence) or (mimetypes.guess_extension(essence) or "").lstrip(".")
    # Types unknown to mimetypes are mostly named after their extension: audio/wav, audio/flac.
    subtype = essence.rpartition("/")[2].removeprefix("x-")
    return known or (subtype if subtype.isalnum() and len(subtype) <= 5 else "bin")


def from_base64(text: str) -> bytes | None:
    """Decode base64, or return None if the text is not base64.

    Missing padding is accepted. Text with other characters in it (a truncated recording) is accepted only if the bytes
    begin like a file of a known type.
    """
    try:
        # Five times faster than the standard library for plain base64, the usual case.
        return msgspec.convert(text, bytes) or None
    except (msgspec.ValidationError, UnicodeError):
        pass
    text = "".join(text.split()).replace("-", "+").replace("_", "/")
    padded = text + "=" * (-len(text) % 4)
    try:
        return base64.b64decode(padded, validate=True) or None
    except (binascii.Error, ValueError):
        pass
    try:
        data = base64.b64decode(padded + "==")
    except (binascii.Error, ValueError):
        return None
    return data if any(data.startswith(mark, offset) for offset, mark, _ in _SIGNATURES) else None


def to_base64(data: bytes) -> str:
    """Encode bytes as base64."""
    return base64.b64encode(data).decode()


def data_url(data: bytes, mime_type: str) -> str:
    """Encode bytes as a `data:` URL."""
    return f"data:{mime_type};base64,{to_base64(data)}"


def split_data_url(url: str) -> tuple[str, bool, str] | None:
    """Split a `data:` URL into its media type, whether its content is base64, and the content.

    Returns None if it is not a `data:` URL.
    """
    head, comma, body = url.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    return head[5:].partition(";")[0], head.endswith(";base64"), body


def from_data_url(url: str) -> bytes | None:
    """Decode a `data:` URL, or return None if it is not one."""
    found = split_data_url(url)
    if found is None:
        return None
    _, is_base64, body = found
    if is_base64:
        return from_base64(body)
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(body)


_REMEMBERED_BYTES = range(1024, 256 * 1024)
"""Sizes of content whose digest is remembered. Smaller content takes no time, and larger content would stay alive."""
_REMEMBERED = 8
_digests: tuple[tuple[bytes, str], ...] = ()


def digest(data: bytes) -> str:
    """Return the SHA-256 digest as hex. The same object is not read again if it was among the last ones."""
    global _digests
    for known, found in _digests:
        if known is data:
            return found
    import hashlib

    found = hashlib.sha256(data).hexdigest()
    if len(data) in _REMEMBERED_BYTES and type(data) is bytes:
        _digests = (*_digests[1 - _REMEMBERED :], (data, found))
    return found


def _extension_of(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def _looks_like_svg(data: bytes) -> bool:
    head = data[:512].lstrip().lower()
    return head.startswith(b"<svg") or (head.startswith(b"<?xml") and b"<svg" in head)
