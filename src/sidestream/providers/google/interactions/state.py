"""What a decoder remembers between events of an interaction, and the few ways in which it emits parts."""

from typing import Any

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.providers.google.context import PROVIDER_NAME
from sidestream.providers.google.interactions.context import InteractionContext
from sidestream.providers.google.state import DRAFT, Block, Family
from sidestream.stream.parts import (
    Custom,
    Error,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)


class Step:
    """One step of an interaction, known by its index."""

    __slots__ = (
        "block",
        "blocks",
        "call_id",
        "called",
        "content",
        "done",
        "index",
        "input_open",
        "kind",
        "name",
        "raw",
        "text",
        "tool",
    )

    def __init__(self, index: int, kind: str, raw: JsonObject) -> None:
        self.index = index
        self.kind = kind
        self.raw = raw
        """The step as it must go back, growing by its deltas."""
        self.tool = ""
        self.name = ""
        self.call_id = ""
        self.block: Block | None = None
        self.blocks = 0
        self.content: list[JsonObject] = []
        """What a model's output holds, with ids of blocks in place of text."""
        self.text: list[str] = []
        """The arguments of a call, as far as they streamed."""
        self.input_open = False
        self.called = False
        self.done = False


class State:
    """One interaction while it is decoded. Handlers read and change it and append to `out`."""

    def __init__(self, context: InteractionContext) -> None:
        self.context = context
        self.out: list[StreamPart] = []
        self.steps: dict[int, Step] = {}
        self.order: list[Step] = []
        self.ignored: set[int] = set()
        """Steps that are the client's own."""
        self.begun: dict[str, Step] = {}
        """Calls by their ids, from their start on."""
        self.calls: dict[str, Step] = {}
        """Calls that were told."""
        self.answered: set[str] = set()
        self.taken: set[str] = set()
        self.texts: dict[str, str] = {}
        self.draft: list[str] = []
        self.files = 0
        self.sources = 0
        self.has_metadata = False
        self.has_client_call = False
        self.interaction: JsonObject = {}
        self.status: str | None = None
        self.last_event_id: str | None = None
        self.usage: JsonObject = {}
        self.server_tool_use: dict[str, int] = {}
        self.error: Error | None = None
        self.is_over = False

    def raw(self, event: Any) -> None:
        """Hands on what could not be understood."""
        self.out.append(Raw(PROVIDER_NAME, event))

    def tool_event(self, step: Step, stage: str, event: Any) -> None:
        """Says that a tool went a step further."""
        self.out.append(ToolEvent(step.tool, stage, event, call_id=step.call_id or None, output_index=step.index))

    def text(self, step: Step, family: Family, text: str) -> Block | None:
        """More text of a step; what follows each other is one block. None where it is a draft."""
        if family == "text" and self.context.drafts:
            self.draft.append(text)
            last = step.content[-1] if step.content else {}
            if last.keys() == {"type", "text"}:
                last["text"] += text
            else:
                step.content.append({"type": "text", "text": text})
            return None
        block = step.block
        if block is None:
            name = "text" if family == "text" else "thought"
            suffix = f".{step.blocks}" if step.blocks else ""
            block = step.block = Block(f"{name}-{step.index}{suffix}", family)
            step.blocks += 1
            step.content.append({"type": "text", "text_id": block.id})
            self.out.append(TextStart(block.id) if family == "text" else ReasoningStart(block.id))
        if text:
            block.pieces.append(text)
            self.out.append(TextDelta(block.id, text) if family == "text" else ReasoningDelta(block.id, text))
        return block

    def end_block(self, step: Step) -> None:
        """Ends the block that is open in a step, if one is."""
        block, step.block = step.block, None
        if block is None:
            return
        self.texts[block.id] = block.text
        if block.family == "text":
            self.out.append(TextEnd(block.id, tuple(block.annotations)))
        else:
            signature = step.raw.get("signature")
            self.out.append(ReasoningEnd(block.id, signature if isinstance(signature, str) else None))

    def own(self, wanted: str) -> str:
        """An id that no other call of this interaction has."""
        unique, number = wanted, 1
        while unique in self.taken:
            unique, number = f"{wanted}#{number}", number + 1
        self.taken.add(unique)
        return unique

    def open_input(self, step: Step, provider_executed: bool) -> None:
        """Begins the input of a call, once."""
        if not step.input_open and not step.called:
            step.input_open = True
            self.out.append(ToolInputStart(step.call_id, step.name, provider_executed))

    def close_input(self, step: Step) -> None:
        """Ends the input of a call, once."""
        if step.input_open:
            step.input_open = False
            self.out.append(ToolInputEnd(step.call_id))

    def call(self, step: Step, value: Any, provider_executed: bool) -> None:
        """A call whose arguments are complete; what did not stream of them is told now."""
        if step.called:
            return
        self.open_input(step, provider_executed)
        if not step.text:
            self.out.append(ToolInputDelta(step.call_id, jsontext.dumps(value).decode()))
        self.close_input(step)
        step.called = True
        self._count(step, provider_executed)
        self.out.append(ToolCall(step.call_id, step.name, step.tool, provider_executed, input=value))

    def failed_call(self, step: Step, error: str, provider_executed: bool) -> None:
        """A call whose arguments cannot be used; it must never be executed."""
        self.open_input(step, provider_executed)
        self.close_input(step)
        step.called = True
        self._count(step, provider_executed)
        text = "".join(step.text)
        self.out.append(
            ToolCall(step.call_id, step.name, step.tool, provider_executed, input_error=error, input_text=text)
        )

    def _count(self, step: Step, provider_executed: bool) -> None:
        self.calls[step.call_id] = step
        if provider_executed:
            self.server_tool_use[step.tool] = self.server_tool_use.get(step.tool, 0) + 1
        else:
            self.has_client_call = True

    def result(self, step: Step, value: Any, *, is_error: bool) -> None:
        """What a hosted tool gave back; the first result of a call counts."""
        call = self.calls.get(step.call_id)
        if call is None:
            self.call(step, {}, True)
            call = step
        if step.call_id not in self.answered:
            self.answered.add(step.call_id)
            self.out.append(ToolResult(step.call_id, call.name, call.tool, value, is_error, True))

    def tell_draft(self) -> None:
        """Says what the text would have been, had it been the answer."""
        text = "".join(self.draft)
        if text:
            self.out.append(Custom(DRAFT, {"text": text}))
