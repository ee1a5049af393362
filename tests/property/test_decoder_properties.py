"""What holds for the decoder whatever a server sends."""

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.parts import (
    Error,
    File,
    Finish,
    StreamPart,
    TextDelta,
    ToolCall,
    ToolResult,
)
from sidestream.providers.openai.responses.decode.decoder import EVENTS, ResponsesDecoder
from sidestream.providers.openai.responses.decode.items import ITEMS
from sidestream.providers.openai.responses.options import ResponsesContext
from sidestream.providers.protocol import FileRef
from sidestream.stream.grammar import check
from sidestream.turn.machine import Over, Turn
from support.streams import EVERY_ITEM, Event, decode, event, messages, of, one, response, stored, stream, wire

# Realistic streams: any items, side by side, their events in any order that keeps each item's own.


def placed(events: list[Event], offset: int) -> list[Event]:
    """The same items further on in the output, under ids of their own."""

    def renamed(value: Any) -> Any:
        return f"{value}_{offset}" if isinstance(value, str) else value

    moved: list[Event] = []
    for sent in events:
        new = {**sent, "output_index": sent["output_index"] + offset, "item_id": renamed(sent.get("item_id"))}
        if "item" in sent:
            new["item"] = {
                key: renamed(value) if key in ("id", "call_id", "approval_request_id") else value
                for key, value in sent["item"].items()
            }
        moved.append(new)
    return moved


@st.composite
def groups(draw: st.DrawFn) -> list[list[Event]]:
    """Items of up to four kinds, each at its own place."""
    kinds = draw(st.lists(st.sampled_from(sorted(EVERY_ITEM)), min_size=1, max_size=4))
    return [placed(EVERY_ITEM[kind], number * 2) for number, kind in enumerate(kinds)]


@st.composite
def merged(draw: st.DrawFn, items: list[list[Event]]) -> list[Event]:
    """The items' events in one list, each item's in their order."""
    left = [list(group) for group in items]
    order: list[Event] = []
    while any(left):
        group = draw(st.sampled_from([group for group in left if group]))
        order.append(group.pop(0))
    return order


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """A whole realistic stream."""
    return stream(draw(merged(draw(groups()))))


# What may happen to a stream on its way.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "id", "text"]), inner),
    max_leaves=4,
)


def drop(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    kept = draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)))
    return [e for e, keep in zip(events, kept, strict=True) if keep]


