"""A message's own layout: its parts as they came, filled with what the message holds now."""

import base64
from typing import Any

from msgspec import Struct

from sidestream import deliverables
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.messages.message import (
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from sidestream.providers.google.context import SESSION_KEY
from sidestream.providers.google.outcome import text_digest

_OF_HOSTED = ("toolCall", "toolResponse")

Replayed = tuple[list[tuple[str | None, JsonObject]], list[MessagePart]]
"""Parts to send, each with the call that it makes if it makes one; and the parts of the message they do not cover."""


class Layout(Struct, frozen=True):
    """The parts of one message, as its session keeps them."""

    parts: list[JsonObject]
    texts: JsonObject
    """Block → digest of its text, so that an edit is seen."""
    same_model: bool

    def replay(self, message: ChatMessage, *, has_tools: bool) -> Replayed:
        """What was edited goes as it is now, without the signature it had; what was removed stays away."""
        rest = _Rest(message)
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
        return out, rest.uncovered()

    def _part(self, entry: JsonObject, rest: "_Rest") -> JsonObject | None:
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
            return None  # Only the model that made them can read them.
        return part

    def _text(self, entry: JsonObject, rest: "_Rest") -> JsonObject | None:
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
            # Edited: all of it stands in the place of its first slice.
            return {"text": text, **flags} if start == 0 or start is None else None
        if "thoughtSignature" in entry:
            flags["thoughtSignature"] = entry["thoughtSignature"]
        return {"text": text[start:end], **flags} if start < end or "thoughtSignature" in entry else None


class _Rest:
    """The parts of a message, and which of them the layout has covered."""

    def __init__(self, message: ChatMessage) -> None:
        self._parts = list(message.parts)
        self._covered: set[int] = set()

    def uncovered(self) -> list[MessagePart]:
        return [part for place, part in enumerate(self._parts) if place not in self._covered]

    def text(self, text_id: Any) -> str | None:
        for place, part in enumerate(self._parts):
            if isinstance(part, TextPart | ThinkingPart) and part.id == text_id:
                self._covered.add(place)
                return part.text
        return None

    def call(self, call_id: Any, part: JsonObject) -> JsonObject | None:
        for place, found in enumerate(self._parts):
            if isinstance(found, ToolCallPart) and found.id == call_id and place not in self._covered:
                self._covered.add(place)
                call: JsonObject = dict(part["functionCall"])
                if found.input_text is None and found.input != call.get("args"):
                    call["args"] = found.input if is_object(found.input) else {"input": found.input}
                    part.pop("thoughtSignature", None)
                return {**part, "functionCall": call}
        return None

    def file(self, digest: Any, part: JsonObject) -> JsonObject | None:
        for place, found in enumerate(self._parts):
            if (
                isinstance(found, DataPart)
                and place not in self._covered
                and deliverables.digest(found.bytes) == digest
            ):
                self._covered.add(place)
                data = base64.b64encode(found.bytes).decode()
                return {**part, "inlineData": {**part.get("inlineData", {}), "data": data}}
        return None

    def link(self, url: Any, part: JsonObject) -> JsonObject | None:
        for place, found in enumerate(self._parts):
            if isinstance(found, LinkPart) and found.url == url and place not in self._covered:
                self._covered.add(place)
                return part
        return None


def layout_of(message: ChatMessage, model: str, base_url: str) -> Layout | None:
    """The layout of a message that this server wrote."""
    session = message.metadata.get(SESSION_KEY)
    if not is_object(session) or session.get("base_url") not in (None, base_url) or not is_array(session.get("parts")):
        return None
    texts = session.get("texts")
    return Layout(objects(session["parts"]), texts if is_object(texts) else {}, session.get("model") in (None, model))
