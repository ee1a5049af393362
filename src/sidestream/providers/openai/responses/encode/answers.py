"""Encodes the client's answers to pending items, including screenshots, and files and links as content."""

import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_array, is_object, objects, without_none
from sidestream.messages import message
from sidestream.providers.openai.account import FILE_SCHEME
from sidestream.providers.shared.attachments import PAGES, data_url, is_image, link_text, link_type, stored_id, text_of

_PLACES = ("image_url", "file_id")
_URLS = ("data:image/", "https://", "http://")


def screenshot_of(result: message.ToolResultPart) -> JsonObject | None:
    """Locate the screenshot of a result, as the last image of its content, a URL or a file id. None if it has none."""
    images = [url for part in message.shown_of_result(result.result) if (url := _image_url(part)) is not None]
    if images:
        return {"image_url": images[-1]}
    value = result.result
    if isinstance(value, str):
        return {"image_url": value} if value.startswith(_URLS) and not any(map(str.isspace, value)) else None
    given = value.get("output", value) if is_object(value) else None
    place = {key: given[key] for key in _PLACES if isinstance(given.get(key), str)} if is_object(given) else {}
    return place or None


def remark_of(call_id: str, result: message.ToolResultPart) -> str | None:
    """Return the text of a result with or instead of a screenshot, or None if there is none."""
    shown = message.shown_of_result(result.result)
    if result.is_error or screenshot_of(result) is None:
        text = _text_of(shown) if shown else _words(result.result)
        what = "failed" if result.is_error else "gave no screenshot"
        return f"The call {call_id} of the computer {what}, and its screenshot is only a placeholder. {text}".strip()
    return _text_of(shown) or None


def _image_url(part: message.Content) -> str | None:
    match part:
        case message.DataPart():
            return data_url(part) if is_image(part.mime_type) else None
        case message.LinkPart():
            return part.url if is_image(link_type(part) or "") else None
        case message.TextPart():
            return None


def _text_of(parts: tuple[message.Content, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, message.TextPart))


def _words(value: object) -> str:
    """Convert a result to text. An error becomes its message, and other values become JSON."""
    if is_object(value) and isinstance(value.get("message"), str):
        return value["message"]
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


