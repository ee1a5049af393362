"""What a decoder remembers between chunks, the shapes of deltas, and how text and reasoning are emitted."""

from hashlib import blake2b
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object
from sidestream.providers.openai.chat.context import WIRE, CompletionsContext
from sidestream.providers.shared.decoding import DecoderState, read_objects
from sidestream.stream.parts import ReasoningDelta, ReasoningEnd, ReasoningStart, TextDelta, TextEnd, TextStart


class Function(Struct, frozen=True):
    """A function call, or a piece of one. Some servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CustomInput(Struct, frozen=True):
    """A call whose input is plain text, or a piece of one."""

    name: str | None = None
    input: str | None = None


class ToolCallPiece(Struct, frozen=True):
    """A call, or more of one that has begun."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: CustomInput | None = None

    @property
    def is_custom(self) -> bool:
        """True for plain text. Snowflake sends an empty `custom` beside every function."""
        return self.custom is not None and bool(self.custom.name or self.custom.input)


class AudioPiece(Struct, frozen=True):
    """Spoken output: base64 of its bytes, and what is said."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: float | None = None


def text_or_objects(value: Any) -> str | list[JsonObject]:
    """Text, or a list of objects. An object is JSON that a server has parsed, as Cloudflare's JSON mode does."""
    if is_object(value):
        return jsontext.dumps(value).decode()
    return value if isinstance(value, str) else read_objects(value)


def tool_call_pieces(value: Any) -> list[ToolCallPiece]:
    """Calls, or more of them."""
    return [msgspec.convert(entry, ToolCallPiece) for entry in read_objects(value)]


TextFamily = Literal["text", "refusal", "transcript"]


