"""Parsing of request items: messages of a history, compactions, and answers to pending calls."""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, as_object, is_array, objects, text_in
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.provenance import written
from sidestream.protocols.responses.text import SIGNED
from sidestream.server.errors import RequestError
from sidestream.server.http.request_files import document_at, document_in, file_at, is_empty
from sidestream.server.responses.request_tools import joined_name
from sidestream.server.runs.decisions import Answer

_PREFIX = "ssc1_"
_MAX_BYTES = 16 * 1024 * 1024


def compacted_item(text: str, id: str) -> dict[str, str]:
    """Return the item for a conversation summary."""
    data = zlib.compress(text.encode("utf-8", "surrogatepass"))
    sealed = sha256(data).digest()[:8] + data
    return {"id": id, "type": "compaction", "encrypted_content": _PREFIX + urlsafe_b64encode(sealed).decode()}


def compacted_text(content: str, param: str) -> str:
    """Return the summary in an item made by `compacted_item`. Raises RequestError if it is anything else."""
    error = RequestError(
        400, "the content is not a compaction from this server", param=param, code="invalid_compaction"
    )
    if not content.startswith(_PREFIX):
        raise error
    try:
        sealed = urlsafe_b64decode(content.removeprefix(_PREFIX))
        if sha256(sealed[8:]).digest()[:8] != sealed[:8]:
            raise error
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(sealed[8:], _MAX_BYTES)
        if unpacking.unconsumed_tail:
            raise error
        return data.decode("utf-8", "surrogatepass")
    except (ValueError, zlib.error):
        raise error from None


MAX_TEXT = 10 * 1024 * 1024
"""Maximum characters of one string, according to the specification."""
MAX_IMAGE_URL = 20 * 1024 * 1024
MAX_FILE_DATA = 32 * 1024 * 1024
_SKIPPED = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_list_tools"),
        *("mcp_call", "mcp_approval_request", "shell_call", "shell_call_output", "tool_search_call"),
        *("tool_search_output", "program", "program_output", "additional_tools", "configuration_update"),
        *("sidestream:approval_request", "computer_call", "local_shell_call", "apply_patch_call"),
    }
)
"""Types of items that clients send back but that add nothing for a model to the text that followed."""


class PlacedAnswer(Answer, frozen=True, kw_only=True):
    """An answer with its path in the request. `approval_id` is the id of the item that requests the approval."""

    at: str


class Sent(Struct, frozen=True, kw_only=True):
    """The input of a request."""

    messages: list[ChatMessage]
    answers: list[PlacedAnswer]


def read_input(given: str | list[JsonObject] | None, known: Mapping[str, JsonObject] | None = None) -> Sent:
    """Parse the items of an input. `known` holds the items that an `item_reference` may name.

    Raises RequestError if the input is missing or an item is invalid.
    """
    if given is None or given in ([], ""):
        raise RequestError(400, "input is required", param="input", code="missing_required_parameter")
    if isinstance(given, str):
        _check_length(given, "input")
        return Sent(messages=[ChatMessage.user(given)], answers=[])
    reader = _Reader(known or {})
    for index, item in enumerate(given):
        reader.read(item, f"input[{index}]")
    return Sent(messages=reader.messages, answers=reader.answers)


