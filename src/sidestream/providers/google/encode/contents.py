"""Messages → contents.

Messages of this provider are replayed as the parts they arrived as, with signatures in place, as far as they are
unedited; all others are encoded from their parts. Every call gets exactly one response. Metadata of other providers is
never sent.
"""

import re
from collections.abc import Sequence
from typing import Any, assert_never

from msgspec import Struct

from sidestream.jsontext import JsonObject
from sidestream.messages.message import (
    NOT_EXECUTED,
    ApprovalPart,
    ChatMessage,
    Content,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    content_of_result,
)
from sidestream.messages.replays import Replays
from sidestream.providers.google.computer import ACKNOWLEDGEMENT
from sidestream.providers.google.encode.replay import layout_of
from sidestream.providers.google.files import FILE_SCHEME
from sidestream.providers.shared.attachments import PAGES, as_base64, link_text, link_type, stored_id
from sidestream.providers.shared.histories import FILES_ABOVE, ToolResults, input_object, legal_name

UNSIGNED = "skip_thought_signature_validator"
"""Google's placeholder for the signature of a call that none of its models signed."""

FILES_BESIDE = "See the attached files."
"""The output of a tool that gave nothing but files."""

_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")
_VIDEO_PAGES = re.compile(r"https?://(www\.)?(youtube\.com/watch|youtu\.be/)")


class ContentsTarget(Struct, frozen=True, kw_only=True):
    """The model and server that the contents are for."""

    model: str
    base_url: str
    replays: Replays
    signs_calls: bool = False
    """True: the model refuses calls without a signature."""
    has_tools: bool = True
    """False: the request has no tools, so it must not contain calls of hosted tools."""


def encode_contents(messages: Sequence[ChatMessage], target: ContentsTarget) -> tuple[list[JsonObject], list[str]]:
    """The contents and warnings."""
    encoder = _ContentsEncoder(messages, target)
    for message in messages:
        encoder.message(message)
    return encoder.contents, list(dict.fromkeys(encoder.warnings))


class _ContentsEncoder:
    """The contents so far, and the results that no call has claimed yet."""

    def __init__(self, messages: Sequence[ChatMessage], target: ContentsTarget) -> None:
        self.contents: list[JsonObject] = []
        self.warnings: list[str] = []
        self._target = target
        self._results = ToolResults(messages)

    def message(self, message: ChatMessage) -> None:
        """Appends the contents of a message. System messages are encoded by `system_instruction`."""
        if message.role == "model":
            self._model_message(message)
        elif message.role != "system":
            parts = [entry for part in message.parts if (entry := self._user_part(part)) is not None]
            self._append("user", parts)

    def _user_part(self, part: MessagePart) -> JsonObject | None:
        match part:
            case TextPart():
                return {"text": part.text} if part.text else None
            case DataPart() | LinkPart():
                return content_of(part)
            case ToolResultPart():
                self.warnings += self._results.warnings_for(part)
                return None
            case ThinkingPart() | ToolCallPart() | ApprovalPart():
                return None
            case _:
                assert_never(part)

    def _model_message(self, message: ChatMessage) -> None:
        layout = layout_of(message, self._target.model, self._target.base_url, self._target.replays)
        parts, rest = (
            ([], list(message.parts)) if layout is None else layout.replay(message, has_tools=self._target.has_tools)
        )
        answers = [self._answer(call_id, part) for call_id, part in parts if call_id is not None]
        encoded = [part for _, part in parts]
        files: list[JsonObject] = []
        for part in rest:
            if isinstance(part, TextPart) and part.text:
                encoded.append({"text": part.text})
            elif isinstance(part, ToolCallPart):
                call = _function_call(part)
                encoded.append(call)
                answers.append(self._answer(part.id, call))
            elif isinstance(part, DataPart | LinkPart):
                files.append(content_of(part))
        self._sign(encoded)
        self._append("model", encoded)
        self._append("user", answers)
        self._append("user", [{"text": FILES_ABOVE}, *files] if files else [])

    def _sign(self, parts: list[JsonObject]) -> None:
        """A model that signs its calls requires a signature on the first call of each message."""
        calls = [part for part in parts if "functionCall" in part]
        if self._target.signs_calls and calls and not any("thoughtSignature" in part for part in calls):
            calls[0]["thoughtSignature"] = UNSIGNED

    def _answer(self, call_id: str, part: JsonObject) -> JsonObject:
        call = part["functionCall"]
        result = self._results.claim(call_id)
        body: JsonObject = {"id": call["id"]} if "id" in call else {}
        return {"functionResponse": {**body, "name": call["name"], **response_of(result)}}

    def _append(self, role: str, parts: list[JsonObject]) -> None:
        if not parts:
            return
        last = self.contents[-1] if self.contents else None
        if role == "model" and last is not None and last["role"] == "model":
            last["parts"] += parts
        else:
            self.contents.append({"role": role, "parts": parts})


