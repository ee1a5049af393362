"""A fold of the part stream to messages."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.messages import provenance, sessions
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    Numbers,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from sidestream.messages.provenance import NOTHING, Provenance
from sidestream.messages.references import FileIds, kept_metadata, with_file_references
from sidestream.messages.steering import steered_message
from sidestream.parts import (
    Custom,
    File,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    Steer,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolResult,
)
from sidestream.text.urls import urls_of

MessageMetadata = Literal["session", "summary", "full"]
"""Content of model messages' metadata: private session keys, also summaries of finished calls, or all events and
the thinking."""

APPROVAL_DECIDED = "sidestream.approval-decided"
"""Kind of the custom part that reports a decision on a provider's call."""
ACKNOWLEDGED = "acknowledged"
"""Mark of a result whose call the user approved in spite of pending safety checks."""
PASSAGES = "passages"
"""Mark of a result with passages that an answer may cite, which holds their first and last number."""
OUTPUT_REJECTED = "sidestream.output-rejected"
"""Kind of the custom part that reports why typed output is requested again."""
WARNING = "sidestream.warning"
"""Kind of the custom part with a warning about a later request. Those of the first are in `stream-start`."""


DRAFT = "sidestream.draft"
"""Kind of the custom part with the text that came before a typed answer."""

THINKING_GAP = "\n\n"
"""Separator of joined blocks of thinking."""

Completed = tuple[StreamPart, list[ChatMessage]]
"""A part, and the messages it completes."""


class Batch:
    """Parts that came together, and shorter forms of them for folds, with the deltas of a block joined."""

    __slots__ = ("_runs", "parts")

    def __init__(self, parts: list[StreamPart] | None = None) -> None:
        self.parts: list[StreamPart] = [] if parts is None else parts
        """Parts, to which more can be appended."""
        self._runs: list[tuple[int, int, StreamPart | None]] = []
        """Index and number of consecutive parts of a block, and the delta that joins them. None marks the deltas of an
        input, which its call repeats, and their tool events."""

    def grow(self, kind: type[TextDelta | ReasoningDelta | ToolInputDelta], block: str, texts: list[str]) -> None:
        """Append a delta of a block for each of these texts."""
        if len(texts) == 1:
            self.parts.append(kind(block, texts[0]))
        elif texts:
            joined = None if kind is ToolInputDelta else kind(block, "".join(texts))
            self._runs.append((len(self.parts), len(texts), joined))
            self.parts += map(kind, repeat(block), texts)

    def grow_input(self, events: Iterable[ToolEvent], call: str, texts: list[str]) -> None:
        """Append the tool event and the delta of a hosted call's input for each of these texts."""
        if texts:
            self._runs.append((len(self.parts), 2 * len(texts), None))
            self.parts += chain.from_iterable(zip(events, map(ToolInputDelta, repeat(call), texts), strict=True))

    def joined(self, *, has_inputs: bool) -> list[StreamPart]:
        """Return the parts with the deltas of a block joined.

        Without inputs, the deltas of an input and their events are left out.
        """
        if not self._runs:
            return self.parts
        shortened: list[StreamPart] = []
        at = 0
        for start, count, delta in self._runs:
            shortened += self.parts[at:start]
            at = start + count
            if delta is not None:
                shortened.append(delta)
            elif has_inputs:
                shortened += self.parts[start:at]
        return shortened + self.parts[at:]

    def changed(self, kinds: frozenset[type], change: Callable[[Any, list[StreamPart]], StreamPart | None]) -> "Batch":
        """Return the batch with parts of some kinds changed or removed.

        `change` also gets the parts before, joined and without inputs, as one list that grows.
        """
        made = Batch()
        # Without runs, the two lists are the same.
        before, at = list[StreamPart]() if self._runs else made.parts, 0
        for start, count, delta in (*self._runs, (len(self.parts), 0, None)):
            for part in self.parts[at:start]:
                kept = change(part, before) if type(part) in kinds else part
                if kept is None:
                    continue
                before.append(kept)
                if self._runs:
                    made.parts.append(kept)
            at = start + count
            if count:
                made._runs.append((len(made.parts), count, delta))
                made.parts += self.parts[start:at]
            if delta is not None:
                before.append(delta)
        return made


