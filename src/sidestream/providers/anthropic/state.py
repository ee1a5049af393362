"""What a decoder remembers between events, and the few ways in which it emits parts."""

from typing import Any, cast

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.providers.anthropic.context import PROVIDER_NAME, RESULT_TOOL, DecodeContext
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import (
    Custom,
    Error,
    Raw,
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


class BlockState:
    """One content block, known by its place in the message."""

    __slots__ = (
        "called",
        "citations",
        "deltas",
        "file",
        "id",
        "index",
        "input",
        "is_answer",
        "is_open",
        "kind",
        "metadata",
        "name",
        "part_id",
        "provider_executed",
        "raw",
        "signature",
        "tool",
    )

    def __init__(self, index: int, kind: str, block_id: str, raw: JsonObject) -> None:
        self.index = index
        self.kind = kind
        self.id = block_id
        self.part_id = block_id
        self.raw = raw
        self.deltas: list[str] = []
        self.citations: list[JsonObject] = []
        self.signature = ""
        self.name = ""
        self.tool: str | None = None
        self.provider_executed = False
        self.is_open = True
        self.is_answer = False
        self.called = False
        self.input: Any = None
        self.file: str | None = None
        self.metadata: JsonObject = {}

    @property
    def text(self) -> str:
        """What its deltas say together."""
        return "".join(self.deltas)


class State:
    """One response while it is decoded. Handlers read and change it and append to `out`."""

    def __init__(self, context: DecodeContext) -> None:
        self.context = context
        self.out: list[StreamPart] = []
        self.blocks: list[BlockState] = []
        self.at: dict[int, BlockState] = {}
        self.calls: dict[str, BlockState] = {}
        self.results: dict[str, tuple[Any, bool]] = {}
        self.downloads: dict[str, FileRef] = {}
        self._delivered = set(context.delivered)
        self.documents: dict[str, str] = {}
        self.server_tool_use: dict[str, int] = {}
        self.message_id: str | None = None
        self.facts: JsonObject = {}
        """What the response says of itself: model, stop_reason, container and so on; the last word counts."""
        self.usage: JsonObject = {}
        self.has_client_call = False
        self.has_answer = False
        self.error: Error | None = None
        self.is_over = False
        self._held: list[StreamPart] = []
        self._unsaid: BlockState | None = None
        self._taken: set[str] = set()

    def new(self, index: int, kind: str, raw: JsonObject) -> BlockState:
        """A block that begins at this place."""
        block_id = self._own(f"{self.message_id or 'message'}:{index}")
        block = BlockState(index, kind, block_id, raw)
        self.blocks.append(block)
        self.at[index] = block
        return block

    def _own(self, wanted: str) -> str:
        """An id that no other block of this response has."""
        unique, number = wanted, 1
        while unique in self._taken:
            unique, number = f"{wanted}#{number}", number + 1
        self._taken.add(unique)
        return unique

    def raw(self, event: Any) -> None:
        """Hands an event on that could not be understood or came too late."""
        self.out.append(Raw(PROVIDER_NAME, event))

    def tool_event(self, tool: str, stage: str, event: Any, call_id: str | None, index: int | None) -> None:
        """Says that a tool went a step further."""
        self.out.append(ToolEvent(tool, stage, event, call_id=call_id, output_index=index))

    def say(self, part: StreamPart) -> None:
        """Text. Where the answer is to come by the reserved tool, text is held back until it is known what it is."""
        if self.context.has_result_tool:
            self._held.append(part)
        else:
            self.out.append(part)

    def release(self) -> None:
        """The text that was held back is text like any other."""
        self.out += self._held
        self._held = []

    def _set_aside(self) -> None:
        """The text that was held back only led up to the answer: it must not stand in it."""
        text = "".join(part.delta for part in self._held if isinstance(part, TextDelta))
        self._held = []
        if text:
            self.out.append(Custom("anthropic.commentary", {"text": text}))

    def begin_call(self, block: BlockState, name: str, tool: str, *, wire_id: str | None, hosted: bool) -> None:
        """Begins a call, or the answer that comes in the shape of one."""
        block.name, block.tool, block.provider_executed = name, tool, hosted
        if self.context.has_result_tool and not hosted and name == RESULT_TOOL:
            self._set_aside()
            block.is_answer = self.has_answer = True
            self.out.append(TextStart(block.part_id))
            return
        self.release()
        block.part_id = self._own(wire_id) if wire_id else block.part_id
        self.calls[wire_id or block.part_id] = block
        self.out.append(ToolInputStart(block.part_id, name, hosted))

    def input_delta(self, block: BlockState, text: str) -> None:
        """More JSON text of a call's input."""
        block.deltas.append(text)
        if text:
            self.out.append((TextDelta if block.is_answer else ToolInputDelta)(block.part_id, text))

    def end_call(self, block: BlockState) -> None:
        """The input is complete: the call, once. A client's call waits until it is known that nothing cut it off."""
        if block.called:
            return
        block.called = True
        if not block.text.strip():
            block.deltas.clear()
            self.input_delta(block, jsontext.dumps(block.raw.get("input") or {}).decode())
        self.end_input(block)
        if block.is_answer:
            return
        if block.provider_executed:
            tool = block.tool or block.name
            self.server_tool_use[tool] = self.server_tool_use.get(tool, 0) + 1
            self.out.append(_tool_call(block))
        else:
            self.settle()
            self.has_client_call = True
            self._unsaid = block

    def end_input(self, block: BlockState) -> None:
        """Ends the JSON text of an input, once."""
        if block.is_open:
            block.is_open = False
            self.out.append(TextEnd(block.part_id) if block.is_answer else ToolInputEnd(block.part_id))

    def settle(self, *, is_cut: bool = False) -> None:
        """Tells the client's call that waited. Cut off by a limit, what looks whole may be half a command."""
        block, self._unsaid = self._unsaid, None
        if block is not None:
            self.out.append(_tool_call(block, is_cut=is_cut))

    def told_again(self, call: BlockState) -> None:
        """A call of an earlier run, so that its result has one to follow."""
        self.out.append(ToolCall(call.part_id, call.name, call.tool or call.name, True, input=call.input))

    def is_new(self, key: str) -> bool:
        """True the first time that a link or file comes in this turn."""
        if key in self._delivered:
            return False
        self._delivered.add(key)
        return True

    def result(self, call: BlockState, value: Any, *, is_error: bool) -> None:
        """Emits what a call gave back, once."""
        if call.part_id in self.results:
            return
        self.results[call.part_id] = (value, is_error)
        tool = call.tool or call.name
        self.out.append(ToolResult(call.part_id, call.name, tool, value, is_error, True))


def _tool_call(block: BlockState, *, is_cut: bool = False) -> ToolCall:
    value, error = parse_input(block.text)
    if is_cut and error is None:
        value, error = None, "the input is incomplete"
    block.input = value
    failed = {"input_error": error, "input_text": block.text} if error is not None else {}
    tool = block.tool or block.name
    return ToolCall(
        block.part_id,
        block.name,
        tool,
        block.provider_executed,
        input=value,
        provider_metadata={PROVIDER_NAME: block.metadata} if block.metadata else None,
        **failed,
    )


def parse_input(text: str) -> tuple[Any, str | None]:
    """The input of a call and what is wrong with it. Nothing, `null` and blanks are an empty object."""
    if not text.strip() or text.strip() == "null":
        return {}, None
    try:
        value = jsontext.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if not isinstance(value, dict):
        return None, "the arguments are JSON but not an object"
    return cast(JsonObject, value), None
