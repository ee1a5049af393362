"""Conversion of messages to contents.

Messages of this provider are resent as the parts they arrived as, with signatures in place, unless they were edited.
All others are encoded from their parts. Every call gets exactly one response. Metadata of other providers is never
sent.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_object, is_object
from sidestream.messages.message import (
    NOT_EXECUTED,
    ChatMessage,
    Content,
    DataPart,
    LinkPart,
    MessagePart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    shown_of_result,
)
from sidestream.messages.references import Replays
from sidestream.providers.google.computer import ACKNOWLEDGEMENT
from sidestream.providers.google.context import PROVIDER_NAME, SESSION_KEY
from sidestream.providers.google.decode.outcome import text_digest
from sidestream.providers.google.files import FILE_SCHEME
from sidestream.providers.shared.attachments import PAGES, as_base64, link_text, link_type, stored_id
from sidestream.providers.shared.histories import HistoryWriter, UnsentParts, input_object, legal_name

_OF_HOSTED = ("toolCall", "toolResponse")

DELIVERED = "[A file that was delivered to the user]"
"""Text in place of a file that code has made."""
Replayed = tuple[list[tuple[str | None, JsonObject]], list[MessagePart]]
"""Parts to send, each with its call id if it is a call, and the message parts that they do not cover."""


class PartLayout(Struct, frozen=True):
    """The parts of one message, as its session stores them."""

    parts: list[JsonObject]
    texts: JsonObject
    """Digests of the texts, by text id, to detect edits."""
    same_model: bool

    def replay(self, message: ChatMessage, *, has_tools: bool) -> Replayed:
        """Return the parts to resend. Edited parts lose their signature, and removed ones are left out."""
        rest = _LayoutParts(message.parts)
        out: list[tuple[str | None, JsonObject]] = []
        for entry in self.parts:
            call_id = entry.get("call_id")
            part = self._part(entry, rest)
            if part is None or (not has_tools and any(key in part for key in _OF_HOSTED)):
                continue
            if not self.same_model:
                part.pop("thoughtSignature", None)
            if part == {"text": ""}:
                continue
            out.append((call_id if isinstance(call_id, str) else None, part))
        return out, rest.rest

    def _part(self, entry: JsonObject, rest: "_LayoutParts") -> JsonObject | None:
        if "text_id" in entry:
            return self._text(entry, rest)
        given = entry.get("part")
        if not is_object(given):
            return None
        part = dict(given)
        if "call_id" in entry:
            return rest.call(entry["call_id"], part)
        if "file" in entry:
            return rest.file(entry["file"], part)
        if "link" in entry:
            return rest.link(entry["link"], part)
        if not self.same_model and any(key in part for key in _OF_HOSTED):
            return None  # only the model that wrote them can read them
        return _without_file(part)

    def _text(self, entry: JsonObject, rest: "_LayoutParts") -> JsonObject | None:
        text = rest.text(entry["text_id"])
        if text is None:
            return None
        flags: JsonObject = {"thought": True} if entry.get("thought") else {}
        start, end = entry.get("start"), entry.get("end")
        if (
            not isinstance(start, int)
            or not isinstance(end, int)
            or self.texts.get(entry["text_id"]) != text_digest(text)
        ):
            # An edited text replaces its first slice as a whole.
            return {"text": text, **flags} if start == 0 or start is None else None
        if "thoughtSignature" in entry:
            flags["thoughtSignature"] = entry["thoughtSignature"]
        return {"text": text[start:end], **flags} if start < end or "thoughtSignature" in entry else None


def _without_file(part: JsonObject) -> JsonObject:
    """Return a result of code without the file that it printed as a `data:` URL, which was delivered to the user."""
    ran = as_object(part.get("codeExecutionResult"))
    output = ran.get("output")
    if not isinstance(output, str) or not output.lstrip().startswith("data:") or "thoughtSignature" in part:
        return part
    return {**part, "codeExecutionResult": {**ran, "output": DELIVERED}}


class _LayoutParts(UnsentParts):
    """The parts of a message that the layout has not covered yet."""

    def __init__(self, parts: Sequence[MessagePart]) -> None:
        super().__init__(parts)
        self._texts: dict[Any, str | None] = {}  # several slices may belong to one text

    def text(self, text_id: Any) -> str | None:
        if text_id not in self._texts:
            part = self.take(text_id, TextPart, ThinkingPart)
            self._texts[text_id] = None if part is None else part.text
        return self._texts[text_id]

    def call(self, call_id: Any, part: JsonObject) -> JsonObject | None:
        found = self.take(call_id, ToolCallPart)
        if found is None:
            return None
        call: JsonObject = dict(part["functionCall"])
        if found.input_text is None and found.input != call.get("args"):
            call["args"] = found.input if is_object(found.input) else {"input": found.input}
            part.pop("thoughtSignature", None)
        return {**part, "functionCall": call}

    def file(self, digest: Any, part: JsonObject) -> JsonObject | None:
        if "thoughtSignature" not in part and self.is_made(digest):
            return None
        found = self.take_file(digest)
        if found is None:
            return None
        return {**part, "inlineData": {**part.get("inlineData", {}), "data": as_base64(found)}}

    def link(self, url: Any, part: JsonObject) -> JsonObject | None:
        return None if self.take(url, LinkPart) is None else part


def layout_of(message: ChatMessage, model: str, base_url: str, replays: Replays) -> PartLayout | None:
    """Return the layout of a message, or None if another server wrote it or it is missing."""
    session = message.metadata.get(SESSION_KEY)
    if not is_object(session) or session.get("base_url") not in (None, base_url):
        return None
    parts = replays.read(session, "parts")
    if parts is None:
        return None
    texts = session.get("texts")
    return PartLayout(parts, texts if is_object(texts) else {}, session.get("model") in (None, model))


UNSIGNED = "skip_thought_signature_validator"
"""Google's placeholder for the signature of a call that none of its models signed."""

