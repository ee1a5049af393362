"""Typed output: schemas that providers accept, and values from the text of models."""

import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

import msgspec
import pytest
import typing_extensions
from hypothesis import given, strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from requirements import requirement
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.output import OutputError, OutputType, output_type
from sidestream.output.json_schema import allows_strict

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class City(BaseModel):
    """A city."""

    name: str = Field(min_length=1, description="Its name")
    inhabitants: int = Field(default=0, ge=0)
    founded: date | None = None
    colours: list[Colour] = []

    @field_validator("name")
    @classmethod
    def _no_cheese(cls, name: str) -> str:
        if name == "Emmental":
            raise ValueError("that is a cheese")
        return name


class Person(BaseModel):
    kind: Literal["person"]
    home: City
    children: "list[Person]"


class Robot(BaseModel):
    kind: Literal["robot"]
    position: tuple[float, float]


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]):
    pass


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class Empty(BaseModel):
    pass


@dataclass
class Route:
    start: City
    stops: list[str] = field(default_factory=list[str])
    mode: Literal["car", 2] = "car"


class Range(typing_extensions.TypedDict):
    low: int
    high: typing_extensions.NotRequired[int]


class OldRange(typing.TypedDict):
    low: int
    high: NotRequired[int]


class Point(msgspec.Struct):
    x: int
    y: Annotated[int, msgspec.Meta(ge=0)] = 0


class Circle(msgspec.Struct, tag=True):
    radius: int


class Square(msgspec.Struct, tag=True):
    side: int


CITY = {"name": "Rome", "inhabitants": 2800000, "founded": "0001-04-21", "colours": ["red"]}
ROME = City(name="Rome", inhabitants=2800000, founded=date(1, 4, 21), colours=[Colour.RED])
ADA = {"kind": "person", "home": {"name": "Rome"}, "children": []}
SCHEMA: dict[str, Any] = {
    "title": "a tree",
    "type": "object",
    "properties": {"label": {"type": "string", "maxLength": 3}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["label", "kids"],
}

# The type, whether it is wrapped and strict, an answer's JSON value (without the wrapper), and the output.
KINDS: dict[str, tuple[Any, bool, bool, Any, Any]] = {
    "model": (City, False, True, CITY, ROME),
    "recursive model": (
        Person, False, True, {**ADA, "children": [ADA]},
        Person(kind="person", home=City(name="Rome"), children=[Person.model_validate(ADA)]),
    ),
    "generic model": (Box[int], False, True, {"content": 1}, Box[int](content=1)),
    "root model": (Names, True, True, ["a"], Names(["a"])),
    "open model": (Loose, False, False, {"name": "a", "b": 1}, Loose.model_validate({"name": "a", "b": 1})),
    "empty model": (Empty, False, True, {}, Empty()),
    "dataclass": (Route, False, True, {"start": CITY, "stops": ["a"], "mode": 2}, Route(ROME, ["a"], 2)),
    "typed dict": (Range, False, True, {"low": 1}, {"low": 1}),
    "typed dict of typing": (OldRange, False, True, {"low": 1}, {"low": 1}),
    "list of typed dicts": (list[OldRange], True, True, [{"low": 1, "high": 2}], [{"low": 1, "high": 2}]),
    "list": (list[int], True, True, [1, 2], [1, 2]),
    "list of models": (list[City], True, True, [CITY], [ROME]),
    "tuple of one type": (tuple[int, int], True, True, [1, 2], (1, 2)),
    "tuple of several": (tuple[int, str], True, False, [1, "a"], (1, "a")),
    "dict": (dict[str, int], False, False, {"a": 1}, {"a": 1}),
    "union": (Person | Robot, True, True, {"kind": "robot", "position": [1, 2]}, Robot(kind="robot", position=(1, 2))),
    "tagged union": (
        Annotated[Person | Robot, Field(discriminator="kind")], True, True, {"kind": "robot", "position": [1, 2]},
        Robot(kind="robot", position=(1, 2)),
    ),
    "optional": (int | None, True, True, None, None),
    "literal": (Literal["a", "b"], True, True, "b", "b"),
    "mixed literal": (Literal["a", 1, None], True, True, 1, 1),
    "enum": (Colour, True, True, "blue", Colour.BLUE),
    "text": (str, True, True, "hi", "hi"),
    "number": (float, True, True, 1.5, 1.5),
    "boolean": (bool, True, True, True, True),
    "date": (date, True, True, "2020-01-02", date(2020, 1, 2)),
    "decimal": (Decimal, True, True, "1.10", Decimal("1.10")),
    "annotated": (Annotated[int, Field(ge=1, description="How many")], True, True, 2, 2),
    "anything": (Any, True, False, {"a": [1]}, {"a": [1]}),
    "struct": (Point, False, True, {"x": 1}, Point(1)),
    "list of structs": (list[Point], True, True, [{"x": 1, "y": 2}], [Point(1, 2)]),
    "union of structs": (Circle | Square, True, True, {"type": "Square", "side": 2}, Square(2)),
    "schema": (SCHEMA, False, True, {"label": "a", "kids": []}, {"label": "a", "kids": []}),
    "schema of no object": ({"enum": ["a", 1]}, True, True, 1, 1),
    "open schema": ({"type": "object"}, False, False, {"a": 1}, {"a": 1}),
    "schema with an optional property": ({"type": "object", "properties": {"a": {}}}, False, False, {}, {}),
}  # fmt: skip


def answer(kind: OutputType[Any], value: Any) -> str:
    return json.dumps({"value": value} if kind.is_wrapped else value)


@requirement("R45")
@pytest.mark.parametrize("name", KINDS)
def test_answer_becomes_value_of_type(name: str):
    spec, is_wrapped, _, value, output = KINDS[name]
    kind = output_type(spec)
    assert kind.is_wrapped == is_wrapped
    parsed = kind.parse(answer(kind, value))
    assert parsed == output
    assert type(parsed) is type(output)


@requirement("R45")
@pytest.mark.parametrize("name", KINDS)
def test_every_schema_is_object_and_strict_where_accepted(name: str):
    spec, is_wrapped, is_strict, _, _ = KINDS[name]
    made = output_type(spec).schema
    assert made.schema["type"] == "object"
    assert "$ref" not in made.schema
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made.name)
    assert made.strict == is_strict
    if is_wrapped:
        assert list(made.schema["properties"]) == ["value"]
    if is_strict:
        assert allows_strict(made.schema)