def response_of(result: ToolResultPart | None) -> JsonObject:
    """A tool's result as the API expects it: an object with `output` or `error`, and files as parts beside it."""
    if result is None:
        return {"response": {"error": NOT_EXECUTED}}
    acknowledged = {ACKNOWLEDGEMENT: "true"} if result.acknowledged else {}
    shown = [_shown(part) for part in content_of_result(result.result)]
    if not shown:
        return {"response": {"error" if result.is_error else "output": result.result, **acknowledged}}
    text = "\n".join(entry["text"] for entry in shown if "text" in entry)
    files = [entry for entry in shown if "text" not in entry]
    response = {"error" if result.is_error else "output": text or FILES_BESIDE, **acknowledged}
    return {"response": response, **({"parts": files} if files else {})}


def _shown(part: Content) -> JsonObject:
    return {"text": part.text} if isinstance(part, TextPart) else content_of(part)


def _function_call(part: ToolCallPart) -> JsonObject:
    """A call without its id: the API refuses ids that it did not generate."""
    name = legal_name(part.name, illegal=_ILLEGAL_IN_NAME)
    return {
        "functionCall": {"name": name if name[0].isalpha() or name[0] == "_" else f"_{name}", "args": input_of(part)}
    }


def input_of(part: ToolCallPart) -> JsonObject:
    """The input of a call as an object; text that was no JSON is marked as such."""
    return input_object(part) if part.input_text is None else {"invalid_arguments": part.input_text}


def content_of(part: DataPart | LinkPart) -> JsonObject:
    """Bytes are sent inline. A link is sent as a file if its type is known and is not a page; else as text."""
    if isinstance(part, DataPart):
        return {"inlineData": {"mimeType": part.mime_type, "data": as_base64(part)}}
    inline = _inline(part.url)
    if inline is not None:
        return inline
    kind = link_type(part)
    if uri := stored_id(part, FILE_SCHEME):
        return {"fileData": {"fileUri": uri, "mimeType": kind or "application/octet-stream"}}
    if _VIDEO_PAGES.match(part.url):
        return {"fileData": {"fileUri": part.url}}
    if part.url.startswith(("https://", "http://", "gs://")) and kind and kind not in PAGES:
        return {"fileData": {"fileUri": part.url, "mimeType": kind}}
    return {"text": link_text(part)}


def _inline(url: str) -> JsonObject | None:
    head, comma, body = url.partition(",")
    if not url.startswith("data:") or not comma or not head.endswith(";base64"):
        return None
    return {"inlineData": {"mimeType": head[5:].partition(";")[0] or "text/plain", "data": body}}


def system_instruction(messages: Sequence[ChatMessage], system: str | None) -> Any:
    """The request's system prompt and the system messages of the history."""
    texts = [system, *(message.text for message in messages if message.role == "system")]
    parts = [{"text": text} for text in texts if text]
    return {"parts": parts} if parts else None
