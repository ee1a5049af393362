"""Chunks and results, which are folds of the part stream.

`ChunkFold` folds parts to chunks, and `ResultFold` folds chunks to the result, so `send` is exactly the fold of
`send_stream`.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from msgspec import UNSET, Struct
from msgspec.structs import replace

from sidestream import parts
from sidestream.errors import ConfigurationError, NoOutputError
from sidestream.jsontext import as_object, without_none
from sidestream.messages.fold import DRAFT, THINKING_GAP, MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.messages.references import file_ids, with_file_references
from sidestream.output import OutputType
from sidestream.results.content import Content, Link, links_of
from sidestream.results.tool_text import ToolTextFold
from sidestream.tools.approvals import PendingApproval
from sidestream.turn.state import RunState, TurnState

if TYPE_CHECKING:
    from sidestream.results.citations import CitationStyle, CitedClaim, CitedText
    from sidestream.results.tool_runs import ToolFolds, ToolRun, ToolStage

T = TypeVar("T")

ResultMetadata = Literal["accumulated", "response"]
"""Content of a result's metadata: every event of the run, or response-level fields only."""

RESPONSE_KEYS = ("response_id", "model", "status", "limit", "reached")


class _NoOutput:
    def __repr__(self) -> str:
        return "NO_OUTPUT"


NO_OUTPUT = _NoOutput()
"""Value of a typed run that ended without an output."""