def repeat(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    place = draw(st.integers(0, len(events)))
    return events[:place] + events[draw(st.integers(0, place)) :]


def shuffle(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    start = draw(st.integers(0, len(events)))
    end = draw(st.integers(start, min(len(events), start + 6)))
    return [*events[:start], *draw(st.permutations(events[start:end])), *events[end:]]


def unnumber(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    return [{key: value for key, value in e.items() if key != "sequence_number"} for e in events]


def misplace(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    return [
        {**e, "output_index": draw(st.sampled_from([e["output_index"], 0, 1, 2, 9]))} if "output_index" in e else e
        for e in events
    ]


def damage(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    if not events:
        return events
    place = draw(st.integers(0, len(events) - 1))
    broken = copy.deepcopy(events[place])
    holder: Any = broken
    while isinstance(holder, dict) and holder:
        key = draw(st.sampled_from(sorted(holder)))
        if not isinstance(holder[key], dict) or draw(st.booleans()):
            holder[key] = draw(JSON)
            break
        holder = holder[key]
    return [*events[:place], broken, *events[place + 1 :]]


LOSSES: list[Callable[[st.DrawFn, list[Event]], list[Event]]] = [drop, repeat, shuffle, unnumber]
DAMAGES = [*LOSSES, misplace, damage]


@st.composite
def changed(draw: st.DrawFn, ways: list[Callable[[st.DrawFn, list[Event]], list[Event]]]) -> list[Event]:
    """A realistic stream to which one or more of these things happened."""
    events = draw(streams())
    for way in draw(st.lists(st.sampled_from(ways), min_size=1, max_size=3)):
        events = way(draw, events)
    return events


@st.composite
def garbage(draw: st.DrawFn) -> list[Any]:
    """Events of known types with any fields, and things that are no events."""
    item = st.fixed_dictionaries(
        {"type": st.sampled_from(sorted(ITEMS))},
        optional={
            "id": st.sampled_from(["a", "b", ""]) | JSON,
            "call_id": st.sampled_from(["a", "c"]) | JSON,
            "status": st.sampled_from(["completed", "incomplete", "failed", "in_progress"]) | JSON,
            "content": st.lists(st.fixed_dictionaries({"type": st.just("output_text"), "text": JSON}), max_size=2),
            "summary": JSON,
            "arguments": st.sampled_from(["{}", "{", '{"a":1}']) | JSON,
            "name": st.text(max_size=2) | JSON,
            "operation": st.dictionaries(st.sampled_from(["type", "path", "diff"]), st.text(max_size=2)) | JSON,
            "action": st.dictionaries(st.sampled_from(["commands", "type"]), JSON),
        },
    )
    sent = st.fixed_dictionaries(
        {"type": st.sampled_from(sorted(EVENTS))},
        optional={
            "output_index": st.integers(0, 2) | JSON,
            "item_id": st.sampled_from(["a", "b"]) | JSON,
            "content_index": st.integers(0, 1),
            "summary_index": st.integers(0, 1),
            "command_index": st.integers(0, 1),
            "delta": st.text(max_size=3) | JSON,
            "text": st.text(max_size=3) | JSON,
            "command": st.text(max_size=3) | JSON,
            "code": st.text(max_size=3) | JSON,
            "partial_image_b64": st.text(max_size=3),
            "part": st.fixed_dictionaries(
                {"type": st.sampled_from(["output_text", "refusal", "reasoning_text"]) | JSON}
            ),
            "item": item,
            "response": st.fixed_dictionaries({"output": st.lists(item, max_size=2)}) | JSON,
            "sequence_number": st.integers(-1, 5) | JSON,
        },
    )
    return draw(st.lists(sent | JSON, max_size=12))


# The properties.


@requirement("R2", "R4", "R5", "F07", "F09")
@given(changed(DAMAGES), st.booleans())
def test_damaged_stream_is_valid_run_of_storable_parts(events: list[Event], store: bool):
    parts = decode(events, store=store)
    assert isinstance(parts[-1], Finish)
    assert len(of(parts, Finish)) == 1
    assert [stored(part) for part in parts] == parts


@requirement("R2", "R4", "R5", "F07")
@given(garbage(), st.booleans())
def test_garbage_is_valid_run_of_storable_parts(events: list[Any], store: bool):
    parts = decode(events, store=store)
    assert len(of(parts, Finish)) == 1
    assert [stored(part) for part in parts] == parts


@requirement("F08")
@given(st.lists(st.binary(max_size=30) | st.text(max_size=30).map(str.encode), max_size=10))
def test_any_bytes_are_valid_run(data: list[bytes]):
    assert one(decode(data), Finish).reason == "error"


@requirement("F01", "R4")
@given(st.data())
def test_stream_cut_anywhere_is_truncated_without_partial_calls(data: st.DataObject):
    events = data.draw(streams())
    end = data.draw(st.integers(0, len(events) - 1))
    turn, parts = driven(events[:end])
    error, finish = parts[-2:]
    assert isinstance(error, Error)
    assert error.kind == "truncated"
    assert isinstance(finish, Finish)
    assert finish.reason == "error"
    assert turn.command == Over()
    finals = [e["item"] for e in events[:end] if e["type"] == "response.output_item.done"]
    ended = {item.get("call_id") or item["id"] for item in finals}
    assert {call.id for call in of(parts, ToolCall) if not call.provider_executed} <= ended


def driven(events: list[Event]) -> tuple[Turn, list[StreamPart]]:
    """The run of an agent that would execute any call."""
    decoder = ResponsesDecoder(ResponsesContext())
    turn = Turn([], tools=frozenset({"get_weather", "sql", "apply_patch", "shell", "local_shell", "computer_use"}))
    parts = [*turn.sending((), ()), *turn.opened()]
    emitted = [part for sent in events for part in decoder.feed(wire(sent))] + decoder.close()
    parts += turn.received(emitted, decoder.downloads)
    check(parts)
    return turn, parts


@requirement("F13")
@given(changed(LOSSES))
def test_no_call_is_made_with_partial_input(events: list[Event]):
    inputs = {kind: [call.input for call in of(decode(stream(EVERY_ITEM[kind])), ToolCall)] for kind in EVERY_ITEM}
    whole = [value for values in inputs.values() for value in values]
    for call in of(decode(events), ToolCall):
        assert call.input_error is not None or call.input in whole


@requirement("F18")
@given(st.data())
def test_interleaved_items_match_sequential_items(data: st.DataObject):
    items = data.draw(groups())
    apart, mixed = decode(stream(*items)), decode(stream(data.draw(merged(items))))
    assert leftovers(mixed) == leftovers(apart)


def leftovers(parts: list[StreamPart]) -> dict[str, Any]:
    """What a run leaves, whatever the order it came in."""
    deltas: dict[str, str] = {}
    for part in of(parts, TextDelta):
        deltas[part.id] = deltas.get(part.id, "") + part.delta
    return {
        "text": deltas,
        "calls": {call.id: call for call in of(parts, ToolCall)},
        "results": {result.id: result for result in of(parts, ToolResult) if not result.preliminary},
        "files": {file.id: file for file in of(parts, File)},
        "message": [sorted(map(repr, message.parts)) for message in messages(parts)],
        "end": (one(parts, Finish).reason, one(parts, Finish).usage),
    }


@requirement("R6")
@given(changed(DAMAGES))
def test_part_never_changes_after_it_was_emitted(events: list[Event]):
    decoder = ResponsesDecoder(ResponsesContext())
    emitted: list[tuple[StreamPart, bytes]] = []
    for sent in [*events, event("completed", response=response())]:
        emitted += [(part, part.to_json()) for part in decoder.feed(wire(sent))]
    emitted += [(part, part.to_json()) for part in decoder.close()]
    assert all(part.to_json() == form for part, form in emitted)


@requirement("R40")
@given(streams(), st.integers(1, 3))
def test_files_to_fetch_are_listed_once_each(events: list[Event], times: int):
    decoder = ResponsesDecoder(ResponsesContext())
    for sent in events:
        for _ in range(times):
            decoder.feed(wire(sent))
    refs: tuple[FileRef, ...] = decoder.downloads
    assert len({(ref.container_id, ref.id) for ref in refs}) == len(refs)