class _Reader:
    def __init__(self, known: Mapping[str, JsonObject]) -> None:
        self.messages: list[ChatMessage] = []
        self.answers: list[PlacedAnswer] = []
        self._known = known
        self._names: dict[str, str] = {}
        """Names of the calls among these items, by id."""

    def read(self, item: JsonObject, at: str) -> None:
        """Parse the next item."""
        kind = item.get("type", "message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, at)
            case "reasoning":
                texts = [text for part in objects(item.get("summary")) if (text := text_in(part, "text"))]
                thinking = _thinking("\n\n".join(texts), item.get("encrypted_content"))
                self._model([thinking] if thinking.text or thinking.encrypted_content else [])
            case "function_call" | "custom_tool_call":
                self._call(item, at)
            case "function_call_output" | "custom_tool_call_output":
                self._output(item, at)
            case "mcp_approval_response":
                self._decision(item, at)
            case "compaction":
                text = compacted_text(_text(item, "encrypted_content", at), f"{at}.encrypted_content")
                self.messages.append(written(text))  # Written by a model, so its URLs do not count as the user's.
            case "item_reference":
                id = _text(item, "id", at)
                if id not in self._known:
                    raise RequestError(
                        404, f"item {id!r:.100} not found", type="not_found", param=f"{at}.id", code="not_found"
                    )
                self.read(self._known[id], at)
            case str() if kind in _SKIPPED:
                pass
            case _:
                raise RequestError(400, f"unsupported item type {kind!r:.80}", param=f"{at}.type", code="unknown_item")

    def _message(self, item: JsonObject, at: str) -> None:
        role, content = item.get("role"), item.get("content")
        parts = _content(content, f"{at}.content")
        if role in ("system", "developer"):
            if not all(isinstance(part, TextPart) for part in parts):
                raise RequestError(400, "only text is allowed here", param=f"{at}.content")
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            self.messages.append(ChatMessage.system(text))
        elif role == "user":
            if is_empty(parts):
                raise RequestError(400, "the message is empty", param=f"{at}.content")
            self.messages.append(ChatMessage("user", tuple(parts)))
        elif role == "assistant":
            self._model(parts)
        else:
            raise RequestError(400, f"unknown role {role!r:.80}", param=f"{at}.role")

    def _model(self, parts: list[MessagePart]) -> None:
        """Add model output, merging it with a directly preceding model message."""
        if self.messages and self.messages[-1].role == "model":
            self.messages[-1] = ChatMessage("model", (*self.messages[-1].parts, *parts))
        elif parts:
            self.messages.append(ChatMessage("model", tuple(parts)))

    def _call(self, item: JsonObject, at: str) -> None:
        id, name = _text(item, "call_id", at), _text(item, "name", at)
        if isinstance(namespace := item.get("namespace"), str):
            name = joined_name(namespace, name)
        self._names[id] = name
        if item.get("type") == "custom_tool_call":
            self._model([ToolCallPart(id, name, {"input": _text(item, "input", at)})])
            return
        text = _text(item, "arguments", at)
        arguments = jsontext.object_in(text or "{}")
        self._model([ToolCallPart(id, name, arguments, text if arguments is None else None)])

    def _output(self, item: JsonObject, at: str) -> None:
        id = _text(item, "call_id", at)
        output = _output_value(item.get("output"), f"{at}.output")
        if id not in self._names:
            self.answers.append(PlacedAnswer(at=at, call_id=id, output=output))
            return
        result = ToolResultPart(id, self._names[id], output)
        if self.messages and self.messages[-1].role == "tool":
            self.messages[-1] = ChatMessage("tool", (*self.messages[-1].parts, result))
        else:
            self.messages.append(ChatMessage("tool", (result,)))

    def _decision(self, item: JsonObject, at: str) -> None:
        approve, reason = item.get("approve"), item.get("reason")
        if not isinstance(approve, bool):
            raise RequestError(400, "approve must be true or false", param=f"{at}.approve")
        id = _text(item, "approval_request_id", at)
        said = reason if isinstance(reason, str) else None
        self.answers.append(PlacedAnswer(at=at, approval_id=id, approved=approve, reason=said))


def _thinking(text: str, content: Any) -> ThinkingPart:
    """Return the reasoning of an item, with what its provider gets back."""
    if not isinstance(content, str) or not content:
        return ThinkingPart(text)
    if content.startswith(SIGNED):
        return ThinkingPart(text, signature=content.removeprefix(SIGNED))
    return ThinkingPart(text, encrypted_content=content)


def _content(content: Any, at: str) -> list[MessagePart]:
    if isinstance(content, str):
        _check_length(content, at)
        return [TextPart(content)] if content else []
    if not is_array(content):
        raise RequestError(400, "content must be a string or a list of parts", param=at)
    return [_part(as_object(part), f"{at}[{index}]") for index, part in enumerate(content)]


def _part(part: JsonObject, at: str) -> MessagePart:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            text = _text(part, "text", at)
            _check_length(text, f"{at}.text")
            return TextPart(text)
        case "refusal":
            return TextPart(_text(part, "refusal", at))
        case "input_image":
            _no_file_id(part, at)
            url = _text(part, "image_url", at)
            _check_length(url, f"{at}.image_url", MAX_IMAGE_URL)
            return file_at(url, f"{at}.image_url", mime_type="image/png")
        case "input_video":
            return file_at(_text(part, "video_url", at), f"{at}.video_url", mime_type="video/mp4")
        case "input_file":
            return _file(part, at)
        case kind:
            raise RequestError(
                400, f"unsupported content type {kind!r:.80}", param=f"{at}.type", code="unknown_content"
            )


def _file(part: JsonObject, at: str) -> DataPart | LinkPart:
    _no_file_id(part, at)
    name = part.get("filename")
    named = name if isinstance(name, str) else None
    if part.get("file_url") is not None:
        return document_at(_text(part, "file_url", at), f"{at}.file_url", name=named)
    data = _text(part, "file_data", at)
    _check_length(data, f"{at}.file_data", MAX_FILE_DATA)
    return document_in(data, f"{at}.file_data", name=named)


def _no_file_id(part: JsonObject, at: str) -> None:
    if part.get("file_id") is not None:
        message = "uploaded files are not supported; send the content or a URL"
        raise RequestError(400, message, param=f"{at}.file_id", code="unsupported_parameter")


def _output_value(output: Any, at: str) -> Any:
    """Return a function's output as a string or as content parts."""
    if isinstance(output, str):
        return output
    if not is_array(output):
        raise RequestError(400, "output must be a string or a list of parts", param=at)
    parts = [_part(as_object(part), f"{at}[{index}]") for index, part in enumerate(output)]
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return parts


def _text(item: JsonObject, name: str, at: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        what = "required" if value is None else "not a string"
        raise RequestError(400, f"{name} is {what}", param=f"{at}.{name}")
    return value


def _check_length(text: str, at: str, limit: int = MAX_TEXT) -> None:
    if len(text) > limit:
        raise RequestError(
            400, f"the string must have at most {limit} characters", param=at, code="string_above_max_length"
        )