FILES_BESIDE = "See the attached files."
"""Output of a tool that returned only files."""

_ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")
_VIDEO_PAGES = re.compile(r"https?://(www\.)?(youtube\.com/watch|youtu\.be/)")


class ContentsTarget(Struct, frozen=True, kw_only=True):
    """The model and server that the contents are for."""

    model: str
    base_url: str
    replays: Replays
    signs_calls: bool = False
    """Whether the model refuses calls without a signature."""
    has_tools: bool = True
    """Whether the request has tools. Without them it must not contain calls of hosted tools."""


def encode_contents(messages: Sequence[ChatMessage], target: ContentsTarget) -> tuple[list[JsonObject], list[str]]:
    """Return the contents, and warnings."""
    writer = _ContentsWriter(messages, target)
    for message in messages:
        writer.write(message)
    writer.flush()
    return writer.contents, list(dict.fromkeys(writer.warnings))


class _ContentsWriter(HistoryWriter):
    """A writer of contents. System messages are encoded by `system_instruction`."""

    def __init__(self, messages: Sequence[ChatMessage], target: ContentsTarget) -> None:
        super().__init__(messages)
        self.contents: list[JsonObject] = []
        self._target = target

    def append(self, role: Role, entries: list[JsonObject]) -> None:
        if not entries:
            return
        last = self.contents[-1] if self.contents else None
        if role == "model":
            self._sign(entries)
        if role == "model" and last is not None and last["role"] == "model":
            last["parts"] += entries
        else:
            self.contents.append({"role": "model" if role == "model" else "user", "parts": entries})

    def text(self, text: str, role: Role) -> JsonObject | None:
        return {"text": text} if text else None

    def thinking(self, part: ThinkingPart) -> JsonObject | None:
        if part.signature is None or part.provider != PROVIDER_NAME:
            return None
        return {"text": part.text, "thought": True, "thoughtSignature": part.signature}

    def file(self, part: DataPart | LinkPart) -> JsonObject:
        return content_of(part)

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        layout = layout_of(message, self._target.model, self._target.base_url, self._target.replays)
        if layout is None:
            return [], message.parts
        parts, rest = layout.replay(message, has_tools=self._target.has_tools)
        return [part if call_id is None else self.expect(call_id, part) for call_id, part in parts], rest

    def call(self, part: ToolCallPart) -> JsonObject:
        return self.expect(part.id, _function_call(part))

    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        called = call["functionCall"]
        body: JsonObject = {"id": called["id"]} if "id" in called else {}
        return {"functionResponse": {**body, "name": called["name"], **response_of(result)}}

    def _sign(self, parts: list[JsonObject]) -> None:
        """Mark the first call of a message as unsigned if the model requires signatures and no call has one."""
        calls = [part for part in parts if "functionCall" in part]
        if self._target.signs_calls and calls and not any("thoughtSignature" in part for part in calls):
            calls[0]["thoughtSignature"] = UNSIGNED


