"""The response object of the Responses API, in both dialects.

`openai` is what OpenAI's service sends and its SDK reads. `open-responses` is the specification of that name, which is
stricter: it requires some fields, allows no unknown ones in items and echoes, and no null in optional ones.
"""

from typing import Any, Final, Literal

from msgspec import Struct

from sidestream.jsontext import JsonObject, as_object, is_object
from sidestream.parts import Error, Usage
from sidestream.stream.errors import public

Dialect = Literal["openai", "open-responses"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_DEFAULTS: Final[JsonObject] = {
    "instructions": None,
    "previous_response_id": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "safety_identifier": None,
    "prompt_cache_key": None,
    "metadata": {},
}
"""Values of the fields that the request did not set."""
ECHOED: Final = (*_DEFAULTS, "user", "conversation", "include")
"""Request fields that the response repeats."""


class Failure(Struct, frozen=True, kw_only=True):
    """The reason why a response failed."""

    message: str
    code: str = "server_error"
    type: str = "server_error"
    param: str | None = None


class ResponseOutcome(Struct, frozen=True):
    """The current status or the outcome of a response."""

    status: Status
    usage: Usage | None = None
    reason: str | None = None
    """Reason why the response is incomplete."""
    error: Failure | None = None
    at: float | None = None
    """End of the response, in seconds since 1970."""

    @property
    def event(self) -> str:
        """The name of the last event. Cancelled responses end with `incomplete`, as the API has no event for them."""
        return "incomplete" if self.status == "cancelled" else self.status


class ResponseHead(Struct, frozen=True, kw_only=True):
    """The fields of a response that are known before it begins."""

    id: str
    model: str
    created: int
    request: JsonObject = {}
    """Fields that the response repeats, with the request's values."""

    @property
    def is_background(self) -> bool:
        return self.request.get("background") is True

    def response(self, outcome: ResponseOutcome, output: list[JsonObject], dialect: Dialect) -> JsonObject:
        """Return the response object."""
        status, reason = outcome.status, outcome.reason
        if status == "cancelled" and dialect == "open-responses":
            status, reason = "incomplete", "cancelled"
        is_over = status in ("completed", "incomplete", "failed", "cancelled")
        given = {name: value for name in ECHOED if (value := self.request.get(name)) is not None}
        whole: JsonObject = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(outcome.at) if status == "completed" and outcome.at is not None else None,
            "status": status,
            "model": self.model,
            "output": output,
            "error": None if outcome.error is None else _error(outcome.error),
            "incomplete_details": {"reason": reason} if reason is not None else None,
            "usage": usage_object(outcome.usage) if is_over and outcome.usage is not None else None,
            **_DEFAULTS,
            **given,
        }
        return _strict(whole) if dialect == "open-responses" else whole


def usage_object(usage: Usage) -> JsonObject:
    """Convert usage to the API's usage object."""
    return {
        "input_tokens": usage.input.total,
        "input_tokens_details": {
            "cached_tokens": usage.input.cache_read,
            "cache_write_tokens": usage.input.cache_write,
        },
        "output_tokens": usage.output.total,
        "output_tokens_details": {"reasoning_tokens": usage.output.reasoning},
        "total_tokens": usage.input.total + usage.output.total,
    }


def failure_of(error: Error) -> Failure:
    """Convert a run's error to the API's codes and types."""
    error = public(error)
    if error.kind == "rate-limit":
        return Failure(message=error.message, code=error.code or "rate_limit_exceeded", type="too_many_requests")
    kind = "server_error" if error.status is None or error.status >= 500 else "model_error"
    return Failure(message=error.message, code=error.code or "server_error", type=kind, param=error.param)


def error_event(error: Failure, number: int, dialect: Dialect) -> JsonObject:
    """Return an `error` event, flat for OpenAI's SDK, which raises at a field `error`, and nested otherwise."""
    fields: JsonObject = {"code": error.code, "message": error.message, "param": error.param}
    if dialect == "open-responses":
        return {"type": "error", "sequence_number": number, "error": {"type": error.type, **fields}}
    return {"type": "error", "sequence_number": number, **fields}


def _error(error: Failure) -> JsonObject:
    return {"code": error.code, "message": error.message}


# Rules of the specification

_EFFORTS: Final = {"minimal": "low", "max": "xhigh"}
"""Effort that the specification lacks → the nearest one it has."""


def _strict(whole: JsonObject) -> JsonObject:
    for name in ("user", "conversation", "include"):
        whole.pop(name, None)
    whole["tools"] = [strict_tool(tool) for tool in whole["tools"] if tool.get("type") == "function"]
    whole["tool_choice"] = _strict_choice(whole["tool_choice"])
    whole["reasoning"] = _strict_reasoning(whole["reasoning"])
    whole["text"] = _strict_text(whole["text"])
    if whole["service_tier"] not in ("auto", "default", "flex", "priority"):
        whole["service_tier"] = "default"
    return whole


def strict_tool(tool: JsonObject) -> JsonObject:
    """Return a function with all fields that the specification requires, null where the request set none."""
    wanted = ("type", "name", "description", "parameters", "strict")
    return {name: tool.get(name) for name in wanted}


def _strict_choice(choice: Any) -> Any:
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "name": name}
        case {"type": "allowed_tools"}:
            return {**choice, "mode": choice.get("mode") or "auto"}
        case str():
            return choice
        case _:
            return "auto"


def _strict_reasoning(given: Any) -> JsonObject | None:
    if not is_object(given) or not given:
        return None
    effort = given.get("effort")
    return {"effort": _EFFORTS.get(str(effort), effort), "summary": given.get("summary")}


def _strict_text(given: Any) -> JsonObject:
    text = as_object(given)
    form = as_object(text.get("format")) or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {
            "type": "json_schema",
            "name": form.get("name"),
            "description": form.get("description"),
            "schema": None,
            "strict": bool(form.get("strict")),
        }
    return {**text, "format": form}
