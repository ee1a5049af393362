"""Event handlers of the Responses decoder, one per row of the table in `decoder.py`."""

from collections.abc import Callable
from typing import Any

import msgspec

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in, without_none
from sidestream.parts import Custom, Finish, StepOutcome
from sidestream.providers.openai.responses.decode import outcome, reasoning, shapes, text
from sidestream.providers.openai.responses.decode.items import ITEMS, begin, code_call, stage_at_end
from sidestream.providers.openai.responses.decode.local_actions import command_delta, command_done
from sidestream.providers.openai.responses.decode.state import ItemState, ResponsesState
from sidestream.providers.openai.responses.options import REPLAYED, SESSION_KEY
from sidestream.providers.shared.decoding import CUSTOM_TOOL, UNREADABLE, seconds

Handler = Callable[[ResponsesState, Any, JsonObject], None]


def stage(s: ResponsesState, e: shapes.StageEvent, raw: JsonObject) -> None:
    """Emit only the tool event."""


def on_created(s: ResponsesState, e: shapes.ResponseEvent, raw: JsonObject) -> None:
    """Emit `response-metadata`, once."""
    s.declare_tools(e.response.get("tools"))
    if s.response_id is None:
        _metadata(s, e.response)


def is_second(s: ResponsesState, e: shapes.ResponseEvent, kind: str) -> bool:
    """Return whether the event starts a response other than the current one."""
    if s.response_id is None or (text_in(e.response, "id") or s.response_id) == s.response_id:
        return False
    return kind == "response.created" or bool(s.items)


def _metadata(s: ResponsesState, response: JsonObject) -> None:
    if (identity := text_in(response, "id")) is not None:
        s.response_id = identity
        s.response_metadata(identity, text_in(response, "model"), seconds(response.get("created_at")))


def on_error(s: ResponsesState, e: shapes.ResponsesError, raw: JsonObject) -> None:
    """Keep the `error` for the end of the stream, since `response.failed` usually follows with more detail."""
    s.error = outcome.error_of(e.error if isinstance(e.error, dict) else raw, "the provider reported an error")


def on_item_added(s: ResponsesState, e: shapes.ItemEvent, raw: JsonObject) -> None:
    """Handle a new item by its type, see below."""
    row = ITEMS.get(str(e.item.get("type")))
    if row is None:
        s.raw(raw)
        return
    value = msgspec.convert(e.item, row.shape)
    count = len(s.items)
    item = _whole_item(s, e.output_index, e.item, value, is_new=True)
    if item.provider_tool and item.tool != CUSTOM_TOOL:
        s.item_event(item.provider_tool, "added", raw, e.output_index, item, row.opens)
    if row.added and len(s.items) > count:
        row.added(s, item, value)


def on_item_done(s: ResponsesState, e: shapes.ItemEvent, raw: JsonObject) -> None:
    """Handle a completed item by its type, see below."""
    item_done(s, e.output_index, e.item, raw)


def item_done(s: ResponsesState, index: int, raw_item: JsonObject, event: Any) -> None:
    """Handle a complete item, whether it was streamed, arrived complete, or first appears in the final response."""
    row = ITEMS.get(str(raw_item.get("type")))
    if row is None:
        s.raw(event)
        return
    value = msgspec.convert(raw_item, row.shape)
    item = _whole_item(s, index, raw_item, value, is_new=False)
    if item.provider_tool and item.tool != CUSTOM_TOOL:
        s.item_event(item.provider_tool, "done", event, index, item, stage_at_end(row, raw_item))
    if item.done:
        return
    item.done = True
    item.raw = raw_item
    item.call_id = value.call_id if row.paired_by_call_id else getattr(value, "approval_request_id", None)
    row.done(s, item, value)


def _whole_item(s: ResponsesState, index: int, raw_item: JsonObject, value: shapes.Item, *, is_new: bool) -> ItemState:
    kind = raw_item["type"]
    item = s.whole_item(index, kind, value.id, is_new=is_new)
    if not item.tool:
        begin(s, item, ITEMS[kind], value)
    return item


def input_delta(kind: str, *, escaped: bool) -> Handler:
    """Build a handler for input deltas of this kind of call."""

    def handler(s: ResponsesState, e: shapes.DeltaEvent, raw: JsonObject) -> None:
        """Emit a `tool-input-delta`."""
        item = s.find(e.output_index, e.item_id)
        if item is None or item.kind != kind or not item.input_open:
            # Without its item the call has no name yet, so it is emitted when the item is done.
            s.raw(raw)
            return
        item.streamed.append(e.delta)
        # The input of a hosted custom tool is JSON already.
        is_text = escaped and not (kind == "custom_tool_call" and item.provider_executed)
        s.input_delta(item, jsontext.escape(e.delta) if is_text else e.delta)

    return handler


def input_done(kind: str) -> Handler:
    """Build a handler for the end of the input of this kind of call."""

    def handler(s: ResponsesState, e: shapes.InputDoneEvent, raw: JsonObject) -> None:
        """Keep the final input until the item is done. For code, emit the `tool-call` at once."""
        item = s.find(e.output_index, e.item_id)
        if item is None or item.kind != kind or item.called:
            s.raw(raw)
            return
        given = next((text for text in (e.arguments, e.input, e.code, e.diff) if text is not None), None)
        item.input_final = given
        if item.provider_tool and item.tool != CUSTOM_TOOL and kind == "custom_tool_call":
            s.item_event(item.provider_tool, "done", raw, e.output_index, item, "running")
        if kind == "code_interpreter_call" and given is not None and item.input_open:
            code_call(s, item, given)

    return handler


