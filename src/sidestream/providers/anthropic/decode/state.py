"""Decoder state of a message, and the emission of its text, calls and results."""

from collections.abc import Mapping
from typing import Any, ClassVar

from sidestream import jsontext
from sidestream.jsontext import JsonObject, text_in
from sidestream.parts import (
    Custom,
    Stage,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.providers.anthropic.client_actions import portable
from sidestream.providers.anthropic.context import PROVIDER_NAME, RESULT_TOOL, MessagesContext
from sidestream.providers.shared.decoding import DecoderState, input_fields


class BlockState:
    """One content block, identified by its index in the message."""

    __slots__ = (
        "called",
        "citations",
        "deltas",
        "file",
        "growing",
        "index",
        "input",
        "is_answer",
        "is_native",
        "is_open",
        "kind",
        "metadata",
        "name",
        "part_id",
        "portable_tool",
        "provider_executed",
        "raw",
        "stage",
        "streamed",
        "tool",
    )

    def __init__(self, index: int, kind: str, block_id: str, raw: JsonObject) -> None:
        self.index = index
        self.kind = kind
        self.part_id = block_id
        self.raw = raw
        self.deltas: list[str] = []
        self.citations: list[JsonObject] = []
        self.streamed: dict[str, list[str]] = {}
        """Fields that stream in pieces, besides the content itself."""
        self.name = ""
        self.tool: str | None = None
        """Key of the events of a hosted tool, or name of the client's function."""
        self.portable_tool = ""
        self.stage: Stage = "running"
        """Stage at the block's end."""
        self.growing: Stage = "delta"
        """Stage of its deltas."""
        self.provider_executed = False
        self.is_open = True
        self.is_answer = False
        self.is_native = False
        """Whether this is a call of the provider's own kind that the client answers."""
        self.called = False
        self.input: Any = None
        self.file: str | None = None
        self.metadata: JsonObject = {}

    @property
    def text(self) -> str:
        """All deltas, joined."""
        return "".join(self.deltas)

    def grow(self, field: str, piece: str) -> None:
        """Add a piece to a field."""
        self.streamed.setdefault(field, []).append(piece)

    @property
    def signature(self) -> str:
        """Signature of thinking so far."""
        return "".join(self.streamed.get("signature", ()))


class MessagesState(DecoderState):
    """Decoder state for one message."""

    TOOLS: ClassVar[Mapping[str, str]] = {
        "code_execution": "code_interpreter",
        "bash_code_execution": "code_interpreter",
        "text_editor_code_execution": "code_interpreter",
    }
    STAGES: ClassVar[Mapping[str, Stage]] = {"start": "started", "done": "running"}

    def __init__(self, context: MessagesContext) -> None:
        super().__init__(context.provider)
        self.context = context
        self.blocks: list[BlockState] = []
        self.closed = 0
        """Number of leading blocks that are known to be closed."""
        self.at: dict[int, BlockState] = {}
        self.calls: dict[str, BlockState] = {}
        self.results: dict[str, tuple[Any, bool]] = {}
        self._delivered = set(context.delivered)
        self.documents: dict[str, str] = {}
        self.message_id: str | None = None
        self.facts: JsonObject = {}
        """Model, stop reason, container and other properties of the response. The last value counts."""
        self.usage: JsonObject = {}
        self._held_text: list[StreamPart] = []
        self._pending_call: BlockState | None = None

    def new_block(self, index: int, kind: str, raw: JsonObject) -> BlockState:
        """Add a block that starts at this index."""
        self.count_entry()
        block = BlockState(index, kind, self.unique_id(f"{self.message_id or 'message'}:{index}"), raw)
        self.blocks.append(block)
        self.at[index] = block
        return block

    def emit_text(self, part: StreamPart) -> None:
        """Emit a part for text. With a reserved result tool, it is held back until its role is known."""
        if self.context.has_result_tool:
            self._held_text.append(part)
        else:
            self.out.append(part)

    def release_text(self) -> None:
        """Emit held-back text as ordinary text."""
        self.out += self._held_text
        self._held_text = []

    def _set_text_aside(self) -> None:
        """Emit held-back text as commentary, since it precedes the answer and is not part of it."""
        text = "".join(part.delta for part in self._held_text if isinstance(part, TextDelta))
        self._held_text = []
        if text:
            self.out.append(Custom("anthropic.commentary", {"text": text}))

    def begin_call(self, block: BlockState, name: str, tool: str, *, wire_id: str | None, hosted: bool) -> None:
        """Begin a call, or the answer that arrives as a call of the reserved tool."""
        block.name, block.provider_executed = name, hosted
        self.of_tool(block, tool)
        if self.context.has_result_tool and not hosted and name == RESULT_TOOL:
            self._set_text_aside()
            block.is_answer = True
            self.out.append(TextStart(block.part_id))
            return
        self.release_text()
        block.part_id = self.unique_id(wire_id) if wire_id else block.part_id
        self.calls[wire_id or block.part_id] = block
        self.out.append(ToolInputStart(block.part_id, name, hosted))

    def input_delta(self, block: BlockState, text: str) -> None:
        """Add JSON text to a call's input."""
        block.deltas.append(text)
        if text:
            self.out.append((TextDelta if block.is_answer else ToolInputDelta)(block.part_id, text))

    def end_call(self, block: BlockState) -> None:
        """Emit a complete call, once. A client call stays pending until the next block or the end."""
        if block.called:
            return
        block.called = True
        if not block.text.strip():
            block.deltas.clear()
            self.input_delta(block, jsontext.dumps(block.raw.get("input") or {}).decode())
        self.end_input(block)
        if block.is_answer:
            return
        self.count_call(block.tool or block.name, provider_executed=block.provider_executed)
        if block.provider_executed:
            self.out.append(_tool_call(block))
        else:
            self.emit_pending_call()
            self._pending_call = block

    def end_input(self, block: BlockState) -> None:
        """End the JSON text of an input, once."""
        if block.is_open:
            block.is_open = False
            self.out.append(TextEnd(block.part_id) if block.is_answer else ToolInputEnd(block.part_id))

    def emit_pending_call(self, *, is_cut: bool = False) -> None:
        """Emit the pending client call. `is_cut` means that a limit ended the response after it."""
        block, self._pending_call = self._pending_call, None
        if block is not None:
            self.out.append(_tool_call(block, is_cut=is_cut))

    def of_tool(self, block: BlockState, tool: str, *, is_error: bool | None = None) -> None:
        """Set the tool of a block. `is_error` says how its call ended, for a result."""
        block.tool = tool
        block.portable_tool = self.portable(tool)
        if is_error is not None:
            block.stage = "failed" if is_error else "completed"
        elif tool not in self.TOOLS:  # The input of the others is code.
            block.growing = "input"

    def is_new(self, key: str) -> bool:
        """Return whether a link or file appears for the first time in this turn."""
        if key in self._delivered:
            return False
        self._delivered.add(key)
        return True

    def result(self, call: BlockState, value: Any, *, is_error: bool) -> None:
        """Emit the result of a call, once."""
        if call.part_id in self.results:
            return
        self.results[call.part_id] = (value, is_error)
        self.out.append(ToolResult(call.part_id, call.name, call.portable_tool, value, is_error, True))


def _tool_call(block: BlockState, *, is_cut: bool = False) -> ToolCall:
    fields = input_fields(block.text, is_cut=is_cut)
    block.input = fields.get("input")
    action = None
    if block.is_native and "input" in fields:
        action = portable(block.tool or block.name, text_in(block.raw, "name") or "", fields["input"])
    tool = block.tool or block.name
    return ToolCall(
        block.part_id,
        block.name,
        block.portable_tool if block.provider_executed else tool,
        block.provider_executed,
        provider_metadata={PROVIDER_NAME: block.metadata} if block.metadata else None,
        action=action,
        provider_tool=tool if block.provider_executed else None,
        **fields,
    )
