"""Chat requests, in the AI SDK's format or a shorter one of our own. The server keeps the history."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from msgspec import Meta, Struct

from sidestream.jsontext import JsonObject, as_object, objects
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, MessagePart, TextPart
from sidestream.server.chat.branches import MESSAGE_ID
from sidestream.server.errors import RequestError
from sidestream.server.http.request_files import file_in
from sidestream.server.http.request_functions import Declared, functions_of
from sidestream.server.http.requests import checked
from sidestream.server.runs.decisions import Answer

STEERING = "steering-message"
"""Feature named by clients that know this chunk (`ai` 7.0.163 or later)."""
MAX_MESSAGE_ID = 200

_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),", re.IGNORECASE)
_BLOB_URL = re.compile(r"(https?://.+)?/api/blobs/([0-9a-f]{64})(?:\?.*)?")
_IGNORED = ("data-", "source-", "step-start", "reasoning", "tool-", "dynamic-tool", "custom")
"""Types of parts that a user message may contain but that are not sent to the model."""

ReadBlob = Callable[[str], Awaitable[bytes | None]]
"""Returns the bytes of a digest, or None if this chat does not have them."""


class PostedAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer in the short form, which must include the digest."""

    approval_id: str
    approved: bool
    digest: str
    reason: str | None = None
    answers: JsonObject | None = None
    """Values for the approval's form."""
    remember: Literal["conversation"] | None = None
    """Whether the approval covers further calls of the tool in the conversation."""


class PostedFunction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client function."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str = ""
    schema: JsonObject = {}
    """JSON schema of its arguments."""


class EvidenceBody(Struct, frozen=True):
    """The answer whose citations to check."""

    message: str
    """Id of its message."""


class ChatBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `POST /api/chat`. Unknown fields are ignored, because clients add their own."""

    id: str
    messages: list[JsonObject] = []
    message: JsonObject | None = None
    """The new message alone, instead of `messages`."""
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    leaf: int | None = None
    """Branch to continue. None means the one that changed last."""
    model: str | None = None
    thinking: Literal["off", "on", "low", "medium", "high"] | bool | int | None = None
    tools: list[str] | None = None
    """Names of server-side tools, replacing the agent's."""
    functions: list[PostedFunction] = []
    """Client functions, in addition to the agent's own tools."""
    features: list[str] = []
    approval_id: str | None = None
    approved: bool | None = None
    digest: str | None = None
    reason: str | None = None
    remember: Literal["conversation"] | list[str] | None = None
    """Whether the approval covers further calls of its tool, or the ids of the approvals that do."""
    decisions: list[PostedAnswer] = []

    api: ClassVar[str] = "chat"
    functions_at: ClassVar[tuple[str, str]] = ("functions", "schema")
    """Names of the request field with the functions, and of the field in each with its schema."""

    @property
    def last(self) -> JsonObject:
        """The message that the request sends."""
        return self.message or (self.messages[-1] if self.messages else {})


class PostedMessage(Struct, frozen=True, kw_only=True):
    """A user message."""

    role: Literal["user"]
    parts: list[JsonObject]
    id: str | None = None


def answers_in(body: ChatBody) -> list[Answer]:
    """Return the decisions of a body, from the short forms or from the assistant message of an AI SDK client.

    Raises RequestError if a short form is incomplete.
    """
    if body.decisions:
        return [
            Answer(
                approval_id=one.approval_id,
                approved=one.approved,
                digest=one.digest,
                reason=one.reason,
                values=one.answers,
                remember=one.remember,
            )
            for one in body.decisions
        ]
    if body.approval_id is not None:
        if body.approved is None:
            raise RequestError(400, "approved must be true or false", param="approved")
        if body.digest is None:
            raise RequestError(
                400, "digest is required; send the digest of the arguments that were shown", param="digest"
            )
        return [
            Answer(
                approval_id=body.approval_id,
                approved=body.approved,
                digest=body.digest,
                reason=body.reason,
                remember=_remembered(body, body.approval_id),
            )
        ]
    if body.last.get("role") != "assistant":
        return []
    found: list[Answer] = []
    for part in objects(body.last.get("parts")):
        if (output := _output_in(part)) is not None:
            found.append(output)
        approval = as_object(part.get("approval"))
        id, approved, reason = approval.get("id"), approval.get("approved"), approval.get("reason")
        if part.get("state") == "approval-responded" and isinstance(id, str) and isinstance(approved, bool):
            signature = approval.get("signature")
            found.append(
                Answer(
                    approval_id=id,
                    approved=approved,
                    digest=signature if isinstance(signature, str) else None,
                    reason=reason if isinstance(reason, str) else None,
                    remember=_remembered(body, id) if isinstance(body.remember, list) else None,
                )
            )
    return found


