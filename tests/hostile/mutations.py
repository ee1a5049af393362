"""What can happen to the events of an answer on its way. Each mutation is a pure function of a random generator."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from sidestream.jsontext import is_too_deep

Events = list[bytes]
Mutation = Callable[[Random, Events, Sequence[Events]], Events]
"""(random, events, the events of other answers) → the events that arrive."""

ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    -(2**63) - 1,
    2**64,
    1e308,
    "",
    "x",
    "0",
    "\ud83d",
    "\x00\x1b[31m\u202e",
    [],
    {},
    [None],
    {"type": "x"},
    [[[]]],
]
OTHER_NUMBERS: list[Any] = [True, False, "1", 1.5, -1, 2**64, 10**30, "\ud83d", None, [], {}, [1], {"n": 1}]
"""Values in the place of a count, a time or an index."""
BEYOND_JSON = (b"1e400", b"-1e400", b"NaN", b"Infinity", b"1" * 5000)
DEPTHS = (50, 127, 128, 129, 500, 990, 5000)
SIZES = (1_000, 70_000, 500_000)
COPIES = (10, 200, 1500)
MAX_FLOOD_BYTES = 4_000_000
_MARK = "\ue000nested\ue000"


def drop(random: Random, events: Events, others: Sequence[Events]) -> Events:
    share = random.choice((0.05, 0.3, 0.8))
    return [event for event in events if random.random() > share]


def repeat(random: Random, events: Events, others: Sequence[Events]) -> Events:
    start, end = _span(random, events)
    return events[:end] + events[start:]


def reorder(random: Random, events: Events, others: Sequence[Events]) -> Events:
    start, end = _span(random, events)
    return events[:start] + random.sample(events[start:end], end - start) + events[end:]


def retype(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Other values in some places, of any JSON type."""
    for _ in range(random.choice((1, 1, 3, 20))):
        events = _changed(random, events, lambda old: copy.deepcopy(random.choice(ODD_VALUES)))
    return events


