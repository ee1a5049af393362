"""A fold of the part stream to chunks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sidestream import parts
from sidestream.jsontext import as_object, without_none
from sidestream.messages.fold import DRAFT, THINKING_GAP, MessageFold
from sidestream.messages.message import ChatMessage
from sidestream.results.content import Link, links_of
from sidestream.results.results import ChatResult
from sidestream.turn.state import TurnState

if TYPE_CHECKING:
    from sidestream.results.tool_runs import ToolFolds, ToolRun, ToolStage


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
        rest = iter([*ready])
        ready.clear()
        part = self._more_text(rest, chunks)
        while part is not None:
            kind = type(part)
            if kind not in _DELTAS:
                if messages := self._completed_by(part):
                    chunks.append(ChatResult(messages=tuple(messages)))
                chunks.append(_CHUNKS.get(kind, ChunkFold.tool_chunk)(self, part))
                part = next(rest, None)
                continue
            if self._folds_text:
                self._completed_by(part)
            if type(part) is parts.TextDelta:
                # The fast path: nearly all parts are text deltas.
                text = part.delta if self._is_flowing else self._first(part.delta)
                chunks.append(ChatResult(text=text, text_id=part.id))
                part = self._more_text(rest, chunks)
            elif type(part) is parts.ToolEvent:
                event, part = part, next(rest, None)
                if type(part) is parts.ToolInputDelta:
                    chunks.append(self.event(event, part))
                    part = self._more_input(event, rest, chunks)
                else:
                    chunks.append(self.event(event))
            elif type(part) is parts.ReasoningDelta:
                chunks.append(_thinking_chunk(self, part))
                part = self._more_thinking(part.id, rest, chunks)
            else:
                assert type(part) is parts.ToolInputDelta
                chunks.append(self.input(part))
                part = next(rest, None)
        return chunks

    def _more_text(self, rest: Iterator[parts.StreamPart], chunks: list[ChatResult[str]]) -> parts.StreamPart | None:
        """Add the chunks of text deltas that only continue one, and return the part after them."""
        if not self._is_flowing or self._folds_text:
            return next(rest, None)
        for part in rest:
            if type(part) is not parts.TextDelta:
                return part
            chunks.append(ChatResult(text=part.delta, text_id=part.id))
        return None

    def _more_thinking(
        self, block: str, rest: Iterator[parts.StreamPart], chunks: list[ChatResult[str]]
    ) -> parts.StreamPart | None:
        """Add the chunks of deltas that only continue a block of thinking, and return the part after them."""
        pieces = self._thinking[block]
        if not pieces or self._folds_text:
            return next(rest, None)
        for part in rest:
            if type(part) is not parts.ReasoningDelta or part.id != block:
                return part
            thought = part.delta
            pieces.append(thought)
            chunks.append(ChatResult(thinking=thought, metadata={"thinking": thought}))
        return None

    def _more_input(
        self, first: parts.ToolEvent, rest: Iterator[parts.StreamPart], chunks: list[ChatResult[str]]
    ) -> parts.StreamPart | None:
        """Add the chunks of events that only continue an input, each with its delta, and return the part after them."""
        tools, call = self._tool_folds or self._new_tools(), first.call_id
        if call is None or self._folds_text or not tools.runs.is_silent(first) or not tools.code.is_flowing(call):
            return next(rest, None)
        stage, provider_stage, tool, provider_tool = first.stage, first.provider_stage, first.tool, first.provider_tool
        pairs: list[tuple[parts.ToolEvent, parts.ToolInputDelta]] = []
        alone = part = None
        for event in rest:
            if (
                type(event) is not parts.ToolEvent
                or event.call_id != call
                or event.stage != stage
                or event.provider_stage != provider_stage
                or event.tool != tool
                or event.provider_tool != provider_tool
            ):
                part = event
                break
            part = next(rest, None)
            if type(part) is not parts.ToolInputDelta or part.id != call:
                alone = event
                break
            pairs.append((event, part))
        else:
            part = None
        key, codes, texts = first.key, *tools.pieces(call, [delta.delta for _, delta in pairs])
        chunks += [
            ChatResult(metadata={key: [pair[0].event]}, parts=pair, code=code, tool_text=text)
            for pair, code, text in zip(pairs, codes, texts, strict=True)
        ]
        if alone is not None and type(part) is parts.ToolInputDelta:
            chunks.append(self.event(alone, part))
            return next(rest, None)
        if alone is not None:
            chunks.append(self.event(alone))
        return part

    def event(self, event: parts.ToolEvent, delta: parts.ToolInputDelta | None = None) -> ChatResult[str]:
        """Return the chunk of a tool's event, with the input delta that most events of a hosted tool bring."""
        tools = self._tool_folds or self._new_tools()
        runs, events = ((), ()) if tools.runs.is_silent(event) else self.tool_changes(event)
        code = "" if delta is None else tools.code.delta(delta)
        return ChatResult(
            metadata={event.key: [event.event]},
            parts=(event,) if delta is None else (event, delta),
            code=code,
            tool_runs=runs,
            tool_events=events,
            tool_text=tools.logs(event) if delta is None else tools.written(delta, code),
        )

    def input(self, delta: parts.ToolInputDelta) -> ChatResult[str]:
        """Return the chunk of an input delta."""
        tools = self._tool_folds or self._new_tools()
        code = tools.code.delta(delta)
        return ChatResult(parts=(delta,), code=code, tool_text=tools.written(delta, code))

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

    def tool_chunk(self, part: parts.StreamPart) -> ChatResult[str]:
        """Return the chunk of a part, with what it changes of tool runs."""
        if type(part) in _OF_TOOLS:
            runs, events = self.tool_changes(part)
            tools = self._tool_folds or self._new_tools()
            code, text = tools.completed(part)
            return ChatResult(parts=(part,), code=code, tool_runs=runs, tool_events=events, tool_text=text)
        if type(part) in _ENDING:
            runs, events = self.tool_changes(part)
            return ChatResult(parts=(part,), tool_runs=runs, tool_events=events)
        return ChatResult(parts=(part,))

    def tool_changes(self, part: parts.StreamPart) -> "tuple[tuple[ToolRun, ...], tuple[ToolStage, ...]]":
        """Return the tool runs that a part changes, and the stages that they pass."""
        tools = self._tool_folds
        if tools is None:
            if type(part) not in _OF_TOOLS:
                return (), ()
            tools = self._new_tools()
        runs = tools.runs.feed(part, None if self._clock is None else self._clock())
        return runs, tools.runs.taken() if runs else ()

    def _take_up(self, state: TurnState) -> None:
        """Restore the tool runs of a resumed run."""
        self._step = state.step
        calls = [(entry.step, entry.call) for entry in state.hosted.values()]
        calls += [(state.step, call) for call in state.calls]
        if calls:
            self._new_tools().runs.take_up(calls, {approval.call_id for approval in state.waiting})

    def _new_tools(self) -> "ToolFolds":
        """Create the tool folds, which many runs do not need."""
        from sidestream.results.tool_runs import ToolFolds

        self._tool_folds = ToolFolds(self._step)
        return self._tool_folds


def _thought_chunk(f: ChunkFold, part: parts.ReasoningEnd) -> ChatResult[str]:
    text = f.end_thought(part)
    return ChatResult(metadata={"thinking_details": [{"id": part.id, "text": text}]} if text else {}, parts=(part,))


def _text_end_chunk(f: ChunkFold, part: parts.TextEnd) -> ChatResult[str]:
    if part.text is None:
        return ChatResult(parts=(part,))
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
    chunk = f.tool_chunk(part)
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


_DELTAS = frozenset({parts.TextDelta, parts.ReasoningDelta, parts.ToolInputDelta, parts.ToolEvent})
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