class CallState:
    """One tool call while it grows. Its input is emitted once its name and some of its text are known."""

    __slots__ = (
        "emitted",
        "given_id",
        "is_custom",
        "is_open",
        "is_started",
        "length",
        "name",
        "number",
        "part_id",
        "pieces",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.given_id: str | None = None
        self.part_id = ""
        self.name = ""
        self.is_custom = False
        self.pieces: list[str] = []
        self.length = 0
        self.emitted = 0
        self.is_started = False
        self.is_open = False

    @property
    def text(self) -> str:
        """The input so far."""
        return "".join(self.pieces)


class CompletionsState(DecoderState):
    """One chat completion while it is decoded."""

    def __init__(self, context: CompletionsContext) -> None:
        super().__init__(context.provider)
        self.context = context
        self.event: Any = None
        """The chunk that is being read."""
        self.response_id: str | None = None
        self.choice: int | None = None
        """The index of the choice that is read: the first in the stream."""
        self.is_whole = False
        self.texts: dict[TextFamily, str] = {}
        """The text blocks, by kind, with their ids."""
        self.said: list[str] = []
        """The written text, in pieces."""
        self.final: str | None = None
        """The written text as the message at the end of the stream has it, at hosts that send one."""
        self.unknown: set[str] = set()
        """Fields of deltas that no row reads. Each is reported once."""
        self._extras: dict[str, dict[str, list[Any]]] = {}
        """Block → field → its value of each token, where hosts add fields to every token."""
        self.annotations: dict[bytes, Any] = {}
        """By their JSON: what comes again is known."""
        self.logprobs: dict[str, Any] = {}
        """Of the chunk that is being read."""
        self.reasoning_id: str | None = None
        self.reasoning_count = 0
        self.reasoning_details: list[Any] = []
        self.calls: list[CallState] = []
        self.calls_at: dict[int, CallState] = {}
        self.calls_by_id: dict[str, CallState] = {}
        self._ids: set[str] = set()
        self.audio: list[str] = []
        self.audio_facts: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        """What the server reported about the response as a whole, besides what has a field of its own."""
        self.usage: Any = None
        self.finish_reason: str | None = None
        self._is_raw = False

    def begin_event(self, event: Any) -> None:
        """The next chunk is read."""
        self.event = event
        self._is_raw = False
        self.logprobs = {}

    def raw_chunk(self) -> None:
        """Passes the chunk on, once: something in it is unknown, unreadable or too late."""
        if not self._is_raw:
            self._is_raw = True
            self.raw(self.event)

    @property
    def has_content(self) -> bool:
        """Whether something of the answer has come."""
        return bool(self.texts or self.calls or self.reasoning_count)

    def block_id(self, family: str) -> str:
        """An id for a block of this response."""
        return f"{self.response_id or 'answer'}:{family}"

    def text_delta(self, family: TextFamily, delta: str, logprobs: Any = None) -> None:
        """More text of a block, which begins with its first delta."""
        self.end_reasoning()
        self.open_text(family)
        metadata = {WIRE: {"logprobs": logprobs}} if logprobs else None
        if family == "text":
            self.said.append(delta)
        self.out.append(TextDelta(self.texts[family], delta, provider_metadata=metadata))

    def open_text(self, family: TextFamily) -> None:
        """Begins a block of text, once."""
        if family not in self.texts:
            self.texts[family] = self.block_id(family)
            metadata = None if family == "text" else {WIRE: {family: True}}
            self.out.append(TextStart(self.texts[family], provider_metadata=metadata))

    def end_texts(self) -> None:
        """Ends the blocks of text; annotations belong to the written one."""
        for family, block_id in self.texts.items():
            if family != "text":
                self.out.append(TextEnd(block_id, provider_metadata=self._metadata(block_id)))
                continue
            final = self._final_text(block_id)
            metadata = self._metadata(block_id)
            self.out.append(TextEnd(block_id, tuple(self.annotations.values()), final, provider_metadata=metadata))
            if final is not None:
                self.corrected(block_id)

    def _final_text(self, block_id: str) -> str | None:
        """The final text, if it differs from what was streamed. Of one that extends it, the rest is a last delta."""
        final, streamed = self.final or "", "".join(self.said) if self.final else ""
        if len(final) < len(streamed) or final == streamed:
            return None  # A shorter one is only the last piece.
        if not final.startswith(streamed):
            return final
        self.out.append(TextDelta(block_id, final[len(streamed) :]))
        return None

    def keep_extra(self, name: str, value: Any) -> None:
        """Keeps a field of a token for the end of the block that is open."""
        block_id = self.reasoning_id or next(reversed(self.texts.values()), None)
        if block_id is not None:
            self._extras.setdefault(block_id, {}).setdefault(name, []).append(value)

    def _metadata(self, block_id: str, **fields: Any) -> dict[str, Any] | None:
        extras = self._extras.pop(block_id, {})
        # What is the same for every token is said once.
        fields |= {
            name: values[0] if values.count(values[0]) == len(values) else values for name, values in extras.items()
        }
        return {WIRE: fields} if fields else None

    def reasoning_delta(self, delta: str) -> None:
        """More reasoning. A block lasts until something else comes."""
        self.open_reasoning()
        if delta and self.reasoning_id is not None:
            self.out.append(ReasoningDelta(self.reasoning_id, delta))

    def open_reasoning(self) -> None:
        """Begins a block of reasoning, unless one is open."""
        if self.reasoning_id is None:
            self.count_entry()
            number = f":{self.reasoning_count}" if self.reasoning_count else ""
            self.reasoning_id = self.block_id("reasoning") + number
            self.reasoning_count += 1
            self.out.append(ReasoningStart(self.reasoning_id))

    def end_reasoning(self) -> None:
        """Ends the block of reasoning that is open, if one is."""
        if self.reasoning_id is not None:
            details, self.reasoning_details = self.reasoning_details, []
            metadata = self._metadata(self.reasoning_id, **({"reasoning_details": details} if details else {}))
            self.out.append(ReasoningEnd(self.reasoning_id, provider_metadata=metadata))
            self.reasoning_id = None

    def own_id(self, call: CallState) -> str:
        """The call's id; one derived from the conversation if the server sent none or sent it twice."""
        wanted = call.given_id
        if not wanted or wanted in self._ids:
            seed = f"{self.context.history}\0{self.response_id}\0{call.number}"
            wanted = f"call_{blake2b(seed.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"
        self._ids.add(wanted)
        return wanted
