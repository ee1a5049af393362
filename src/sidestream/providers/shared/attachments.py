"""Types and content of files and links in messages, for encoders. Pure."""

import mimetypes
from collections.abc import Iterable
from urllib.parse import urlsplit

from sidestream.files import media_types
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart

PAGES = frozenset({"text/html", "application/xhtml+xml"})
"""MIME types of links to web pages rather than files."""

_TEXTUAL = ("application/json", "application/xml", "application/javascript")


def link_type(part: LinkPart) -> str | None:
    """Return the MIME type of a link's target, as given, from its `data:` URL, or guessed from its path."""
    if part.mime_type:
        return part.mime_type
    if part.url.startswith("data:"):
        return part.url[5:].split(",", 1)[0].split(";", 1)[0] or "text/plain"
    try:
        return mimetypes.guess_type(urlsplit(part.url).path)[0]
    except ValueError:
        return None


def stored_id(part: LinkPart, scheme: str) -> str | None:
    """Return the id of an uploaded file, or None if the link does not have this scheme."""
    found, _, file_id = part.url.partition(":")
    return file_id or None if found == scheme else None


def is_elsewhere(part: LinkPart) -> bool:
    """Return whether a link is a file at a provider, which no other provider can read."""
    return part.url.partition(":")[0].endswith("-file")


def elsewhere(messages: Iterable[ChatMessage], scheme: str) -> tuple[str, ...]:
    """Return warnings for the files of a history that are stored at a provider with another scheme."""
    # Skip messages of one text part: most of a long history.
    others = (message for message in messages if len(message.parts) != 1 or type(message.parts[0]) is not TextPart)
    return tuple(
        f"the file {part.name or part.url} is stored at another provider; only its name is sent"
        for message in others
        for part in message.parts
        if type(part) is LinkPart and is_elsewhere(part) and stored_id(part, scheme) is None
    )


def link_text(part: LinkPart) -> str:
    """Format a link as text, for APIs that do not open links."""
    if is_elsewhere(part):
        return f"[A file that cannot be shown: {part.name or 'unnamed'}, {part.mime_type or 'of unknown type'}]"
    return f"{part.name}: {part.url}" if part.name else part.url


def as_base64(part: DataPart) -> str:
    """Encode the bytes of a file as base64."""
    return media_types.to_base64(part.data)


def data_url(part: DataPart) -> str:
    """Encode a file as a `data:` URL."""
    return media_types.data_url(part.data, part.mime_type)


def is_image(mime_type: str) -> bool:
    """Return whether a MIME type is an image that models can see. SVG is not, since the APIs do not render it."""
    kind = mime_type.lower()
    return kind.startswith("image/") and not kind.startswith("image/svg")


def text_of(part: DataPart, mime_type: str) -> str | None:
    """Decode a file of a textual type. Returns None for other types, and for bytes that are not UTF-8."""
    if not mime_type.startswith("text/") and mime_type not in _TEXTUAL and not mime_type.endswith(("+json", "+xml")):
        return None
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        return None
