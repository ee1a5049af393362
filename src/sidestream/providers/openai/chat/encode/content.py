"""Files and links as content of a user's message.

Images, WAV and MP3 are sent as such, text files as text, other bytes as files. A link to an image is sent as an image;
any other link as text, since the API does not support it.
"""

from sidestream.files import media_types
from sidestream.jsontext import JsonObject
from sidestream.messages.message import DataPart, LinkPart
from sidestream.providers.openai.account import FILE_SCHEME
from sidestream.providers.shared.attachments import (
    as_base64,
    data_url,
    is_image,
    link_text,
    link_type,
    stored_id,
    text_of,
)

AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""MIME type → the API's name for it."""


def text_content(text: str) -> JsonObject:
    """Text as content."""
    return {"type": "text", "text": text}


def content_of(part: DataPart | LinkPart, image_detail: str | None) -> JsonObject:
    """The part as content of a message."""
    if isinstance(part, LinkPart):
        return _link(part, image_detail)
    kind = essence(part.mime_type)
    if is_image(kind):
        return _image(data_url(part), image_detail)
    if kind in AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": as_base64(part), "format": AUDIO_FORMATS[kind]}}
    text = text_of(part, kind)
    if text is not None:
        return text_content(f"{part.name or 'A file'}:\n{text}")
    name = part.name or f"file.{media_types.extension(kind)}"
    return {"type": "file", "file": {"filename": name, "file_data": data_url(part)}}


def essence(mime_type: str) -> str:
    """The MIME type without its parameters."""
    return mime_type.partition(";")[0].strip().lower()


def _link(part: LinkPart, image_detail: str | None) -> JsonObject:
    scheme = part.url.partition(":")[0].lower()
    kind = essence(link_type(part) or "")
    if is_image(kind) and scheme in ("http", "https", "data"):
        return _image(part.url, image_detail)
    if file_id := stored_id(part, FILE_SCHEME):
        return {"type": "file", "file": {"file_id": file_id}}
    data = media_types.from_data_url(part.url)
    if data is not None:
        return content_of(DataPart(data, kind or "text/plain", part.name), image_detail)
    return text_content(link_text(part))


def _image(url: str, detail: str | None) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
