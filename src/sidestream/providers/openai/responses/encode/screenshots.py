"""Answers to calls of the computer. The API accepts a screenshot and nothing else; all other words follow as a message.

Where a result has no screenshot, an empty screen stands in for it: the call must have its answer, or the model would
make it again.
"""

import base64
import struct
import zlib
from functools import cache

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import Content, DataPart, LinkPart, TextPart, ToolResultPart, content_of_result
from sidestream.providers.shared.attachments import data_url, is_image, link_type

_PLACES = ("image_url", "file_id")
_URLS = ("data:image/", "https://", "http://")


def screenshot_of(result: ToolResultPart) -> JsonObject | None:
    """Where the screenshot of a result is: the last image of its content, its URL, or its id; None if it has none."""
    images = [url for part in content_of_result(result.result) if (url := _image_url(part)) is not None]
    if images:
        return {"image_url": images[-1]}
    value = result.result
    if isinstance(value, str):
        return {"image_url": value} if value.startswith(_URLS) and not any(map(str.isspace, value)) else None
    given = value.get("output", value) if is_object(value) else None
    place = {key: given[key] for key in _PLACES if isinstance(given.get(key), str)} if is_object(given) else {}
    return place or None


def remark_of(call_id: str, result: ToolResultPart) -> str | None:
    """What a result says beside its screenshot, or in place of it; None if it says nothing."""
    shown = content_of_result(result.result)
    if result.is_error or screenshot_of(result) is None:
        text = _text_of(shown) if shown else _words(result.result)
        what = "failed" if result.is_error else "gave no screenshot"
        return f"The call {call_id} of the computer {what}, and its screenshot is only a placeholder. {text}".strip()
    return _text_of(shown) or None


def _image_url(part: Content) -> str | None:
    match part:
        case DataPart():
            return data_url(part) if is_image(part.mime_type) else None
        case LinkPart():
            return part.url if is_image(link_type(part) or "") else None
        case TextPart():
            return None


def _text_of(parts: tuple[Content, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _words(value: object) -> str:
    """A result in words: the message of an error as such, other values as JSON."""
    if is_object(value) and isinstance(value.get("message"), str):
        return value["message"]
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


@cache
def empty_screen(width: int = 1024, height: int = 768) -> str:
    """A black PNG as a `data:` URL."""
    rows = (b"\x00" + bytes(width // 8)) * height
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
