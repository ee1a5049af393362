"""Decoder state for both APIs, and a growing text that converts byte offsets to characters."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.jsontext import JsonObject, without_none
from sidestream.messages.fold import DRAFT
from sidestream.parts import (
    Custom,
    File,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    Stage,
    StepOutcome,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.providers.google.context import PROVIDER_NAME, GoogleContext
from sidestream.providers.google.decode.arguments import ClientCall
from sidestream.providers.shared.decoding import DecoderState, count_in, usage_from

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_STRIDE = 1024
"""Bytes between two marks, which bounds the bytes counted for an offset."""

MAX_CITED_BYTES = 8192
"""Maximum bytes that a source quotes of the text that it supports, since many sources may support all of a long text.
The span itself may be longer."""


class Characters(NamedTuple):
    """A range of characters, and its text."""

    start: int
    end: int
    text: str
    """Text of the range, truncated if it is long."""


class GrowingText:
    """Text in pieces. Each piece is joined and encoded once, however many offsets are requested."""

    __slots__ = ("_data", "_encoded", "_marks", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._data = bytearray()
        self._encoded = 0
        """Number of pieces in `_data`."""
        self._marks = [0]
        """Number of characters before each stride of `_data`."""

    @property
    def text(self) -> str:
        """Text so far."""
        if len(self.pieces) > 1:
            if self._encoded:
                self._encode()
            self.pieces = ["".join(self.pieces)]
            self._encoded = min(self._encoded, 1)
        return self.pieces[0] if self.pieces else ""

    @property
    def byte_size(self) -> int:
        """Length in UTF-8 bytes."""
        self._encode()
        return len(self._data)

    def characters(self, start: int, end: int) -> Characters:
        """Return the characters between two byte offsets. An offset inside a character is moved to its start."""
        self._encode()
        first, last = self._boundary(start), self._boundary(end)
        quoted = last if last - first <= MAX_CITED_BYTES else self._boundary(first + MAX_CITED_BYTES)
        text = self._data[first:quoted].decode("utf-8", "surrogatepass")
        return Characters(self._character(first), self._character(last), text)

    def _encode(self) -> None:
        if self._encoded == len(self.pieces):
            return
        self._data += "".join(self.pieces[self._encoded :]).encode("utf-8", "surrogatepass")
        self._encoded = len(self.pieces)
        while len(self._marks) * _STRIDE <= len(self._data):
            end = len(self._marks) * _STRIDE
            self._marks.append(self._marks[-1] + _count(self._data[end - _STRIDE : end]))

    def _boundary(self, offset: int) -> int:
        data = self._data
        offset = max(0, min(offset, len(data)))
        while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
            offset -= 1
        return offset

    def _character(self, boundary: int) -> int:
        mark = boundary // _STRIDE
        return self._marks[mark] + _count(self._data[mark * _STRIDE : boundary])


def _count(data: bytearray) -> int:
    """Return the number of characters that begin in these bytes."""
    return len(data.translate(None, _CONTINUATION_BYTES))


Family = Literal["text", "reasoning"]
DRAFT_PIECES = "pieces"
"""Key for a draft's text in an unfinished layout. The pieces are joined at the end."""
MAX_SEARCHED = 16_000_000
"""Maximum characters to search, per answer, for the segments of sources without usable offsets. After that such sources
have no span."""
THOUGHT_IMAGE = "google.thought-image"


class GeminiBlock(GrowingText):
    """A block of text or thoughts, made of consecutive parts."""

    __slots__ = ("annotations", "family", "id", "signature", "size", "slice")

    def __init__(self, block_id: str, family: Family) -> None:
        super().__init__()
        self.id = block_id
        self.family: Family = family
        self.size = 0
        self.slice: JsonObject = {}
        """Layout entry that text without a signature extends."""
        self.signature: str | None = None
        self.annotations: list[Any] = []


