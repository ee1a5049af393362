"""Conversion of text and reasoning blocks to content parts of a response's items.

Consecutive blocks of one provider message become parts of one item. An item ends when something else begins, so
that sources arriving after a block's end can still annotate it.
"""

import re
from typing import Literal

from sidestream import parts
from sidestream.jsontext import Json, JsonObject, as_list, as_object
from sidestream.protocols.responses.items import annotation_of
from sidestream.protocols.responses.stream import OpenItem, OpenPart, PartKind, ResponseStream

_NUMBER = re.compile(r"(?::summary|:content)?:\d+$")

Kind = Literal["message", "reasoning"]


SIGNED = "sss1_"
"""Prefix of an encrypted content that is a provider's signature of the reasoning's text."""


class _Block:
    """A block of the stream and the content part it becomes."""

    __slots__ = ("is_ended", "item", "kind", "known", "part", "repeats", "said", "sources")

    def __init__(self, item: OpenItem, kind: PartKind) -> None:
        self.item = item
        self.kind: PartKind = kind
        self.part: OpenPart | None = None
        self.is_ended = False
        self.repeats: str | None = None
        """Text of an interrupted step that the repeated step has not sent again yet. None means there is no more."""
        self.said = ""
        """Text that the repeated step has sent again so far."""
        self.sources: list[JsonObject] = []
        self.known: list[JsonObject] = []
        """Annotations so far."""


