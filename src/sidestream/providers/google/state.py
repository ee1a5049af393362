"""What a decoder remembers between chunks, and the few ways in which it emits parts."""

from typing import Any, Literal

from sidestream import jsontext
from sidestream.jsontext import JsonObject
from sidestream.providers.google.arguments import ClientCall
from sidestream.providers.google.context import PROVIDER_NAME, DecodeContext
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

Family = Literal["text", "reasoning"]
DRAFT = "sidestream.draft"


class Block:
    """A run of text parts, or of thoughts, that follow each other."""

    __slots__ = ("annotations", "family", "id", "pieces", "signature", "size", "slice")

    def __init__(self, block_id: str, family: Family) -> None:
        self.id = block_id
        self.family: Family = family
        self.pieces: list[str] = []
        self.size = 0
        self.slice: JsonObject = {}
        """The entry of the layout that text without a signature goes on with."""
        self.signature: str | None = None
        self.annotations: list[Any] = []

    @property
    def text(self) -> str:
        """All that has come."""
        # Each citation asks for it: what was put together once stays so.
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class HostedCall:
    """A call that the provider executes."""

    __slots__ = ("answered", "id", "tool")

    def __init__(self, call_id: str, tool: str) -> None:
        self.id = call_id
        self.tool = tool
        self.answered = False


class State:
    """One response while it is decoded. Handlers read and change it and append to `out`."""

    def __init__(self, context: DecodeContext) -> None:
        self.context = context
        self.out: list[StreamPart] = []
        self.blocks: list[Block] = []
        self.current: Block | None = None
        self.draft: list[str] = []
        self.layout: list[JsonObject] = []
        self.hosted: dict[str, HostedCall] = {}
        self.streaming: dict[str, ClientCall] = {}
        """Client calls whose arguments are not complete."""
        self.taken: set[str] = set()
        self.made = 0
        self.files = 0
        self.has_client_call = False
        self.has_metadata = False
        self.response_id: str | None = None
        self.model: str | None = None
        self.usage: JsonObject = {}
        self.server_tool_use: dict[str, int] = {}
        self.grounding: JsonObject = {}
        self.sources = 0
        self.told_sources: set[tuple[Any, ...]] = set()
        self.metadata: JsonObject = {}
        self.continuation_token: str | None = None
        self.finish_reason: str | None = None
        self.block_reason: str | None = None
        self.error: Error | None = None
        self.is_over = False

    def raw(self, event: Any) -> None:
        """Hands on what could not be understood."""
        self.out.append(Raw(PROVIDER_NAME, event))

    def tool_event(self, tool: str, stage: str, event: Any, call_id: str | None = None) -> None:
        """Says that a tool went a step further."""
        self.out.append(ToolEvent(tool, stage, event, call_id=call_id))

    def text(self, family: Family, text: str, signature: str | None) -> None:
        """More text. Parts of one kind that follow each other are one block; their signatures stay apart."""
        if family == "text" and self.context.drafts:
            self._draft(text, signature)
            return
        block = self.current
        if block is None or block.family != family:
            if not text:
                if signature:
                    self.keep({"text": "", "thoughtSignature": signature, **_thought(family)})
                return
            block = self._open(family)
        if text:
            block.pieces.append(text)
            self.out.append(TextDelta(block.id, text) if family == "text" else ReasoningDelta(block.id, text))
        self._slice(block, len(text), signature)

    def more(self, family: Family, text: str) -> StreamPart | None:
        """More text that only makes what is open longer; None where something else is to be done."""
        block = self.current
        if block is None or block.family != family or not self.layout or self.layout[-1] is not block.slice:
            return None
        block.pieces.append(text)
        block.size = block.slice["end"] = block.size + len(text)
        return TextDelta(block.id, text) if family == "text" else ReasoningDelta(block.id, text)

    def _open(self, family: Family) -> Block:
        self.end_block()
        prefix = "text" if family == "text" else "thought"
        number = sum(block.family == family for block in self.blocks)
        block = self.current = Block(f"{prefix}-{number}", family)
        self.blocks.append(block)
        self.out.append(TextStart(block.id) if family == "text" else ReasoningStart(block.id))
        return block

    def _slice(self, block: Block, size: int, signature: str | None) -> None:
        start, block.size = block.size, block.size + size
        if signature is None and self.layout and self.layout[-1] is block.slice:
            block.slice["end"] = block.size
            return
        if not size and signature is None:
            return
        entry: JsonObject = {"text_id": block.id, "start": start, "end": block.size, **_thought(block.family)}
        if signature is not None:
            block.signature = entry["thoughtSignature"] = signature
        else:
            block.slice = entry
        self.layout.append(entry)

    def _draft(self, text: str, signature: str | None) -> None:
        self.end_block()
        self.draft.append(text)
        last: JsonObject = self.layout[-1].get("part", {}) if self.layout else {}
        if signature is None and last.keys() == {"text"}:
            last["text"] += text
        elif text or signature is not None:
            self.keep({"text": text} | ({} if signature is None else {"thoughtSignature": signature}))

    def end_block(self) -> None:
        """Ends the block that is open, if one is."""
        block, self.current = self.current, None
        if block is None:
            return
        if block.family == "text":
            self.out.append(TextEnd(block.id, tuple(block.annotations)))
        else:
            self.out.append(ReasoningEnd(block.id, block.signature))

    def tell_draft(self) -> None:
        """Says what the text would have been, had it been the answer."""
        text = "".join(self.draft)
        if text:
            self.out.append(Custom(DRAFT, {"text": text}))

    def keep(self, part: JsonObject, **beside: Any) -> None:
        """Remembers a part as it must go back."""
        self.layout.append({**beside, "part": part})

    def call_id(self, given: str | None) -> str:
        """An id that no other call of this response has: the API's own, or one made up, which never goes back."""
        if given and given not in self.taken:
            self.taken.add(given)
            return given
        while True:
            made = f"{given or 'call'}_{self.made}" + (f"_{self.response_id}" if self.response_id else "")
            self.made += 1
            if made not in self.taken:
                self.taken.add(made)
                return made

    def hosted_call(self, call: HostedCall, arguments: Any) -> None:
        """A call that the provider executes, whole."""
        self.hosted[call.id] = call
        self.server_tool_use[call.tool] = self.server_tool_use.get(call.tool, 0) + 1
        self.out += [
            ToolInputStart(call.id, call.tool, True),
            ToolInputDelta(call.id, jsontext.dumps(arguments).decode()),
            ToolInputEnd(call.id),
            ToolCall(call.id, call.tool, call.tool, True, input=arguments),
        ]

    def hosted_result(self, call: HostedCall, value: Any, *, is_error: bool = False) -> None:
        """What the provider's tool gave back; the first result counts."""
        if not call.answered:
            call.answered = True
            self.out.append(ToolResult(call.id, call.tool, call.tool, value, is_error, True))

    def waiting(self, tool: str, given: str | None) -> HostedCall | None:
        """The call that a result answers: by its id, or the last one of this tool that has no result yet."""
        if given is not None:
            return self.hosted.get(given)
        waiting = [call for call in self.hosted.values() if call.tool == tool and not call.answered]
        return waiting[-1] if waiting else None


def _thought(family: Family) -> JsonObject:
    return {"thought": True} if family == "reasoning" else {}
