"""Chunks and results: folds of the part stream.

`MessageFold` makes messages of parts, `ChunkFold` makes chunks, `ResultFold` makes the result of the chunks: `send` is
exactly the fold of `send_stream`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, cast

from msgspec import Struct

from sidestream import jsontext, sessions
from sidestream.messages import (
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.parts import (
    File,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolResult,
    Usage,
)

T = TypeVar("T")

MessageMetadata = Literal["session", "summary", "full"]
"""What model messages keep: private session keys; summaries of finished calls too; or every event and the thinking."""

ResultMetadata = Literal["accumulated", "response"]
"""What a result's metadata holds: every event of the run, or response-level facts only."""

RESPONSE_KEYS = ("response_id", "model", "status")


class ChatResult(Struct, Generic[T], frozen=True, kw_only=True):
    """A chunk of a run, or the whole run. A chunk holds only what is new."""

    output: T
    messages: tuple[ChatMessage, ...] = ()
    """New messages only, the user's own first."""
    thinking: str = ""
    metadata: dict[str, Any] = {}
    """Tool events by key, always as lists; `thinking`, `response_id`, `model`, `status`."""
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    id: str | None = None
    """The provider's id of the (last) response."""
    parts: tuple[StreamPart, ...] = ()
    """The parts of the stream that stand behind `tool_events`, `files` and `sources`."""

    @property
    def tool_events(self) -> list[ToolEvent]:
        """Every event of every tool, whatever the metadata policy."""
        return [part for part in self.parts if isinstance(part, ToolEvent)]

    @property
    def files(self) -> list[File]:
        """What tools made."""
        return [part for part in self.parts if isinstance(part, File)]

    @property
    def sources(self) -> list[Source]:
        """Where the text comes from."""
        return [part for part in self.parts if isinstance(part, Source)]

    @property
    def tool_results(self) -> list[ToolResult]:
        """What tools gave back, previews left out."""
        return [part for part in self.parts if isinstance(part, ToolResult) and not part.preliminary]

    @property
    def container_id(self) -> str | None:
        """The sandbox that the last code run used."""
        for part in reversed(self.parts):
            if isinstance(part, ToolResult):
                container = jsontext.as_object(part.result).get("container_id")
                if isinstance(container, str):
                    return container
        return None


class MessageFold:
    """Makes messages of the parts of a run: one per step, one per round of client tool results."""

    def __init__(self, policy: MessageMetadata = "session") -> None:
        self.policy = policy
        self.results: list[ToolResultPart] = []
        self.clear()

    def clear(self) -> None:
        """Forgets the step that is over."""
        self.growing: dict[str, list[str]] = {}
        self.entries: dict[str, MessagePart | None] = {}
        self.events: dict[str, list[Any]] = {}
        self.thinking: list[str] = []

    def end_round(self) -> list[ChatMessage]:
        """The message with the results of a round of client tools, in the order of their calls."""
        results, self.results = self.results, []
        return [ChatMessage("tool", tuple(results))] if results else []

    def feed(self, part: StreamPart) -> list[ChatMessage]:
        """The messages that this part completes."""
        handler = _FOLD.get(type(part))
        return (handler(self, part) if handler is not None else None) or []


def _start(f: MessageFold, part: TextStart | ReasoningStart) -> None:
    f.growing[part.id] = []
    f.entries[part.id] = None


def _delta(f: MessageFold, part: TextDelta | ReasoningDelta) -> None:
    f.growing[part.id].append(part.delta)


def _text_end(f: MessageFold, part: TextEnd) -> None:
    text = part.text if part.text is not None else "".join(f.growing.pop(part.id))
    f.entries[part.id] = TextPart(text, part.id) if text else None


def _reasoning_end(f: MessageFold, part: ReasoningEnd) -> None:
    text = part.text if part.text is not None else "".join(f.growing.pop(part.id))
    f.entries[part.id] = ThinkingPart(text, part.id) if text else None
    f.thinking.append(text)


def _call(f: MessageFold, part: ToolCall) -> None:
    if not part.provider_executed:
        f.entries["call " + part.id] = ToolCallPart(part.id, part.name, part.input, part.input_text)


def _result(f: MessageFold, part: ToolResult) -> None:
    if not part.provider_executed and not part.preliminary:
        f.results.append(ToolResultPart(part.id, part.name, part.result, part.is_error))


def _file(f: MessageFold, part: File) -> None:
    if part.data is not None:
        f.entries["file " + part.id] = DataPart(part.data, part.media_type, part.name)
    elif part.url is not None:
        f.entries["file " + part.id] = LinkPart(part.url, part.media_type, part.name)


def _event(f: MessageFold, part: ToolEvent) -> None:
    if f.policy == "full":
        _log(f.events.setdefault(part.tool, []), part)


def _step_finish(f: MessageFold, part: StepFinish) -> list[ChatMessage]:
    parts = tuple(entry for entry in f.entries.values() if entry is not None)
    metadata = _message_metadata(f, part.provider_metadata or {})
    f.clear()
    return [ChatMessage("model", parts, sessions.stamp(metadata, parts))] if parts or metadata else []


def _message_metadata(f: MessageFold, given: dict[str, Any]) -> dict[str, Any]:
    metadata = dict(jsontext.as_object(given.get("message_metadata")))
    if f.policy == "session":
        return metadata
    for tool, events in f.events.items():
        metadata[tool] = list(events)
    for tool, summaries in jsontext.as_object(given.get("summaries")).items():
        metadata[tool] = [*metadata.get(tool, []), *summaries]
    thinking = "".join(f.thinking)
    return {**metadata, "thinking": thinking} if f.policy == "full" and thinking else metadata


