"""The rules of the Responses stream, checked from outside: order, numbers, texts, required fields, both dialects."""

import re
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent

from sidestream.jsontext import dumps

Json = Any
SDK_EVENTS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""Type of an event → the class that the SDK reads it with."""
UNTYPED = frozenset(
    {
        "response.output_item.added",
        "response.apply_patch_call_operation_diff.delta",
        "response.apply_patch_call_operation_diff.done",
    }
)
"""Events that the SDK's classes are too strict for, or do not have: the service's own do not fit them either."""
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

REQUIRED = [
    "id",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
]
"""Keys that every response of the specification has."""
NOT_NULL = [
    "id",
    "created_at",
    "status",
    "model",
    "output",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "store",
    "background",
    "service_tier",
]
SPECIFIED_EVENTS = frozenset(
    [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_text.annotation.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.reasoning.delta",
        "response.reasoning.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "error",
    ]
)
SPECIFIED_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "compaction"})
STATES = ("in_progress", "completed", "incomplete")


class StreamChecker:
    """Follows one stream and fails at the first event that must not come."""

    def __init__(self, dialect: str = "openai", *, after: int = -1, typed: bool = True) -> None:
        self.dialect = dialect
        self.typed = typed and dialect == "openai"
        self.number = after
        self.items: dict[int, Json] = {}
        """Open items, by index."""
        self.done: dict[int, Json] = {}
        self.parts: dict[tuple[int, str, int], str] = {}
        """Open parts → the text of their deltas."""
        self.inputs: dict[int, str] = {}
        self.corrections = 0
        """Texts whose end says something else than their deltas."""
        self.last: str | None = None

    def feed(self, event: Json) -> None:
        kind = event["type"]
        self.number += 1
        assert event["sequence_number"] == self.number, f"{kind} has the number {event['sequence_number']}"
        assert self.last not in TERMINAL, f"{kind} after {self.last}"
        if self.number == 0:
            assert kind == "response.created"
        if self.last == "error":
            assert kind == "response.failed"
        if self.dialect == "open-responses":
            assert kind in SPECIFIED_EVENTS, kind
            _omits_null(event)
        elif kind not in UNTYPED and "response" not in event and (self.typed or "item" not in event):
            SDK_EVENTS[kind].model_validate_json(dumps(event), strict=True)
        self.last = kind
        name = re.sub(r"[^a-z]", "_", kind.removeprefix("response."))
        getattr(self, name, self.other)(event)

    def end(self) -> None:
        assert self.last in TERMINAL
        assert not self.items
        assert not self.parts

    # Responses

    def created(self, event: Json) -> None:
        assert event["response"]["output"] == []
        assert event["response"]["status"] in ("in_progress", "queued")
        check_response(event["response"], self.dialect, typed=self.typed)

    queued = in_progress = created

    def completed(self, event: Json) -> None:
        response = event["response"]
        assert not self.items, f"open items at the end: {self.items}"
        assert response["output"] == [self.done[index] for index in sorted(self.done)]
        check_response(response, self.dialect, typed=self.typed)
        statuses = [item.get("status") for item in response["output"]]
        if self.dialect == "open-responses" and "incomplete" in statuses:
            assert statuses.index("incomplete") == len(statuses) - 1
            assert response["status"] != "completed"

    incomplete = failed = completed

    def error(self, event: Json) -> None:
        if self.dialect == "open-responses":
            assert event["error"].keys() >= {"type", "code", "message", "param"}
        else:
            assert "error" not in event
            assert isinstance(event["message"], str)

    # Items

    def output_item_added(self, event: Json) -> None:
        index, item = event["output_index"], event["item"]
        assert index == len(self.items) + len(self.done), "indices are given in order"
        assert item.get("status") in (None, *STATES)
        if self.dialect == "open-responses":
            assert item["type"] in SPECIFIED_ITEMS or ":" in item["type"]
            assert item["status"] in ("in_progress", "completed")
        self.items[index] = item

    def output_item_done(self, event: Json) -> None:
        index, item = event["output_index"], event["item"]
        assert not [key for key in self.parts if key[0] == index], "a part is open"
        opened = self.items.pop(index)
        assert (item["id"], item["type"]) == (opened["id"], opened["type"])
        for field in ("arguments", "input", "code"):
            if index in self.inputs and field in item:
                assert item[field] == self.inputs[index]
        self.done[index] = item

    def _open(self, event: Json) -> int:
        index = event["output_index"]
        assert self.items[index]["id"] == event["item_id"]
        return index

    # Content

    def content_part_added(self, event: Json) -> None:
        self._part_added(event, "content")

    def reasoning_summary_part_added(self, event: Json) -> None:
        self._part_added(event, "summary")

    def _part_added(self, event: Json, place: str) -> None:
        key = (self._open(event), place, event[f"{place}_index"])
        assert key not in self.parts
        self.parts[key] = ""

    def output_text_delta(self, event: Json) -> None:
        self._delta(event, "content")

    refusal_delta = output_text_delta

    def reasoning_summary_text_delta(self, event: Json) -> None:
        self._delta(event, "summary")

    def _delta(self, event: Json, place: str) -> None:
        self.parts[self._open(event), place, event[f"{place}_index"]] += event["delta"]

    def output_text_done(self, event: Json) -> None:
        self._text_done(event, "content", event["text"])

    def refusal_done(self, event: Json) -> None:
        self._text_done(event, "content", event["refusal"])

    def reasoning_summary_text_done(self, event: Json) -> None:
        self._text_done(event, "summary", event["text"])

    def _text_done(self, event: Json, place: str, text: str) -> None:
        key = self._open(event), place, event[f"{place}_index"]
        self.corrections += self.parts[key] != text
        self.parts[key] = text

    def output_text_annotation_added(self, event: Json) -> None:
        assert (self._open(event), "content", event["content_index"]) in self.parts

    def content_part_done(self, event: Json) -> None:
        part = event["part"]
        self._part_done(event, "content", part.get("text", part.get("refusal")))

    def reasoning_summary_part_done(self, event: Json) -> None:
        self._part_done(event, "summary", event["part"]["text"])

    def _part_done(self, event: Json, place: str, text: str) -> None:
        assert self.parts.pop((self._open(event), place, event[f"{place}_index"])) == text

    # Calls

    def function_call_arguments_delta(self, event: Json) -> None:
        index = self._open(event)
        self.inputs[index] = self.inputs.get(index, "") + event["delta"]

    mcp_call_arguments_delta = custom_tool_call_input_delta = code_interpreter_call_code_delta = (
        function_call_arguments_delta
    )

    def function_call_arguments_done(self, event: Json) -> None:
        text = next(event[name] for name in ("arguments", "input", "code") if name in event)
        assert self.inputs.setdefault(self._open(event), "") == text

    mcp_call_arguments_done = custom_tool_call_input_done = code_interpreter_call_code_done = (
        function_call_arguments_done
    )

    def other(self, event: Json) -> None:
        self._open(event)


def check_events(
    events: list[Json], dialect: str = "openai", *, typed: bool = True, corrections: int | None = 0
) -> Json:
    """Fails unless the events are one legal, complete stream; returns the response of the last one.

    `typed` says that the SDK's classes are to accept items as well; they do not accept all that the service sends.
    So many final texts replace what was streamed of them; None means any number.
    """
    checker = StreamChecker(dialect, typed=typed)
    for event in events:
        checker.feed(event)
    checker.end()
    assert corrections in (None, checker.corrections)
    return events[-1]["response"]


def check_response(response: Json, dialect: str = "openai", *, typed: bool = True) -> None:
    """Fails unless this is a response of the dialect."""
    if dialect == "openai" and typed:
        known = {**response["error"], "code": "server_error"} if response["error"] else None  # Codes of others count.
        Response.model_validate_json(dumps({**response, "error": known}), strict=True)
    missing = [key for key in REQUIRED if key not in response]
    assert not missing
    assert not [key for key in NOT_NULL if response[key] is None]
    for time in (response["created_at"], response["completed_at"] or 0):
        assert float(time).is_integer()
    if response["usage"] is not None:
        assert response["usage"].keys() >= {"input_tokens_details", "output_tokens_details", "total_tokens"}
    if response["error"] is not None:
        assert response["error"].keys() >= {"code", "message"}
    if dialect == "openai":
        return
    if response["reasoning"] is not None:
        assert response["reasoning"].keys() >= {"effort", "summary"}
    for tool in response["tools"]:
        assert tool["type"] == "function"
        assert tool.keys() >= {"name", "description", "parameters", "strict"}
    form = response["text"]["format"]
    assert form["type"] != "json_schema" or form["schema"] is None
    for item in response["output"]:
        assert item.keys() >= {"id", "type", "status"}
        assert item["type"] in SPECIFIED_ITEMS or ":" in item["type"]
        _omits_null(item)
        for part in item.get("content", ()):
            if part["type"] == "output_text":
                assert all(annotation["type"] == "url_citation" for annotation in part["annotations"])


_NEVER_NULL = ("phase", "logprobs", "encrypted_content", "content", "annotations", "status")


def _omits_null(value: Json) -> None:
    """Optional fields are left out, never null."""
    if isinstance(value, dict):
        for key, inner in value.items():
            assert inner is not None or key not in _NEVER_NULL, f"{key} is null"
            _omits_null(inner)
    elif isinstance(value, list):
        for inner in value:
            _omits_null(inner)
