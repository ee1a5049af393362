"""Typed parts of a candidate's content, with the fields that the decoder uses.

A value of the wrong type fails the conversion, and the part becomes a `raw` part before any state has changed.
"""

from typing import Any

from msgspec import Struct


class Part(Struct, kw_only=True, rename="camel"):
    """Fields that all parts may have."""

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


class FunctionFields(Struct, kw_only=True, rename="camel"):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class FunctionCall(Part, kw_only=True, rename="camel"):
    function_call: FunctionFields


class Code(Struct, kw_only=True):
    id: str | None = None
    language: str | int | None = None
    code: str = ""


class ExecutableCode(Part, kw_only=True, rename="camel"):
    executable_code: Code


class CodeResult(Struct, kw_only=True):
    id: str | None = None
    outcome: str | int | None = None
    output: str | None = None


class CodeExecutionResult(Part, kw_only=True, rename="camel"):
    code_execution_result: CodeResult


class ToolFields(Struct, kw_only=True, rename="camel"):
    id: str | None = None
    tool_type: str | None = None
    args: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


class ToolCallWire(Part, kw_only=True, rename="camel"):
    tool_call: ToolFields


class ToolResponsePart(Part, kw_only=True, rename="camel"):
    tool_response: ToolFields


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