class GoogleState(DecoderState):
    """Decoder state for one response of either API."""

    TOOLS: ClassVar[Mapping[str, str]] = {
        "google_search": "web_search",
        "url_context": "web_fetch",
        "code_execution": "code_interpreter",
    }

    USAGE_FIELDS: ClassVar[tuple[str, str, str, str, str]]
    """The API's names for the token counts of the prompt, hosted tools' prompts, cached prompt, output and thoughts."""

    def __init__(self) -> None:
        super().__init__(PROVIDER_NAME)
        self.draft: list[str] = []
        self._thought_images = 0
        self.files = 0
        self.sources = 0
        self.usage: JsonObject = {}

    def open_block(self, block_id: str, family: Family) -> GeminiBlock:
        """Begin a block."""
        self.count_entry()
        self.out.append(TextStart(block_id) if family == "text" else ReasoningStart(block_id))
        return GeminiBlock(block_id, family)

    def block_delta(self, block: GeminiBlock, text: str) -> None:
        """Add text to a block."""
        if text:
            block.pieces.append(text)
            self.out.append(TextDelta(block.id, text) if block.family == "text" else ReasoningDelta(block.id, text))

    def close_block(self, block: GeminiBlock, final: str | None = None) -> None:
        """End a block. `final` is its final text if that differs from the streamed one."""
        if block.family == "reasoning":
            self.out.append(ReasoningEnd(block.id, block.signature, text=final))
            return
        self.out.append(TextEnd(block.id, tuple(block.annotations), final))
        if final is not None:
            self.corrected(block.id)

    def source(self, fields: JsonObject, details: JsonObject) -> None:
        """Emit a source. `details` hold everything that has no field of its own."""
        self.count_entry()
        metadata = {PROVIDER_NAME: details} if details else None
        self.out.append(Source(f"source-{self.sources}", **without_none(fields), provider_metadata=metadata))
        self.sources += 1

    def file(self, mime_type: str, name: str | None, **fields: Any) -> None:
        """Emit a file."""
        self.count_entry()
        self.out.append(File(f"file-{self.files}", mime_type, name, **fields))
        self.files += 1

    def thought_image(self, mime_type: Any, data: str) -> None:
        """Emit an image from the model's reasoning, which is a preview."""
        self.count_entry()
        self.out.append(Custom(THOUGHT_IMAGE, {"mime_type": mime_type, "data": data, "index": self._thought_images}))
        self._thought_images += 1

    def emit_draft(self) -> None:
        """Emit the draft's text as a `custom` part."""
        text = "".join(self.draft)
        if text:
            self.out.append(Custom(DRAFT, {"text": text}))

    def total_usage(self) -> Usage:
        """Return token counts. Text that hosted tools read counts as input, thoughts as output."""
        prompt, tools, cached, text, thoughts = [count_in(self.usage, name) for name in self.USAGE_FIELDS]
        return usage_from(
            self.usage,
            self.server_tool_use,
            inputs=prompt + tools,
            outputs=text + thoughts,
            read=cached,
            reasoning=thoughts,
        )

    def finish(
        self,
        reason: FinishReason,
        raw_reason: str | None,
        metadata: JsonObject,
        outcome: StepOutcome,
    ) -> None:
        """Emit the last part of a complete response."""
        self.is_over = True
        if self.draft:
            metadata = {**metadata, "draft": "".join(self.draft)}
        outcome = replace(outcome, is_kept=bool(self.draft))
        self.out.append(Finish(reason, self.total_usage(), raw_reason, without_none(metadata), outcome=outcome))


class HostedCall:
    """A call that the provider executes."""

    __slots__ = ("answered", "id", "tool")

    def __init__(self, call_id: str, tool: str) -> None:
        self.id = call_id
        self.tool = tool
        self.answered = False


