"""Names of tools and stages in logs of older versions, and their conversion.

Older versions wrote a provider's own name of a tool as `tool`, and its own word for a stage as `stage`.
"""

from collections.abc import Iterable

from sidestream.jsontext import JsonObject, as_object
from sidestream.parts import Stage

_TOOLS = {
    "google_search": "web_search",
    "url_context": "web_fetch",
    "code_execution": "code_interpreter",
    "bash_code_execution": "code_interpreter",
    "text_editor_code_execution": "code_interpreter",
}
"""Portable names of tools, by the provider's name."""

_STAGES: dict[str, Stage] = {
    "added": "started",
    "start": "started",
    "in_progress": "started",
    "stop": "running",
    "searching": "running",
    "fetching": "running",
    "interpreting": "running",
    "generating": "running",
    "grounding": "completed",
    "annotation": "completed",
    "completed": "completed",
    "failed": "failed",
}
"""Stages, by the provider's word. `done` and `result` depend on their event. All other words are deltas."""

_REQUESTS = frozenset(
    {
        *("shell_call", "apply_patch_call", "local_shell_call", "computer_call", "tool_search_call", "program"),
        *("server_tool_use", "mcp_tool_use"),
    }
)
"""Items that are complete before their tool runs."""
_ITEMS = ("item", "content_block", "step")
_NEWER = frozenset({"started", "input", "running"})
"""Stages that no older version wrote."""


_NAMED = tuple(f'"tool":"{name}"'.encode() for name in _TOOLS)


def is_used(kind: str, body: bytes) -> bool:
    """Return whether the JSON of a segment may hold such names. Looking for them is much cheaper than decoding it."""
    match kind:
        case "tool-event":
            return b'"provider_stage":' not in body
        case "tool-call":
            return b'"provider_executed":true' in body and b'"provider_tool":' not in body
        case "tool-result" | "file":
            return any(name in body for name in _NAMED)
        case _:
            return False


def all_renamed(parts: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the parts of a segment with portable names."""
    found: list[JsonObject] = []
    ends: dict[str, Stage] = {}
    """Stages at the end of the calls and results that have begun, by call id."""
    for part in parts:
        new, call_id = renamed(part), str(part.get("call_id"))
        if new.get("provider_stage") == "stop":
            # A result is a segment of its own, so the end of its block is the first event of the next one.
            new = {**new, "stage": ends.get(call_id, "completed")}
        elif _begins_result(part):
            ends[call_id] = "failed" if new["stage"] == "failed" else "completed"
        else:
            ends.setdefault(call_id, "running")
        found.append(new)
    return found


def _begins_result(part: JsonObject) -> bool:
    is_result = str(as_object(as_object(part.get("event")).get("step")).get("type")).endswith("_result")
    return part.get("type") == "tool-event" and (part.get("stage") == "result" or is_result)


def renamed(part: JsonObject) -> JsonObject:
    """Return a part with portable names, or the same part if it has them."""
    match part.get("type"):
        case "tool-event" if "provider_stage" not in part:
            return _event(part)
        case "tool-call" if part.get("provider_executed") is True and "provider_tool" not in part:
            tool = str(part.get("tool"))
            return {**part, "tool": _TOOLS.get(tool, tool), "provider_tool": tool}
        case "tool-result" if part.get("provider_executed") is True and str(part.get("tool")) in _TOOLS:
            return {**part, "tool": _TOOLS[part["tool"]]}
        case "file" if str(part.get("tool")) in _TOOLS:
            return {**part, "tool": _TOOLS[part["tool"]]}
        case _:
            return part


def _event(part: JsonObject) -> JsonObject:
    tool, word, event = str(part.get("tool")), str(part.get("stage")), as_object(part.get("event"))
    if word in _NEWER:
        return part
    if event.get("type") == word:  # A subagent's part.
        return {**part, "stage": "delta", "provider_stage": word, "event": renamed(event)}
    stage = _stage(tool, word, event)
    if stage == word and tool not in _TOOLS:
        return part
    named = {"tool": _TOOLS.get(tool, tool), "provider_tool": tool}
    return {**part, **named, "stage": stage, "provider_stage": word}


def _stage(tool: str, word: str, event: JsonObject) -> Stage:
    kind = str(event.get("type") or event.get("event_type"))
    item = next((found for name in _ITEMS if (found := as_object(event.get(name)))), event)
    if word in ("done", "added") and kind.startswith("response.") and not kind.startswith("response.output_item."):
        return "input" if "_arguments." in kind else "delta"
    if word == "delta":
        is_input = "_arguments." in kind or kind.startswith(("content_block", "step."))
        is_result = str(as_object(event.get("delta")).get("type")).endswith("_result")
        return "input" if is_input and not is_result and _TOOLS.get(tool) != "code_interpreter" else "delta"
    if word == "interpreting" and not kind.startswith("response."):
        return "started"  # Gemini reports code and its start in one event.
    if word in ("added", "start") and str(item.get("type")).endswith(("_output", "_result")):
        return "running"
    if word not in ("done", "result"):
        return _STAGES.get(word, "delta")
    if item.get("type") == "mcp_approval_request":
        return "started"
    if item.get("type") in _REQUESTS:
        return "running"
    return "failed" if _has_failed(item) else "completed"


def _has_failed(item: JsonObject) -> bool:
    content = as_object(item.get("content"))
    if item.get("is_error") is True or str(content.get("type")).endswith("_error"):
        return True
    return item.get("error") is not None or item.get("status") in ("failed", "incomplete")