class TextItems:
    """The messages and reasoning items of one response."""

    def __init__(self, stream: ResponseStream, *, encrypted: bool) -> None:
        self._stream = stream
        self._has_encrypted = encrypted
        self.has_refusal = False
        """Whether the model has refused explicitly, in a refusal part."""
        self._blocks: dict[str, _Block] = {}
        self._early: dict[str, list[parts.Source]] = {}
        """Sources of blocks that have not begun, by block id. Logs store a block where it ends, after its sources."""
        self._cited: list[JsonObject] = []
        """File citations that wait for text to annotate."""
        self._known_files: set[str] = set()
        """Ids of files that the provider itself cites."""
        self._current: tuple[OpenItem, str] | None = None
        """The open item, and the id prefix that its blocks share."""
        self._made: list[OpenItem] = []
        """Items of the current step."""
        self._again: list[OpenItem] = []
        """Items of an interrupted step that the repeated step may continue."""

    # Blocks

    def text_start(self, part: parts.TextStart) -> None:
        """Open a block of text, and add its pending sources and citations."""
        details = [as_object(fields) for fields in (part.provider_metadata or {}).values()]
        phase = next((found["phase"] for found in details if isinstance(found.get("phase"), str)), None)
        is_refusal = any(found.get("refusal") is True for found in details)
        self.has_refusal = self.has_refusal or is_refusal
        fields: JsonObject = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        if phase is not None:
            fields["phase"] = phase
        block = self._open(part.id, "message", fields, "refusal" if is_refusal else "output_text")
        if block.part is None and block.repeats is None:
            block.part = self._stream.add_part(block.item, block.kind)
        for source in self._early.pop(part.id, ()):
            self.source(source)
        if block.part is not None and block.kind == "output_text":
            for annotation in self._cited:
                self._stream.annotate(block.item, block.part, annotation)
            self._cited = []

    def text_delta(self, part: parts.TextDelta) -> None:
        """Emit a delta of text, with its log probabilities if there are any."""
        found = [as_list(as_object(fields).get("logprobs")) for fields in (part.provider_metadata or {}).values()]
        self._grow(part.id, part.delta, next((logprobs for logprobs in found if logprobs), None))

    def text_end(self, part: parts.TextEnd) -> None:
        """End a block of text."""
        self._end(part.id, part.text)

    def reasoning_start(self, part: parts.ReasoningStart) -> None:
        """Open a block of reasoning. Its part is added with the first text, because most reasoning has none."""
        fields: JsonObject = {"type": "reasoning", "summary": []}
        self._open(part.id, "reasoning", fields, "summary_text")

    def reasoning_delta(self, part: parts.ReasoningDelta) -> None:
        """Emit a reasoning delta."""
        self._grow(part.id, part.delta)

    def reasoning_end(self, part: parts.ReasoningEnd) -> None:
        """End a block of reasoning."""
        block = self._blocks.get(part.id)
        content = part.encrypted_content or (f"{SIGNED}{part.signature}" if part.signature else None)
        if block is not None and content is not None and self._has_encrypted and block.item.is_open:
            block.item.fields = {**block.item.fields, "encrypted_content": content}
        self._end(part.id, part.text)

    def source(self, part: parts.Source) -> None:
        """Annotate the source's block, or the open one if the source names none."""
        if part.text_id is not None and part.text_id not in self._blocks:
            self._early.setdefault(part.text_id, []).append(part)
            return
        block = self._blocks[part.text_id] if part.text_id is not None else self._last_text()
        annotation = annotation_of(part)
        if annotation is not None and annotation["type"] == "container_file_citation":
            self._known_files.add(annotation["file_id"])
        if block is None or annotation is None or not block.item.is_open or block.kind != "output_text":
            return
        if annotation in block.known:
            return  # A checked source is reported again.
        block.known.append(annotation)
        if self._stream.dialect == "open-responses" and annotation["type"] != "url_citation":
            return  # The specification has URL citations only.
        if block.part is not None and block.part.is_open:
            self._stream.annotate(block.item, block.part, annotation)
        elif block.part is None:
            block.sources.append(annotation)

    def cite(self, annotation: JsonObject, file: str) -> None:
        """Annotate the open text, or else the next one, with a file, unless the provider has cited the file itself."""
        if file in self._known_files:
            return
        block = self._last_text()
        if block is not None and block.part is not None and block.part.is_open:
            at = len(block.part.text)
            self._stream.annotate(block.item, block.part, {**annotation, "start_index": at, "end_index": at})
        else:
            self._cited.append(annotation)

    def end_citations(self) -> None:
        """Emit an empty message to hold the file citations that had no text to annotate."""
        if not self._cited:
            return
        fields: JsonObject = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        item = self._stream.add({"id": self._stream.next_id("message"), **fields})
        part = self._stream.add_part(item, "output_text")
        for annotation in self._cited:
            self._stream.annotate(item, part, annotation)
        self._cited = []
        self._done(item, is_cut=False)

    # Items

    def continues(self, part: parts.StreamPart) -> bool:
        """Return whether the open item stays open because the part belongs to it or produces no output."""
        if self._current is None:
            return True
        item, name = self._current
        match part:
            case parts.TextStart():
                return item.type == "message" and _name(part.id) == name and _phase(part) == item.fields.get("phase")
            case parts.ReasoningStart():
                return item.type == "reasoning" and _name(part.id) == name
            case parts.TextDelta() | parts.TextEnd() | parts.ReasoningDelta() | parts.ReasoningEnd():
                return (block := self._blocks.get(part.id)) is not None and block.item is item
            case parts.Source():
                return True
            case _:
                return part.type in _SILENT

    def leave(self) -> None:
        """End the open item, or let it end with its last open block."""
        if self._current is None:
            return
        item, _ = self._current
        self._current = None
        if all(block.is_ended for block in self._blocks.values() if block.item is item):
            self._done(item, is_cut=False)

    def end_step(self, *, is_cut: bool) -> None:
        """End the items of the step."""
        self._current = None
        for item in self._again:
            self._done(item, is_cut=True)
        for item in self._made:
            self._done(item, is_cut=is_cut)
        self._blocks, self._early, self._made, self._again = {}, {}, [], []

    def interrupt(self) -> None:
        """Keep the items of an interrupted step open, so that the repeated step can continue them."""
        self._again = [*self._made]
        self._current = None
        self._blocks, self._early, self._made = {}, {}, []

    def diverged(self) -> None:
        """End the items of the interrupted step, because the repeated step differs from it."""
        again, self._again = self._again, []
        for item in again:
            self._done(item, is_cut=True)

    # Emitting items

    def _open(self, id: str, kind: Kind, fields: JsonObject, part: PartKind) -> _Block:
        name = _name(id)
        if self._current is not None and self._current[1] == name and self._current[0].type == kind:
            self._end_open_part(self._current[0])
            block = self._blocks[id] = _Block(self._current[0], part)
            return block
        if self._again and (item := self._again[0]).type == kind and len(item.parts) <= 1:
            self._again.pop(0)
            block = self._blocks[id] = _Block(item, part)
            block.part = item.parts[0] if item.parts else None
            block.repeats = block.part.text if block.part is not None else ""
        else:
            self.diverged()
            item = self._stream.add({"id": self._stream.next_id(kind), **fields})
            block = self._blocks[id] = _Block(item, part)
        self._made.append(item)
        self._current = (item, name)
        return block

    def _grow(self, id: str, text: str, logprobs: list[Json] | None = None) -> None:
        block = self._blocks.get(id)
        if block is None or not text:
            return
        if block.repeats is not None:
            text = self._unsaid(block, text)
            block = self._blocks[id]
            if not text:
                return
        if not block.item.is_open:
            self._replace(block)
        if block.part is None or not block.part.is_open:
            self._end_open_part(block.item)  # Only one part of an item can be open.
            block.part = self._stream.add_part(block.item, block.kind)
        self._stream.delta(block.item, block.part, text, logprobs)

    def _unsaid(self, block: _Block, text: str) -> str:
        """Return the text that was not sent before the step was interrupted."""
        repeats = block.repeats or ""
        if repeats.startswith(text):
            block.said, block.repeats = block.said + text, repeats[len(text) :]
            return ""
        is_whole = block.part is None or block.part.is_open
        if text.startswith(repeats) and is_whole and block.item.is_open:
            block.repeats = None
            return text[len(repeats) :]
        said = block.said + text
        self._replace(block)
        return said

    def _replace(self, block: _Block) -> None:
        """Continue a block in a new item, because its text differs from what was sent."""
        old, kind = block.item, block.item.type
        if old in self._made:
            self._made.remove(old)
        self._done(old, is_cut=True)
        self.diverged()
        fields: JsonObject = {**old.fields, "id": self._stream.next_id(kind)}
        fields |= {"status": "in_progress"} if "status" in fields else {}
        fields["content" if kind == "message" else "summary"] = []
        block.item = self._stream.add(fields)
        block.part, block.repeats = None, None
        self._made.append(block.item)
        if self._current is not None:
            self._current = (block.item, self._current[1])

    def _end(self, id: str, final: str | None) -> None:
        block = self._blocks.get(id)
        if block is None or block.is_ended:
            return
        if block.repeats and final is None:
            said = block.said  # The repeated block is shorter.
            self._replace(block)
            self._grow(id, said)
        elif final is not None:
            self._supersede(id, block, final)
        block.is_ended = True
        block.repeats = None
        if block.part is not None:
            for annotation in block.sources:
                if block.part.is_open:
                    self._stream.annotate(block.item, block.part, annotation)
            block.sources = []
        if self._current is None or self._current[0] is not block.item:
            self._done(block.item, is_cut=False)

    def _supersede(self, id: str, block: _Block, final: str) -> None:
        """Correct a block whose final text differs from its deltas.

        Missing text is sent as a delta. Other text replaces the streamed one in the events that end the part.
        """
        if block.repeats is not None:
            self._grow(id, final.removeprefix(block.said))
            return
        streamed = block.part.text if block.part is not None else ""
        if final.startswith(streamed):
            self._grow(id, final[len(streamed) :])
        elif block.part is not None and block.part.is_open:
            block.part.texts, block.part.logprobs = [final], []
        else:
            block.part = None
            self._grow(id, final)

    def _done(self, item: OpenItem, *, is_cut: bool) -> None:
        if not item.is_open:
            return
        self._end_open_part(item)
        has_status = item.type == "message" or "status" in item.fields
        self._stream.done(item, **({"status": "incomplete" if is_cut else "completed"} if has_status else {}))

    def _end_open_part(self, item: OpenItem) -> None:
        for part in item.parts:
            if part.is_open:
                self._stream.end_part(item, part)

    def _last_text(self) -> _Block | None:
        item = self._current[0] if self._current is not None else None
        blocks = [block for block in self._blocks.values() if block.item is item and block.kind == "output_text"]
        return blocks[-1] if blocks else None


_SILENT = frozenset(
    {"response-metadata", "raw", "stream-start", "step-start", "step-finish", "steer", "error", "finish"}
)
"""Types of parts that leave the open item open, or end it in their own handler."""


def _name(block_id: str) -> str:
    """Return the id prefix that the blocks of one message share."""
    return _NUMBER.sub("", block_id)


def _phase(part: parts.TextStart) -> str | None:
    found = (as_object(fields).get("phase") for fields in (part.provider_metadata or {}).values())
    return next((phase for phase in found if isinstance(phase, str)), None)
