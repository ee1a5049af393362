"""Messages in the JSON form that the conventions define, for programs that want them in their spans."""

from collections.abc import Iterable, Sequence
from typing import assert_never

from sidestream import jsontext
from sidestream.jsontext import Json, JsonObject
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.text.redaction import redact

_ROLES = {"model": "assistant"}
_MODALITIES = frozenset({"image", "audio", "video"})


def as_json(value: object) -> str:
    """A value as an attribute: JSON text without secrets."""
    return redact(jsontext.dumps(value).decode())


def message_objects(messages: Iterable[ChatMessage]) -> list[JsonObject]:
    """Messages as the conventions write them."""
    return [
        {"role": _ROLES.get(message.role, message.role), "parts": [_part(part) for part in message.parts]}
        for message in messages
    ]


def system_objects(text: str) -> list[JsonObject]:
    """The system prompt."""
    return [{"type": "text", "content": text}]


def tool_objects(request: ModelRequest) -> list[JsonObject]:
    """The tools of a request by name; their schemas are left out, since they can be large."""
    functions: list[JsonObject] = [{"type": "function", "name": tool.name} for tool in request.tools]
    hosted = (type(tool).__name__ for tool in request.server_side_tools)
    return functions + [{"type": "extension", "name": name} for name in hosted]


def new_messages(before: int, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The answers of the model among the messages that have been added."""
    return [message for message in messages[before:] if message.role == "model"]


def _part(part: MessagePart) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "content": part.text}
        case ThinkingPart():
            return {"type": "reasoning", "content": part.text}
        case ToolCallPart():
            given = part.input if part.input_text is None else part.input_text
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": given}
        case ToolResultPart():
            return {"type": "tool_call_response", "id": part.id, "response": part.result}
        case LinkPart():
            return _file("uri", part.mime_type) | {"uri": part.url}
        case DataPart():
            # The bytes stay out: a span is no place for files.
            return _file("blob", part.mime_type) | {"size": len(part.bytes)}
        case ApprovalPart():
            return {"type": "approval", "id": part.id, "approved": part.is_approved}
        case _:
            assert_never(part)


def _file(kind: str, mime_type: str | None) -> dict[str, Json]:
    modality = (mime_type or "").partition("/")[0]
    return {"type": kind, "mime_type": mime_type, "modality": modality if modality in _MODALITIES else "document"}
