"""The events and items of a response, as far as they are read: typed, optional fields have defaults.

A value of the wrong type fails the conversion, and the event becomes a `raw` part before any state has changed.
"""

from typing import Any

from msgspec import Struct


class ResponsesEvent(Struct):
    """What all events may carry."""

    sequence_number: int | None = None


class ResponseEvent(ResponsesEvent, kw_only=True):
    """created, queued, in_progress, completed, incomplete, failed."""

    response: dict[str, Any]


class ResponsesError(ResponsesEvent, kw_only=True):
    """Flat on OpenAI's own wire, nested on others'."""

    message: str | None = None
    code: str | int | None = None
    error: dict[str, Any] | None = None


class ItemEvent(ResponsesEvent, kw_only=True):
    """output_item.added and .done."""

    output_index: int
    item: dict[str, Any]


class ContentPartEvent(ResponsesEvent, kw_only=True):
    """content_part.added and .done."""

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
    """output_text.done, reasoning_text.done, refusal.done."""

    output_index: int
    text: str | None = None
    refusal: str | None = None
    item_id: str | None = None
    content_index: int = 0


class AnnotationEvent(ResponsesEvent, kw_only=True):
    """output_text.annotation.added."""

    output_index: int
    annotation: dict[str, Any]
    item_id: str | None = None
    content_index: int = 0


class SummaryPartEvent(ResponsesEvent, kw_only=True):
    """reasoning_summary_part.added and .done."""

    output_index: int
    summary_index: int
    part: dict[str, Any]
    item_id: str | None = None


class SummaryDeltaEvent(ResponsesEvent, kw_only=True):
    """reasoning_summary_text.delta."""

    output_index: int
    summary_index: int
    delta: str
    item_id: str | None = None


class SummaryDoneEvent(ResponsesEvent, kw_only=True):
    """reasoning_summary_text.done."""

    output_index: int
    summary_index: int
    text: str
    item_id: str | None = None


class InputDoneEvent(ResponsesEvent, kw_only=True):
    """The whole input of a call: arguments, custom input, code or diff."""

    output_index: int
    arguments: str | None = None
    input: str | None = None
    code: str | None = None
    diff: str | None = None
    item_id: str | None = None


class StageEvent(ResponsesEvent, kw_only=True):
    """A stage of a server-side tool."""

    output_index: int
    item_id: str | None = None


class PartialImageEvent(ResponsesEvent, kw_only=True):
    """image_generation_call.partial_image."""

    output_index: int
    partial_image_b64: str
    partial_image_index: int = 0
    item_id: str | None = None


class CommandEvent(ResponsesEvent, kw_only=True):
    """shell_call_command.added, .delta and .done; these have no item id."""

    output_index: int
    command_index: int
    command: str | None = None
    delta: str | None = None


class Item(Struct, kw_only=True):
    """What all output items may carry."""

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


class FileSearchItem(Item, kw_only=True):
    queries: list[Any] | None = None
    results: list[Any] | None = None


class CodeInterpreterItem(Item, kw_only=True):
    container_id: str | None = None
    code: str | None = None
    arguments: str | None = None
    """The code as JSON, in xAI's older form."""
    outputs: list[dict[str, Any]] | None = None


class ImageItem(Item, kw_only=True):
    result: str | None = None
    error: dict[str, Any] | None = None


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
    """computer_call and local_shell_call."""

    action: dict[str, Any] | None = None
    actions: list[Any] | None = None
    pending_safety_checks: list[Any] | None = None


class ToolSearchItem(Item, kw_only=True):
    arguments: Any = None
    execution: str | None = None


class ProgramItem(Item, kw_only=True):
    code: str | None = None
