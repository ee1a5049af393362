"""From the part stream to segments: blocks whole, deltas joined, in the order in which they end."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from sidestream.messages.fold import joined_event
from sidestream.store.records import Segment
from sidestream.stream.parts import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)

_Delta = TextDelta | ReasoningDelta


class _Block:
    __slots__ = ("deltas", "place", "start")

    def __init__(self, place: int, start: TextStart | ReasoningStart) -> None:
        self.place = place
        self.start = start
        self.deltas: list[str | _Delta] = []
        """The text of each; the part itself where it says more."""


class SegmentFold:
    """Makes segments of parts. Previews and the text of tool inputs are left out: what they lead to is kept."""

    def __init__(self) -> None:
        self.place = 0
        self.blocks: dict[str, _Block] = {}
        self.events: list[ToolEvent] = []
        self.out: list[Segment] = []

    def feed(self, parts: Iterable[StreamPart]) -> list[Segment]:
        """The segments that these parts complete."""
        at, add = None, list[str | _Delta]().append
        for part in parts:
            if type(part) is TextDelta:
                # Nearly every part of a stream is one. Its text is kept anyway; the part need not be.
                if part.id is not at:
                    at, add = part.id, self.blocks[part.id].deltas.append
                add(part.delta if part.provider_metadata is None else part)
            else:
                at = None
                _FOLD.get(type(part), _whole)(self, part)
        return self._taken()

    def end(self) -> list[Segment]:
        """What is left where the stream was broken off: events of tools. Blocks that are not whole are dropped."""
        self.flush()
        self.blocks.clear()
        return self._taken()

    def flush(self) -> None:
        """Makes a segment of the events of tools since the last segment."""
        if self.events:
            parts, self.events = tuple(self.events), []
            self.out.append(Segment("tool-event", parts, self.place))

    def _taken(self) -> list[Segment]:
        if not self.out:
            return []
        done, self.out = self.out, []
        return done


def _start(f: SegmentFold, part: TextStart | ReasoningStart) -> None:
    f.place += 1
    f.blocks[part.id] = _Block(f.place, part)


def _reasoning_delta(f: SegmentFold, part: ReasoningDelta) -> None:
    f.blocks[part.id].deltas.append(part.delta if part.provider_metadata is None else part)


def _end(f: SegmentFold, part: TextEnd | ReasoningEnd) -> None:
    block = f.blocks.pop(part.id)
    f.flush()
    kind = "text" if isinstance(part, TextEnd) else "reasoning"
    # The final text supersedes the deltas; it is enough.
    deltas = () if part.text is not None else _joined(block)
    f.out.append(Segment(kind, (block.start, *deltas, part), block.place))


def _joined(block: _Block) -> tuple[_Delta, ...]:
    """The deltas as one; where one says more than text, they stay as they are."""
    kind, name = (TextDelta if isinstance(block.start, TextStart) else ReasoningDelta), block.start.id
    texts = [delta for delta in block.deltas if isinstance(delta, str)]
    if len(texts) == len(block.deltas):
        return (kind(name, "".join(texts)),) if texts else ()
    return tuple(kind(name, delta) if isinstance(delta, str) else delta for delta in block.deltas)


def _event(f: SegmentFold, part: ToolEvent) -> None:
    last = f.events[-1] if f.events else None
    if last is not None and part.stage.endswith("delta") and part.stage == last.stage and part.tool == last.tool:
        joined = joined_event(last.event, part.event) if part.call_id == last.call_id else None
        if joined is not None:
            f.events[-1] = replace(last, event=joined)
            return
    f.events.append(part)


def _result(f: SegmentFold, part: ToolResult) -> None:
    if not part.preliminary:
        _whole(f, part)


def _whole(f: SegmentFold, part: StreamPart) -> None:
    f.flush()
    f.place += 1
    f.out.append(Segment(part.type, (part,), f.place))


def _step(f: SegmentFold, part: StepStart | StepFinish) -> None:
    _whole(f, part)
    f.place = 0


def _nothing(f: SegmentFold, part: StreamPart) -> None:
    pass


_FOLD: dict[type, Callable[[SegmentFold, Any], None]] = {
    TextStart: _start,
    TextEnd: _end,
    ReasoningStart: _start,
    ReasoningDelta: _reasoning_delta,
    ReasoningEnd: _end,
    ToolInputStart: _nothing,
    ToolInputDelta: _nothing,
    ToolInputEnd: _nothing,
    ToolEvent: _event,
    ToolResult: _result,
    StepStart: _step,
    StepFinish: _step,
}
"""Part type → what becomes of it; the others are segments as they are."""
