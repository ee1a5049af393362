"""State of the chat completions decoder, and the shapes of deltas."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_object
from sidestream.parts import ReasoningDelta, ReasoningEnd, ReasoningStart, Source, TextDelta, TextEnd, TextStart
from sidestream.providers.openai.chat.decode.hosted import HostedState
from sidestream.providers.openai.chat.decode.numbered_marks import Mark, NumberedMarks
from sidestream.providers.openai.chat.options import WIRE, CompletionsContext
from sidestream.providers.shared.decoding import NOT_JSON, read_objects


class Function(Struct, frozen=True):
    """A function call or a piece of one. Some servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CustomInput(Struct, frozen=True):
    """A call with plain text as input, or a piece of one."""

    name: str | None = None
    input: str | None = None


class ToolCallPiece(Struct, frozen=True):
    """A call or a piece of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: CustomInput | None = None

    @property
    def is_custom(self) -> bool:
        """Whether the input is plain text. Snowflake sends an empty `custom` with every function."""
        return self.custom is not None and bool(self.custom.name or self.custom.input)


class AudioPiece(Struct, frozen=True):
    """A piece of spoken output, in base64, and its transcript."""

    id: str | None = None
    data: str | None = None
    transcript: str | None = None
    expires_at: float | None = None


def text_or_objects(value: Any) -> str | list[JsonObject]:
    """Return a string or a list of objects. Cloudflare's JSON mode sends a parsed object, which is encoded again."""
    if is_object(value):
        return jsontext.dumps(value).decode()
    return value if isinstance(value, str) else read_objects(value)


def tool_call_pieces(value: Any) -> list[ToolCallPiece]:
    """Convert a value to calls or pieces of calls."""
    return [msgspec.convert(entry, ToolCallPiece) for entry in read_objects(value)]


TextFamily = Literal["text", "refusal", "transcript"]


class CallState:
    """A tool call during decoding. Its input is emitted once its name and some of the text are known."""

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


