"""Handlers for reasoning summaries and raw reasoning, as blocks.

A block is active, then can conclude, then is concluded. In a stored response, a summary part concludes when it is done.
Otherwise it concludes with the item, which brings the encrypted content that must be sent back.
"""

from sidestream.jsontext import JsonObject
from sidestream.parts import ReasoningDelta, ReasoningEnd, ReasoningStart
from sidestream.providers.openai.responses.decode import shapes
from sidestream.providers.openai.responses.decode.state import ItemBlock, ItemState, ResponsesState

CONTENT, SUMMARY = "content", "summary"


def on_content_added(s: ResponsesState, e: shapes.ContentPartEvent) -> None:
    """Open the block of a raw reasoning part."""
    item = s.item(e.output_index, "reasoning", e.item_id)
    item.open_part = None
    item.open_part = _reasoning_block(s, item, CONTENT, e.content_index)


def on_content_done(s: ResponsesState, e: shapes.ContentPartEvent) -> None:
    """Keep the final text of a raw reasoning part. Its block concludes with the item."""
    _reasoning_final(s, s.item(e.output_index, "reasoning", e.item_id), CONTENT, e.content_index, e.part)


def reasoning_added(s: ResponsesState, item: ItemState, value: shapes.ReasoningItem) -> None:
    """Emit a `reasoning-start` at once, to show that the model is thinking."""
    _open_reasoning(s, item, (SUMMARY, 0))


def reasoning_done(s: ResponsesState, item: ItemState, value: shapes.ReasoningItem) -> None:
    """Emit text that was not streamed, then `reasoning-end` with the encrypted content."""
    item.open_part = None
    for kind, entries in ((SUMMARY, value.summary or ()), (CONTENT, value.content or ())):
        for index, part in zip(item.part_numbers(kind, len(entries)), entries, strict=True):
            _reasoning_final(s, item, kind, index, part)
    if not item.blocks:
        _open_reasoning(s, item, (SUMMARY, 0))
    for block in item.blocks.values():
        end_reasoning(s, block, value.encrypted_content)


def on_summary_part_added(s: ResponsesState, e: shapes.SummaryPartEvent, raw: JsonObject) -> None:
    """Emit a `reasoning-start`, after concluding earlier parts that can conclude."""
    item = s.item(e.output_index, "reasoning", e.item_id)
    for block in item.concludable:
        end_reasoning(s, block)
    item.concludable = []
    _reasoning_block(s, item, SUMMARY, e.summary_index)


def on_summary_delta(s: ResponsesState, e: shapes.SummaryDeltaEvent, raw: JsonObject) -> None:
    """Emit a `reasoning-delta`."""
    _reasoning_delta(s, e.output_index, e.item_id, SUMMARY, e.summary_index, e.delta, raw)


def on_summary_done(s: ResponsesState, e: shapes.SummaryDoneEvent, raw: JsonObject) -> None:
    """Keep the final text of a summary part."""
    _reasoning_final(s, s.item(e.output_index, "reasoning", e.item_id), SUMMARY, e.summary_index, {"text": e.text})


def on_summary_part_done(s: ResponsesState, e: shapes.SummaryPartEvent, raw: JsonObject) -> None:
    """Emit `reasoning-end` in a stored response, unless the item brings encrypted content."""
    item = s.item(e.output_index, "reasoning", e.item_id)
    _reasoning_final(s, item, SUMMARY, e.summary_index, e.part)
    block = _reasoning_block(s, item, SUMMARY, e.summary_index)
    if s.context.store and not s.context.has_encrypted:
        end_reasoning(s, block)
    elif block.phase == "active":
        block.phase = "can-conclude"
        item.concludable.append(block)


def on_reasoning_delta(s: ResponsesState, e: shapes.DeltaEvent, raw: JsonObject) -> None:
    """Emit a `reasoning-delta`."""
    _reasoning_delta(s, e.output_index, e.item_id, CONTENT, e.content_index, e.delta, raw)


def on_reasoning_done(s: ResponsesState, e: shapes.TextDoneEvent, raw: JsonObject) -> None:
    """Keep the final text of raw reasoning."""
    item = s.item(e.output_index, "reasoning", e.item_id)
    _reasoning_final(s, item, CONTENT, e.content_index, {"text": e.text})


def _reasoning_delta(
    s: ResponsesState, output_index: int, item_id: str | None, kind: str, index: int, delta: str, raw: JsonObject
) -> None:
    block = _reasoning_block(s, s.item(output_index, "reasoning", item_id), kind, index)
    if block.phase == "concluded" or block.final is not None:
        s.raw(raw)
        return
    block.deltas.append(delta)
    s.out.append(ReasoningDelta(block.id, delta))


def _reasoning_final(s: ResponsesState, item: ItemState, kind: str, index: int, part: JsonObject) -> None:
    block = _reasoning_block(s, item, kind, index)
    text = part.get("text")
    if isinstance(text, str):
        block.final = text


def _reasoning_block(s: ResponsesState, item: ItemState, kind: str, index: int) -> ItemBlock:
    key = (kind, index)
    block = item.blocks.get(key)
    if block is None and kind == CONTENT:
        block = item.open_part
    first = item.blocks.get((SUMMARY, 0))
    if block is None and first is not None and not first.used and (index == 0 or kind == CONTENT):
        # The first content, of either kind, uses the block that was opened ahead.
        block = item.blocks[key] = item.blocks.pop((SUMMARY, 0))
    if block is None:
        block = _open_reasoning(s, item, key)
    block.used = True
    return block


def _open_reasoning(s: ResponsesState, item: ItemState, key: tuple[str, int]) -> ItemBlock:
    kind, index = key
    s.count_entry()
    block_id = f"{item.id}:{index}"
    other = item.blocks.get((CONTENT if kind == SUMMARY else SUMMARY, index))
    if other is not None and other.id == block_id:
        block_id = f"{item.id}:{kind}:{index}"
    block = item.blocks[key] = ItemBlock(block_id, "reasoning")
    s.out.append(ReasoningStart(block_id))
    return block


def end_reasoning(s: ResponsesState, block: ItemBlock, encrypted_content: str | None = None) -> None:
    """Conclude a reasoning block, once."""
    if block.phase == "concluded":
        return
    block.phase = "concluded"
    rest = block.rest()
    if rest:
        s.out.append(ReasoningDelta(block.id, rest))
    s.out.append(ReasoningEnd(block.id, encrypted_content=encrypted_content, text=block.superseding()))
    block.deltas = []
