"""Text and reasoning as items of a response: a block of the stream is a part of an item's content.

The blocks of one message of a provider, with nothing between them, are parts of one item. An item is done when
something else begins, so sources that come after a block's end still find it.
"""

import re
from typing import Literal

from sidestream.jsontext import Json, JsonObject, as_list, as_object
from sidestream.protocols.responses.items import annotation_of
from sidestream.protocols.responses.stream import OpenItem, OpenPart, PartKind, ResponseStream
from sidestream.stream import parts

_NUMBER = re.compile(r"(?::summary|:content)?:\d+$")

Kind = Literal["message", "reasoning"]


class _Block:
    """A block of the stream, and its part of an item."""

    __slots__ = ("is_ended", "item", "kind", "part", "repeats", "said", "sources")

    def __init__(self, item: OpenItem, kind: PartKind) -> None:
        self.item = item
        self.kind: PartKind = kind
        self.part: OpenPart | None = None
        self.is_ended = False
        self.repeats: str | None = None
        """Of a step that is made again: text that was sent before and has not come again yet."""
        self.said = ""
        """Of a step that is made again: text that has come again."""
        self.sources: list[JsonObject] = []


class TextItems:
    """The messages and the reasoning of one response."""

    def __init__(self, stream: ResponseStream, *, encrypted: bool) -> None:
        self._stream = stream
        self._has_encrypted = encrypted
        self.has_refusal = False
        """True once the model has said that it refuses, in a part of its own kind."""
        self._blocks: dict[str, _Block] = {}
        self._early: dict[str, list[parts.Source]] = {}
        """Sources of blocks that have not begun: a log has a block where it ends."""
        self._cited: list[JsonObject] = []
        """Citations of files that no text has yet."""
        self._known_files: set[str] = set()
        """Files that the provider itself cites."""
        self._current: tuple[OpenItem, str] | None = None
        """The item that is open, and the name that its blocks share."""
        self._made: list[OpenItem] = []
        """Items of this step."""
        self._again: list[OpenItem] = []
        """Items of an interrupted step that the step which is made again may continue."""

    # Blocks

    def text_start(self, part: parts.TextStart) -> None:
        """A block of text begins."""
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
        """More text."""
        found = [as_list(as_object(fields).get("logprobs")) for fields in (part.provider_metadata or {}).values()]
        self._grow(part.id, part.delta, next((logprobs for logprobs in found if logprobs), None))

    def text_end(self, part: parts.TextEnd) -> None:
        """A block of text is complete."""
        self._end(part.id, part.text)

    def reasoning_start(self, part: parts.ReasoningStart) -> None:
        """A block of reasoning begins; its part begins with its text, since most reasoning shows none."""
        fields: JsonObject = {"type": "reasoning", "summary": []}
        self._open(part.id, "reasoning", fields, "summary_text")

    def reasoning_delta(self, part: parts.ReasoningDelta) -> None:
        """More reasoning."""
        self._grow(part.id, part.delta)

    def reasoning_end(self, part: parts.ReasoningEnd) -> None:
        """A block of reasoning is complete."""
        block = self._blocks.get(part.id)
        if block is not None and part.encrypted_content is not None and self._has_encrypted and block.item.is_open:
            block.item.fields = {**block.item.fields, "encrypted_content": part.encrypted_content}
        self._end(part.id, part.text)

    def source(self, part: parts.Source) -> None:
        """Where text comes from. A source that names no block belongs to the open one."""
        if part.text_id is not None and part.text_id not in self._blocks:
            self._early.setdefault(part.text_id, []).append(part)
            return
        block = self._blocks[part.text_id] if part.text_id is not None else self._last_text()
        annotation = annotation_of(part)
        if annotation is not None and annotation["type"] == "container_file_citation":
            self._known_files.add(annotation["file_id"])
        if block is None or annotation is None or not block.item.is_open or block.kind != "output_text":
            return
        if self._stream.dialect == "open-responses" and annotation["type"] != "url_citation":
            return  # The only kind that the specification has.
        if block.part is not None and block.part.is_open:
            self._stream.annotate(block.item, block.part, annotation)
        elif block.part is None:
            block.sources.append(annotation)

    def cite(self, annotation: JsonObject, file: str) -> None:
        """A file of the text that is open, or of the next one, unless the provider has cited it."""
        if file in self._known_files:
            return
        block = self._last_text()
        if block is not None and block.part is not None and block.part.is_open:
            at = len(block.part.text)
            self._stream.annotate(block.item, block.part, {**annotation, "start_index": at, "end_index": at})
        else:
            self._cited.append(annotation)

    def end_citations(self) -> None:
        """The response is over: files that no text was there for have an empty one."""
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
        """True if the open item stays open: the part belongs to it, or says nothing of the output."""
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
        """Something else begins: the open item is done, or will be when the block that is open in it ends."""
        if self._current is None:
            return
        item, _ = self._current
        self._current = None
        if all(block.is_ended for block in self._blocks.values() if block.item is item):
            self._done(item, is_cut=False)

    def end_step(self, *, is_cut: bool) -> None:
        """The step is over."""
        self._current = None
        for item in self._again:
            self._done(item, is_cut=True)
        for item in self._made:
            self._done(item, is_cut=is_cut)
        self._blocks, self._early, self._made, self._again = {}, {}, [], []

    def interrupt(self) -> None:
        """The step was interrupted, and is made again."""
        self._again = [*self._made]
        self._current = None
        self._blocks, self._early, self._made = {}, {}, []

    def diverged(self) -> None:
        """The step that is made again says something else than before."""
        again, self._again = self._again, []
        for item in again:
            self._done(item, is_cut=True)

    # Making them

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
            self._end_open_part(block.item)  # Of two blocks that grow side by side, each time one.
            block.part = self._stream.add_part(block.item, block.kind)
        self._stream.delta(block.item, block.part, text, logprobs)

    def _unsaid(self, block: _Block, text: str) -> str:
        """What is new in text that may have been sent before."""
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
        """Another item in place of one that says something else."""
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
            said = block.said  # It ended earlier than before.
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
        """A final text that is not what was streamed: it extends it, or stands in the events that end its part."""
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
"""Parts that begin no item; those that end one do it themselves."""


def _name(block_id: str) -> str:
    """What the blocks of one message have in common."""
    return _NUMBER.sub("", block_id)


def _phase(part: parts.TextStart) -> str | None:
    found = (as_object(fields).get("phase") for fields in (part.provider_metadata or {}).values())
    return next((phase for phase in found if isinstance(phase, str)), None)
