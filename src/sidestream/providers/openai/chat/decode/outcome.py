"""Finish reason, usage and error of a chat completion."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.parts import Custom, Error, FinishReason, Usage
from sidestream.providers.openai.chat.decode.state import CompletionsState
from sidestream.providers.openai.chat.options import WIRE
from sidestream.providers.shared.decoding import count_in, parse_input, usage_from, usd_in
from sidestream.stream.errors import classified

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
"""Our finish reasons, by the server's. The last three are from compatible servers. Any other is `other`."""

RATE_LIMITS = frozenset({"rate_limit_exceeded", "rate_limit_error", "too_many_requests", "insufficient_quota"})
RETRYABLE = RATE_LIMITS - {"insufficient_quota"} | {
    "server_error",
    "internal_server_error",
    "overloaded_error",
    "server_is_overloaded",
    "slow_down",
    "unavailable_error",
}


NO_REASON = "sidestream.finish-reason-missing"
"""Kind of the custom part that reports a missing finish reason."""


def is_complete(s: CompletionsState) -> bool:
    """Return whether a stream without a finish reason is complete, judged by `[DONE]` and its usage.

    OpenAI's spoken responses and some hosts end like that. A call is complete if its arguments are valid JSON.
    """
    if not s.is_done or not jsontext.as_object(s.usage) or not (s.texts or s.audio or s.calls):
        return False
    return all(call.is_started and (call.is_custom or parse_input(call.text)[1] is None) for call in s.calls)


def no_reason(reason: FinishReason) -> Custom:
    """Return the notice that a finish reason is assumed."""
    message = f"The server sent no finish reason. The response is complete, so {reason!r} is assumed."
    return Custom(NO_REASON, {"reason": reason, "message": message})


def finish_reason(s: CompletionsState) -> tuple[FinishReason, str | None]:
    """Return our finish reason and the server's. Calls take precedence, since many servers send `stop` with them."""
    raw = s.finish_reason
    reason = REASONS.get(raw, "other") if raw is not None else "stop"
    if reason in ("stop", "tool-calls"):
        if s.calls:
            return "tool-calls", raw
        return ("content-filter", "refusal") if "refusal" in s.texts else ("stop", raw)
    return reason, raw


def error_of(error: Any, fallback: str) -> Error:
    """Convert the server's error object or message to a part."""
    fields: JsonObject = {"message": error} if isinstance(error, str) else jsontext.as_object(error)
    given = fields.get("code") or fields.get("type")
    code = str(given) if isinstance(given, str | int) else None
    numbers = (fields.get("code"), fields.get("status_code"))
    number = next((number for number in numbers if type(number) is int), None)
    status = number if number is not None and 400 <= number < 600 else None
    kind = "rate-limit" if status == 429 or code in RATE_LIMITS else "provider"
    retryable = code in RETRYABLE or (status is not None and (status >= 500 or status in (408, 409, 429)))
    message = fields.get("message")
    message = message if isinstance(message, str) and message else fallback
    param = jsontext.text_in(fields, "param")
    failed = fields.get("failed_generation")  # what the model wrote where a call was expected
    return classified(
        Error(
            kind,
            message,
            code=code,
            status=status,
            retryable=retryable,
            param=param,
            provider_metadata={WIRE: {"failed_generation": failed}} if failed else None,
        )
    )


_COUNTERS = frozenset({"server_tool_use_details", "server_tool_use", "num_search_queries"})
SERVER_TOOL = "server_tool"
"""Name of a tool that the server does not name."""


def count_tools(s: CompletionsState) -> None:
    """Record the hosted calls of which the usage holds only a number. A search may be in two of its counters."""
    usage = s.usage
    if not jsontext.is_object(usage) or _COUNTERS.isdisjoint(usage):
        return
    details = usage.get("server_tool_use_details") or usage.get("server_tool_use")
    searches = count_in(details, "web_search_requests")
    s.counted_calls("web_search", searches or count_in(usage, "num_search_queries"), {"usage": usage})
    known = sum(s.server_tool_use.values()) - s.server_tool_use.get("web_search", 0)
    others = count_in(details, "tool_calls_executed") - searches - known
    if others > 0:
        tools = [tool for tool in s.context.server_tools if not searches or s.portable(tool) != "web_search"]
        s.counted_calls(tools[0] if len(tools) == 1 else SERVER_TOOL, others, {"usage": usage})


def reported_cost(usage: JsonObject) -> float | None:
    """Return the cost in US dollars that a server reports: a number, or an object with a total."""
    if jsontext.is_object(usage.get("cost")):
        return usd_in(usage["cost"], "total_cost") or None  # The total is zero until the last chunk.
    cost = usd_in(usage, "cost")
    if cost is None or usage.get("is_byok") is not True:
        return cost
    # With a key of the user's own, that is only the fee; the rest is charged to the key.
    upstream = usd_in(jsontext.as_object(usage.get("cost_details")), "upstream_inference_cost")
    return None if upstream is None else round(cost + upstream, 12)


def usage_of(raw: Any, server_tool_use: dict[str, int] | None = None) -> Usage:
    """Parse the token counts and the cost, if the server reports it."""
    usage = jsontext.as_object(raw)
    inputs, outputs = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details")
    reasoning = count_in(usage.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning and count_in(usage, "total_tokens") == inputs + outputs + reasoning:
        outputs += reasoning  # this server excludes reasoning from the completion tokens
    return usage_from(
        usage,
        server_tool_use or {},
        inputs=inputs,
        outputs=outputs,
        read=count_in(details, "cached_tokens"),
        written=count_in(details, "cache_write_tokens"),
        reasoning=reasoning,
        cost=reported_cost(usage) if "cost" in usage else None,
    )