@cache
def empty_screen(width: int = 1024, height: int = 768) -> str:
    """Create a black PNG as a `data:` URL."""
    rows = (b"\x00" + bytes(width // 8)) * height
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return media_types.data_url(data, "image/png")


def content_of(part: message.DataPart | message.LinkPart, image_detail: str) -> JsonObject:
    """Encode a file or a link as content of an input message."""
    if isinstance(part, message.DataPart):
        url = data_url(part)
        return _image(url, image_detail) if is_image(part.mime_type) else _file(url, part.mime_type, part.name)
    return _link(part, image_detail)


def _link(part: message.LinkPart, image_detail: str) -> JsonObject:
    scheme = part.url.partition(":")[0].lower()
    kind = link_type(part)
    if file_id := stored_id(part, FILE_SCHEME):
        if kind and is_image(kind):
            return {"type": "input_image", "file_id": file_id, "detail": image_detail}
        return {"type": "input_file", "file_id": file_id}
    if kind and scheme in ("http", "https", "data"):
        if is_image(kind):
            return _image(part.url, image_detail)
        if scheme == "data":
            return _file(part.url, kind, part.name)
        if kind not in PAGES:
            return {"type": "input_file", "file_url": part.url}
    return {"type": "input_text", "text": link_text(part)}


def _image(url: str, detail: str) -> JsonObject:
    return {"type": "input_image", "image_url": url, "detail": detail}


def _file(url: str, kind: str, name: str | None) -> JsonObject:
    return {"type": "input_file", "filename": name or f"file.{media_types.extension(kind)}", "file_data": url}


Given = message.ToolResultPart | message.ApprovalPart | None
"""A result or a decision in the history. Only approval requests are answered by a decision."""


def answer_key(item: JsonObject) -> str:
    """Return the id under which the client answers an item."""
    key = item.get("id") if item.get("type") == "mcp_approval_request" else item.get("call_id") or item.get("id")
    return str(key)


def is_answerable(call: JsonObject, result: Given) -> bool:
    """Return whether `answer` can encode an answer to a call. A result of None means that it was not executed."""
    match str(call.get("type")):
        case "computer_call":
            return isinstance(result, message.ToolResultPart)
        case "mcp_approval_request":
            return isinstance(result, message.ApprovalPart)
        case "tool_search_call":
            return call.get("execution") == "client"
        case kind:
            return kind in ANSWERS


def answer(call: JsonObject, result: Given) -> JsonObject | None:
    """Return the item that answers a call, or None if `is_answerable` is False."""
    return ANSWERS[str(call["type"])](call, result) if is_answerable(call, result) else None


def remark(call: JsonObject, result: Given) -> str | None:
    """Return the text of a result that does not fit into the item and follows as a message, or None."""
    if not isinstance(result, message.ToolResultPart):
        return None
    match call.get("type"):
        case "computer_call":
            return remark_of(answer_key(call), result)
        case "tool_search_call" if _failed(result):
            return f"The tool search {answer_key(call)} failed: {output_text(result)}"
        case _:
            return None


def output_text(result: Given) -> str:
    """Encode a result as text, or as JSON. Files are only named, since these items have no field for their content."""
    if not isinstance(result, message.ToolResultPart):
        return message.NOT_EXECUTED
    if isinstance(result.result, str):
        return result.result
    if shown := message.shown_of_result(result.result):
        return "\n".join(part.text if isinstance(part, message.TextPart) else _named(part) for part in shown)
    return jsontext.dumps(result.result).decode()


def _named(part: message.DataPart | message.LinkPart) -> str:
    if isinstance(part, message.LinkPart):
        return link_text(part)
    return text_of(part, part.mime_type) or f"[{part.name or 'a file'}, {part.mime_type}, {len(part.data)} bytes]"


def _failed(result: Given) -> bool:
    return not isinstance(result, message.ToolResultPart) or result.is_error


def _content(part: message.Content) -> JsonObject:
    return {"type": "input_text", "text": part.text} if isinstance(part, message.TextPart) else content_of(part, "auto")


def _text_output(kind: str) -> Callable[[JsonObject, Given], JsonObject]:
    def encode(call: JsonObject, result: Given) -> JsonObject:
        shown = message.shown_of_result(result.result) if isinstance(result, message.ToolResultPart) else ()
        return _reply(kind, call, output=[_content(part) for part in shown] if shown else output_text(result))

    return encode


def _local_shell(call: JsonObject, result: Given) -> JsonObject:
    # The item accepts only text. The API's types pair it by `id`, but OpenAI's own agents send `call_id`.
    pair = {"id": call["call_id"]} if call.get("call_id") else {}
    return _reply("local_shell_call_output", call, **pair, output=output_text(result))


def _shell(call: JsonObject, result: Given) -> JsonObject:
    value = _unwrapped(result, "output")
    value = [value] if is_object(value) and not _failed(result) else value
    outputs = [_shell_output(entry) for entry in value] if is_array(value) and value else [None]
    if any(output is None for output in outputs):
        failed = _failed(result)
        text = output_text(result)
        streams = {"stdout": "", "stderr": text} if failed else {"stdout": text, "stderr": ""}
        outputs = [{**streams, "outcome": {"type": "exit", "exit_code": int(failed)}}]
    action = call.get("action")
    limit = action.get("max_output_length") if is_object(action) else None
    return _reply("shell_call_output", call, output=outputs, **({} if limit is None else {"max_output_length": limit}))


def _shell_output(entry: Any) -> JsonObject | None:
    """Convert the output of one command from the API's form or from `ShellOutput`. Returns None for other values."""
    if isinstance(entry, str):
        entry = {"stdout": entry}
    if not is_object(entry) or not entry.keys() & _SHELL_OUTPUT.keys():
        return None
    fields: JsonObject = {**_SHELL_OUTPUT, **entry}
    outcome = fields["outcome"]
    if not is_object(outcome):
        ended = {"type": "exit", "exit_code": code if type(code := fields["exit_code"]) is int else 1}
        outcome = {"type": "timeout"} if fields["timed_out"] else ended
    return {"stdout": str(fields["stdout"]), "stderr": str(fields["stderr"]), "outcome": outcome}


_SHELL_OUTPUT: JsonObject = {"stdout": "", "stderr": "", "exit_code": 0, "timed_out": False, "outcome": None}
"""Fields of a command's output, with their defaults."""


def _apply_patch(call: JsonObject, result: Given) -> JsonObject:
    said = _unwrapped(result, "output")
    text = said if isinstance(said, str) else output_text(result)
    return _reply("apply_patch_call_output", call, status="failed" if _failed(result) else "completed", output=text)


def _computer(call: JsonObject, result: Any) -> JsonObject:
    place = None if result.is_error else screenshot_of(result)
    unseen = {} if place is not None else {"status": "incomplete"}
    # Acknowledge exactly the call's own checks, and only if the user has seen them.
    checks = objects(call.get("pending_safety_checks")) if result.acknowledged else []
    return _reply(
        "computer_call_output",
        call,
        output={"type": "computer_screenshot", **(place or {"image_url": empty_screen()})},
        **unseen,
        **({"acknowledged_safety_checks": [without_none(check) for check in checks]} if checks else {}),
    )


def _tool_search(call: JsonObject, result: Given) -> JsonObject:
    tools = _unwrapped(result, "tools")
    return _reply("tool_search_output", call, execution="client", tools=tools if is_array(tools) else [])


def _approval(call: JsonObject, decision: Any) -> JsonObject:
    reason = {"reason": decision.reason} if decision.reason else {}
    decided = {"approval_request_id": call["id"], "approve": decision.is_approved}
    return {"type": "mcp_approval_response", **decided, **reason}


def _unwrapped(result: Given, key: str) -> Any:
    value = result.result if isinstance(result, message.ToolResultPart) else None
    return value.get(key) if is_object(value) else value


def _reply(kind: str, call: JsonObject, **fields: Any) -> JsonObject:
    # Without the caller, the answer would go to the model instead of the program that made the call.
    caller = {"caller": call["caller"]} if call.get("caller") else {}
    pair = {"call_id": call["call_id"]} if call.get("call_id") else {}
    return {"type": kind, **pair, **fields, **caller}


ANSWERS: dict[str, Callable[[JsonObject, Any], JsonObject]] = {
    "function_call": _text_output("function_call_output"),
    "custom_tool_call": _text_output("custom_tool_call_output"),
    "local_shell_call": _local_shell,
    "shell_call": _shell,
    "apply_patch_call": _apply_patch,
    "computer_call": _computer,
    "tool_search_call": _tool_search,
    "mcp_approval_request": _approval,
}
"""Encoders of answers, by type of the pending item."""
