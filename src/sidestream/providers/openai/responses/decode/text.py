"""Handlers for text blocks, and their annotations as sources."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in, without_none
from sidestream.parts import Source, TextDelta, TextEnd, TextStart
from sidestream.providers.openai.responses.decode import reasoning, shapes
from sidestream.providers.openai.responses.decode.state import ItemBlock, ItemState, ResponsesState
from sidestream.providers.openai.responses.options import PROVIDER_NAME
from sidestream.providers.protocol import FileRef
from sidestream.providers.shared.decoding import int_in

CONTENT = "content"
_TEXT_FIELD = {"output_text": "text", "refusal": "refusal"}


def text_block(s: ResponsesState, item: ItemState, index: int, *, refusal: bool = False) -> ItemBlock:
    """Return the text block at an index, and open it if it is new. An unknown index means the open part, if any."""
    block = item.blocks.get((CONTENT, index)) or item.open_part
    if block is None:
        s.count_entry()
        block_id = item.id if index == 0 else f"{item.id}:{index}"
        block = item.blocks[CONTENT, index] = ItemBlock(block_id, "refusal" if refusal else "text")
        s.has_refusal = s.has_refusal or refusal
        details = {key: value for key, value in (("phase", item.phase), ("refusal", refusal)) if value}
        s.out.append(TextStart(block_id, provider_metadata={PROVIDER_NAME: details} if details else None))
    return block


def on_text_delta(s: ResponsesState, e: shapes.DeltaEvent, raw: JsonObject) -> None:
    """Emit a `text-delta`."""
    _text_delta(s, e, raw, refusal=False)


def on_refusal_delta(s: ResponsesState, e: shapes.DeltaEvent, raw: JsonObject) -> None:
    """Emit a `text-delta`. The response finishes as a refusal."""
    _text_delta(s, e, raw, refusal=True)


def _text_delta(s: ResponsesState, e: shapes.DeltaEvent, raw: JsonObject, *, refusal: bool) -> None:
    item = s.item(e.output_index, "message", e.item_id)
    block = text_block(s, item, e.content_index, refusal=refusal)
    if block.phase == "concluded" or block.final is not None:
        s.raw(raw)
        return
    block.deltas.append(e.delta)
    logprobs = {PROVIDER_NAME: {"logprobs": e.logprobs}} if e.logprobs else None
    s.out.append(TextDelta(block.id, e.delta, provider_metadata=logprobs))


def on_text_done(s: ResponsesState, e: shapes.TextDoneEvent, raw: JsonObject) -> None:
    """Keep the final text. The block ends with its item, which also has all annotations."""
    item = s.item(e.output_index, "message", e.item_id)
    refusal = e.refusal is not None
    block = text_block(s, item, e.content_index, refusal=refusal)
    block.final = e.refusal if refusal else e.text


def on_annotation(s: ResponsesState, e: shapes.AnnotationEvent, raw: JsonObject) -> None:
    """Emit a `source`. For a cited container file, also emit a tool event."""
    item = s.item(e.output_index, "message", e.item_id)
    block = text_block(s, item, e.content_index)
    _annotate(s, block, e.annotation, raw)


def on_content_part_added(s: ResponsesState, e: shapes.ContentPartEvent, raw: JsonObject) -> None:
    """Emit a `text-start` or `reasoning-start`."""
    kind = str(e.part.get("type"))
    if kind == "reasoning_text":
        reasoning.on_content_added(s, e)
    elif kind in _TEXT_FIELD:
        item = s.item(e.output_index, "message", e.item_id)
        item.open_part = None
        item.open_part = text_block(s, item, e.content_index, refusal=kind == "refusal")
    else:
        s.raw(raw)


def on_content_part_done(s: ResponsesState, e: shapes.ContentPartEvent, raw: JsonObject) -> None:
    """Keep the final content. The block ends with its item."""
    kind = str(e.part.get("type"))
    if kind == "reasoning_text":
        reasoning.on_content_done(s, e)
    elif kind in _TEXT_FIELD:
        _final_content(s, s.item(e.output_index, "message", e.item_id), e.content_index, e.part)
    else:
        s.raw(raw)


def message_added(s: ResponsesState, item: ItemState, value: shapes.MessageItem) -> None:
    """Emit nothing yet, since text blocks start with their content."""
    item.phase = value.phase


def message_done(s: ResponsesState, item: ItemState, value: shapes.MessageItem) -> None:
    """Emit the text that was not streamed, each `source`, and `text-end`."""
    item.phase, item.open_part = value.phase or item.phase, None
    texts = [part for part in value.content if str(part.get("type")) in _TEXT_FIELD]
    if texts and len(texts) < len(item.blocks):
        _join_content(s, [*item.blocks.values()], texts)
        texts = []
    for index, part in zip(item.part_numbers(CONTENT, len(value.content)), value.content, strict=True):
        if str(part.get("type")) not in _TEXT_FIELD:
            s.raw(part)
        elif texts:
            _final_content(s, item, index, part)
    for block in item.blocks.values():
        end_text(s, block, item.phase)


def _join_content(s: ResponsesState, blocks: list[ItemBlock], parts: list[JsonObject]) -> None:
    """Distribute the item's text over its blocks, for an item with fewer parts than streamed blocks."""
    final = "".join(text_in(part, _TEXT_FIELD[str(part["type"])]) or "" for part in parts)
    streamed = [block.streamed for block in blocks]
    if final.startswith("".join(streamed)):
        finals = [*streamed[:-1], final[len("".join(streamed[:-1])) :]]
    else:
        finals = [final, *[""] * (len(blocks) - 1)]
    for block, text in zip(blocks, finals, strict=True):
        block.final = text
    for annotation in (entry for part in parts for entry in jsontext.as_list(part.get("annotations"))):
        _annotate(s, blocks[0], annotation, annotation)


