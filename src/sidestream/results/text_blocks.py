"""The walk over an answer's text blocks that readers of citations and links share."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from sidestream.jsontext import Json
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
