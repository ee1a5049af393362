"""Tool results as JSON: any value, truncated if too long, and files as message parts."""

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Struct

from sidestream.actions.values import ActionValue
from sidestream.limits import MIB
from sidestream.messages.message import BROWSER_STATE, DataPart, LinkPart, TextPart, content_of_result
from sidestream.parts import Json

_CONTENT = (TextPart, DataPart, LinkPart)
MAX_CONTENT_BYTES = 32 * MIB
"""Maximum size of the files in one result, as JSON. A larger result is truncated like any other."""


class NotJsonError(TypeError):
    """A tool returned or reported a value without a JSON form. The message is for the model."""


def json_value(value: object, max_bytes: int) -> Json:
    """Convert a value to JSON, or to a truncated string with a note if it is longer than `max_bytes`."""
    if type(value) is str:
        return cut(clean(value), max_bytes)
    if _is_content(value):
        parts = [value] if isinstance(value, _CONTENT) else value
        max_bytes = MAX_CONTENT_BYTES
        value = [TextPart(part) if isinstance(part, str) else part for part in cast(Sequence[object], parts)]
    try:
        data = _encode(value)
    except Exception as error:
        raise NotJsonError(f"A value of type {type(value).__name__} has no JSON form.") from error
    import json

    return json.loads(data) if len(data) <= max_bytes else cut(data.decode(), max_bytes)


def limited(result: Json, max_bytes: int) -> Json:
    """Truncate a JSON result to the limit for its kind."""
    return json_value(result, MAX_CONTENT_BYTES if content_of_result(result) else max_bytes)


def _is_content(value: object) -> bool:
    """Return whether the value is a file or a list of strings and files.

    The model sees these as content rather than JSON.
    """
    if isinstance(value, list | tuple):
        entries = cast(Sequence[object], value)
        content = [entry for entry in entries if not _is_state(entry)]
        return any(isinstance(e, _CONTENT) for e in content) and all(isinstance(e, (str, *_CONTENT)) for e in content)
    return isinstance(value, _CONTENT)


def _is_state(value: object) -> bool:
    """Return whether the value is a browser state, which may accompany content."""
    return isinstance(value, ActionValue) and value.__struct_config__.tag == BROWSER_STATE


def _encode(value: object) -> bytes:
    """Encode a value as UTF-8 JSON. Bytes become URL-safe base64, sets become arrays, NaN becomes a string."""
    from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

    def other(unknown: object) -> object:
        if isinstance(unknown, Struct):
            return msgspec.to_builtins(unknown, enc_hook=plain)
        raise TypeError(type(unknown).__name__)

    def plain(unknown: object) -> object:
        return to_jsonable_python(unknown, fallback=other, bytes_mode="base64")

    try:
        return to_json(value, fallback=other, bytes_mode="base64", inf_nan_mode="strings")
    except PydanticSerializationError:
        # Replace lone surrogates, as in file names. A value without a JSON form fails again.
        import json

        return json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "replace")


def clean(text: str) -> str:
    """Replace lone surrogates, so that the text can be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cut(text: str, max_bytes: int) -> str:
    """Return the text, truncated with a note if its JSON form exceeds `max_bytes`."""
    quoted = msgspec.json.encode(text)
    if len(quoted) <= max_bytes:
        return text
    total = len(text.encode())
    note = "\n[cut: the first {} of {} bytes are shown]"
    available = max(0, max_bytes - len(msgspec.json.encode(note.format(total, total))))
    kept = _decodable(quoted[1 : 1 + available])
    return kept + note.format(len(kept.encode()), total)


def _decodable(quoted: bytes) -> str:
    """Decode a truncated JSON string, dropping an incomplete character or escape at its end."""
    for end in range(len(quoted), max(len(quoted) - 6, 0), -1):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(b'"%b"' % quoted[:end], type=str)
    return ""
