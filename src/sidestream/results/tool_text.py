"""The text of tool calls while it is written: their inputs, their code and what it prints."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from sidestream.jsontext import as_object, text_in
from sidestream.parts import ToolEvent
from sidestream.text.reprs import ShortRepr

TextKind = Literal["input", "code", "logs"]


class ToolText(ShortRepr, Struct, frozen=True, kw_only=True, gc=False):
    """A piece of text of a tool call."""

    tool: str
    """Portable name of the tool, or the function's own name."""
    call_id: str
    kind: TextKind
    """`input` is JSON text, `code` is the code in it for a tool that runs code, `logs` is what the tool prints."""
    text: str


def logs_in(event: ToolEvent) -> str:
    """Return what a tool printed in an event that reports it while the tool runs."""
    fields = as_object(event.event)
    if event.provider_stage == "logs":
        return text_in(fields, "logs") or ""
    if event.provider_stage != "delta":
        return ""
    printed = as_object(fields.get("delta"))
    return (text_in(printed, "stdout") or "") + (text_in(printed, "stderr") or "")


class ToolTextFold:
    """A fold of the pieces of all chunks to one text for each call and kind."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str, TextKind], list[str]] = {}

    def feed(self, pieces: Iterable[ToolText]) -> None:
        """Add the pieces of a chunk."""
        for piece in pieces:
            self._texts.setdefault((piece.tool, piece.call_id, piece.kind), []).append(piece.text)

    def result(self) -> tuple[ToolText, ...]:
        """Return the whole texts, in the order of their first pieces."""
        return tuple(
            ToolText(tool=tool, call_id=call_id, kind=kind, text="".join(texts))
            for (tool, call_id, kind), texts in self._texts.items()
        )
