"""Whatever the writer of a log accepts, its reader reads: for every record, part and message, with values of any type."""

import gc
from random import Random
from typing import Any

import pytest
from msgspec import inspect

from requirements import requirement
from sidestream import jsontext
from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.parts import Finish, Source, StepFinish, StepOutcome, StreamPart, ToolEvent, ToolResult, Usage
from sidestream.store.records import (
    LONG_TEXT,
    Body,
    MessageAdded,
    Row,
    RunStarted,
    Segment,
    ToolStarted,
    kind_of,
    pack,
    unpack,
)

EXAMPLES = 80
"""Values of each type."""
LONG = "é" * (LONG_TEXT + 1)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


JSON = [
    *(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 2**63, 2**64, -(2**63) - 1, 10**30),
    *("", "x", "0", "\ud83d", "\x00", LONG, [], {}, [None], {"type": "x"}, {"$text": "x"}, [[1, "a"]], nested(100)),
]
ODD = [*JSON, 10**5000, b"\xff", {1: 2}, {(1, 2): 3}, {True: 1}, {1, 2}, object(), 1j, [object()], nested(400)]
TEXTS = ["", "x", "text", "Größe", "\ud83d", "\x00", LONG]


def made(kind: inspect.Type, random: Random) -> Any:
    """A value of a type; now and then, one of another type."""
    if random.random() < 0.04:
        return random.choice(ODD)
    match kind:
        case inspect.StructType():
            return kind.cls(**{field.name: made(field.type, random) for field in kind.fields})
        case inspect.UnionType():
            return made(random.choice(kind.types), random)
        case inspect.VarTupleType():
            return tuple(made(kind.item_type, random) for _ in range(random.randrange(3)))
        case inspect.TupleType():
            return tuple(made(entry, random) for entry in kind.item_types)
        case inspect.ListType() | inspect.FrozenSetType():
            return [made(kind.item_type, random) for _ in range(random.randrange(3))]
        case inspect.DictType():
            return {random.choice(TEXTS): made(kind.value_type, random) for _ in range(random.randrange(3))}
        case inspect.LiteralType():
            return random.choice(kind.values)
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.IntType():
            return random.choice((0, 1, 7, 2**40))
        case inspect.FloatType():
            return random.choice((0.0, 1.5, 1e300))
        case inspect.StrType():
            return random.choice(TEXTS)
        case inspect.BytesType():
            return random.randbytes(3)
        case inspect.NoneType():
            return None
        case inspect.AnyType():
            return random.choice(JSON)
        case _:
            raise NotImplementedError(kind)


def types_in(union: Any) -> list[type]:
    return [kind.cls for kind in inspect.type_info(union).types]  # pyright: ignore[reportAttributeAccessIssue]


def is_accepted(body: Body) -> bool:
    """Packs a body. What was accepted is read, and what was read is stored and read again without a change."""
    try:
        read = read_back(body)
    except Refused:
        return False
    assert jsontext.dumps(read_back(read)) == jsontext.dumps(read)
    return True


class Refused(Exception):
    """The writer has not accepted a record."""


def read_back(body: Body) -> Body:
    try:
        data, blobs = pack(body)
    except StoreError as error:
        raise Refused from error
    row = Row(seq=1, time=0.0, run="r", kind=kind_of(body), body=data, blobs=tuple(blobs))
    unpack(row)
    return unpack(row, blobs.__getitem__).body


@requirement("F58")
@pytest.mark.parametrize("kind", [*types_in(Body), *types_in(StreamPart), ChatMessage], ids=lambda kind: kind.__name__)
def test_accepted_record_is_readable(kind: type):
    random = Random(kind.__name__)
    about = inspect.type_info(kind)
    # Values are nested up to the recursion limit, where finalizers of objects that earlier tests left cannot run.
    gc.collect()
    gc.disable()
    try:
        outcomes = [is_accepted(body_of(kind, about, random)) for _ in range(EXAMPLES)]
    finally:
        gc.enable()
    assert any(outcomes), "nothing was accepted"


def body_of(kind: type, about: inspect.Type, random: Random) -> Any:
    value = made(about, random)
    while not isinstance(value, kind):
        value = made(about, random)
    if isinstance(value, ChatMessage):
        return MessageAdded(value)
    return value if isinstance(value, Body) else Segment(value.type, (value,))


USED = Usage(server_tool_use={"web_search": True})


@requirement("F58")
@pytest.mark.parametrize(
    "body",
    [
        MessageAdded(ChatMessage("user", (TextPart(5),))),  # pyright: ignore[reportArgumentType]
        MessageAdded(ChatMessage("user", (TextPart(LONG), TextPart(5)))),  # pyright: ignore[reportArgumentType]
        MessageAdded(ChatMessage("boss", (TextPart("x"),))),  # pyright: ignore[reportArgumentType]
        RunStarted("m", details={"x": object()}),
        RunStarted("m", details=nested(100_000)),  # more than any Python version encodes
        RunStarted("m", details={"x": 10**5000}),
        Segment("text", ()),
        Segment("step-finish", (StepFinish(0, "stop", USED),)),
        Segment("step-finish", (StepFinish(0, "stop", USED, outcome=StepOutcome(message_metadata={"a": LONG})),)),
        Segment("finish", (Finish("stop", USED),)),
        Segment("source", (Source("s", "url", url=5),)),  # pyright: ignore[reportArgumentType]
        Segment("tool-result", (ToolResult("c", "f", "f", LONG, "no", False),)),  # pyright: ignore[reportArgumentType]
        Segment("tool-event", (ToolEvent("t", "delta", {}, output_index=True),)),
        ToolStarted("c", None),  # pyright: ignore[reportArgumentType]
    ],
    ids=lambda body: kind_of(body),
)
def test_record_with_value_of_wrong_type_is_refused(body: Body):
    with pytest.raises(StoreError):
        pack(body)
