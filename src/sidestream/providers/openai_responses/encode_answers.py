"""Answers of the client to pending items: type of the call → the item that answers it."""

from collections.abc import Callable
from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.messages.message import NOT_EXECUTED, ApprovalPart, Content, TextPart, ToolResultPart, content_of_result
from sidestream.providers.openai_responses.encode_content import content_of

Given = ToolResultPart | ApprovalPart | None
"""A result or a decision in the history; only requests for approval are answered by a decision."""


def answer_key(item: JsonObject) -> str:
    """The id under which the client answers an item."""
    key = item.get("id") if item.get("type") == "mcp_approval_request" else item.get("call_id") or item.get("id")
    return str(key)


def answer(call: JsonObject, result: Given) -> JsonObject | None:
    """The item that answers a call; without a result, one that reports so. None if no such item exists."""
    kind = ANSWERS.get(str(call.get("type")))
    return None if kind is None else kind(call, result)


def output_text(result: Given) -> str:
    """A result as text: other values as JSON."""
    if not isinstance(result, ToolResultPart):
        return NOT_EXECUTED
    return result.result if isinstance(result.result, str) else jsontext.dumps(result.result).decode()


def _failed(result: Given) -> bool:
    return not isinstance(result, ToolResultPart) or result.is_error


def _content(part: Content) -> JsonObject:
    return {"type": "input_text", "text": part.text} if isinstance(part, TextPart) else content_of(part, "auto")


def _text_output(kind: str) -> Callable[[JsonObject, Given], JsonObject]:
    def encode(call: JsonObject, result: Given) -> JsonObject:
        shown = content_of_result(result.result) if isinstance(result, ToolResultPart) else ()
        return _reply(kind, call, output=[_content(part) for part in shown] if shown else output_text(result))

    return encode


def _shell(call: JsonObject, result: Given) -> JsonObject:
    value = _unwrapped(result, "output")
    if not is_array(value):
        failed = _failed(result)
        text = output_text(result)
        streams = {"stdout": "", "stderr": text} if failed else {"stdout": text, "stderr": ""}
        value = [{**streams, "outcome": {"type": "exit", "exit_code": int(failed)}}]
    action = call.get("action")
    limit = action.get("max_output_length") if is_object(action) else None
    return _reply("shell_call_output", call, output=value, **({} if limit is None else {"max_output_length": limit}))


def _apply_patch(call: JsonObject, result: Given) -> JsonObject:
    failed = _failed(result)
    return _reply(
        "apply_patch_call_output", call, status="failed" if failed else "completed", output=output_text(result)
    )


def _computer(call: JsonObject, result: Given) -> JsonObject | None:
    value = result.result if isinstance(result, ToolResultPart) else None
    given: JsonObject = value if is_object(value) else {"image_url": value}
    output = given.get("output")
    screenshot = output if is_object(output) else given
    place = {key: screenshot[key] for key in ("image_url", "file_id") if isinstance(screenshot.get(key), str)}
    if not place:
        return None
    checks = given.get("acknowledged_safety_checks")
    return _reply(
        "computer_call_output",
        call,
        output={"type": "computer_screenshot", **place},
        **({"acknowledged_safety_checks": checks} if checks else {}),
    )


def _tool_search(call: JsonObject, result: Given) -> JsonObject | None:
    if call.get("execution") != "client":
        return None
    tools = _unwrapped(result, "tools")
    return _reply("tool_search_output", call, execution="client", tools=tools if is_array(tools) else [])


def _approval(call: JsonObject, decision: Given) -> JsonObject | None:
    if not isinstance(decision, ApprovalPart):
        return None
    reason = {"reason": decision.reason} if decision.reason else {}
    decided = {"approval_request_id": call["id"], "approve": decision.is_approved}
    return {"type": "mcp_approval_response", **decided, **reason}


def _unwrapped(result: Given, key: str) -> Any:
    value = result.result if isinstance(result, ToolResultPart) else None
    return value.get(key) if is_object(value) else value


def _reply(kind: str, call: JsonObject, **fields: Any) -> JsonObject:
    # Without the caller, the answer would be sent to the model rather than to the program that made the call.
    caller = {"caller": call["caller"]} if call.get("caller") else {}
    pair = {"call_id": call["call_id"]} if call.get("call_id") else {}
    return {"type": kind, **pair, **fields, **caller}


ANSWERS: dict[str, Callable[[JsonObject, Given], JsonObject | None]] = {
    "function_call": _text_output("function_call_output"),
    "custom_tool_call": _text_output("custom_tool_call_output"),
    "local_shell_call": _text_output("local_shell_call_output"),
    "shell_call": _shell,
    "apply_patch_call": _apply_patch,
    "computer_call": _computer,
    "tool_search_call": _tool_search,
    "mcp_approval_request": _approval,
}
"""Type of a pending item → how its answer is encoded."""
