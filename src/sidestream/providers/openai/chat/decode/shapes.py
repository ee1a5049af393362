"""The types of fields of a delta or message, and readers for lists of them."""

from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object
from sidestream.providers.shared.decoding import read_objects


class Function(Struct, frozen=True):
    """A function call, or a piece of one. Some servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CustomInput(Struct, frozen=True):
    """A call whose input is plain text, or a piece of one."""

    name: str | None = None
    input: str | None = None


class ToolCallPiece(Struct, frozen=True):
    """A call, or more of one that has begun."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: CustomInput | None = None

    @property
    def is_custom(self) -> bool:
        """True for plain text. Snowflake sends an empty `custom` beside every function."""
        return self.custom is not None and bool(self.custom.name or self.custom.input)


class AudioPiece(Struct, frozen=True):
    """Spoken output: base64 of its bytes, and what is said."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: float | None = None


def text_or_objects(value: Any) -> str | list[JsonObject]:
    """Text, or a list of objects. An object is JSON that a server has parsed, as Cloudflare's JSON mode does."""
    if is_object(value):
        return jsontext.dumps(value).decode()
    return value if isinstance(value, str) else read_objects(value)


def tool_call_pieces(value: Any) -> list[ToolCallPiece]:
    """Calls, or more of them."""
    return [msgspec.convert(entry, ToolCallPiece) for entry in read_objects(value)]
