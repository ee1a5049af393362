"""Handlers for content blocks and deltas, by type."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sidestream.jsontext import JsonObject
from sidestream.parts import Custom
from sidestream.providers.anthropic.client_actions import TOOLSETS
from sidestream.providers.anthropic.decode import results, shapes, text
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState


class BlockRow(Struct, frozen=True, kw_only=True):
    """How one block type is decoded. `tool` returns the key of its events. Blocks without it have no tool events."""

    shape: type[shapes.ContentBlock]
    start: Callable[[MessagesState, BlockState, Any], None]
    stop: Callable[[MessagesState, BlockState], None]
    tool: Callable[[JsonObject], str] | None = None
    is_result: bool = False
    """Whether the block is complete when it starts."""


def _client_call(s: MessagesState, block: BlockState, value: shapes.CallBlock) -> None:
    """Emit `tool-input-start`, or `text-start` for the reserved tool."""
    ours = s.context.client_names.get(value.name)
    toolset = TOOLSETS.get(value.toolset_name or "")
    name, tool = (value.name, toolset) if toolset else (ours or value.name, ours or value.name)
    block.metadata = _call_facts(value)
    block.is_native = toolset is not None or ours is not None
    s.begin_call(block, name, tool, wire_id=value.id, hosted=False)


def _server_call(s: MessagesState, block: BlockState, value: shapes.CallBlock) -> None:
    """Emit `tool-input-start`."""
    block.metadata = _call_facts(value)
    s.begin_call(block, value.name, results.tool_key(block.raw), wire_id=value.id, hosted=True)


def _call_facts(value: shapes.CallBlock) -> JsonObject:
    facts = {"caller": value.caller, "toolset_name": value.toolset_name, "server_name": value.server_name}
    return {key: fact for key, fact in facts.items() if fact}


def _call_stop(s: MessagesState, block: BlockState) -> None:
    """Emit `tool-input-end` and `tool-call`, for a client call once the next block or the end shows it is complete."""
    s.end_call(block)


def on_input(s: MessagesState, block: BlockState, delta: shapes.InputDelta) -> None:
    """Emit `tool-input-delta`."""
    s.input_delta(block, delta.partial_json)


def _nothing(s: MessagesState, block: BlockState, value: shapes.ContentBlock | None = None) -> None:
    """Emit only the tool event."""


def _result_stop(s: MessagesState, block: BlockState) -> None:
    """Emit nothing more, since the block was complete when it started."""


def _upload(s: MessagesState, block: BlockState, value: shapes.UploadBlock) -> None:
    """Register a file to download."""
    results.add_download(s, value.file_id, block.portable_tool, None)


def _compaction_start(s: MessagesState, block: BlockState, value: shapes.CompactionBlock) -> None:
    """Emit nothing yet, since the content follows."""


def on_compaction(s: MessagesState, block: BlockState, delta: shapes.CompactionDelta) -> None:
    """Add to the summary, which is emitted at its end."""
    new = {"content": delta.content, "encrypted_content": delta.encrypted_content}
    for name, value in new.items():
        if value is not None:
            block.grow(name, value)


def _compaction_stop(s: MessagesState, block: BlockState) -> None:
    """Emit `custom`, with the whole summary."""
    whole = {name: "".join([block.raw.get(name) or "", *pieces]) for name, pieces in block.streamed.items()}
    block.raw = {**block.raw, **whole}
    _custom(s, block)


def _custom(s: MessagesState, block: BlockState) -> None:
    """Emit `custom`, of the kind `anthropic.` and the block type."""
    s.out.append(Custom(f"anthropic.{block.kind}", block.raw))


def _no_start(s: MessagesState, block: BlockState, value: shapes.ContentBlock) -> None:
    """Emit nothing yet."""


def _key(tool: str) -> Callable[[JsonObject], str]:
    return lambda raw: tool


BLOCKS: dict[str, BlockRow] = {
    "text": BlockRow(shape=shapes.TextBlock, start=text.text_start, stop=text.text_stop),
    "thinking": BlockRow(shape=shapes.ThinkingBlock, start=text.thinking_start, stop=text.thinking_stop),
    "redacted_thinking": BlockRow(shape=shapes.RedactedBlock, start=text.redacted_start, stop=text.redacted_stop),
    "tool_use": BlockRow(shape=shapes.CallBlock, start=_client_call, stop=_call_stop),
    "server_tool_use": BlockRow(shape=shapes.CallBlock, start=_server_call, stop=_call_stop, tool=results.tool_key),
    "mcp_tool_use": BlockRow(shape=shapes.CallBlock, start=_server_call, stop=_call_stop, tool=results.tool_key),
    **{
        kind: BlockRow(
            shape=shapes.ResultBlock,
            start=results.result_start,
            stop=_result_stop,
            tool=_key(tool),
            is_result=True,
        )
        for kind, tool in results.RESULTS.items()
    },
    "mcp_tool_listing": BlockRow(
        shape=shapes.ListingBlock, start=_nothing, stop=_result_stop, tool=_key("mcp"), is_result=True
    ),
    "container_upload": BlockRow(
        shape=shapes.UploadBlock, start=_upload, stop=_result_stop, tool=_key("code_execution"), is_result=True
    ),
    "compaction": BlockRow(shape=shapes.CompactionBlock, start=_compaction_start, stop=_compaction_stop),
    "fallback": BlockRow(shape=shapes.ContentBlock, start=_no_start, stop=_custom),
}
"""Block type → how it is decoded."""


class BlockDeltaRow(Struct, frozen=True, kw_only=True):
    """How one delta type is decoded, and which blocks it may belong to. `opens` is the block that it implies."""

    shape: type[Struct]
    handler: Callable[[MessagesState, BlockState, Any], None]
    blocks: frozenset[str]
    opens: str | None = None


_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_TEXT = frozenset({"text"})
_THINKING = frozenset({"thinking"})

DELTAS: dict[str, BlockDeltaRow] = {
    "text_delta": BlockDeltaRow(shape=shapes.BlockTextDelta, handler=text.on_text, blocks=_TEXT, opens="text"),
    "citations_delta": BlockDeltaRow(shape=shapes.CitationDelta, handler=text.on_citation, blocks=_TEXT, opens="text"),
    "thinking_delta": BlockDeltaRow(
        shape=shapes.ThinkingDelta, handler=text.on_thinking, blocks=_THINKING, opens="thinking"
    ),
    "signature_delta": BlockDeltaRow(shape=shapes.BlockSignatureDelta, handler=text.on_signature, blocks=_THINKING),
    "input_json_delta": BlockDeltaRow(shape=shapes.InputDelta, handler=on_input, blocks=_CALLS),
    "compaction_delta": BlockDeltaRow(
        shape=shapes.CompactionDelta, handler=on_compaction, blocks=frozenset({"compaction"})
    ),
}
"""Delta type → how it is decoded."""