class FoldState(Struct, gc=False):
    """The state of a fold between parts, as plain data."""

    entries: dict[str, MessagePart | None] = {}
    """Parts of the message by block, in order. None means that the block is incomplete or empty."""
    growing: dict[str, list[str]] = {}
    events: dict[str, list[Any]] = {}
    calls: list[str] = []
    """Ids of the step's client calls, in order."""
    results: list[ToolResultPart | ApprovalPart] = []
    is_between: bool = False
    """Whether the fold is between two steps."""
    files: dict[str, MessagePart] = {}
    """Files that client tools made after the last step. They become parts of the model's next message."""
    brought: Provenance = NOTHING
    """Provenance of the parts since the last message, which the next message records."""
    given: tuple[str, ...] = ()
    """URLs that hosted calls were given. A result that repeats one has not found it."""


class MessageFold:
    """A fold of a run's parts to messages, one per step and one per round of client tool results."""

    def __init__(
        self, policy: MessageMetadata = "session", state: FoldState | None = None, *, is_logged: bool = False
    ) -> None:
        self.policy = policy
        self.is_logged = is_logged
        """Whether a log records the run, and stores the fields that only a full replay needs."""
        self.joined: Sequence[StreamPart] = ()
        """Parts of the last `feed_all` with consecutive text deltas joined, for the log."""
        self.state = state or FoldState()

    @property
    def keeps_events(self) -> bool:
        """Whether tool events are part of the message's metadata or of the log."""
        return self.is_logged or self.policy == "full"

    def end_round(self) -> list[ChatMessage]:
        """Return the message with the results of a round of client tools, in the order of their calls."""
        results, self.state.results = self.state.results, []
        if not results:
            return []
        order = {call: place for place, call in enumerate(self.state.calls)}
        # Approval decisions come first, because they do not answer a client call.
        in_order = sorted(results, key=lambda part: order.get(part.id, -1) if isinstance(part, ToolResultPart) else -1)
        return [self.noted(ChatMessage("tool", tuple(in_order)))]

    def noted(self, message: ChatMessage) -> ChatMessage:
        """Return the message with the provenance collected since the previous message."""
        brought, self.state.brought = self.state.brought, NOTHING
        return brought.marked(message)

    def feed_all(self, parts: Iterable[StreamPart]) -> list[Completed]:
        """Return the messages that these parts complete, each with the part that completed them."""
        completed: list[Completed] = []
        joined: list[StreamPart] = []
        block: str | None = None
        texts: list[str] = []
        is_logged = self.is_logged
        for part in parts:
            # The fast path: nearly all parts are text deltas.
            if type(part) is TextDelta and part.provider_metadata is None:
                if part.id is not block:
                    if block is not None:
                        self._grow(block, texts, joined)
                    block, texts = part.id, []
                texts.append(part.delta)
                continue
            if block is not None:
                self._grow(block, texts, joined)
                block = None
            if is_logged:
                joined.append(part)
            if (handler := _FOLD.get(type(part))) is not None and (messages := handler(self, part)):
                completed.append((part, messages))
        if block is not None:
            self._grow(block, texts, joined)
        if is_logged:
            self.joined = joined
        return completed

    def _grow(self, block: str, texts: list[str], joined: list[StreamPart]) -> None:
        pieces = self.state.growing[block]
        pieces += texts
        if len(pieces) > _MAX_PIECES:
            _compact(pieces)
        if self.is_logged:
            joined.append(TextDelta(block, "".join(texts)))

    def text_of(self, block: str) -> str:
        """Return the text of a block of this step so far."""
        if (pieces := self.state.growing.get(block)) is not None:
            return _text_of(pieces)
        entry = self.state.entries.get(block)
        return entry.text if isinstance(entry, TextPart) else ""

    def feed(self, part: StreamPart) -> list[ChatMessage]:
        """Return the messages that a part completes."""
        handler = _FOLD.get(type(part))
        return (handler(self, part) if handler is not None else None) or []


def _start(f: MessageFold, part: TextStart | ReasoningStart) -> None:
    f.state.growing[part.id] = []
    f.state.entries[part.id] = None


def _delta(f: MessageFold, part: TextDelta | ReasoningDelta) -> None:
    f.state.growing[part.id].append(part.delta)


_MAX_PIECES = 16
"""Maximum pieces of a block. A piece is what came in one read, so the copy that joins them stays small."""


def _compact(pieces: list[str]) -> None:
    """Join the pieces in place.

    CPython extends an unshared string without a copy, but only in code that has run a few times, such as this loop.
    """
    pieces.reverse()
    text = pieces.pop()
    for _ in range(len(pieces)):
        text += pieces.pop()
    pieces.append(text)


def _text_of(pieces: list[str]) -> str:
    if len(pieces) > 1:
        _compact(pieces)
    return pieces[0] if pieces else ""


