"""Event handlers, one per row of the table in `decoder.py`."""

from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in
from sidestream.parts import Error
from sidestream.providers.anthropic.decode import outcome, results, shapes
from sidestream.providers.anthropic.decode.blocks import BLOCKS, DELTAS, BlockRow
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState
from sidestream.providers.shared.decoding import UNREADABLE


def on_message_start(s: MessagesState, e: shapes.MessageStart, raw: JsonObject) -> None:
    """Emit `response-metadata`, once, and the blocks that the message already holds."""
    message = e.message
    identity = text_in(message, "id")
    if identity is not None and s.message_id not in (None, identity):
        s.second_answer(raw)
        return
    if identity is not None:
        s.response_metadata(identity, text_in(message, "model"))
    is_repeated = identity is not None and identity == s.message_id
    s.message_id = identity or s.message_id
    outcome.note(s, message, message.get("usage"))
    for index, content in enumerate(() if is_repeated else jsontext.as_list(message.get("content"))):
        whole_block(s, index, content)


def whole_block(s: MessagesState, index: int, content: Any) -> None:
    """Decode a block that arrived as a whole."""
    block = jsontext.as_object(content)
    row = BLOCKS.get(str(block.get("type")))
    if row is None:
        s.raw(content)
        return
    try:
        value = msgspec.convert(block, row.shape)
    except UNREADABLE:
        s.raw(content)
        return
    _start(s, index, row, value, block, event=block, word="result" if row.is_result else "done")
    _stop(s, s.at[index], row)


def on_block_start(s: MessagesState, e: shapes.BlockStart, raw: JsonObject) -> None:
    """Start the block, as listed below."""
    kind = str(e.content_block.get("type"))
    row = BLOCKS.get(kind)
    if row is None:
        s.emit_pending_call()
        s.raw(raw)
        s.new_block(e.index, kind, e.content_block).is_open = False
        return
    value = msgspec.convert(e.content_block, row.shape)
    known = s.at.get(e.index)
    if known is not None and _is_same(known, kind, e.content_block):
        _repeated(s, known, raw)
        return
    if known is not None:
        _end(s, known)
    _start(s, e.index, row, value, e.content_block, event=raw, word="result" if row.is_result else "start")


def _is_same(known: BlockState, kind: str, block: JsonObject) -> bool:
    """Return whether a start repeats an earlier one. Servers that use one index for all blocks still give them ids."""
    names = ("id", "tool_use_id")
    return known.kind == kind and all(known.raw.get(name) == block.get(name) for name in names)


def _repeated(s: MessagesState, block: BlockState, event: JsonObject) -> None:
    """Report a repeated event without changing the state."""
    if block.tool is not None and BLOCKS[block.kind].tool is not None:
        word = str(event.get("type")).rpartition("_")[2]
        stage = block.stage if BLOCKS[block.kind].is_result else s.STAGES.get(word, block.stage)
        s.tool_event(block.tool, word, event, _call_id(block), block.index, stage)
    else:
        s.raw(event)


def _start(
    s: MessagesState,
    index: int,
    row: BlockRow,
    value: shapes.ContentBlock,
    content: JsonObject,
    *,
    event: Any,
    word: str,
) -> None:
    s.emit_pending_call()
    block = s.new_block(index, str(content["type"]), content)
    if row.tool is not None:
        s.of_tool(
            block, _tool_of(s, row, value, content), is_error=results.is_error(content) if row.is_result else None
        )
        call_id = getattr(value, "tool_use_id", None) or getattr(value, "id", None)
        call_id = call_id or (None if row.is_result else block.part_id)
        s.tool_event(block.tool or "", word, event, call_id, index, block.stage if row.is_result else None)
    row.start(s, block, value)


