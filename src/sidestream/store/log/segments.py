"""Conversion of the part stream to segments, with deltas joined and blocks in the order in which they end."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.messages.fold import joined_event
from sidestream.parts import (
    File,
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
from sidestream.store.records import Segment

INCREMENTS = {"text-delta": "text", "reasoning-delta": "reasoning"}
"""Kind of an increment of an open block → kind of the segment that closes the block."""

INPUT = "tool-input"
"""Kind of the segments that hold the deltas of tool inputs. A `tool-call` segment with the input follows."""

_Delta = TextDelta | ReasoningDelta
_JUST_BEFORE = 8
"""Events before a preview that may contain it."""
_PREVIEW_TEXT = 256
"""Minimum length of preview strings that count as content, such as an image in base64. Shorter ones describe it."""


class _Block:
    __slots__ = ("deltas", "is_written", "place", "start")

    def __init__(self, place: int, start: TextStart | ReasoningStart) -> None:
        self.place = place
        self.start = start
        self.is_written = False
        """Whether an increment already holds the start."""
        self.deltas: list[str | _Delta] = []
        """Deltas of the next segment: their text, or the whole part if it has metadata."""


class SegmentFold:
    """A fold from parts to segments.

    Deltas of tool inputs are omitted unless `inputs` is set, since the resulting call is kept. Previews are omitted
    unless `previews` is set.
    """

    def __init__(self, *, previews: bool = False, inputs: bool = False) -> None:
        self.place = 0
        self.blocks: dict[str, _Block] = {}
        self.events: list[ToolEvent] = []
        self.inputs: list[ToolInputStart | ToolInputDelta | ToolInputEnd] = []
        """Parts of tool inputs that are not in a segment yet, with neighbouring deltas joined."""
        self.out: list[Segment] = []
        self.has_events = False
        """Whether the segments include tool events."""
        self.files: dict[str, bytes] = {}
        """Files among these parts, by their base64."""
        self.size = 0
        """Upper bound of the bytes that are not in a segment yet."""
        self.keeps_previews = previews
        self.keeps_inputs = inputs

    def feed(self, parts: Iterable[StreamPart]) -> list[Segment]:
        """Add parts, and return the segments that they complete."""
        at: str | None = None
        texts: list[str] = []
        add = texts.append
        for part in parts:
            # The fast path for nearly every part; only its text is kept.
            if type(part) is TextDelta and part.id is at and part.provider_metadata is None:
                add(part.delta)
                continue
            if at is not None:
                self._grow(at, texts)
                at, texts = None, []
                add = texts.append
            if type(part) is TextDelta and part.provider_metadata is None:
                at = part.id
                add(part.delta)
            else:
                _FOLD.get(type(part), _whole)(self, part)
        if at is not None:
            self._grow(at, texts)
        return self._taken() if self.out else []

    def _grow(self, block: str, texts: list[str]) -> None:
        text = "".join(texts)
        self.blocks[block].deltas.append(text)
        self.size += _size(text)

    def increments(self) -> list[Segment]:
        """Return segments of the tool events, tool inputs and increments that are not yet in one."""
        self.flush()
        for block in self.blocks.values():
            parts = _rest(block)
            if parts:
                kind = "text-delta" if isinstance(block.start, TextStart) else "reasoning-delta"
                self.out.append(Segment(kind, parts, block.place))
                block.is_written = True
                block.deltas.clear()
        self.size = 0
        return self._taken()

    def end(self) -> list[Segment]:
        """Return segments of what is left when the stream was interrupted."""
        segments = self.increments()
        self.blocks.clear()
        return segments

    def flush(self) -> None:
        """Make segments of the tool events and inputs since the last segment."""
        if self.inputs:
            given, self.inputs = tuple(self.inputs), []
            self.out.append(Segment(INPUT, given, self.place))
        if self.events:
            self.has_events = True
            parts, self.events = tuple(self.events), []
            self.out.append(Segment("tool-event", parts, self.place))

    def _taken(self) -> list[Segment]:
        done, self.out, self.has_events = self.out, [], False
        if self.files:
            files, self.files = self.files, {}
            done = [_referring(segment, files) if segment.kind == "tool-event" else segment for segment in done]
        if not self.blocks:
            self.size = 0
        return done


def event_with(last: ToolEvent, part: ToolEvent) -> ToolEvent | None:
    """Join two events of one call if the second is a delta that continues the first, else return None."""
    is_same = part.provider_stage == last.provider_stage and part.key == last.key and part.call_id == last.call_id
    if not is_same or not (part.provider_stage or "").endswith("delta"):
        return None
    event = joined_event(last.event, part.event)
    return None if event is None else replace(last, event=event)


def joined_deltas(parts: Iterable[StreamPart]) -> tuple[StreamPart, ...]:
    """Join the deltas of one block into one, unless they have metadata. A final text replaces all deltas."""
    given = list(parts)
    deltas = [part for part in given if isinstance(part, TextDelta | ReasoningDelta)]
    first = given.index(deltas[0]) if deltas else 0
    others = [part for part in given if not isinstance(part, TextDelta | ReasoningDelta)]
    if any(isinstance(part, TextEnd | ReasoningEnd) and part.text is not None for part in others):
        return tuple(others)
    if len(deltas) < 2 or any(delta.provider_metadata is not None for delta in deltas):
        return tuple(given)
    whole = replace(deltas[0], delta="".join(delta.delta for delta in deltas))
    return (*others[:first], whole, *others[first:])


def _start(f: SegmentFold, part: TextStart | ReasoningStart) -> None:
    f.place += 1
    f.blocks[part.id] = _Block(f.place, part)


def _delta(f: SegmentFold, part: _Delta) -> None:
    f.blocks[part.id].deltas.append(part.delta if part.provider_metadata is None else part)
    f.size += _size(part.delta)


def _end(f: SegmentFold, part: TextEnd | ReasoningEnd) -> None:
    block = f.blocks.pop(part.id)
    f.flush()
    kind = "text" if isinstance(part, TextEnd) else "reasoning"
    if part.text is not None:
        block.deltas.clear()  # The final text supersedes them.
    f.out.append(Segment(kind, (*_rest(block), part), block.place))


def _rest(block: _Block) -> tuple[StreamPart, ...]:
    """Return the parts of a block that are not in a segment yet, with deltas joined unless one has metadata."""
    start = () if block.is_written else (block.start,)
    kind, name = (TextDelta if isinstance(block.start, TextStart) else ReasoningDelta), block.start.id
    texts = [delta for delta in block.deltas if isinstance(delta, str)]
    if len(texts) == len(block.deltas):
        return (*start, kind(name, "".join(texts))) if texts else start
    return (*start, *(kind(name, delta) if isinstance(delta, str) else delta for delta in block.deltas))


def _event(f: SegmentFold, part: ToolEvent) -> None:
    if not f.keeps_previews and _is_forwarded_preview(part):
        _strip(f, part.call_id, jsontext.as_object(part.event).get("result"))
        return
    f.size += _size(part.event)
    if f.inputs:
        f.flush()
    joined = event_with(f.events[-1], part) if f.events else None
    if joined is None:
        f.events.append(part)
    else:
        f.events[-1] = joined


def _input(f: SegmentFold, part: ToolInputStart | ToolInputDelta | ToolInputEnd) -> None:
    if not f.keeps_inputs:
        return
    last = f.inputs[-1] if f.inputs else None
    if isinstance(part, ToolInputDelta):
        f.size += _size(part.delta)
        if isinstance(last, ToolInputDelta) and last.id == part.id and last.provider_metadata == part.provider_metadata:
            f.inputs[-1] = replace(last, delta=last.delta + part.delta)
            return
    else:
        f.size += 1
    if not f.inputs and f.events:
        f.flush()  # Keep the order.
    f.inputs.append(part)


def _size(value: object) -> int:
    """Estimate the size of a value as JSON, in bytes."""
    match value:
        case str():
            return len(value) if value.isascii() else 4 * len(value)
        case dict():
            return 8 + sum(map(_size, cast(dict[str, object], value).values()))
        case list():
            return 8 + sum(map(_size, cast(list[object], value)))
        case _:
            return 8


def _result(f: SegmentFold, part: ToolResult) -> None:
    if part.preliminary and not f.keeps_previews:
        _strip(f, part.id, part.result)
    else:
        _whole(f, part)


def _is_forwarded_preview(part: ToolEvent) -> bool:
    """Return whether the event is a preview that a subagent forwards."""
    event = jsontext.as_object(part.event) if part.provider_stage == "tool-result" else {}
    return event.get("type") == "tool-result" and event.get("preliminary") is True


def _strip(f: SegmentFold, call_id: str | None, preview: object) -> None:
    """Replace the content of a preview in the events just before it, which report it, by a note."""
    for text in jsontext.as_object(preview).values():
        if isinstance(text, str) and len(text) > _PREVIEW_TEXT:
            note = f"(preview of {len(text)} characters, not logged)"
            f.events[-_JUST_BEFORE:] = [
                _with(event, {text: note}) if event.call_id == call_id else event for event in f.events[-_JUST_BEFORE:]
            ]


def _file(f: SegmentFold, part: File) -> None:
    """Record a file, whose bytes replace their base64 in the events that brought it."""
    f.flush()
    if part.data is not None and f.has_events:
        f.files[b64encode(part.data).decode()] = part.data
    _whole(f, part)


def _referring(segment: Segment, files: Mapping[str, bytes]) -> Segment:
    events = tuple(_with(part, files) if isinstance(part, ToolEvent) else part for part in segment.parts)
    return replace(segment, parts=events)


def _with(event: ToolEvent, others: Mapping[str, str | bytes]) -> ToolEvent:
    """Replace these strings wherever they appear in the event."""
    changed = _replaced(event.event, others)
    return event if changed is event.event else replace(event, event=changed)


def _replaced(value: Any, others: Mapping[str, str | bytes]) -> Any:
    match value:
        case str():
            return others.get(value, value)
        case dict():
            fields = cast(dict[str, Any], value)
            changed = {key: _replaced(inner, others) for key, inner in fields.items()}
            return changed if any(changed[key] is not inner for key, inner in fields.items()) else fields
        case list():
            items = cast(list[Any], value)
            new = [_replaced(inner, others) for inner in items]
            return new if any(one is not two for one, two in zip(new, items, strict=True)) else items
        case _:
            return value


def _whole(f: SegmentFold, part: StreamPart) -> None:
    f.flush()
    f.place += 1
    f.out.append(Segment(part.type, (part,), f.place))


def _step(f: SegmentFold, part: StepStart | StepFinish) -> None:
    _whole(f, part)
    f.place = 0


_FOLD: dict[type, Callable[[SegmentFold, Any], None]] = {
    TextStart: _start,
    TextEnd: _end,
    ReasoningStart: _start,
    TextDelta: _delta,
    ReasoningDelta: _delta,
    ReasoningEnd: _end,
    ToolInputStart: _input,
    ToolInputDelta: _input,
    ToolInputEnd: _input,
    ToolEvent: _event,
    ToolResult: _result,
    File: _file,
    StepStart: _step,
    StepFinish: _step,
}
"""Handlers, by part type. Other parts become one segment each."""