def recount(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Numbers of another type, or of no measure, in one event; the last ones hold most counts."""
    if not events:
        return events
    place = random.choice((len(events) - 1, max(len(events) - 2, 0), random.randrange(len(events))))
    value = _json(events[place])
    numbers = [(holder, key) for holder, key in _spots(value) if type(holder[key]) in (int, float)]
    for holder, key in numbers:
        if random.random() < 0.5:
            holder[key] = random.choice([_MARK, *copy.deepcopy(OTHER_NUMBERS)])
    changed = _bytes(value).replace(_bytes(_MARK), random.choice(BEYOND_JSON)) if numbers else events[place]
    return [*events[:place], changed, *events[place + 1 :]]


def rename(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """A text of the answer in the place of another: types, ids and statuses that are all known, in the wrong place."""
    texts = [text for event in events for text in _texts(_json(event))] or [""]
    for _ in range(random.choice((1, 1, 3, 20))):
        events = _changed(random, events, lambda old: random.choice(texts), only=str)
    return events


def alias(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Every id, or every index, is the same."""
    key = random.choice(("id", "item_id", "call_id", "tool_use_id", "index", "output_index", "content_index", "type"))

    def same(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: shared if k == key and not isinstance(v, dict | list) else same(v) for k, v in value.items()}
        return [same(entry) for entry in value] if isinstance(value, list) else value

    values = [event for event in map(_json, events) if isinstance(event, dict)]
    shared = next((value[key] for value in random.sample(values, len(values)) if key in value), "x")
    return [_bytes(same(value)) if (value := _json(event)) is not None else event for event in events]


def remove(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """A field is missing everywhere."""
    names = sorted({name for event in events for name in _names(_json(event))}) or [""]
    gone = set(random.sample(names, min(len(names), random.choice((1, 2, 5)))))

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items() if k not in gone}
        return [without(entry) for entry in value] if isinstance(value, list) else value

    return [_bytes(without(value)) if (value := _json(event)) is not None else event for event in events]


def interleave(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Two answers at the same time."""
    left, right, mixed = [*events], [*random.choice(others)] if others else [], list[bytes]()
    while left or right:
        mixed.append((left if left and (not right or random.random() < 0.5) else right).pop(0))
    return mixed


def invent(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Events that nobody sent, made of the names and values of this answer."""
    values = [value for event in events for value in _values(_json(event))] + ODD_VALUES
    names = sorted({name for event in events for name in _names(_json(event))}) or ["type"]
    types = [value["type"] for event in events if isinstance(value := _json(event), dict) and "type" in value]
    made: Events = []
    for _ in range(random.randint(1, 12)):
        event = {random.choice(names): random.choice(values) for _ in range(random.randint(0, 6))}
        made.append(_bytes({"type": random.choice(types), **event} if types else event))
    place = random.randint(0, len(events))
    return events[:place] + made + events[place:]


def deepen(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """A value with many levels."""
    depth = random.choice(DEPTHS)
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    nested = (opening * depth + "1" + closing * depth).encode()
    marked = _changed(random, events, lambda old: {**old, "extra": _MARK} if isinstance(old, dict) else _MARK)
    return [event.replace(_bytes(_MARK), nested) for event in marked]


def enlarge(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """A text that is much longer."""
    size = random.choice(SIZES)
    return _changed(random, events, lambda old: (old or "ab") * (size // len(old or "ab")), only=str)


def flood(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """An event, or a few in turn, very often."""
    start, end = _span(random, events, longest=3)
    size = sum(map(len, events[start:end])) or 1
    return events[:end] + events[start:end] * min(random.choice(COPIES), MAX_FLOOD_BYTES // size) + events[end:]


def cut(random: Random, events: Events, others: Sequence[Events]) -> Events:
    return events[: random.randint(0, max(len(events) - 1, 0))]


def garble(random: Random, events: Events, others: Sequence[Events]) -> Events:
    """Data that is no JSON."""
    junk = random.choice((b"", b"{", b"null", b"[1", b"\xff\xfe", b"[DONE]", b'"x"', b"ping", b"{}" * 50, b"NaN"))
    place = random.randint(0, len(events))
    return [*events[:place], junk, *events[place:]]


MUTATIONS: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        drop,
        repeat,
        reorder,
        retype,
        recount,
        rename,
        alias,
        remove,
        interleave,
        invent,
        deepen,
        enlarge,
        flood,
        cut,
        garble,
    )
}


def mangled(random: Random, body: bytes) -> bytes:
    """Some bytes changed, removed, added or moved."""
    data = bytearray(body)
    for _ in range(random.choice((1, 3, 10, 100))):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((0, 1, 1, 5, 200)))
        match random.randrange(4):
            case 0:
                data[start:end] = random.randbytes(end - start)
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = random.choice((b"\n", b"\n\n", b"\r", b"data:", b'"', b"}", b"\x00", b"\\ud83d"))
            case _:
                data[start:start] = data[start:end]
    return bytes(data)


def _span(random: Random, events: Events, longest: int = 8) -> tuple[int, int]:
    start = random.randint(0, len(events))
    return start, random.randint(start, min(len(events), start + longest))


def _json(event: bytes) -> Any:
    """The value; None for what is no JSON, and for what is too deep to walk through."""
    try:
        return None if is_too_deep(event) else json.loads(event)
    except (ValueError, RecursionError):
        return None


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _changed(random: Random, events: Events, new: Callable[[Any], Any], only: type | None = None) -> Events:
    """The events with another value in one place."""
    if not events:
        return events
    place = random.randrange(len(events))
    value = _json(events[place])
    spots = [spot for spot in _spots(value) if only is None or isinstance(spot[0][spot[1]], only)]
    if not spots:
        return events
    holder, key = random.choice(spots)
    holder[key] = new(holder[key])
    return [*events[:place], _bytes(value), *events[place + 1 :]]


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a value that holds another one."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _spots(inner)


def _values(value: Any) -> Iterator[Any]:
    yield from (holder[key] for holder, key in _spots(value))


def _names(value: Any) -> Iterator[str]:
    yield from (key for holder, key in _spots(value) if isinstance(holder, dict))


def _texts(value: Any) -> Iterator[str]:
    yield from (inner for inner in _values(value) if isinstance(inner, str) and len(inner) < 100)
