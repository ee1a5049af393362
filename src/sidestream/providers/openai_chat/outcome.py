"""How an answer ended: its finish reason, its usage, its error."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.providers.openai_chat.state import State
from sidestream.stream.parts import Error, FinishReason, InputUsage, OutputUsage, Usage

REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
    "eos": "stop",
    "model_length": "length",
    "error": "error",
}
"""The server's word → ours; the last three are of compatible servers. Any other is `other`."""

RATE_LIMITS = frozenset({"rate_limit_exceeded", "rate_limit_error", "too_many_requests", "insufficient_quota"})
RETRYABLE = RATE_LIMITS - {"insufficient_quota"} | {
    "server_error",
    "internal_server_error",
    "overloaded_error",
    "server_is_overloaded",
    "slow_down",
    "unavailable_error",
}


def finish_reason(s: State) -> tuple[FinishReason, str | None]:
    """Our reason and the server's own word. Calls count more than the word: many servers say `stop` beside them."""
    raw = s.finish_reason
    reason = REASONS.get(raw, "other") if raw is not None else "stop"
    if reason in ("stop", "tool-calls"):
        if s.calls:
            return "tool-calls", raw
        return ("content-filter", "refusal") if "refusal" in s.texts else ("stop", raw)
    return reason, raw


def error_of(error: Any, fallback: str) -> Error:
    """The server's error object, or its text, as a part."""
    fields: JsonObject = {"message": error} if isinstance(error, str) else jsontext.as_object(error)
    given = fields.get("code") or fields.get("type")
    code = str(given) if isinstance(given, str | int) else None
    number = fields.get("code")
    status = number if type(number) is int and 400 <= number < 600 else None
    kind = "rate-limit" if status == 429 or code in RATE_LIMITS else "provider"
    retryable = code in RETRYABLE or (status is not None and (status >= 500 or status in (408, 409, 429)))
    message = fields.get("message")
    told = message if isinstance(message, str) and message else fallback
    return Error(kind, told, code=code, status=status, retryable=retryable)


def usage_of(raw: Any) -> Usage:
    """Token counts; what is missing or of another type counts as nothing."""
    usage = jsontext.as_object(raw)
    if not usage:
        return Usage()
    inputs, outputs = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details")
    read, written = _count(details, "cached_tokens"), _count(details, "cache_write_tokens")
    reasoning = _count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning and _count(usage, "total_tokens") == inputs + outputs + reasoning:
        outputs += reasoning  # this server does not count reasoning among the completion's tokens
    return Usage(
        input=InputUsage(inputs, max(inputs - read - written, 0), read, written),
        output=OutputUsage(outputs, max(outputs - reasoning, 0), reasoning),
        raw=usage,
    )


def _count(values: Any, key: str) -> int:
    value = jsontext.as_object(values).get(key)
    return value if type(value) is int else 0
