"""Encodes messages for the API, with files and links as content.

Every call gets exactly one result, right after it. Thinking, approvals and metadata are never sent. Files from the
model and from tools follow in a user message, since other messages cannot contain them.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject
from sidestream.messages.message import (
    NOT_EXECUTED,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    shown_of_result,
)
from sidestream.providers.openai.account import FILE_SCHEME
from sidestream.providers.openai.chat.options import MAX_CALL_ID
from sidestream.providers.shared.attachments import (
    as_base64,
    data_url,
    is_image,
    link_text,
    link_type,
    stored_id,
    text_of,
)
from sidestream.providers.shared.histories import HistoryWriter, hashed_id, input_object, legal_name

AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""The API's format names, by MIME type."""


def text_content(text: str) -> JsonObject:
    """Encode text as content."""
    return {"type": "text", "text": text}


def content_of(part: DataPart | LinkPart, image_detail: str | None) -> JsonObject:
    """Encode a file or a link as content of a message."""
    if isinstance(part, LinkPart):
        return _link(part, image_detail)
    kind = essence(part.mime_type)
    if is_image(kind):
        return _image(data_url(part), image_detail)
    if kind in AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": as_base64(part), "format": AUDIO_FORMATS[kind]}}
    text = text_of(part, kind)
    if text is not None:
        return text_content(f"{part.name or 'A file'}:\n{text}")
    name = part.name or f"file.{media_types.extension(kind)}"
    return {"type": "file", "file": {"filename": name, "file_data": data_url(part)}}


def essence(mime_type: str) -> str:
    """Return the MIME type in lower case, without its parameters."""
    return mime_type.partition(";")[0].strip().lower()


def _link(part: LinkPart, image_detail: str | None) -> JsonObject:
    scheme = part.url.partition(":")[0].lower()
    kind = essence(link_type(part) or "")
    if is_image(kind) and scheme in ("http", "https", "data"):
        return _image(part.url, image_detail)
    if file_id := stored_id(part, FILE_SCHEME):
        return {"type": "file", "file": {"file_id": file_id}}
    data = media_types.from_data_url(part.url)
    if data is not None:
        return content_of(DataPart(data, kind or "text/plain", part.name), image_detail)
    return text_content(link_text(part))


def _image(url: str, detail: str | None) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


SHOWN_BELOW = "The files are in the next message."


class CompletionsTarget(Struct, frozen=True, kw_only=True):
    """Settings for the encoding of messages."""

    instructions_role: str = "system"
    image_detail: str | None = None
    id_length: int | None = None
    custom_tools: frozenset[str] = frozenset()
    """Names of tools with plain text as input."""


def encode_messages(messages: Sequence[ChatMessage], target: CompletionsTarget) -> tuple[list[JsonObject], list[str]]:
    """Encode a history. Returns the messages and warnings."""
    writer = _CompletionsWriter(messages, target)
    for message in messages:
        writer.write(message)
    writer.flush()
    return writer.messages, writer.warnings


class _CompletionsWriter(HistoryWriter):
    """An encoder of a history, with the messages so far."""

    def __init__(self, messages: Sequence[ChatMessage], target: CompletionsTarget) -> None:
        super().__init__(messages)
        self.messages: list[JsonObject] = []
        self._target = target

    def write(self, message: ChatMessage) -> None:
        if message.role in ("system", "model"):
            super().write(message)
            return
        self.settle()
        content = self.content(message.role, message.parts)
        if message.role == "tool":
            self.files += content
        else:
            self.append("user", [*self.taken_files(), *content])

    def instruct(self, text: str) -> None:
        if text.strip():
            self.flush()
            self.messages.append({"role": self._target.instructions_role, "content": text})

    def append(self, role: Role, entries: list[JsonObject]) -> None:
        if role == "tool":
            self.messages += entries
        elif role == "model":
            calls = [entry for entry in entries if entry["type"] != "text"]
            text = "".join(entry["text"] for entry in entries if entry["type"] == "text")
            if calls:
                self.messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
            elif text.strip():
                self.messages.append({"role": "assistant", "content": text})
        elif entries:
            self.messages.append({"role": "user", "content": _plain(entries)})

    def text(self, text: str, role: Role) -> JsonObject | None:
        return text_content(text) if text else None

    def file(self, part: DataPart | LinkPart) -> JsonObject:
        return content_of(part, self._target.image_detail)

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        # The message already contains the model's audio as a transcript.
        return [], [part for part in message.parts if type(part) is not DataPart or not _is_audio(part)]

    def call(self, part: ToolCallPart) -> JsonObject:
        call_id = self._legal_id(part.id)
        name = legal_name(part.name)
        if part.name in self._target.custom_tools and isinstance(part.input, str):
            call: JsonObject = {"id": call_id, "type": "custom", "custom": {"name": name, "input": part.input}}
        else:
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": input_text(part)}}
        return self.expect(part.id, call)

    def _legal_id(self, call_id: str) -> str:
        """Convert an id to a form that the server accepts, always the same for the same history."""
        length = self._target.id_length
        legal = 0 < len(call_id) <= MAX_CALL_ID
        if length is not None:
            legal = re.fullmatch(rf"[a-zA-Z0-9]{{{length}}}", call_id) is not None
        wanted = call_id if legal else hashed_id(call_id, length)
        return self.unique_id(wanted, lambda number: hashed_id(f"{call_id}\0{number}", length))

    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        return {"role": "tool", "tool_call_id": call["id"], "content": self._result_text(result)}

    def _result_text(self, result: ToolResultPart | None) -> str:
        """Encode a result as text, or as JSON if it is neither text nor content. Files follow in a separate message."""
        if result is None:
            return NOT_EXECUTED
        if isinstance(result.result, str):
            return result.result
        shown = shown_of_result(result.result)
        if not shown:
            return jsontext.dumps(result.result).decode()
        texts = [part.text for part in shown if isinstance(part, TextPart)]
        self.files += [self.file(part) for part in shown if not isinstance(part, TextPart)]
        return "\n".join([*texts, SHOWN_BELOW])


def _is_audio(part: DataPart) -> bool:
    return essence(part.mime_type).startswith("audio/")


def input_text(part: ToolCallPart) -> str:
    """Encode the input as a JSON object, since servers that parse it fail on anything else."""
    return jsontext.dumps(input_object(part)).decode()


def _plain(content: list[JsonObject]) -> str | list[JsonObject]:
    """Reduce a single text entry to a string, which every server accepts."""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content