def _text_end(f: MessageFold, part: TextEnd) -> None:
    text = _text_of(f.state.growing.pop(part.id)) if part.text is None else part.text
    f.state.entries[part.id] = TextPart(text, part.id) if text else None


def _reasoning_end(f: MessageFold, part: ReasoningEnd) -> None:
    text = _text_of(f.state.growing.pop(part.id)) if part.text is None else part.text
    f.state.entries[part.id] = ThinkingPart(text, part.id) if text else None


def _call(f: MessageFold, part: ToolCall) -> None:
    if part.provider_executed:
        f.state.given += tuple(urls_of(part.input))
    elif not f.state.is_between:  # Else a program has made it.
        f.state.calls.append(part.id)
        f.state.entries["call " + part.id] = ToolCallPart(part.id, part.name, part.input, part.input_text)


def _result(f: MessageFold, part: ToolResult) -> None:
    marks = (
        _NO_MARKS if part.provider_metadata is None else jsontext.as_object(part.provider_metadata.get("sidestream"))
    )
    if not part.provider_executed and not part.preliminary and "caller" not in marks:
        is_acknowledged = marks.get(ACKNOWLEDGED) is True
        passages = _passages(marks.get(PASSAGES))
        f.state.results.append(
            ToolResultPart(
                part.id,
                part.name,
                _shown(part, marks) if part.tool == "mcp" else part.result,
                part.is_error,
                is_acknowledged,
                passages,
            )
        )
    if part.provider_executed or not part.preliminary:
        _bring(f, part)


_NO_MARKS: jsontext.JsonObject = {}
_MCP_CALL = frozenset({"server_label", "output", "error"})


def _shown(part: ToolResult, marks: jsontext.JsonObject) -> jsontext.Json:
    """Return what the model gets of an MCP server's result: the output alone, if it has the form of a hosted call's."""
    result = jsontext.as_object(part.result)
    if (
        "output" not in result
        or not result.keys() <= _MCP_CALL
        or result.get("server_label") != marks.get("server_label")
    ):
        return part.result
    return result["output"] if result.get("error") is None else result["error"]


def _passages(numbers: object) -> Numbers | None:
    if numbers is None:
        return None
    try:
        return msgspec.convert(numbers, Numbers | None)
    except msgspec.ValidationError:
        return None


def _bring(f: MessageFold, part: ToolResult | Source | ToolEvent) -> None:
    found = provenance.brought_by(part, is_between=f.state.is_between, given=f.state.given)
    if found is not NOTHING:
        f.state.brought += found


_FILE = "file "
_READERS = frozenset({"web_fetch", "url_context"})
"""Tools whose files are what the model has read, not made."""


def _file(f: MessageFold, part: File) -> None:
    entries: dict[str, Any] = f.state.files if f.state.is_between else f.state.entries
    if part.data is not None:
        # The user has what a tool made. The model gets it again only if the user attaches it.
        is_made = part.tool is not None and part.tool not in _READERS
        entries[_FILE + part.id] = DataPart(part.data, part.mime_type, part.name, "container" if is_made else "model")
    elif part.url is not None:
        entries[_FILE + part.id] = LinkPart(part.url, part.mime_type, part.name)


def _event(f: MessageFold, part: ToolEvent) -> None:
    if f.policy == "full":
        _log(f.state.events.setdefault(part.key, []), part)
    if f.state.is_between:  # Skip hosted tools, which may send thousands.
        _bring(f, part)


def _custom(f: MessageFold, part: Custom) -> list[ChatMessage] | None:
    data = jsontext.as_object(part.data)
    if part.kind == APPROVAL_DECIDED:
        f.state.results.append(ApprovalPart(data["approval_id"], data["is_approved"], data.get("reason")))
    elif part.kind == OUTPUT_REJECTED:
        return [provenance.written(str(data["message"]))]
    return None


def _steer(f: MessageFold, part: Steer) -> list[ChatMessage]:
    # A call and its result must stay together, so the results of a round come first.
    return [*f.end_round(), steered_message(part)] if part.status == "applied" else []


def _step_start(f: MessageFold, part: StepStart) -> list[ChatMessage]:
    messages = f.end_round()
    f.state = without_step(f.state)
    return messages


def without_step(state: FoldState) -> FoldState:
    """Return the state without the parts of a step, keeping files and provenance for the next message."""
    return FoldState(files=state.files, brought=state.brought, given=state.given)


_NO_OUTCOME = StepOutcome()
_THOUGHTS = frozenset({ThinkingPart})