@pytest.mark.parametrize("name", KINDS)
def test_every_reference_of_schema_resolves(name: str):
    schema = output_type(KINDS[name][0]).schema.schema
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema)):
        target: Any = schema
        for step in reference.split("/")[1:]:
            target = target[step]
        assert isinstance(target, dict)


def test_strict_schema_requires_all_and_describes_other_rules():
    assert output_type(City).schema.schema == {
        "type": "object",
        "description": "A city.",
        "properties": {
            "name": {"type": "string", "description": "Its name (minLength: 1)"},
            "inhabitants": {"type": "integer", "description": "(default: 0, minimum: 0)"},
            "founded": {
                "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                "description": "(default: null)",
            },
            "colours": {"type": "array", "items": {"$ref": "#/$defs/Colour"}, "description": "(default: [])"},
        },
        "required": ["name", "inhabitants", "founded", "colours"],
        "additionalProperties": False,
        "$defs": {"Colour": {"type": "string", "enum": ["red", "blue"]}},
    }


def test_answer_can_omit_fields_with_defaults():
    assert output_type(City).parse('{"name": "Rome"}') == City(name="Rome")


def test_non_strict_schema_is_kept():
    class Tally(BaseModel):
        counts: dict[str, int]
        note: str = Field(default="", max_length=9)

    made = output_type(Tally).schema
    assert not made.strict
    assert made.schema["required"] == ["counts"]
    assert made.schema["properties"]["note"] == {"type": "string", "default": "", "maxLength": 9}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (City, "City"),
        (Box[int], "Box_int"),
        (list[City], "list"),
        (int | str, "output"),
        (type("Größe", (City,), {}), "Gr_e"),
        (type("x" * 99, (City,), {}), "x" * 64),
        (SCHEMA, "a_tree"),
        ({"type": "object", "title": 5}, "5"),
        ({"type": "object"}, "output"),
    ],
)
def test_schema_is_named_after_type(spec: Any, name: str):
    assert output_type(spec).schema.name == name


def test_output_type_is_idempotent():
    kind = output_type(City)
    assert output_type(kind) is kind


class Unknown:
    pass


@pytest.mark.parametrize("spec", [Unknown, list[Unknown], Callable[[], int], 5, "Missing", {"type": object()}])
def test_type_without_json_schema_is_refused(spec: Any):
    with pytest.raises(ConfigurationError):
        output_type(spec)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it")
def test_unsupported_typed_dict_error_names_import():
    class Trip(typing.TypedDict):
        city: City

    with pytest.raises(ConfigurationError, match="typing_extensions"):
        output_type(Trip)


