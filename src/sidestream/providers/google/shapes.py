"""The parts of an answer as far as they are read: typed, every field that may be missing has a default.

A value of the wrong type fails the conversion, and the part becomes a `raw` part before any state has changed. Fields
of a chunk have readers, which give the value in its shape and raise ValidationError for any other. Where JSON already
has that shape they hand it on as it is: a conversion would copy all that is in it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sidestream.jsontext import JsonObject, is_array, is_object

_NumberT = TypeVar("_NumberT", int, float)


def text(value: Any) -> str:
    """Text."""
    if isinstance(value, str):
        return value
    raise msgspec.ValidationError("this is no text")


def one_object(value: Any) -> JsonObject:
    """An object."""
    if is_object(value):
        return value
    raise msgspec.ValidationError("this is no object")


def array(value: Any) -> list[Any]:
    """A list."""
    if is_array(value):
        return value
    raise msgspec.ValidationError("this is no list")


def objects(value: Any) -> list[JsonObject]:
    """A list of objects."""
    if is_array(value) and all(map(is_object, value)):
        return value
    raise msgspec.ValidationError("this is no list of objects")


def anything(value: Any) -> Any:
    """Whatever it is."""
    return value


def of(kind: type[_NumberT]) -> Callable[[Any], _NumberT]:
    """A reader of numbers of one kind."""
    return lambda value: msgspec.convert(value, kind)


class Part(Struct, kw_only=True, rename="camel"):
    """What all parts may carry."""

    thought: bool | None = None
    thought_signature: str | None = None


class Text(Part, kw_only=True):
    text: str


class PartialArg(Struct, kw_only=True, rename="camel"):
    """A piece of one argument, at its JSON path."""

    json_path: str
    string_value: str | None = None
    number_value: float | int | None = None
    bool_value: bool | None = None
    null_value: Any = None
    will_continue: bool | None = None


class Function(Struct, kw_only=True, rename="camel"):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class FunctionCall(Part, kw_only=True, rename="camel"):
    function_call: Function


class Code(Struct, kw_only=True):
    id: str | None = None
    language: str | None = None
    code: str = ""


class ExecutableCode(Part, kw_only=True, rename="camel"):
    executable_code: Code


class CodeResult(Struct, kw_only=True):
    id: str | None = None
    outcome: str | None = None
    output: str | None = None


class CodeExecutionResult(Part, kw_only=True, rename="camel"):
    code_execution_result: CodeResult


class Tool(Struct, kw_only=True, rename="camel"):
    id: str | None = None
    tool_type: str | None = None
    args: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


class ToolCall(Part, kw_only=True, rename="camel"):
    tool_call: Tool


class ToolResponse(Part, kw_only=True, rename="camel"):
    tool_response: Tool


class Blob(Struct, kw_only=True, rename="camel"):
    data: str
    mime_type: str = "application/octet-stream"
    display_name: str | None = None


class InlineData(Part, kw_only=True, rename="camel"):
    inline_data: Blob
    audio_transcription: Any = None


class Uri(Struct, kw_only=True, rename="camel"):
    file_uri: str
    mime_type: str | None = None
    display_name: str | None = None


class FileData(Part, kw_only=True, rename="camel"):
    file_data: Uri