def _tool_of(s: MessagesState, row: BlockRow, value: shapes.ContentBlock, content: JsonObject) -> str:
    """Return the tool of a result's call, else the block's own."""
    assert row.tool is not None
    call = s.calls.get(getattr(value, "tool_use_id", ""))
    return call.tool if call is not None and call.tool else row.tool(content)


def _call_id(block: BlockState) -> str | None:
    if BLOCKS[block.kind].is_result:
        return text_in(block.raw, "tool_use_id")
    return block.part_id


def on_block_delta(s: MessagesState, e: shapes.BlockDelta, raw: JsonObject) -> None:
    """Apply the delta, as listed below."""
    row = DELTAS.get(str(e.delta.get("type")))
    value = None if row is None else msgspec.convert(e.delta, row.shape)
    block = s.at.get(e.index)
    if block is None and row is not None and row.opens is not None:
        opened = BLOCKS[row.opens]
        _start(s, e.index, opened, opened.shape(), {"type": row.opens}, event=raw, word="start")
        block = s.at[e.index]
    hosted = block is not None and block.kind in BLOCKS and BLOCKS[block.kind].tool is not None
    if block is not None and hosted:
        s.tool_event(block.tool or block.kind, "delta", raw, _call_id(block), e.index, block.growing)
    if block is not None and row is not None and block.is_open and block.kind in row.blocks:
        row.handler(s, block, value)
    elif not hosted:
        s.raw(raw)


def on_block_stop(s: MessagesState, e: shapes.BlockStop, raw: JsonObject) -> None:
    """End the block, as listed below."""
    block = s.at.get(e.index)
    if block is None or block.kind not in BLOCKS:
        s.raw(raw)
        return
    row = BLOCKS[block.kind]
    if row.tool is not None:
        s.tool_event(block.tool or block.kind, "stop", raw, _call_id(block), e.index, block.stage)
    elif not block.is_open:
        s.raw(raw)
    _stop(s, block, row)


def _stop(s: MessagesState, block: BlockState, row: BlockRow) -> None:
    if block.is_open:
        row.stop(s, block)
        block.is_open = False


def _end(s: MessagesState, block: BlockState) -> None:
    if block.kind in BLOCKS:
        _stop(s, block, BLOCKS[block.kind])


def on_message_delta(s: MessagesState, e: shapes.MessageDelta, raw: JsonObject) -> None:
    """Store the stop reason, container and usage for `finish`."""
    outcome.note(s, {**(e.delta or {}), **{key: raw[key] for key in _BESIDE if key in raw}}, e.usage)


_BESIDE = ("context_management", "input_transformations")


def on_message_stop(s: MessagesState, e: shapes.MessageStop, raw: JsonObject) -> None:
    """End open blocks and calls, then emit `finish`."""
    finish(s)


def on_error(s: MessagesState, e: shapes.MessagesError, raw: JsonObject) -> None:
    """End open blocks and calls, then emit `error` and `finish`."""
    fail(s, outcome.error_of(e.error if e.error is not None else raw, "the provider reported an error"))


def finish(s: MessagesState) -> None:
    """Finish a complete response."""
    is_cut = outcome.is_cut(s)
    close_blocks(s, completed=not is_cut)
    s.emit_pending_call(is_cut=is_cut)
    s.release_text()
    s.is_over = True
    s.out.append(outcome.finish(s))


def fail(s: MessagesState, error: Error) -> None:
    """End a broken response with an error."""
    close_blocks(s, completed=False)
    s.emit_pending_call()
    s.release_text()
    s.end_with_error(error, outcome.usage_of(s))


def close_blocks(s: MessagesState, *, completed: bool) -> None:
    """End everything open. Open inputs become calls only if the response completed."""
    begin, s.closed = s.closed, len(s.blocks)
    for block in s.blocks[begin:]:
        if not block.is_open or block.kind not in BLOCKS:
            continue
        if not completed and BLOCKS[block.kind].stop is BLOCKS["tool_use"].stop:
            s.end_input(block)
        else:
            _end(s, block)