class GenerateContentState(GoogleState):
    """Decoder state for one generateContent response."""

    STAGES: ClassVar[Mapping[str, Stage]] = {
        "in_progress": "started",
        "interpreting": "started",
        "grounding": "completed",
        "completed": "completed",
        "failed": "failed",
    }
    USAGE_FIELDS = (
        "promptTokenCount",
        "toolUsePromptTokenCount",
        "cachedContentTokenCount",
        "candidatesTokenCount",
        "thoughtsTokenCount",
    )

    def __init__(self, context: GoogleContext) -> None:
        super().__init__()
        self.context = context
        self.blocks: list[GeminiBlock] = []
        self.texts: list[GeminiBlock] = []
        """Text blocks, without thoughts."""
        self.text_starts: list[int] = []
        """Byte offset of each text block in all text."""
        self.current: GeminiBlock | None = None
        self.layout: list[JsonObject] = []
        self.hosted: dict[str, HostedCall] = {}
        self.hosted_tools: set[str] = set()
        self.last_code: HostedCall | None = None
        self._unanswered: dict[str, dict[str, HostedCall]] = {}
        """Hosted calls without a result, by tool and id."""
        self.streaming: dict[str, ClientCall] = {}
        """Client calls whose arguments are not complete."""
        self._call_ids: set[str] = set()
        self._made_ids = 0
        self.response_id: str | None = None
        self.model: str | None = None
        self.grounding: JsonObject = {}
        self.searches_left = MAX_SEARCHED
        self.emitted_sources: set[tuple[Any, ...]] = set()
        self.metadata: JsonObject = {}
        self.unknown: set[str] = set()
        """Unknown fields seen so far. Each is reported once."""
        self.continuation_token: str | None = None
        self.finish_reason: str | None = None
        self.block_reason: str | None = None

    @property
    def has_content(self) -> bool:
        """Whether any part of the answer has arrived."""
        return bool(self.blocks or self.layout or self.streaming)

    def text(self, family: Family, text: str, signature: str | None) -> None:
        """Add text. Consecutive parts of one family form one block, but keep separate signatures."""
        if family == "text" and self.context.drafts:
            self._draft(text, signature)
            return
        block = self.current
        if block is None or block.family != family:
            if not text:
                if signature:
                    self.keep({"text": "", "thoughtSignature": signature, **_thought(family)})
                return
            self.end_block()
            number = len(self.texts) if family == "text" else len(self.blocks) - len(self.texts)
            block = self.current = self.open_block(f"{'text' if family == 'text' else 'thought'}-{number}", family)
            self.blocks.append(block)
            if family == "text":
                self.texts.append(block)
        self.block_delta(block, text)
        self._slice(block, len(text), signature)

    def _slice(self, block: GeminiBlock, size: int, signature: str | None) -> None:
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
        if signature is None and last.keys() == {DRAFT_PIECES}:
            last[DRAFT_PIECES].append(text)
        elif signature is not None:
            self.keep({"text": text, "thoughtSignature": signature})
        elif text:
            self.keep({DRAFT_PIECES: [text]})

    def end_block(self) -> None:
        """End the open block, if any."""
        block, self.current = self.current, None
        if block is not None:
            self.close_block(block)

    def keep(self, part: JsonObject, **beside: Any) -> None:
        """Add a part to the layout, as it must be sent back."""
        self.layout.append({**beside, "part": part})

    def call_id(self, given: str | None) -> str:
        """Return an id that no other call of this response has, the API's own or a generated one.

        A generated id is never sent back. It includes the response, or else the conversation up to it, so that the next
        response generates different ones.
        """
        if given and given not in self._call_ids:
            self._call_ids.add(given)
            return given
        while True:
            response = self.response_id or self.context.history
            made = f"{given or 'call'}_{self._made_ids}" + (f"_{response}" if response else "")
            self._made_ids += 1
            if made not in self._call_ids:
                self._call_ids.add(made)
                return made

    def hosted_call(self, call: HostedCall, arguments: Any) -> None:
        """Emit a complete call that the provider executes."""
        self.count_entry()
        self.hosted[call.id] = call
        self.hosted_tools.add(call.tool)
        self._unanswered.setdefault(call.tool, {})[call.id] = call
        self.count_call(call.tool, provider_executed=True)
        self.out += [
            ToolInputStart(call.id, call.tool, True),
            ToolInputDelta(call.id, jsontext.dumps(arguments).decode()),
            ToolInputEnd(call.id),
            ToolCall(call.id, call.tool, self.portable(call.tool), True, input=arguments, provider_tool=call.tool),
        ]

    def hosted_result(self, call: HostedCall, value: Any, *, is_error: bool = False) -> None:
        """Emit the result of a hosted tool. The first one counts."""
        if not call.answered:
            call.answered = True
            self._unanswered.get(call.tool, {}).pop(call.id, None)
            self.out.append(ToolResult(call.id, call.tool, self.portable(call.tool), value, is_error, True))

    def pending_call(self, tool: str, given: str | None) -> HostedCall | None:
        """Return the call of a result, by its id, else the last one of this tool without a result."""
        if given is not None:
            call = self.hosted.get(given)
        else:
            call = next(reversed(self._unanswered.get(tool, {}).values()), None)
        if call is None and (made := self.answered_call(tool, given)) is not None:
            call = self.hosted[made.id] = HostedCall(made.id, made.provider_tool or made.tool)
            self.hosted_tools.add(call.tool)
        return call


def _thought(family: Family) -> JsonObject:
    return {"thought": True} if family == "reasoning" else {}
