"""The walk over an answer's text blocks that readers of citations and links share."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from sidestream.jsontext import Json
from sidestream.messages.container_files import FOLDER
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.parts import Source, StreamPart, TextDelta, TextEnd, TextStart


class ReadBlock(Protocol):
    """A text block that is being read."""

    annotations: list[Json]
    """Annotations of the text so far, as those of the Responses API."""

    def feed(self, part: TextDelta) -> list[StreamPart]:
        """Return the parts that replace a delta: text and sources."""
        ...

    def end(self) -> list[StreamPart]:
        """Return the rest of the text and its sources."""
        ...


B = TypeVar("B", bound=ReadBlock)


def read_blocks(parts: Iterable[StreamPart], blocks: dict[str, B], new_block: Callable[[str], B]) -> list[StreamPart]:
    """Return the parts, with the text of each block as its reader returns it.

    `blocks` holds the open blocks between two calls. `new_block` begins one with this id.
    """
    out: list[StreamPart] = []
    for part in parts:
        match part:
            case TextStart():
                blocks[part.id] = new_block(part.id)
                out.append(part)
            case TextDelta() if part.id in blocks:
                out += blocks[part.id].feed(part)
            case TextEnd() if part.id in blocks:
                block = blocks.pop(part.id)
                out += block.end()
                final = part.text
                if final is not None:
                    # The final text cites the same, so its sources replace those with the same ids.
                    block = new_block(part.id)
                    read = [*block.feed(TextDelta(part.id, final)), *block.end()]
                    out += [found for found in read if isinstance(found, Source)]
                    final = "".join(found.delta for found in read if isinstance(found, TextDelta))
                out.append(replace(part, text=final, annotations=(*part.annotations, *block.annotations)))
            case _:
                out.append(part)
    return out


SCHEME = "sandbox:"
_LINK = re.compile(r"sandbox:(/[^\s)\]>\"'`]{1,500})(?=[\s)\]>\"'`])")
_MAX_LINK_CHARS = len(SCHEME) + 502


class LinkedFile(Struct, frozen=True):
    """A file that code has made."""

    name: str | None
    id: str | None = None
    """Id of its `file` part. None means that an earlier turn made it."""
    container_id: str | None = None


def files_in(messages: Iterable[ChatMessage]) -> dict[str, LinkedFile]:
    """Return the files that tools made in earlier turns, by their paths in a local container."""
    return {
        f"{FOLDER}/{part.name}": LinkedFile(part.name)
        for message in messages
        if message.role == "model"
        for part in message.parts
        if isinstance(part, DataPart) and part.to == "container"
    }


class FileLinks:
    """A reader of one answer. `files` are those that the conversation's code has made, by path."""

    def __init__(self, files: Mapping[str, LinkedFile]) -> None:
        self._files = files
        self._blocks: dict[str, _Block] = {}

    def read(self, parts: Iterable[StreamPart]) -> list[StreamPart]:
        """Return the parts with a source added for each link to a file."""
        return read_blocks(parts, self._blocks, lambda text_id: _Block(text_id, self._files))


class _Block:
    """A text block."""

    def __init__(self, text_id: str, files: Mapping[str, LinkedFile]) -> None:
        self.annotations: list[Json] = []
        self._id = text_id
        self._files = files
        self._tail = ""
        """End of the text, which may hold the beginning of a link."""
        self._offset = 0
        """Position of the tail in the text."""

    def feed(self, part: TextDelta) -> list[StreamPart]:
        """Return the delta, and the sources for the links that it completes."""
        return [part, *self._found(part.delta)]

    def end(self) -> list[StreamPart]:
        """Return the source for a link at the end of the text."""
        return self._found("\n")

    def _found(self, delta: str) -> list[StreamPart]:
        text = self._tail + delta
        found: list[StreamPart] = []
        end = 0
        for link in _LINK.finditer(text):
            end = link.end()
            file = self._files.get(unquote(link[1]))
            if file is not None:
                found.append(self._source(file, self._offset + link.start(), self._offset + end))
        kept = max(end, len(text) - _MAX_LINK_CHARS)
        self._tail, self._offset = text[kept:], self._offset + kept
        return found

    def _source(self, file: LinkedFile, start: int, end: int) -> Source:
        cited = {"container_id": file.container_id, "file_id": file.id, "filename": file.name}
        self.annotations.append({"type": "container_file_citation", **cited, "start_index": start, "end_index": end})
        return Source(
            f"{self._id}:link:{len(self.annotations)}",
            "container_file",
            file_id=file.id,
            title=file.name,
            start=start,
            end=end,
            text_id=self._id,
            provider_metadata={"sidestream": {"container_id": file.container_id}},
        )
