"""Finish reason, usage and error of a response, and the session data to continue from it."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, without_none
from sidestream.messages.references import HOSTED
from sidestream.parts import Error, FinishReason, Usage
from sidestream.providers.openai.responses.decode.state import ItemState, ResponsesState
from sidestream.providers.openai.responses.encode.replay import replayed_fields
from sidestream.providers.openai.responses.options import REPLAY_KEY, SESSION_KEY
from sidestream.providers.shared.decoding import count_in, usage_from, usd_in
from sidestream.stream.errors import classified

REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "failed": "error",
    "cancelled": "other",
    "queued": "other",
    "in_progress": "other",
    "max_output_tokens": "length",
    "max_prompt_tokens": "length",
    "max_time_limit": "other",
    "content_filter": "content-filter",
    "max_messages": "other",
    "steered": "other",
}
"""Our finish reasons, by the provider's status or the reason of an incomplete response."""

RATE_LIMITS = frozenset({"rate_limit_exceeded", "too_many_requests"})
RETRYABLE = RATE_LIMITS | {"server_error", "vector_store_timeout", "server_is_overloaded", "slow_down"}


def finish_reason(s: ResponsesState, status: str, response: JsonObject) -> tuple[FinishReason, str]:
    """Return our finish reason and the provider's own."""
    raw = status
    if status == "incomplete":
        raw = str(jsontext.as_object(response.get("incomplete_details")).get("reason") or status)
    reason = REASONS.get(raw, "length" if raw == "incomplete" else "other")
    if reason == "stop":
        if s.has_approval:
            return "approval", raw
        if s.has_client_call:
            return "tool-calls", raw
        if s.has_refusal:
            return "content-filter", "refusal"
    return reason, raw


def error_of(error: Any, fallback: str) -> Error:
    """Convert the provider's error object to a part."""
    fields = jsontext.as_object(error)
    code = fields.get("code") or (fields.get("type") if fields.get("type") != "error" else None)
    code = str(code) if code is not None else None
    # xAI's errors are a code beside a string.
    message = fields.get("message") or fields.get("error")
    kind = "rate-limit" if code in RATE_LIMITS else "provider"
    text = message if isinstance(message, str) else fallback
    param = jsontext.text_in(fields, "param")
    return classified(Error(kind, text, code=code, retryable=code in RETRYABLE, param=param))


def usage_of(raw: Any, server_tool_use: dict[str, int]) -> Usage:
    """Parse the token counts."""
    usage = jsontext.as_object(raw)
    details = usage.get("input_tokens_details")
    return usage_from(
        usage,
        server_tool_use,
        inputs=count_in(usage, "input_tokens"),
        outputs=count_in(usage, "output_tokens"),
        read=count_in(details, "cached_tokens"),
        written=count_in(details, "cache_write_tokens"),
        reasoning=count_in(usage.get("output_tokens_details"), "reasoning_tokens"),
        cost=None if COSTS.keys().isdisjoint(usage) else _cost(usage),
    )


def _cost(usage: JsonObject) -> float | None:
    return next((cost for name, unit in COSTS.items() if (cost := usd_in(usage, name, unit)) is not None), None)


COSTS = {"cost_in_usd_ticks": 1e-10, "cost": 1.0}
"""Units in US dollars, by field of the usage that reports the cost. xAI counts ticks, and OpenRouter dollars."""