class WrittenText:
    """The written text so far, for lists of sources and complete messages that come after it.

    Of a very long text it keeps the marks and a digest instead of the characters.
    """

    __slots__ = ("_digest", "_digested", "_early", "_marks", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        """The end of the text. The fast path appends to it, then calls `shorten`."""
        self._digest: Any = None
        self._digested = 0
        """Number of characters in the digest."""
        self._marks: NumberedMarks | None = None
        self._early: list[Mark] = []

    def shorten(self, room: int) -> None:
        """Join the pieces, and reduce text that is too long to keep to at most `room` marks and a digest."""
        if len(self.pieces) < _MAX_PIECES:
            return
        text = "".join(self.pieces)
        self.pieces = [text]
        if len(text) < _MAX_KEPT_CHARS:
            return
        self._digest, self._marks = self._digest or hashlib.sha256(), self._marks or NumberedMarks()
        self._digest.update(_encoded(text))
        self._digested += len(text)
        self._early += [mark for mark in self._marks.feed(text) if len(self._early) < room]
        self.pieces = []

    def marks(self) -> tuple[NumberedMarks, Iterator[Mark]]:
        """Return a finder that has read the text, and the marks in it."""
        marks = self._marks or NumberedMarks()
        return marks, chain(self._early, marks.feed("".join(self.pieces)))

    def rest_of(self, final: str) -> str | None:
        """Return what a complete text adds at the end, or None if it does not begin with the text so far."""
        if self._digested:
            digest = hashlib.sha256(_encoded(final[: self._digested]))
            if digest.digest() != self._digest.digest():
                return None
        kept = "".join(self.pieces)
        return final[self._digested + len(kept) :] if final.startswith(kept, self._digested) else None

    def __len__(self) -> int:
        return self._digested + sum(map(len, self.pieces))


_MAX_PIECES = 1024
_MAX_KEPT_CHARS = 1_000_000


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class CompletionsState(HostedState):
    """The state of one chat completion during decoding."""

    def __init__(self, context: CompletionsContext) -> None:
        super().__init__(context)
        self.event: Any = None
        """The current chunk."""
        self.choice: int | None = None
        """Index of the decoded choice, the first in the stream."""
        self.is_whole = False
        self.texts: dict[TextFamily, str] = {}
        """Ids of the text blocks, by kind."""
        self.said = WrittenText()
        self.final: str | None = None
        """Written text of the complete message that some hosts send at the end of the stream."""
        self.unknown: set[str] = set()
        """Unknown delta fields. Each is reported once."""
        self._extras: dict[str, dict[str, list[Any]]] = {}
        """Values per token of fields that some hosts add, by block and field."""
        self.annotations: dict[bytes, Any] = {}
        """Annotations by their JSON, so that repeated ones are recognised."""
        self.early: list[JsonObject] = []
        """Citations that came before the text."""
        self.cited: list[str] = []
        """URLs that the text cites as `[n]`, counted from 1."""
        self.lists: tuple[Any, ...] | None = None
        """The last lists of sources beside the text, as the server sent them."""
        self._titles: dict[str, str | None] = {}
        self._marks: NumberedMarks | None = None
        self.logprobs: dict[str, Any] = {}
        """Log probabilities of the current chunk."""
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
        """Metadata of `finish`: what the server reports about the response as a whole."""
        self.usage: Any = None
        self.unread_usage: msgspec.Raw | None = None
        """A later usage, as JSON."""
        self.finish_reason: str | None = None
        self.failure: Any = None
        """Error that the server reports beside content, or None."""
        self.changes_ids = context.changes_ids
        """Whether chunks of one response have several ids."""
        self._is_raw = False

    def begin_event(self, event: Any) -> None:
        """Start the next chunk."""
        self.event = event
        self._is_raw = False
        self.logprobs = {}

    def raw_chunk(self) -> None:
        """Emit the current chunk as a raw part, once, since something in it is unknown, unreadable or late."""
        if not self._is_raw:
            self._is_raw = True
            self.raw(self.event)

    @property
    def has_content(self) -> bool:
        """Whether any content has arrived."""
        return self.has_written or bool(self.server_tool_use)

    @property
    def has_written(self) -> bool:
        """Whether any content of the model has arrived, rather than of a hosted tool."""
        return bool(self.texts or self.calls or self.reasoning_count)

    def block_id(self, family: str) -> str:
        """Return the id of a block of this response."""
        return f"{self.response_id or 'answer'}:{family}"

    def text_delta(self, family: TextFamily, delta: str, logprobs: Any = None) -> None:
        """Emit text of a block, which starts with its first delta."""
        self.end_reasoning()
        self.open_text(family)
        metadata = {WIRE: {"logprobs": logprobs}} if logprobs else None
        if family == "text":
            self.wrote((delta,))
        if self._marks is not None and family == "text":
            delta = self.cite(delta)
        if delta or metadata:
            self.out.append(TextDelta(self.texts[family], delta, provider_metadata=metadata))

    def wrote(self, texts: Iterable[str]) -> None:
        """Note new pieces of the written text."""
        self.said.pieces += texts
        self.said.shorten(self._entries_left)

    def cites(self, urls: list[str], titles: dict[str, str | None]) -> None:
        """Set the list that the text refers to, and emit the sources of marks in earlier text."""
        self.cited, self._titles = urls, titles
        if self._marks is None:
            self._marks, marks = self.said.marks()
            for mark in marks:
                if 0 < mark.number <= len(urls):
                    self.out.append(self._source(mark))

    def cite(self, delta: str) -> str:
        """Emit new text up to its last mark, with a source after each mark, and return the rest."""
        if self._marks is None or self._marks.skips(delta):
            return delta
        begin, done = self._marks.length, 0
        for mark in self._marks.feed(delta):
            if 0 < mark.number <= len(self.cited):
                end = mark.end - begin
                self.out += (TextDelta(self.texts["text"], delta[done:end]), self._source(mark))
                done = end
        return delta[done:]

    def _source(self, mark: Mark) -> Source:
        self.count_entry()
        url, text_id = self.cited[mark.number - 1], self.texts["text"]
        self.found.add(url)
        return Source(
            f"{text_id}:mark:{mark.start}",
            "url",
            url=url,
            title=self._titles.get(url),
            start=mark.start,
            end=mark.end,
            text_id=text_id,
            marker_start=mark.start,
            marker_end=mark.end,
            claim_start=mark.claim_start,
            claim_end=mark.claim_end,
        )

    def read_usage(self) -> None:
        """Parse the last usage, if that was put off."""
        if self.unread_usage:
            with suppress(*NOT_JSON):
                self.usage = jsontext.loads(bytes(self.unread_usage))
        self.unread_usage = None

    def has_room(self, count: int) -> bool:
        """Return whether this many more entries are within the limit."""
        return self._entries_left > count

    def end_sources(self) -> None:
        """Emit the listed sources that the text does not cite."""
        for url in self.cited:
            self.source(url, self._titles.get(url), self.block_id("text"))

    def open_text(self, family: TextFamily) -> None:
        """Start the text block of this kind, once."""
        if family not in self.texts:
            self.end_search()
            self.texts[family] = self.block_id(family)
            metadata = None if family == "text" else {WIRE: {family: True}}
            self.out.append(TextStart(self.texts[family], provider_metadata=metadata))

    def end_texts(self) -> None:
        """End the text blocks. Annotations belong to the written one."""
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
        """Return the final text if it differs from the streamed text. If it extends it, emit the rest instead."""
        final = self.final
        if not final or len(final) < len(self.said):
            return None  # Some hosts repeat only the last piece.
        rest = self.said.rest_of(final)
        if rest:
            self.out.append(TextDelta(block_id, self.cite(rest)))
        return final if rest is None else None

    def keep_extra(self, name: str, value: Any) -> None:
        """Keep a token's field for the end of the open block."""
        block_id = self.reasoning_id or next(reversed(self.texts.values()), None)
        if block_id is not None:
            self._extras.setdefault(block_id, {}).setdefault(name, []).append(value)

    def _metadata(self, block_id: str, **fields: Any) -> dict[str, Any] | None:
        extras = self._extras.pop(block_id, {})
        # Report a value once if it is the same for every token.
        fields |= {
            name: values[0] if values.count(values[0]) == len(values) else values for name, values in extras.items()
        }
        return {WIRE: fields} if fields else None

    def reasoning_delta(self, delta: str) -> None:
        """Emit reasoning. The block stays open until other content arrives."""
        self.open_reasoning()
        if delta and self.reasoning_id is not None:
            self.out.append(ReasoningDelta(self.reasoning_id, delta))

    def open_reasoning(self) -> None:
        """Start a reasoning block, unless one is open."""
        if self.reasoning_id is None:
            self.count_entry()
            number = f":{self.reasoning_count}" if self.reasoning_count else ""
            self.reasoning_id = self.block_id("reasoning") + number
            self.reasoning_count += 1
            self.out.append(ReasoningStart(self.reasoning_id))

    def end_reasoning(self) -> None:
        """End the open reasoning block, if any."""
        if self.reasoning_id is not None:
            details, self.reasoning_details = self.reasoning_details, []
            metadata = self._metadata(self.reasoning_id, **({"reasoning_details": details} if details else {}))
            self.out.append(ReasoningEnd(self.reasoning_id, provider_metadata=metadata))
            self.reasoning_id = None

    def own_id(self, call: CallState) -> str:
        """Return the call's id, or one derived from the conversation if the id is missing or not unique."""
        wanted = call.given_id
        if not wanted or wanted in self._ids:
            wanted = self.made_id(call.number)
        self._ids.add(wanted)
        return wanted
