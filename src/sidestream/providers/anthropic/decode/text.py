"""Handlers for text with its citations, and for thinking."""

from collections.abc import Callable
from typing import Any

from sidestream.jsontext import JsonObject, text_in
from sidestream.parts import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    SourceKind,
    TextDelta,
    TextEnd,
    TextStart,
)
from sidestream.providers.anthropic.context import PROVIDER_NAME
from sidestream.providers.anthropic.decode import shapes
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState


def text_start(s: MessagesState, block: BlockState, value: shapes.TextBlock) -> None:
    """Emit `text-start`."""
    s.emit_text(TextStart(block.part_id))
    text_delta(s, block, value.text or "")
    for citation in value.citations or ():
        cite(s, block, citation)


def text_delta(s: MessagesState, block: BlockState, text: str) -> None:
    """Add text to a block."""
    if text:
        block.deltas.append(text)
        s.emit_text(TextDelta(block.part_id, text))


def text_stop(s: MessagesState, block: BlockState) -> None:
    """Emit `text-end` with all citations."""
    s.emit_text(TextEnd(block.part_id, tuple(block.citations)))


def on_text(s: MessagesState, block: BlockState, delta: shapes.BlockTextDelta) -> None:
    """Emit `text-delta`."""
    text_delta(s, block, delta.text)


def on_citation(s: MessagesState, block: BlockState, delta: shapes.CitationDelta) -> None:
    """Emit `source`."""
    cite(s, block, delta.citation)


def cite(s: MessagesState, block: BlockState, citation: JsonObject) -> None:
    """Emit a source for an open block of text. Offsets in the document stay in `provider_metadata`."""
    make = SOURCES.get(str(citation.get("type")))
    s.count_entry()
    block.citations.append(citation)
    if make is None:
        s.raw(citation)
        return
    kind, fields = make(citation)
    s.emit_text(
        Source(
            f"{block.part_id}:source:{len(block.citations) - 1}",
            kind,
            cited_text=text_in(citation, "cited_text"),
            text_id=block.part_id,
            provider_metadata={PROVIDER_NAME: citation},
            **fields,
        )
    )


def _document(citation: JsonObject) -> tuple[SourceKind, dict[str, Any]]:
    return "document", {"file_id": text_in(citation, "file_id"), "title": text_in(citation, "document_title")}


def _search_result(citation: JsonObject) -> tuple[SourceKind, dict[str, Any]]:
    source = text_in(citation, "source") or ""
    is_link = source.startswith(("http://", "https://"))
    named = text_in(citation, "title") or (None if is_link else source or None)
    return ("url", {"url": source, "title": named}) if is_link else ("document", {"title": named})


def _web_search_result(citation: JsonObject) -> tuple[SourceKind, dict[str, Any]]:
    return "url", {"url": text_in(citation, "url"), "title": text_in(citation, "title")}


SOURCES: dict[str, Callable[[JsonObject], tuple[SourceKind, dict[str, Any]]]] = {
    "char_location": _document,
    "page_location": _document,
    "content_block_location": _document,
    "search_result_location": _search_result,
    "web_search_result_location": _web_search_result,
}
"""Citation type → the kind and fields of its source."""


def thinking_start(s: MessagesState, block: BlockState, value: shapes.ThinkingBlock) -> None:
    """Emit `reasoning-start`."""
    s.out.append(ReasoningStart(block.part_id))
    _thinking_delta(s, block, value.thinking or "")
    block.grow("signature", value.signature or "")


def _thinking_delta(s: MessagesState, block: BlockState, text: str) -> None:
    if text:
        block.deltas.append(text)
        s.out.append(ReasoningDelta(block.part_id, text))


def on_thinking(s: MessagesState, block: BlockState, delta: shapes.ThinkingDelta) -> None:
    """Emit `reasoning-delta`."""
    _thinking_delta(s, block, delta.thinking)


def on_signature(s: MessagesState, block: BlockState, delta: shapes.BlockSignatureDelta) -> None:
    """Store the signature for `reasoning-end`."""
    block.grow("signature", delta.signature)


def thinking_stop(s: MessagesState, block: BlockState) -> None:
    """Emit `reasoning-end` with the signature."""
    s.out.append(ReasoningEnd(block.part_id, signature=block.signature or None))


def redacted_start(s: MessagesState, block: BlockState, value: shapes.RedactedBlock) -> None:
    """Emit `reasoning-start`."""
    s.out.append(ReasoningStart(block.part_id))


def redacted_stop(s: MessagesState, block: BlockState) -> None:
    """Emit `reasoning-end` with the encrypted content."""
    s.out.append(ReasoningEnd(block.part_id, encrypted_content=text_in(block.raw, "data")))