def message_metadata(s: ResponsesState, finished: list[ItemState], response: JsonObject) -> JsonObject:
    """Build the message's private metadata, to continue from it on the server or by resending its items."""
    is_plain = all(_is_plain(item, is_raw=s.context.resends_raw) for item in finished)
    layout = [] if is_plain else [_layout(s, item) for item in finished]
    items = {} if is_plain else {"items": layout}
    origin = {
        "model": s.context.model or response.get("model"),
        "base_url": s.context.base_url,
        **s.context.session_note,
    }
    if not s.context.store:
        container = next((item["container_id"] for item in reversed(layout) if item.get("container_id")), None)
        return {REPLAY_KEY: {**origin, **without_none({"container_id": container}), **items}}
    if not isinstance(response.get("id"), str):
        return {}
    session = {
        "response_id": response["id"],
        "pending_items": [_without_input(item.raw) for item in finished if _is_pending(item)],
        "timestamp": response.get("created_at"),
        **origin,
        "history": s.context.history,
        **items,
    }
    containers = [item.container_id for item in s.items if item.container_id]
    conversation = jsontext.as_object(response.get("conversation")).get("id")
    hosted = sorted({item.kind for item in finished if item.kind not in SAID and not _is_pending(item)})
    more = {
        "container_id": containers[-1] if containers else None,
        "conversation": conversation,
        HOSTED: hosted or None,
    }
    return {SESSION_KEY: {**session, **without_none(more)}}


def _is_pending(item: ItemState) -> bool:
    return item.kind == "mcp_approval_request" or (item.called and not item.provider_executed)


def _is_plain(item: ItemState, *, is_raw: bool) -> bool:
    """Return whether the message's own parts hold everything that resending the item needs."""
    if item.kind == "message":
        return len(item.blocks) == 1 and item.raw.get("phase") is None
    if item.kind not in _MORE:
        return False
    more = _MORE[item.kind]
    has_more = more in item.raw and (is_raw or item.raw[more] is not None)
    return not has_more and (item.kind == "reasoning" or _is_canonical(str(item.raw.get("arguments"))))


_MORE = {"reasoning": "encrypted_content", "function_call": "caller"}
"""Field that the message's parts do not hold, by item type."""


def _is_canonical(text: str) -> bool:
    """Return whether encoding the parsed input gives the same text."""
    try:
        return jsontext.dumps(jsontext.loads(text)).decode() == text
    except (ValueError, RecursionError):
        return False


SAID = frozenset({"message", "reasoning"})
"""Items whose readable content is in the message's own parts."""


def _without_input(item: JsonObject) -> JsonObject:
    """Remove from a pending item the input that the message's own part holds."""
    dropped = _INPUTS.get(str(item.get("type")))
    if dropped is None:
        return item
    kept = {**item}
    kept.pop(dropped, None)
    kept.pop("status", None)
    return kept


_INPUTS = {"function_call": "arguments", "custom_tool_call": "input"}


def _layout(s: ResponsesState, item: ItemState) -> JsonObject:
    """Return the item as needed for resending, without the text or image that the message's own parts hold."""
    if item.kind == "message":
        said = without_none({"type": item.kind, "phase": item.raw.get("phase")})
        return {**said, "content": [{"text_id": block.id} for block in item.blocks.values()]}
    kept = {**item.raw} if s.context.resends_raw else replayed_fields(item.raw)
    if item.kind == "custom_tool_call" and item.provider_executed:
        return {**kept, "execution": "server"}
    if item.kind == "image_generation_call":
        kept.pop("result", None)
        return {**kept, "file": s.files[item.id]} if item.id in s.files else kept
    if item.kind == "code_interpreter_call" and kept.get("outputs"):
        # The message holds images as files.
        outputs = jsontext.as_list(kept["outputs"])
        return {**kept, "outputs": [o for o in outputs if jsontext.as_object(o).get("type") != "image"]}
    return kept


def summaries(finished: list[ItemState]) -> dict[str, list[JsonObject]]:
    """Collect details of file searches and code runs that only the finished items hold, by tool key."""
    found: dict[str, list[JsonObject]] = {}
    for item in finished:
        fields = _SUMMARY_FIELDS.get(item.kind)
        if fields is not None:
            summary = {"type": item.kind, **{ours: item.raw.get(theirs) for ours, theirs in fields.items()}}
            found.setdefault(item.tool, []).append(summary)
    return found


_SUMMARY_FIELDS = {
    "file_search_call": {"id": "id", "queries": "queries", "results": "results", "status": "status"},
    "code_interpreter_call": {
        "id": "id",
        "code": "code",
        "results": "outputs",
        "container_id": "container_id",
        "status": "status",
    },
}
"""The item's fields, by item type and our field."""
