"""Files and links as content of a message.

Images are sent as such, other bytes as files. A link is sent as an image or a file if its type, given or guessed, is
that of one; a link to a page or of unknown type is sent as text.
"""

from sidestream.files import media_types
from sidestream.jsontext import JsonObject
from sidestream.messages.message import DataPart, LinkPart
from sidestream.providers.openai.account import FILE_SCHEME
from sidestream.providers.shared.attachments import PAGES, data_url, is_image, link_text, link_type, stored_id


def content_of(part: DataPart | LinkPart, image_detail: str) -> JsonObject:
    """The part as content of an input message."""
    if isinstance(part, DataPart):
        url = data_url(part)
        return _image(url, image_detail) if is_image(part.mime_type) else _file(url, part.mime_type, part.name)
    return _link(part, image_detail)


def _link(part: LinkPart, image_detail: str) -> JsonObject:
    scheme = part.url.partition(":")[0].lower()
    kind = link_type(part)
    if file_id := stored_id(part, FILE_SCHEME):
        if kind and is_image(kind):
            return {"type": "input_image", "file_id": file_id, "detail": image_detail}
        return {"type": "input_file", "file_id": file_id}
    if kind and scheme in ("http", "https", "data"):
        if is_image(kind):
            return _image(part.url, image_detail)
        if scheme == "data":
            return _file(part.url, kind, part.name)
        if kind not in PAGES:
            return {"type": "input_file", "file_url": part.url}
    return {"type": "input_text", "text": link_text(part)}


def _image(url: str, detail: str) -> JsonObject:
    return {"type": "input_image", "image_url": url, "detail": detail}


def _file(url: str, kind: str, name: str | None) -> JsonObject:
    return {"type": "input_file", "filename": name or f"file.{media_types.extension(kind)}", "file_data": url}