def _step_finish(f: MessageFold, part: StepFinish) -> list[ChatMessage]:
    # The step that replaces a failed one delivers its files.
    files, later = ({}, f.state.files) if part.reason == "error" else (f.state.files, {})
    f.state.entries = {**files, **f.state.entries}
    parts = tuple([entry for entry in f.state.entries.values() if entry is not None])
    outcome = part.outcome or _NO_OUTCOME
    metadata = _message_metadata(f, outcome)
    # Keep a message without content only if its metadata is needed later.
    says_something = not _THOUGHTS.issuperset(map(type, parts))
    is_needed = part.reason == "approval" or outcome.is_paused or outcome.is_kept
    is_kept = says_something or (bool(metadata) and (is_needed or f.policy != "session"))
    before = f.state
    f.state = FoldState(
        calls=before.calls,
        results=before.results,
        is_between=True,
        files=later,
        brought=before.brought,
        # A hosted call's result may arrive with the next response.
        given=() if part.reason == "stop" and not outcome.is_paused else before.given,
    )
    if not is_kept:
        return []
    digest = sessions.digest_of("model", parts) if metadata else b""
    message = ChatMessage("model", parts, sessions.stamp(metadata, digest) if metadata else metadata)
    # A failed step's message is not part of the history, so the next message records the provenance.
    message = message if part.reason == "error" else f.noted(message)
    if metadata:
        sessions.remember(message, digest)
    return [message]


def _message_metadata(f: MessageFold, outcome: StepOutcome) -> dict[str, Any]:
    metadata = kept_metadata(outcome, is_logged=f.is_logged)
    if f.policy == "session":
        return metadata
    private = {key: value for key, value in metadata.items() if key.startswith("_")}
    for tool, events in f.state.events.items():
        metadata[tool] = list(events)
    for tool, summaries in outcome.summaries.items():
        metadata[tool] = [*metadata.get(tool, []), *summaries]
    blocks = [entry for entry in f.state.entries.values() if isinstance(entry, ThinkingPart)]
    if f.policy == "full" and blocks:
        metadata["thinking"] = THINKING_GAP.join(block.text for block in blocks)
        metadata["thinking_details"] = [{"id": block.id, "text": block.text} for block in blocks]
    # Do not store the content of a file twice. Sessions belong to the provider.
    return with_file_references(metadata, _file_ids(f.state)) | private


def _file_ids(state: FoldState) -> FileIds:
    known: dict[str, str] = {}
    for name, entry in state.entries.items():
        if isinstance(entry, DataPart):
            known.setdefault(media_types.digest(entry.data), name.removeprefix(_FILE))
    return known


def _finish(f: MessageFold, part: Finish) -> list[ChatMessage]:
    # A round that waits for an approval, or that an error interrupts, becomes one message when it is complete.
    if part.reason in ("approval", "error"):
        return []
    files, f.state.files = tuple(f.state.files.values()), {}
    return [*f.end_round(), *([f.noted(ChatMessage("model", files))] if files else [])]


def _log(events: list[Any], part: ToolEvent) -> None:
    """Append an event, joining consecutive deltas of one call."""
    joined = joined_event(events[-1], part.event) if events and part.provider_stage == "delta" else None
    if joined is not None:
        events[-1] = joined
    else:
        events.append(part.event)


def joined_event(first: Any, second: Any) -> Any:
    """Return two events of one tool joined, or None if the second does not continue the first."""
    last, event = jsontext.as_object(first), jsontext.as_object(second)
    if any(last.get(key) != event.get(key) for key in ("type", "id", "item_id", "output_index", "index")):
        return None
    joined = _joined(last.get("delta"), event.get("delta"))
    return None if joined is None else {**last, "delta": joined}


def _joined(first: Any, second: Any) -> Any:
    """Return two deltas joined, or None if they are neither strings nor objects with one such field besides `type`."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    old, new = jsontext.as_object(first), jsontext.as_object(second)
    texts = [key for key in old.keys() & new.keys() if key != "type"]
    if old.get("type") != new.get("type") or len(texts) != 1 or len(old) != 2 or len(new) != 2:
        return None
    key = texts[0]
    together = isinstance(old[key], str) and isinstance(new[key], str)
    return {**old, key: old[key] + new[key]} if together else None


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
    Source: _bring,
    File: _file,
    Custom: _custom,
    Steer: _steer,
    StepStart: _step_start,
    StepFinish: _step_finish,
    Finish: _finish,
}
"""Part type → handler. Other parts do not change the message."""
