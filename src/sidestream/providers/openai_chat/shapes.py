"""The shapes that fields of an answer must have before anything is made of them, and their readers.

A reader gives the value in its shape. It raises ValidationError for any other.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sidestream.jsontext import JsonObject, is_array, is_object

_ShapeT = TypeVar("_ShapeT", bound=Struct)


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


class AudioPiece(Struct, frozen=True):
    """Spoken output: base64 of its bytes, and what is said."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: float | None = None


def text(value: Any) -> str:
    """Text."""
    if isinstance(value, str):
        return value
    raise msgspec.ValidationError("this is no text")


def objects(value: Any) -> list[JsonObject]:
    """A list of objects."""
    if is_array(value) and all(map(is_object, value)):
        return value
    raise msgspec.ValidationError("this is no list of objects")


def text_or_objects(value: Any) -> str | list[JsonObject]:
    """Text, or a list of objects."""
    return value if isinstance(value, str) else objects(value)


def one(shape: type[_ShapeT]) -> Callable[[Any], _ShapeT]:
    """A reader of one such object."""
    return lambda value: msgspec.convert(value, shape)


def each(shape: type[_ShapeT]) -> Callable[[Any], list[_ShapeT]]:
    """A reader of a list of such objects."""
    return lambda value: [msgspec.convert(entry, shape) for entry in objects(value)]