def response_of(result: ToolResultPart | None) -> JsonObject:
    """Convert a tool result to an object with `output` or `error`, and its files to parts."""
    if result is None:
        return {"response": {"error": NOT_EXECUTED}}
    acknowledged = {ACKNOWLEDGEMENT: "true"} if result.acknowledged else {}
    shown = [_shown(part) for part in shown_of_result(result.result)]
    if not shown:
        return {"response": {"error" if result.is_error else "output": result.result, **acknowledged}}
    text = "\n".join(entry["text"] for entry in shown if "text" in entry)
    files = [entry for entry in shown if "text" not in entry]
    response = {"error" if result.is_error else "output": text or FILES_BESIDE, **acknowledged}
    return {"response": response, **({"parts": files} if files else {})}


def _shown(part: Content) -> JsonObject:
    return {"text": part.text} if isinstance(part, TextPart) else content_of(part)


def _function_call(part: ToolCallPart) -> JsonObject:
    """Encode a call without its id, since the API refuses ids that it did not generate."""
    name = legal_name(part.name, illegal=_ILLEGAL_IN_NAME)
    return {
        "functionCall": {"name": name if name[0].isalpha() or name[0] == "_" else f"_{name}", "args": input_of(part)}
    }


def input_of(part: ToolCallPart) -> JsonObject:
    """Return the input of a call as an object. Text that is not valid JSON is marked as such."""
    return input_object(part) if part.input_text is None else {"invalid_arguments": part.input_text}


def content_of(part: DataPart | LinkPart) -> JsonObject:
    """Encode bytes inline, a link as a file if its type is known and not a web page, and any other link as text."""
    if isinstance(part, DataPart):
        return {"inlineData": {"mimeType": part.mime_type, "data": as_base64(part)}}
    inline = media_types.split_data_url(part.url)
    if inline is not None and inline[1]:
        return {"inlineData": {"mimeType": inline[0] or "text/plain", "data": inline[2]}}
    kind = link_type(part)
    if uri := stored_id(part, FILE_SCHEME):
        return {"fileData": {"fileUri": uri, "mimeType": kind or "application/octet-stream"}}
    if _VIDEO_PAGES.match(part.url):
        return {"fileData": {"fileUri": part.url}}
    if part.url.startswith(("https://", "http://", "gs://")) and kind and kind not in PAGES:
        return {"fileData": {"fileUri": part.url, "mimeType": kind}}
    return {"text": link_text(part)}


def system_instruction(messages: Sequence[ChatMessage], system: str | None) -> Any:
    """Return the request's system prompt together with the history's system messages."""
    texts = [system, *(message.text for message in messages if message.role == "system")]
    parts = [{"text": text} for text in texts if text]
    return {"parts": parts} if parts else None