class ChatResult(Content, Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """A chunk of a run, or the whole run. A chunk holds only what is new.

    ```python
    result = await agent.send("What is new in Python?")
    print(result.output)
    for file in result.files:
        file.save_to("downloads")
    for run in result.tool_runs:
        print(run.tool, run.status)
    ```
    """

    _value: Any = UNSET
    """Output of a typed run: an instance of its type, or NO_OUTPUT."""
    thinking: str = ""
    metadata: dict[str, Any] = {}
    """Tool events by key, always as lists; `thinking`, `response_id`, `model`, `status`; and `thinking_details`, with
    each finished block of thinking as `{"id", "text"}`."""
    usage: parts.Usage | None = None
    id: str | None = None
    """Provider's id of the last response."""
    code: str = ""
    """Code that tools run, as the model writes it. `tool_runs` has it by call."""
    _state: RunState | None = None
    _partial: "Partial | None" = None

    @property
    def output(self) -> T:
        """The answer, which is its text or, in a typed run, an instance of the output type.

        Raises NoOutputError if a typed run ended without one. Check `has_output` first. Warns if the run waits before
        it has said anything, since its text is empty then. Check `is_waiting` first.
        """
        if self._value is UNSET:
            if self._state is not None and not self.text:
                warnings.warn(_waiting(self._state.approvals), stacklevel=2)
            return self.text  # pyright: ignore[reportReturnType] - in a run without an output type, T is str
        if self._value is NO_OUTPUT:
            raise NoOutputError(self.finish_reason)
        return self._value

    @property
    def has_output(self) -> bool:
        """Whether there is an output. A typed run has none if it ended by a limit, an approval or a refusal."""
        return self._value is not NO_OUTPUT

    @property
    def partial_output(self) -> Any:
        """The object so far in a chunk of a typed run, not validated. None means there is none yet."""
        return self._partial.value() if self._partial is not None else None

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """Pending approvals."""
        return self._state.approvals if self._state is not None else ()

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for approvals or results."""
        return self._state is not None

    @property
    def run_state(self) -> RunState:
        """The state for `agent.resume`. Raises ConfigurationError if the run is not waiting."""
        if self._state is None:
            raise ConfigurationError(
                "there is nothing to resume: the run is not waiting for approvals or results "
                f"(finish_reason={self.finish_reason!r})"
            )
        return self._state

    def cited_text(self, style: "CitationStyle" = "numbers") -> "CitedText":
        """Return the text with numbered markers where sources support it, and the list of those sources.

        ```python
        cited = result.cited_text()
        print(cited.text)
        for source in cited.sources:
            print(source.number, source.title, source.url)
        ```

        `style` sets the form of the markers. For the chunks of a streaming run, use `Citations`.
        """
        from sidestream.results.citations import citations_of

        return citations_of(self, style).cited()

    def claims(self) -> "tuple[CitedClaim, ...]":
        """Return the statements that cite a source, each with its span and that of its marker."""
        from sidestream.results.citations import claims_of

        return claims_of(self)

    async def check_evidence(self, *, allow_hosts: Sequence[str] = ()) -> "ChatResult[T]":
        """Fetch the cited pages, and return this result with the evidence of each citation.

        `allow_hosts` are hosts, or `host:port`, that may have a private address.
        """
        from sidestream.results import check_evidence

        return await check_evidence(self, allow_hosts=allow_hosts)

    def _repr_markdown_(self) -> str:
        from sidestream.results.notebook import markdown

        return markdown(self)


def _waiting(approvals: Iterable[PendingApproval]) -> str:
    """Return the text of a warning that an empty output is read while calls wait."""
    calls = {
        entry.tool if entry.server_label is None else f"{entry.tool} of the MCP server {entry.server_label!r}": entry
        for entry in approvals
    }
    external = all(entry.is_external for entry in calls.values())
    return (
        f"there is no output yet: the run waits for {'the result' if external else 'approval'} of {', '.join(calls)}; "
        f"resume it with {'answers to' if external else 'decisions on'} result.approvals"
        + ("" if external else ', or set approval="run" if the calls need none')
    )


def with_partial(chunk: ChatResult[T], partial: "Partial") -> ChatResult[T]:
    """Return a copy of a chunk that knows the text before it."""
    return replace(chunk, _partial=partial)


def with_state(result: ChatResult[Any], state: RunState | None) -> ChatResult[Any]:
    """Return a copy of a result with the state to resume from."""
    return replace(result, _state=state)


def with_output(result: ChatResult[Any], output: Any) -> ChatResult[Any]:
    """Return a copy of a typed run's result, with its output or NO_OUTPUT."""
    return replace(result, _value=output)


class Partial:
    """The text of a typed run up to one chunk, parsed on demand."""

    def __init__(self, texts: list[str], count: int, output: OutputType[Any]) -> None:
        self._texts = texts
        self._count = count
        self._output = output

    def value(self) -> Any:
        """Return the object so far."""
        return self._output.partial("".join(self._texts[: self._count]))


class ChunkFold:
    """A fold of parts to chunks."""

    def __init__(
        self,
        opening: Iterable[ChatMessage] = (),
        completed_by: Callable[[parts.StreamPart], list[ChatMessage]] | None = None,
        clock: Callable[[], float] | None = None,
        resumed: TurnState | None = None,
    ) -> None:
        self._completed_by = completed_by or MessageFold().feed
        """Function that returns the messages a part completes, which a turn knows already."""
        self._folds_text = completed_by is None
        self._opening = tuple(opening)
        self._clock = clock
        """Function that returns the seconds since the run began. None means tool runs have no times."""
        self._is_flowing = False
        """Whether the current message has text."""
        self._has_text = False
        self._step = 0
        self._tool_folds: ToolFolds | None = None
        if resumed is not None and resumed.step >= 0:
            self._take_up(resumed)
        self._thinking: dict[str, list[str]] = {}
        """Deltas of open blocks of thinking, by block id."""
        self._has_thought = False
        self._drafts: list[str] = []
        self._urls: set[str] = set()
        """URLs of the links in earlier chunks."""

    def opening(self) -> list[ChatResult[str]]:
        """Return the chunk with the user's own messages."""
        return [ChatResult(messages=self._opening)] if self._opening else []

    def feed(self, part: parts.StreamPart) -> list[ChatResult[str]]:
        """Return the chunk of a part, preceded by one with the messages that the part completes."""
        return self.feed_all(deque((part,)))

    def feed_all(self, ready: deque[parts.StreamPart]) -> list[ChatResult[str]]:
        """Take all parts and return their chunks. A tool event also takes the input delta that follows it."""
        chunks: list[ChatResult[str]] = []
        while ready:
            part = ready.popleft()
            kind = type(part)
            if self._folds_text and (kind is parts.TextDelta or kind in _DELTAS):
                self._completed_by(part)
            if type(part) is parts.TextDelta:
                # The fast path: nearly all parts are text deltas.
                text = part.delta if self._is_flowing else self._first(part.delta)
                chunks.append(ChatResult(text=text, text_id=part.id))
            elif type(part) is parts.ToolEvent and ready and type(delta := ready[0]) is parts.ToolInputDelta:
                ready.popleft()
                chunks.append(self.event(part, delta))
            elif (handler := _DELTAS.get(kind)) is not None:
                chunks.append(handler(self, part))
            else:
                if messages := self._completed_by(part):
                    chunks.append(ChatResult(messages=tuple(messages)))
                chunks.append(_CHUNKS.get(kind, _plain_chunk)(self, part))
        return chunks

    def event(self, event: parts.ToolEvent, delta: parts.ToolInputDelta | None = None) -> ChatResult[str]:
        """Return the chunk of a tool's event, with the input delta that most events of a hosted tool bring."""
        tools = self.tools()
        runs = () if tools.runs.is_silent(event) else self.runs_changed_by(event)
        code = "" if delta is None else tools.code.delta(delta)
        return ChatResult(
            metadata={event.key: [event.event]},
            parts=(event,) if delta is None else (event, delta),
            code=code,
            tool_runs=runs,
            tool_events=tools.runs.taken() if runs else (),
            tool_text=tools.logs(event) if delta is None else tools.written(delta, code),
        )

    def begin_step(self, step: int) -> None:
        """Begin a step, whose text is on a new line."""
        self._is_flowing = False
        self._step = step

    def _first(self, delta: str) -> str:
        """Return the first text of a message, on a new line if there was text before it."""
        if not delta:
            return delta
        begins = "\n" if self._has_text else ""
        self._is_flowing = self._has_text = True
        return begins + delta

    def end_thought(self, part: parts.ReasoningEnd) -> str:
        """Return the text of a block of thinking that ends."""
        streamed = self._thinking.pop(part.id, ())
        return "".join(streamed) if part.text is None else part.text

    def thought(self, part: parts.ReasoningDelta) -> str:
        """Return a delta of thinking, after a blank line if it begins a new block."""
        pieces = self._thinking.setdefault(part.id, [])
        gap = THINKING_GAP if self._has_thought and part.delta and not pieces else ""
        if part.delta:
            self._has_thought = True
            pieces.append(part.delta)
        return gap + part.delta

    def drafted(self, part: parts.Custom) -> dict[str, Any]:
        """Return the metadata with all drafts, the text that came before a typed answer."""
        if part.kind != DRAFT:
            return {}
        self._drafts.append(str(as_object(part.data).get("text")))
        return {"draft": "\n".join(self._drafts)}

    def new_links(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return the links whose URLs no earlier part had."""
        new: dict[str, Link] = {}
        for link in links:
            if link.url not in self._urls:
                new.setdefault(link.url, link)
        self._urls.update(new)
        return tuple(new.values())

    def tool_chunk(self, part: parts.StreamPart, metadata: dict[str, Any]) -> ChatResult[str]:
        if type(part) not in _OF_TOOLS:
            runs, events = self.tool_changes(part) if type(part) in _ENDING else ((), ())
            return ChatResult(metadata=metadata, parts=(part,), tool_runs=runs, tool_events=events)
        runs, events = self.tool_changes(part)
        tools = self.tools()
        code = tools.code.feed(part)
        text = tools.completed(part, code)
        return ChatResult(
            metadata=metadata, parts=(part,), code=code, tool_runs=runs, tool_events=events, tool_text=text
        )

    def tool_changes(self, part: parts.StreamPart) -> "tuple[tuple[ToolRun, ...], tuple[ToolStage, ...]]":
        """Return the tool runs that a part changes, and the stages that they pass."""
        runs = self.runs_changed_by(part)
        return runs, self.tools().runs.taken() if runs else ()

    def runs_changed_by(self, part: parts.StreamPart) -> "tuple[ToolRun, ...]":
        """Return the tool runs that a part changes."""
        if self._tool_folds is None and type(part) not in _OF_TOOLS:
            return ()
        return self.tools().runs.feed(part, None if self._clock is None else self._clock())

    def _take_up(self, state: TurnState) -> None:
        """Restore the tool runs of a resumed run."""
        self._step = state.step
        calls = [(entry.step, entry.call) for entry in state.hosted.values()]
        calls += [(state.step, call) for call in state.calls]
        if calls:
            self.tools().runs.take_up(calls, {approval.call_id for approval in state.waiting})

    def tools(self) -> "ToolFolds":
        """Return the tool folds, which are created on demand because many runs use no tools."""
        if self._tool_folds is None:
            from sidestream.results.tool_runs import ToolFolds

            self._tool_folds = ToolFolds(self._step)
        return self._tool_folds


def _plain_chunk(f: ChunkFold, part: parts.StreamPart) -> ChatResult[str]:
    return f.tool_chunk(part, {})


def _thought_chunk(f: ChunkFold, part: parts.ReasoningEnd) -> ChatResult[str]:
    text = f.end_thought(part)
    return f.tool_chunk(part, {"thinking_details": [{"id": part.id, "text": text}]} if text else {})


def _text_end_chunk(f: ChunkFold, part: parts.TextEnd) -> ChatResult[str]:
    if part.text is None:
        return f.tool_chunk(part, {})
    return ChatResult(parts=(part,), text_id=part.id, correction=part.text)


def _metadata_chunk(f: ChunkFold, part: parts.ResponseMetadata) -> ChatResult[str]:
    return ChatResult(metadata=without_none({"response_id": part.id, "model": part.model}), id=part.id, parts=(part,))


def _custom_chunk(f: ChunkFold, part: parts.Custom) -> ChatResult[str]:
    runs, events = f.tool_changes(part)
    return ChatResult(metadata=f.drafted(part), parts=(part,), tool_runs=runs, tool_events=events)


def _step_chunk(f: ChunkFold, part: parts.StepStart) -> ChatResult[str]:
    f.begin_step(part.step)
    runs, events = f.tool_changes(part)
    return ChatResult(parts=(part,), tool_runs=runs, tool_events=events)


def _finish_chunk(f: ChunkFold, part: parts.Finish) -> ChatResult[str]:
    runs, events = f.tool_changes(part)
    return ChatResult(
        metadata=dict(part.metadata),
        usage=part.usage,
        finish_reason=part.reason,
        parts=(part,),
        tool_runs=runs,
        tool_events=events,
    )


def _linking_chunk(
    f: ChunkFold, part: parts.File | parts.Source | parts.ToolCall | parts.ToolResult
) -> ChatResult[str]:
    links = links_of(part)
    chunk = f.tool_chunk(part, {})
    return replace(chunk, new_links=f.new_links(links)) if links else chunk


_CHUNKS: dict[type, Callable[[ChunkFold, Any], ChatResult[str]]] = {
    parts.ReasoningEnd: _thought_chunk,
    parts.TextEnd: _text_end_chunk,
    parts.ResponseMetadata: _metadata_chunk,
    parts.Custom: _custom_chunk,
    parts.StepStart: _step_chunk,
    parts.Finish: _finish_chunk,
    parts.File: _linking_chunk,
    parts.Source: _linking_chunk,
    parts.ToolCall: _linking_chunk,
    parts.ToolResult: _linking_chunk,
}
"""Parts whose chunks have more than the part and what it changes of tool runs."""


def _thinking_chunk(f: ChunkFold, part: parts.ReasoningDelta) -> ChatResult[str]:
    thought = f.thought(part)
    return ChatResult(thinking=thought, metadata={"thinking": thought})


def _input_chunk(f: ChunkFold, part: parts.ToolInputDelta) -> ChatResult[str]:
    tools = f.tools()
    code = tools.code.delta(part)
    return ChatResult(parts=(part,), code=code, tool_text=tools.written(part, code))


_DELTAS: dict[type, Callable[[ChunkFold, Any], ChatResult[str]]] = {
    parts.ReasoningDelta: _thinking_chunk,
    parts.ToolInputDelta: _input_chunk,
    parts.ToolEvent: ChunkFold.event,
}
"""Frequent parts, which complete no message."""
_ENDING = frozenset({parts.TextStart, parts.ReasoningStart, parts.StepFinish})
"""Parts after which nothing more arrives for calls with results."""
_OF_TOOLS = frozenset(
    {
        parts.ToolEvent,
        parts.ToolInputStart,
        parts.ToolInputEnd,
        parts.ToolCall,
        parts.ToolApprovalRequest,
        parts.ToolResult,
        parts.File,
    }
)


class ResultFold:
    """A fold of chunks to the result of a run."""

    def __init__(self, policy: ResultMetadata = "accumulated") -> None:
        self._policy = policy
        self._output: list[str] = []
        self._text_ids: list[str | None] = []
        """Block id of each text in the output."""
        self._steps: list[int] = [0]
        """Index of each step's first text."""
        self._corrections: dict[tuple[int, str | None], str] = {}
        """Final texts that differ from what was streamed, by step and block id."""
        self._thinking: list[str] = []
        self._thinking_metadata: list[str] = []
        self._messages: list[ChatMessage] = []
        self._parts: list[parts.StreamPart] = []
        self._code: list[str] = []
        self._tool_events: list[ToolStage] = []
        self._tool_text = ToolTextFold()
        self._tool_runs: dict[tuple[int, str], ToolRun] = {}
        self._keys: dict[str, tuple[int, str]] = {}
        """Keys of the newest tool runs, by call id."""
        self._metadata: dict[str, Any] = {}
        self._usage: parts.Usage | None = None
        self._reason: parts.FinishReason | None = None
        self._id: str | None = None

    def feed(self, chunk: ChatResult[str]) -> None:
        """Add a chunk."""
        if chunk.text or chunk.text_id is not None:
            self._output.append(chunk.text)
            self._text_ids.append(chunk.text_id)
        if chunk.correction is not None:
            self._corrections[len(self._steps), chunk.text_id] = chunk.correction
        if chunk.thinking:
            self._thinking.append(chunk.thinking)
        if chunk.messages:
            self._messages.extend(chunk.messages)
        if chunk.parts:
            for part in chunk.parts:
                kind = type(part)
                if kind is parts.ToolInputDelta:
                    continue  # The call has the whole input.
                self._parts.append(part)
                if kind is parts.File:
                    self._late(cast(parts.File, part))
                elif kind is parts.StepStart:
                    self._steps.append(len(self._output))
            if chunk.tool_text:
                self._code.append(chunk.code)
                self._tool_text.feed(chunk.tool_text)
            if chunk.tool_runs:
                self._tool_events += chunk.tool_events
                for run in chunk.tool_runs:
                    key = run.step, run.id
                    self._tool_runs[key] = run
                    self._keys[run.call_id] = key
        if chunk.metadata:
            _merge(self._metadata, chunk.metadata)
            if "thinking" in chunk.metadata:
                self._thinking_metadata.append(str(chunk.metadata["thinking"]))
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.finish_reason is not None:
            self._reason = chunk.finish_reason
        if chunk.id is not None:
            self._id = chunk.id

    def _late(self, file: parts.File) -> None:
        """Add a file downloaded after its call ended to the tool run, which no later chunk contains."""
        run = self._tool_runs.get(self._keys.get(file.call_id or "", (0, "")))
        if run is not None and run.is_over and file.data is not None:
            self._tool_runs[run.key] = replace(run, files=(*run.files, file))

    def result(self) -> ChatResult[str]:
        """Return the result, with texts and messages joined, and events in order of arrival."""
        if self._thinking_metadata:
            self._metadata["thinking"] = "".join(self._thinking_metadata)
        files = (part for part in self._parts if isinstance(part, parts.File))
        metadata = with_file_references(self._metadata, file_ids(files))
        if self._policy == "response":
            metadata = {key: metadata[key] for key in RESPONSE_KEYS if key in metadata}
        return ChatResult(
            text=self._corrected() if self._corrections else "".join(self._output),
            messages=tuple(self._messages),
            thinking="".join(self._thinking),
            metadata=metadata,
            usage=self._usage,
            finish_reason=self._reason,
            id=self._id,
            parts=tuple(self._parts),
            code="".join(self._code),
            tool_runs=tuple(self._tool_runs.values()),
            tool_events=tuple(self._tool_events),
            tool_text=self._tool_text.result(),
        )

    def _corrected(self) -> str:
        """Return the corrected output, with the text of each step on a new line."""
        steps: list[str] = []
        has_text = False
        for step, (begin, end) in enumerate(pairwise([*self._steps, len(self._output)]), 1):
            blocks: dict[str | None, list[str]] = {}
            is_flowing = False
            for text_id, text in zip(self._text_ids[begin:end], self._output[begin:end], strict=True):
                if (step, text_id) in self._corrections:
                    blocks.setdefault(text_id, [])
                if text:
                    # The first text of a step begins with the newline that separates it from earlier text.
                    blocks.setdefault(text_id, []).append(text[1:] if has_text and not is_flowing else text)
                    has_text = is_flowing = True
            finals = (self._corrections.get((step, name)) for name in blocks)
            texts = (
                "".join(pieces) if final is None else final
                for final, pieces in zip(finals, blocks.values(), strict=True)
            )
            steps.append("".join(texts))
        return "\n".join(filter(None, steps))


def fold(chunks: Iterable[ChatResult[str]], policy: ResultMetadata = "accumulated") -> ChatResult[str]:
    """Return the result of a run's chunks."""
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
        else:
            metadata[key] = value