def test_schema_dict_is_copied():
    given_schema = json.loads(json.dumps(SCHEMA))
    kind = output_type(given_schema)
    assert given_schema == SCHEMA
    given_schema["properties"].clear()
    assert "label" in kind.schema.schema["properties"]


def test_references_and_definitions_move_into_wrapper():
    kind = output_type(
        {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/n"}]},
            "$defs": {"n": {"type": "integer"}},
        }
    )
    assert kind.schema.strict
    assert kind.parse('{"value": [1, [2, []]]}') == [1, [2, []]]
    with pytest.raises(OutputError):
        kind.parse('{"value": [1, ["x"]]}')


@pytest.mark.parametrize(
    "pad", ["{}", "\n{}", "  {}\n\n", "```json\n{}\n```", "\n```\n{}```\n", "```JSON \r\n{}\r\n```  "]
)
def test_whitespace_and_code_fence_around_json_are_accepted(pad: str):
    text = pad.replace("{}", '{"value": "```"}')
    assert output_type(str).parse(text) == "```"
    assert output_type(str).partial(text) == "```"


@pytest.mark.parametrize(
    "text",
    [
        'Sure: {"value": 1}',
        '{"value": 1} Done.',
        '{"value": 1}{"value": 2}',
        '```python\n{"value": 1}\n```',
        '```json\n{"value": 1}',
        '{"value": 1}```',
        '{"value": NaN}',
        "{'value': 1}",
        "",
        " \n",
        "[" * 100_000,
        "1",
        "null",
        "[1]",
        '{"value": 1, "more": 2}',
        '{"Value": 1}',
        '{"value": "\\ud83d"}',
        '{"value": "\ud83d"}',
    ],
)
@pytest.mark.parametrize("spec", [int, list[Point], {"type": "integer"}], ids=["pydantic", "msgspec", "schema"])
def test_other_text_is_refused(text: str, spec: Any):
    with pytest.raises(OutputError) as caught:
        output_type(spec).parse(text)
    assert caught.value.problem == str(caught.value)
    assert isinstance(caught.value, SidestreamError)
    assert isinstance(caught.value, ValueError)


def problem(spec: Any, text: str) -> str:
    with pytest.raises(OutputError) as caught:
        output_type(spec).parse(text)
    return caught.value.problem


def test_invalid_json_is_reported_with_position():
    assert re.fullmatch(
        r'The answer is not JSON: .+: line 1 column \d+ .+, before ".*}"\.', problem(int, '{"value": 1,}')
    )
    assert problem(int, "") == "The answer is not JSON: it is empty."


def places_and_values(lines: list[str]) -> list[str]:
    """The faults without the words of pydantic and msgspec."""
    return [re.sub(r": .+; it was", ": …; it was", line) for line in lines]


def test_each_problem_is_reported_with_path_and_value():
    text = json.dumps({"kind": "person", "home": {"name": "", "colours": ["red", "pink"]}, "children": [{}]})
    assert places_and_values(problem(Person, text).splitlines()) == [
        "The answer does not fit its schema:",
        '- home.name: …; it was ""',
        '- home.colours[1]: …; it was "pink"',
        "- children[0].kind: required, but missing",
        "- children[0].home: required, but missing",
        "- children[0].children: required, but missing",
    ]


def test_validator_message_reaches_model():
    (line,) = problem(City, '{"name": "Emmental"}').splitlines()[1:]
    assert places_and_values([line]) == ['- name: …; it was "Emmental"']
    assert "that is a cheese" in line


def test_union_problem_names_member():
    lines = problem(list[Robot | int], '{"value": [1, {"kind": "robot"}, "x"]}').splitlines()
    assert places_and_values(lines[1:3]) == [
        "- value[1].position (as Robot): required, but missing",
        '- value[1] (as int): …; it was {"kind": "robot"}',
    ]


def test_struct_problem_is_reported_with_path():
    assert problem(list[Point], '{"value": [{"x": "a"}]}').splitlines()[1].startswith("- value[0].x: ")


def test_long_list_of_problems_is_truncated():
    lines = problem(list[int], answer(output_type(list[int]), ["x" * 999] * 50)).splitlines()
    assert lines[-1] == "- and 30 more"
    assert max(map(len, lines)) < 300


def test_unexpected_validator_exception_is_raised():
    @dataclass
    class Broken:
        a: int

        def __post_init__(self) -> None:
            raise LookupError

    with pytest.raises(LookupError):
        output_type(Broken).parse('{"a": 1}')