def _final_content(s: ResponsesState, item: ItemState, index: int, part: JsonObject) -> None:
    kind = str(part.get("type"))
    block = text_block(s, item, index, refusal=kind == "refusal")
    text = part.get(_TEXT_FIELD[kind])
    if isinstance(text, str) and block.phase != "concluded":
        block.final = text
        _text_rest(s, block)
    for annotation in jsontext.as_list(part.get("annotations")):
        _annotate(s, block, annotation, annotation)


def _annotate(s: ResponsesState, block: ItemBlock, annotation: Any, event: Any) -> None:
    """Add an annotation, once."""
    name = jsontext.canonical(annotation)
    if name not in block.annotations:
        s.count_entry()
        block.annotations[name] = annotation
        _source(s, block, len(block.annotations) - 1, annotation, event)


def end_text(s: ResponsesState, block: ItemBlock, phase: str | None = None) -> None:
    """End a block of text, once. Final text that extends the deltas becomes a last delta, other text replaces them."""
    if block.phase == "concluded":
        return
    block.phase = "concluded"
    _text_rest(s, block)
    final = block.superseding()
    metadata = {PROVIDER_NAME: {"phase": phase}} if phase else None
    s.out.append(TextEnd(block.id, tuple(block.annotations.values()), final, provider_metadata=metadata))
    if final is not None:
        s.corrected(block.id)
    block.deltas = []


def _text_rest(s: ResponsesState, block: ItemBlock) -> None:
    rest = block.rest()
    if rest:
        s.out.append(TextDelta(block.id, rest))


def _source(s: ResponsesState, block: ItemBlock, number: int, annotation: Any, event: Any) -> None:
    citation = jsontext.as_object(annotation)
    make = _SOURCES.get(str(citation.get("type")))
    if make is None:
        s.raw(event)
        return
    if make is _container:
        _container_file(s, citation, event)
    fields = make(citation)
    if make is _url and _is_number(block, fields):
        fields["title"] = None
    s.out.append(Source(f"{block.id}:source:{number}", text_id=block.id, **without_none(fields)))


def _is_number(block: ItemBlock, source: JsonObject) -> bool:
    """Return whether the title is only the number of xAI's link in the text, such as `[[1]](URL)`."""
    title, start = source["title"], source["start"]
    return title is not None and title.isdigit() and block.streamed.startswith(f"[[{title}]](", start)


def _url(a: JsonObject) -> JsonObject:
    url, title = text_in(a, "url"), text_in(a, "title")
    # xAI lists sources that the text does not cite with an empty span, and their URL as title.
    span = {"start": None, "end": None} if a.get("start_index") == 0 == a.get("end_index") else _span(a)
    return {"kind": "url", "url": url, "title": title if title != url else None, **span}


def _document(a: JsonObject) -> JsonObject:
    place = int_in(a, "index")
    return {
        "kind": "document",
        "file_id": text_in(a, "file_id"),
        "title": text_in(a, "filename"),
        "start": place,
        "end": place,
    }


def _container(a: JsonObject) -> JsonObject:
    metadata = {PROVIDER_NAME: {"container_id": a.get("container_id")}}
    fields = {
        "kind": "container_file",
        "file_id": text_in(a, "file_id"),
        "title": text_in(a, "filename"),
        **_span(a),
    }
    return {**fields, "provider_metadata": metadata}


def _file_path(a: JsonObject) -> JsonObject:
    place = int_in(a, "index")
    return {"kind": "file_path", "file_id": text_in(a, "file_id"), "start": place, "end": place}


_SOURCES = {
    "url_citation": _url,
    "file_citation": _document,
    "container_file_citation": _container,
    "file_path": _file_path,
}
"""Builders of the source's fields, by annotation type."""


def _span(a: JsonObject) -> JsonObject:
    return {"start": int_in(a, "start_index"), "end": int_in(a, "end_index")}


def _container_file(s: ResponsesState, annotation: JsonObject, event: Any) -> None:
    """Emit a tool event for a cited sandbox file, and register the file for download."""
    container, file_id = text_in(annotation, "container_id"), text_in(annotation, "file_id")
    call = s.code_call_in(container)
    # The code may have run in an earlier response.
    call_id, index = (call.part_id, call.index) if call is not None else (None, None)
    s.tool_event("code_interpreter", "annotation", event, call_id, index, "completed")
    start, end = int_in(annotation, "start_index"), int_in(annotation, "end_index")
    is_empty = start is not None and start == end
    if file_id and not is_empty and (container, file_id) not in s.downloads:
        s.downloads[container, file_id] = FileRef(
            id=file_id,
            name=text_in(annotation, "filename"),
            container_id=container,
            tool="code_interpreter",
            call_id=call.part_id if call else None,
        )
