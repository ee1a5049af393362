"""Replay of a message: its parts as they arrived, with the current content of the message."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import (
    ChatMessage,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from sidestream.messages.replays import Replays
from sidestream.providers.google.context import SESSION_KEY
from sidestream.providers.google.decode.outcome import text_digest
from sidestream.providers.shared.attachments import as_base64
from sidestream.providers.shared.histories import UnsentParts

_OF_HOSTED = ("toolCall", "toolResponse")

Replayed = tuple[list[tuple[str | None, JsonObject]], list[MessagePart]]
"""Parts to send, each with its call id if it is a call; and the parts of the message that they do not cover."""


class PartLayout(Struct, frozen=True):
    """The parts of one message, as its session stores them."""

    parts: list[JsonObject]
    texts: JsonObject
    """Text id → digest of its text, to detect edits."""
    same_model: bool

    def replay(self, message: ChatMessage, *, has_tools: bool) -> Replayed:
        """Edited parts are sent without their signature; removed ones are left out."""
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
            return None  # Only the model that wrote them can read them.
        return part

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
            # Edited: the whole text replaces its first slice.
            return {"text": text, **flags} if start == 0 or start is None else None
        if "thoughtSignature" in entry:
            flags["thoughtSignature"] = entry["thoughtSignature"]
        return {"text": text[start:end], **flags} if start < end or "thoughtSignature" in entry else None


class _LayoutParts(UnsentParts):
    """The parts of a message that the layout has not covered yet."""

    def __init__(self, parts: Sequence[MessagePart]) -> None:
        super().__init__(parts)
        self._texts: dict[Any, str | None] = {}  # several slices may be of one text

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
        found = self.take_file(digest)
        if found is None:
            return None
        return {**part, "inlineData": {**part.get("inlineData", {}), "data": as_base64(found)}}

    def link(self, url: Any, part: JsonObject) -> JsonObject | None:
        return None if self.take(url, LinkPart) is None else part


def layout_of(message: ChatMessage, model: str, base_url: str, replays: Replays) -> PartLayout | None:
    """The layout of a message; None if another server wrote it, or it is not there."""
    session = message.metadata.get(SESSION_KEY)
    if not is_object(session) or session.get("base_url") not in (None, base_url):
        return None
    parts = replays.read(session, "parts")
    if parts is None:
        return None
    texts = session.get("texts")
    return PartLayout(parts, texts if is_object(texts) else {}, session.get("model") in (None, model))
