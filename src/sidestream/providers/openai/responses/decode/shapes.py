"""Types of events and items, with the fields that the decoder reads. Optional fields have defaults.

A value of the wrong type fails the conversion, so that the event becomes a `raw` part before any state has changed.
"""

from typing import Any

from msgspec import Struct


class ResponsesEvent(Struct):
    """Base class of events."""

    sequence_number: int | None = None


class ResponseEvent(ResponsesEvent, kw_only=True):
    """A `response.*` event for a status of the response."""

    response: dict[str, Any]


class ResponsesError(ResponsesEvent, kw_only=True):
    """An `error` event, with the fields at the top level on OpenAI and in `error` on other servers.

    On xAI, `error` is the message.
    """

    message: str | None = None
    code: str | int | None = None
    error: dict[str, Any] | str | None = None


class ItemEvent(ResponsesEvent, kw_only=True):
    """An `output_item.added` or `.done` event."""

    output_index: int
    item: dict[str, Any]


class ContentPartEvent(ResponsesEvent, kw_only=True):
    """A `content_part.added` or `.done` event."""

    output_index: int
    part: dict[str, Any]
    item_id: str | None = None
    content_index: int = 0


class DeltaEvent(ResponsesEvent, kw_only=True):
    """A delta of text, refusal, raw reasoning, arguments, input, code or diff."""

    output_index: int
    delta: str
    item_id: str | None = None
    content_index: int = 0
    logprobs: list[Any] | None = None


class TextDoneEvent(ResponsesEvent, kw_only=True):
    """An `output_text.done`, `reasoning_text.done` or `refusal.done` event."""

    output_index: int
    text: str | None = None
    refusal: str | None = None
    item_id: str | None = None
    content_index: int = 0


class AnnotationEvent(ResponsesEvent, kw_only=True):
    """An `output_text.annotation.added` event."""

    output_index: int
    annotation: dict[str, Any]
    item_id: str | None = None
    content_index: int = 0


class SummaryPartEvent(ResponsesEvent, kw_only=True):
    """A `reasoning_summary_part.added` or `.done` event."""

    output_index: int
    summary_index: int
    part: dict[str, Any]
    item_id: str | None = None


class SummaryDeltaEvent(ResponsesEvent, kw_only=True):
    """A `reasoning_summary_text.delta` event."""

    output_index: int
    summary_index: int
    delta: str
    item_id: str | None = None


class SummaryDoneEvent(ResponsesEvent, kw_only=True):
    """A `reasoning_summary_text.done` event."""

    output_index: int
    summary_index: int
    text: str
    item_id: str | None = None


class InputDoneEvent(ResponsesEvent, kw_only=True):
    """The complete input of a call: arguments, custom input, code or diff."""

    output_index: int
    arguments: str | None = None
    input: str | None = None
    code: str | None = None
    diff: str | None = None
    item_id: str | None = None


class StageEvent(ResponsesEvent, kw_only=True):
    """A lifecycle event of a server-side tool."""

    output_index: int
    item_id: str | None = None


class PartialImageEvent(ResponsesEvent, kw_only=True):
    """An `image_generation_call.partial_image` event."""

    output_index: int
    partial_image_b64: str
    partial_image_index: int = 0
    item_id: str | None = None


class CommandEvent(ResponsesEvent, kw_only=True):
    """A `shell_call_command.added`, `.delta` or `.done` event, which have no item id."""

    output_index: int
    command_index: int
    command: str | None = None
    delta: str | None = None


class Item(Struct, kw_only=True):
    """Base class of output items."""

    id: str | None = None
    status: str | None = None
    call_id: str | None = None


class MessageItem(Item, kw_only=True):
    content: list[dict[str, Any]] = []
    phase: str | None = None


class ReasoningItem(Item, kw_only=True):
    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class FunctionItem(Item, kw_only=True):
    name: str = ""
    arguments: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class CustomToolItem(Item, kw_only=True):
    name: str = ""
    input: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class WebSearchItem(Item, kw_only=True):
    action: dict[str, Any] | None = None
    arguments: str | None = None
    """Action as JSON, in xAI's older form."""


class XSearchItem(Item, kw_only=True):
    name: str = ""
    arguments: str | None = None


class FileSearchItem(Item, kw_only=True):
    queries: list[Any] | None = None
    results: list[Any] | None = None


class CodeInterpreterItem(Item, kw_only=True):
    container_id: str | None = None
    code: str | None = None
    arguments: str | None = None
    """Code as JSON, in xAI's older form."""
    outputs: list[dict[str, Any]] | None = None


class ImageItem(Item, kw_only=True):
    result: str | None = None
    error: Any = None


class McpCallItem(Item, kw_only=True):
    name: str = ""
    server_label: str | None = None
    arguments: str | None = None
    output: Any = None
    error: Any = None
    approval_request_id: str | None = None


class McpListToolsItem(Item, kw_only=True):
    server_label: str | None = None
    tools: list[Any] | None = None
    error: Any = None


class McpApprovalItem(Item, kw_only=True):
    name: str
    server_label: str | None = None
    arguments: str | None = None


class ShellItem(Item, kw_only=True):
    action: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None


class PatchItem(Item, kw_only=True):
    operation: dict[str, Any] | None = None


class ActionItem(Item, kw_only=True):
    """A `computer_call` or `local_shell_call` item."""

    action: dict[str, Any] | None = None
    actions: list[Any] | None = None
    pending_safety_checks: list[Any] | None = None


class ToolSearchItem(Item, kw_only=True):
    arguments: Any = None
    execution: str | None = None


class ProgramItem(Item, kw_only=True):
    code: str | None = None
