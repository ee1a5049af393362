"""Chunks and results: folds of the part stream.

`ChunkFold` makes chunks of parts, `ResultFold` makes the result of the chunks: `send` is exactly the fold of
`send_stream`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.messages.fold import MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import file_ids, with_file_references
from sidestream.output import OutputType
from sidestream.stream.parts import (
    File,
    Finish,
    FinishReason,
    ReasoningDelta,
    ResponseMetadata,
    Source,
    StepStart,
    StreamPart,
    TextDelta,
    ToolEvent,
    ToolResult,
    Usage,
)
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.state import RunState

T = TypeVar("T")

ResultMetadata = Literal["accumulated", "response"]
"""What a result's metadata holds: every event of the run, or response-level facts only."""

RESPONSE_KEYS = ("response_id", "model", "status", "limit", "reached")


class ChatResult(Struct, Generic[T], frozen=True, kw_only=True, gc=False):
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
    run_state: RunState | None = None
    """Set if the run waits for approvals: what `agent.resume` continues from."""
    partial: "Partial | None" = None

    @property
    def partial_output(self) -> Any:
        """In a chunk of a typed run: the object so far, unchecked; None while there is none."""
        return self.partial.value() if self.partial is not None else None

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """What waits for a person."""
        return self.run_state.approvals if self.run_state is not None else ()

    def with_partial(self, partial: "Partial") -> "ChatResult[T]":
        """The same chunk, knowing what has come before it."""
        return replace(self, partial=partial)

    def waiting(self, state: RunState | None) -> "ChatResult[Any]":
        """The same result with the state to resume from."""
        return replace(self, run_state=state)

    def typed(self, output: Any) -> "ChatResult[Any]":
        """The same result with its typed output."""
        return replace(cast("ChatResult[Any]", self), output=output)

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
        named = self.metadata.get("container_id")
        return named if isinstance(named, str) else None


class Partial:
    """The text of a typed run up to one chunk; its value is parsed on demand."""

    def __init__(self, texts: list[str], count: int, output: OutputType[Any]) -> None:
        self._texts = texts
        self._count = count
        self._output = output

    def value(self) -> Any:
        """The object so far."""
        return self._output.partial("".join(self._texts[: self._count]))


class ChunkFold:
    """Makes chunks of parts."""

    def __init__(
        self,
        opening: Iterable[ChatMessage] = (),
        completed_by: Callable[[StreamPart], list[ChatMessage]] | None = None,
    ) -> None:
        self._completed_by = completed_by or MessageFold().feed
        """The messages that a part completes; a turn knows them already."""
        self._folds_text = completed_by is None
        self._opening = tuple(opening)
        self._needs_newline = False
        self._step = 0

    def opening(self) -> list[ChatResult[str]]:
        """The chunk with the user's own messages."""
        return [ChatResult(output="", messages=self._opening)] if self._opening else []

    def feed(self, part: StreamPart) -> list[ChatResult[str]]:
        """The chunks that this part makes: none, one, or the message before it and one."""
        kind = type(part)
        messages = self._completed_by(part) if kind is not TextDelta or self._folds_text else []
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
        files = (part for part in self._parts if isinstance(part, File))
        metadata = with_file_references(self._metadata, file_ids(files))
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