def on_partial_image(s: ResponsesState, e: shapes.PartialImageEvent, raw: JsonObject) -> None:
    """Emit a preliminary `tool-result`."""
    item = s.item(e.output_index, "image_generation_call", e.item_id)
    if not item.tool:
        begin(s, item, ITEMS[item.kind], shapes.Item(id=e.item_id))
    s.whole_call(item, {})
    if not item.done:
        item.preview = e.partial_image_b64
        preview = {"partial_image_index": e.partial_image_index, "partial_image_b64": e.partial_image_b64}
        s.result(item, preview, preliminary=True)


def on_command(s: ResponsesState, e: shapes.CommandEvent, raw: JsonObject) -> None:
    """Emit a `tool-input-delta`."""
    item = s.find(e.output_index)
    if item is None or item.kind != "shell_call" or item.called:
        return
    if raw["type"].endswith(".done"):
        command_done(s, item, e.command or "")
    else:
        command_delta(s, item, e.delta or e.command or "")


def on_compacting(s: ResponsesState, e: shapes.StageEvent, raw: JsonObject) -> None:
    """Emit a `custom`."""
    s.out.append(Custom("openai.compaction.compacting", raw))


def on_terminal(s: ResponsesState, e: shapes.ResponseEvent, raw: JsonObject) -> None:
    """Close open blocks and emit `finish`, after an `error` if the response failed."""
    status = str(raw["type"]).removeprefix("response.")
    if status == "done":  # In the schemas of xAI's clients, with the status in the response alone.
        status = text_in(e.response, "status") or "completed"
    finish(s, e.response, status)


def finish(s: ResponsesState, response: JsonObject, status: str) -> None:
    """End the response. Emits missing items, closes open blocks, then emits the error, if any, and `finish`."""
    if s.response_id is None:
        _metadata(s, response)
    _unseen_items(s, response.get("output"), completed=status == "completed")
    close_blocks(s, completed=status == "completed")
    reason, raw_reason = outcome.finish_reason(s, status, response)
    if reason == "error":
        error = response.get("error")
        s.error = outcome.error_of(error, "the response failed") if error or s.error is None else s.error
    if s.error is not None:
        reason = "error"
        s.out.append(s.error)
    usage = outcome.usage_of(response.get("usage"), s.server_tool_use)
    facts = {"response_id": response.get("id"), "model": response.get("model"), "status": status}
    extra = {key: response[key] for key in _KEPT if response.get(key) is not None}
    meaning = None
    if reason != "error":
        finished = s.finished
        metadata = outcome.message_metadata(s, finished, response)
        meaning = StepOutcome(
            message_metadata=metadata,
            replay=REPLAYED,
            is_held=SESSION_KEY in metadata,
            summaries=outcome.summaries(finished),
            # Keep the message for its session even if the work left no parts.
            is_kept=not outcome.SAID.issuperset([item.kind for item in finished]),
            listed=s.listed,
        )
    s.is_over = True
    s.out.append(
        Finish(
            reason,
            usage,
            raw_reason,
            without_none({**facts, **extra}),
            outcome=meaning,
        )
    )


_KEPT = (
    "incomplete_details",
    "service_tier",
    "tool_usage",
    "conversation",
    "prompt_cache_diagnostics",
    "moderation",
)


def _unseen_items(s: ResponsesState, output: Any, *, completed: bool) -> None:
    """Emit items that are only in the final response, since some servers skip the end of an item."""
    entries = dict(enumerate(map(jsontext.as_object, jsontext.as_list(output))))
    items = s.finished if entries else []
    # Match items by id, then by index if ids change, then by kind and order if indices change too.
    for name_of_item, name_of_entry in _SAME:
        if not entries:
            return
        waiting: dict[object, list[ItemState]] = {}
        for item in reversed(items):
            if not item.is_matched:
                waiting.setdefault(name_of_item(item), []).append(item)
        for index, entry in list(entries.items()):
            name = name_of_entry(index, entry)
            if name is not None and (same := waiting.get(name)):
                same.pop().is_matched = True
                del entries[index]
    for index, entry in entries.items():
        if completed or entry.get("status") in (None, "completed", "incomplete"):
            _unseen_item(s, index, entry)


_SAME: tuple[tuple[Callable[[ItemState], object], Callable[[int, JsonObject], object]], ...] = (
    (lambda item: text_in(item.raw, "id"), lambda index, entry: text_in(entry, "id") or None),
    (lambda item: (item.index, item.kind), lambda index, entry: (index, text_in(entry, "type"))),
    (lambda item: item.kind, lambda index, entry: text_in(entry, "type")),
)
"""Pairs of keys that are equal if an item and an entry of the final response are the same."""


def _unseen_item(s: ResponsesState, index: int, raw_item: JsonObject) -> None:
    try:
        item_done(s, index, raw_item, raw_item)
    except UNREADABLE:
        s.raw(raw_item)


def close_blocks(s: ResponsesState, *, completed: bool = False) -> None:
    """End all open blocks and inputs. Complete inputs become calls only if the response completed."""
    for item in s.items:
        for block in item.blocks.values():
            if block.family == "reasoning":
                reasoning.end_reasoning(s, block)
            else:
                text.end_text(s, block, item.phase)
        if completed and item.input_open and item.kind == "function_call" and item.input_final is not None:
            s.json_call(item, item.input_final)
        s.close_input(item)