def _round_over(f: MessageFold, part: StepStart | Finish) -> list[ChatMessage]:
    return f.end_round()


def _log(events: list[Any], part: ToolEvent) -> None:
    """Adds an event; a row of deltas of one call becomes one event with the joined delta."""
    last, event = jsontext.as_object(events[-1] if events else None), jsontext.as_object(part.event)
    same = all(last.get(key) == event.get(key) for key in ("type", "item_id", "output_index"))
    if part.stage == "delta" and same and isinstance(last.get("delta"), str) and isinstance(event.get("delta"), str):
        events[-1] = {**last, "delta": last["delta"] + event["delta"]}
    else:
        events.append(part.event)


_FOLD: dict[type, Callable[[MessageFold, Any], list[ChatMessage] | None]] = {
    TextStart: _start,
    TextDelta: _delta,
    TextEnd: _text_end,
    ReasoningStart: _start,
    ReasoningDelta: _delta,
    ReasoningEnd: _reasoning_end,
    ToolCall: _call,
    ToolResult: _result,
    ToolEvent: _event,
    File: _file,
    StepStart: _round_over,
    StepFinish: _step_finish,
    Finish: _round_over,
}
"""Part type → what it does to the message; the others do nothing."""


class ChunkFold:
    """Makes chunks of parts."""

    def __init__(self, opening: Iterable[ChatMessage] = (), policy: MessageMetadata = "session") -> None:
        self._messages = MessageFold(policy)
        self._opening = tuple(opening)
        self._needs_newline = False
        self._step = 0

    def opening(self) -> list[ChatResult[str]]:
        """The chunk with the user's own messages."""
        return [ChatResult(output="", messages=self._opening)] if self._opening else []

    def feed(self, part: StreamPart) -> list[ChatResult[str]]:
        """The chunks that this part makes: none, one, or the message before it and one."""
        messages = self._messages.feed(part)
        kind = type(part)
        if kind is TextDelta:
            return [ChatResult(output=self._text(cast(TextDelta, part).delta))]
        if not messages and kind not in _CHUNK_PARTS:
            return []
        chunks: list[ChatResult[str]] = []
        if messages:
            chunks.append(ChatResult(output="", messages=tuple(messages)))
        chunk = self._chunk(part)
        if chunk is not None:
            chunks.append(chunk)
        return chunks

    def _text(self, delta: str) -> str:
        if self._needs_newline and delta:
            self._needs_newline = False
            return "\n" + delta
        return delta

    def _chunk(self, part: StreamPart) -> ChatResult[str] | None:
        match part:
            case ToolEvent():
                return ChatResult(output="", metadata={part.tool: [part.event]}, parts=(part,))
            case ReasoningDelta():
                return ChatResult(output="", thinking=part.delta, metadata={"thinking": part.delta})
            case ResponseMetadata():
                facts = {"response_id": part.id, "model": part.model}
                return ChatResult(
                    output="",
                    metadata={key: value for key, value in facts.items() if value is not None},
                    id=part.id,
                )
            case Source() | File() | ToolResult():
                return ChatResult(output="", parts=(part,))
            case StepStart():
                self._needs_newline = part.step > 0
                return None
            case Finish():
                return ChatResult(output="", metadata=dict(part.metadata), usage=part.usage, finish_reason=part.reason)
            case _:
                return None


_CHUNK_PARTS = frozenset({ToolEvent, ReasoningDelta, ResponseMetadata, Source, File, ToolResult, StepStart, Finish})


class ResultFold:
    """Joins chunks to the result of a run."""

    def __init__(self, policy: ResultMetadata = "accumulated") -> None:
        self._policy = policy
        self._output: list[str] = []
        self._thinking: list[str] = []
        self._messages: list[ChatMessage] = []
        self._parts: list[StreamPart] = []
        self._metadata: dict[str, Any] = {}
        self._usage: Usage | None = None
        self._reason: FinishReason | None = None
        self._id: str | None = None

    def feed(self, chunk: ChatResult[str]) -> None:
        """Takes the next chunk."""
        self._output.append(chunk.output)
        if chunk.thinking:
            self._thinking.append(chunk.thinking)
        self._messages.extend(chunk.messages)
        self._parts.extend(chunk.parts)
        if chunk.metadata:
            _merge(self._metadata, chunk.metadata)
        self._usage = chunk.usage or self._usage
        self._reason = chunk.finish_reason or self._reason
        self._id = chunk.id or self._id

    def result(self) -> ChatResult[str]:
        """All that has come: texts and messages joined, lists of events in the order of their arrival."""
        metadata = self._metadata
        if self._policy == "response":
            metadata = {key: metadata[key] for key in RESPONSE_KEYS if key in metadata}
        return ChatResult(
            output="".join(self._output),
            messages=tuple(self._messages),
            thinking="".join(self._thinking),
            metadata=metadata,
            usage=self._usage,
            finish_reason=self._reason,
            id=self._id,
            parts=tuple(self._parts),
        )


def fold(chunks: Iterable[ChatResult[str]], policy: ResultMetadata = "accumulated") -> ChatResult[str]:
    """The result of a run that came in these chunks."""
    folding = ResultFold(policy)
    for chunk in chunks:
        folding.feed(chunk)
    return folding.result()


def _merge(metadata: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, list) and isinstance(metadata.get(key), list):
            metadata[key].extend(value)
        elif isinstance(value, list):
            metadata[key] = list(cast(list[Any], value))
        elif key == "thinking":
            metadata[key] = metadata.get(key, "") + value
        else:
            metadata[key] = value