REQUIRED: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"type": "integer"}, [1, -2.0], [True, 1.5, "1", None]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": ["string", "null"]}, ["", None], [1, False, []]),
        ({"type": "boolean"}, [True], [0, "true"]),
        ({"type": "array"}, [[], [1]], [{}, "a"]),
        ({"enum": [1, "a", None, [1]]}, [1, "a", None, [1]], [True, 2, "1", []]),
        ({"const": {"a": 1}}, [{"a": 1}], [{}, {"a": 2}]),
        ({"type": "array", "items": REQUIRED}, [[], [{"a": 1}]], [[{}], [1], [{"a": 1, "b": 2}]]),
        ({"anyOf": [{"type": "string"}, REQUIRED]}, ["a", {"a": 1}], [1, {}]),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, ["a", "b"], [1]),
        ({"allOf": [{"type": "string"}, {"enum": ["a", 1]}]}, ["a"], ["b", 1]),
        ({"type": "array", "items": {"additionalProperties": {"type": "integer"}}}, [[{"x": 1}]], [[{"x": "y"}]]),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "string"}}}, ["a"], [1]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}]}}}, [1], []),
        ({"$ref": "https://example.com/schema"}, [1, "a"], []),
        ({"type": "string", "maxLength": 1, "pattern": "x"}, ["not checked"], []),
        ({"type": "strange", "properties": [], "items": True, "anyOf": {}, "required": 5}, [1, {"a": [1]}], []),
    ],
)
def test_json_schema_is_checked_by_structure(schema: dict[str, Any], fits: list[Any], fails: list[Any]):
    kind = output_type(schema)
    for value in fits:
        assert kind.parse(answer(kind, value)) == value
    for value in fails:
        with pytest.raises(OutputError):
            kind.parse(answer(kind, value))


def test_json_schema_problems_are_reported_with_paths():
    assert problem(SCHEMA, '{"label": 5, "kids": [{"label": "a", "kids": {}}, {}]}').splitlines() == [
        "The answer does not fit its schema:",
        "- label: must be string; it was 5",
        "- kids[0].kids: must be array; it was {}",
        "- kids[1].label: required, but missing",
        "- kids[1].kids: required, but missing",
    ]


# Partial output

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
ANY_OBJECT = output_type({"type": "object"})
ANY_VALUE = output_type(Any)


def has_grown(old: Any, new: Any) -> bool:
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and has_grown(old[key], new[key]) for key in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(old) <= len(new) and all(map(has_grown, old, new))
    return new.startswith(old) if isinstance(old, str) and isinstance(new, str) else bool(old == new)


@requirement("R45")
@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]), st.booleans())
def test_partial_object_of_every_prefix_only_grows(
    value: dict[str, Any], ascii_only: bool, indent: int | None, is_fenced: bool
):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    text = f"```json\n{text}\n```" if is_fenced else text
    last: Any = None
    for end in range(len(text) + 1):
        found = ANY_OBJECT.partial(text[:end])
        assert last is None or has_grown(last, found)
        last = found
    assert last == value


@requirement("R45")
@given(JSON)
def test_partial_wrapped_value_only_grows(value: Any):
    text = answer(ANY_VALUE, value)
    last: Any = None
    for end in range(len(text) + 1):
        found = ANY_VALUE.partial(text[:end])
        assert last is None or has_grown(last, found)
        last = found
    assert last == value


@given(st.text(st.characters(codec=None) | st.sampled_from('{}[]":,\\0-.eE`\ud83d'), max_size=30))
def test_partial_of_any_text_does_not_raise(text: str):
    for prefix in ("", '{"value": ', "```json\n", '{"value": "\\ud83d'):
        ANY_OBJECT.partial(prefix + text)
        ANY_VALUE.partial(prefix + text)


@pytest.mark.parametrize(
    ("text", "partial"),
    [
        ("", None),
        ("\n", None),
        ("Sure", None),
        ("``", None),
        ("```json", None),
        ("```json\n", None),
        ("```json\n{", {}),
        ("{", {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": 1, "b12', {"a": 1}),
        ('{"a": "x12', {"a": "x12"}),
        ('{"a": [tru', {"a": []}),
        ('{"a": [true', {"a": [True]}),
        ('{"a": "\\ud83d', {"a": ""}),
        ("[1, 2", None),
        ("[" * 1000, None),
    ],
)
def test_partial_object_holds_only_certain_values(text: str, partial: Any):
    assert ANY_OBJECT.partial(text) == partial


def test_modules_load_only_msgspec_and_standard_library():
    program = (
        "import sys, sidestream.output, sidestream.messages.repair\n"
        "print([name for name in ('pydantic', 'pydantic_core', 'griffe', 'aiohttp')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