def _remembered(body: ChatBody, approval_id: str) -> Literal["conversation"] | None:
    is_named = isinstance(body.remember, list) and approval_id in body.remember
    return "conversation" if body.remember == "conversation" or is_named else None


def _output_in(part: JsonObject) -> Answer | None:
    """Return a tool result, which counts only if the client had to execute the call."""
    match part:
        case {"toolCallId": str(call), "state": "output-available", "output": output}:
            return Answer(call_id=call, output=output)
        case {"toolCallId": str(call), "state": "output-error", "errorText": str(text)}:
            return Answer(call_id=call, output=text, is_error=True)
        case _:
            return None


async def user_message(body: ChatBody, read_blob: ReadBlob) -> ChatMessage:
    """Return the user message of a body. Raises RequestError if it is missing, empty or invalid."""
    if not body.last:
        raise RequestError(400, "a message is required", param="messages")
    posted = checked(body.last, PostedMessage)
    if posted.id is not None and not (0 < len(posted.id) <= MAX_MESSAGE_ID and posted.id.isprintable()):
        raise RequestError(400, f"id must have 1 to {MAX_MESSAGE_ID} printable characters", param="message.id")
    parts: list[MessagePart] = []
    for index, part in enumerate(posted.parts):
        if (content := await _content(part, f"parts[{index}]", read_blob)) is not None:
            parts.append(content)
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
        raise RequestError(400, "the message is empty", param="parts")
    return ChatMessage("user", tuple(parts), {MESSAGE_ID: posted.id} if posted.id is not None else {})


async def _content(part: JsonObject, at: str, read_blob: ReadBlob) -> MessagePart | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "file", "url": str(url)}:
            kind, name = part.get("mediaType"), part.get("filename")
            return await _file(
                url, kind if isinstance(kind, str) else None, name if isinstance(name, str) else None, at, read_blob
            )
        case {"type": str(kind)} if kind.startswith(_IGNORED):
            return None
        case _:
            raise RequestError(400, f"unsupported message part type {part.get('type')!r:.60}", param=at)


async def _file(url: str, mime_type: str | None, name: str | None, at: str, read_blob: ReadBlob) -> MessagePart:
    if found := _DATA_URL.match(url):
        kind = mime_type or found["type"] or "text/plain"
        text = url[found.end() :]
        if found["parameters"].lower().endswith(";base64"):
            return file_in(unquote(text), f"{at}.url", mime_type=kind, name=name)
        return DataPart(unquote_to_bytes(text), kind, name)
    if found := _BLOB_URL.fullmatch(url):
        if (data := await read_blob(found[2])) is not None:
            return DataPart(data, mime_type or "application/octet-stream", name)
        if found[1] is None:
            raise RequestError(404, "the file does not exist in this chat", type="not_found", param=f"{at}.url")
    if _is_link(url):
        return LinkPart(url, mime_type, name)
    raise RequestError(400, "the URL must be http, https or data:", param=f"{at}.url")


def _is_link(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # Such as brackets without an IP address.
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def functions_in(body: ChatBody) -> tuple[JsonObject, ...]:
    """Return the client functions of a body in the form that jobs use. Raises RequestError if one is invalid."""
    field, schema_name = body.functions_at
    declared: list[Declared] = [
        (f"{field}[{index}]", function.name, function.description, function.schema, None)
        for index, function in enumerate(body.functions)
    ]
    return functions_of(declared, schema_name=schema_name)


def settings_in(body: ChatBody) -> dict[str, Any]:
    """Return the portable settings of a body."""
    return {} if body.thinking is None else {"thinking": body.thinking}
