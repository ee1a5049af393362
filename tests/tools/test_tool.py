"""Client tools: what a function's signature and docstring become, and what a call comes to."""

import asyncio
import contextvars
import enum
import functools
import inspect
import json
import logging
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from hypothesis import given, strategies as st
from pydantic import AfterValidator, BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.limits import Limits
from sidestream.tools.tool import Tool, ToolContext, ToolError, ToolOutcome, as_tools, tool
from support.places import ROOT

SOURCE = ROOT / "src"
LIMITS = Limits()
SHORT = Limits(tool_timeout_s=0.05)
BOUND_S = 30.0


def context(report: Callable[[Any], None] | None = None) -> ToolContext:
    return ToolContext("call-1", "a_tool", report or (lambda value: None))


async def call(function: Callable[..., Any], limits: Limits = LIMITS, /, **arguments: Any) -> ToolOutcome:
    return await Tool.from_function(function).run(arguments, context(), limits)


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    return Tool.from_function(function).parameters["properties"]


def script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


class City(BaseModel):
    name: str
    title: str = "town"


@dataclass
class Point:
    x: float
    y: float


class Range(TypedDict):
    low: int
    high: int


class Tally(msgspec.Struct):
    counts: dict[bool | int, int]


class Pair(msgspec.Struct, rename="camel"):
    first_value: int
    at: datetime | None = None


def google(city: str, days: int = 1) -> str:
    """Forecasts the weather.

    Knows every city.

    Note:
        It may rain.

    Args:
        city: The city,
            by its own name.
        days (int): How many days.

    Returns:
        The forecast.
    """
    return f"{city} {days}"


def numpy(city: str, days: int = 1) -> str:
    """Forecasts the weather.

    Knows every city.

    Parameters
    ----------
    city : str
        The city,
        by its own name.
    days
        How many days.

    Returns
    -------
    str
        The forecast.
    """
    return f"{city} {days}"


def sphinx(city: str, days: int = 1) -> str:
    """Forecasts the weather.

    Knows every city.

    :param city: The city,
        by its own name.
    :param int days: How many days.
    :returns: The forecast.
    """
    return f"{city} {days}"


def test_importing_tools_loads_neither_pydantic_nor_griffe():
    ran = script(
        "import sys, msgspec\n"
        "before = set(sys.modules)\n"
        "import sidestream.tools\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'msgspec'}))"
    )
    assert ran.stdout.strip() == "['sidestream']", ran.stderr


@requirement("R72")
def test_function_becomes_closed_object_schema_without_titles():
    made = Tool.from_function(google)
    assert made.name == "google"
    assert made.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city,\nby its own name."},
            "days": {"type": "integer", "default": 1, "description": "How many days."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


@requirement("R72")
@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_descriptions_come_from_docstrings_of_each_style(function: Callable[..., Any]):
    made = Tool.from_function(function)
    assert made.description.startswith("Forecasts the weather.\n\nKnows every city.")
    assert "forecast." not in made.description
    described = {name: node["description"] for name, node in made.parameters["properties"].items()}
    assert described == {"city": "The city,\nby its own name.", "days": "How many days."}


def test_docstring_notes_stay_in_description():
    assert Tool.from_function(google).description.endswith("Note:\nIt may rain.")


def test_final_sphinx_field_is_parsed():
    def look(city: str) -> None:
        """Looks.

        :param city: Where."""

    made = Tool.from_function(look)
    assert made.description == "Looks."
    assert made.parameters["properties"]["city"]["description"] == "Where."


def test_return_section_is_left_out_of_description():
    def look() -> str:
        """Looks.

        Returns
        -------
        str
            The view.
        """
        return ""

    assert Tool.from_function(look).description == "Looks."


def test_reading_docstrings_logs_no_messages(caplog: pytest.LogCaptureFixture):
    def look(city: str) -> None:
        """Looks.

        Args:
            city: Where.
            town: Gone.
            no colon here
        """

    with caplog.at_level(logging.DEBUG):
        Tool.from_function(look)
    assert not caplog.records


def test_function_without_docstring_or_parameters_works():
    def ping():
        return "pong"

    made = Tool.from_function(ping)
    assert made.description == ""
    assert made.parameters["properties"] == {}


def test_name_and_description_can_be_given():
    made = Tool.from_function(google, name="weather-2", description="Weather.", timeout_s=3)
    assert (made.name, made.description, made.timeout_s) == ("weather-2", "Weather.", 3)


def test_annotated_descriptions_override_docstring():
    def look(
        city: Annotated[str, "From text."],
        days: Annotated[int, Field(description="From a field.", ge=1)] = 2,
        unit: Unit = Field(Unit.KELVIN, description="From the default."),  # noqa: B008
    ) -> None:
        """Looks.

        Args:
            city: no
            days: no
            unit: no
        """

    found = properties(look)
    assert found["city"] == {"type": "string", "description": "From text."}
    assert found["days"] == {"type": "integer", "minimum": 1, "default": 2, "description": "From a field."}
    assert found["unit"]["description"] == "From the default."


@requirement("R72")
def test_types_of_all_kinds_have_schemas():
    def take(
        maybe: Optional[int],  # noqa: UP045
        choice: Literal["a", "b"],
        unit: Unit,
        city: City,
        points: list[Point],
        limits: Range,
        day: date = date(2026, 1, 2),
        anything=None,  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    ) -> None: ...

    schema = Tool.from_function(take).parameters  # pyright: ignore[reportUnknownArgumentType]
    found = schema["properties"]
    assert found["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert found["choice"] == {"enum": ["a", "b"], "type": "string"}
    assert found["unit"] == {"$ref": "#/$defs/Unit"}
    assert found["points"] == {"type": "array", "items": {"$ref": "#/$defs/Point"}}
    assert found["day"] == {"type": "string", "format": "date", "default": "2026-01-02"}
    assert found["anything"] == {"default": None}
    assert schema["required"] == ["maybe", "choice", "unit", "city", "points", "limits"]
    assert schema["$defs"]["Range"]["required"] == ["low", "high"]


def test_property_named_title_is_kept():
    def take(title: str, city: City) -> None: ...

    schema = Tool.from_function(take).parameters
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["$defs"]["City"]["properties"]["title"] == {"type": "string", "default": "town"}
    assert "title" not in schema["$defs"]["City"]


async def test_parameters_can_use_pydantic_attribute_names():
    def take(schema: str, copy: int, model_config: str, _hidden: int = 3) -> list[Any]:
        return [schema, copy, model_config, _hidden]

    assert list(properties(take)) == ["schema", "copy", "model_config", "_hidden"]
    outcome = await call(take, schema="s", copy=1, model_config="m", _hidden=4)
    assert outcome.result == ["s", 1, "m", 4]


async def test_alias_is_parameter_name_for_model():
    def take(class_: Annotated[str, Field(alias="class")]) -> str:
        return class_

    assert list(properties(take)) == ["class"]
    assert (await Tool.from_function(take).run({"class": "x"}, context(), LIMITS)).result == "x"


async def test_string_annotations_of_local_types_are_resolved():
    scope: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from pydantic import BaseModel\n"
        "from sidestream.tools.tool import tool\n"
        "if TYPE_CHECKING:\n"
        "    from sidestream.tools.tool import ToolContext\n"
        "    from nowhere import Answer\n"
        "def make():\n"
        "    class Place(BaseModel):\n"
        "        name: str\n"
        "    @tool\n"
        "    def look(place: Place, context: ToolContext, more: list[Place] = []) -> Answer:\n"
        "        return [place.name, context.call_id]\n"
        "    return look\n",
        scope,
    )
    made: Tool = scope["make"]()
    assert list(made.parameters["properties"]) == ["place", "more"]
    outcome = await made.run({"place": {"name": "Oslo"}}, context(), LIMITS)
    assert outcome.result == ["Oslo", "call-1"]


class Station:
    """A weather station.

    Args:
        city: Where it asks."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def ask(self, city: str) -> str:
        """Asks the station."""
        return f"{city}: {self.answer}"

    async def __call__(self, city: str) -> str:
        return f"{city}! {self.answer}"


async def test_bound_methods_are_tools():
    made = Tool.from_function(Station("sun").ask)
    assert (made.name, made.description) == ("ask", "Asks the station.")
    assert (await made.run({"city": "Oslo"}, context(), LIMITS)).result == "Oslo: sun"


async def test_objects_with_call_are_tools():
    made = Tool.from_function(Station("rain"))
    assert (made.name, made.description) == ("Station", "A weather station.")
    assert made.parameters["properties"]["city"]["description"] == "Where it asks."
    assert (await made.run({"city": "Oslo"}, context(), LIMITS)).result == "Oslo! rain"


async def test_bound_arguments_of_partial_are_hidden_and_fixed():
    def ask(key: str, city: str, days: int = 1) -> str:
        """Asks."""
        return f"{key} {city} {days}"

    made = Tool.from_function(functools.partial(ask, key="secret"))
    assert (made.name, made.description) == ("ask", "Asks.")
    assert "secret" not in json.dumps(made.parameters)
    assert list(made.parameters["properties"]) == ["city", "days"]
    assert (await made.run({"city": "Oslo"}, context(), LIMITS)).result == "secret Oslo 1"
    assert (await made.run({"city": "Oslo", "key": "mine"}, context(), LIMITS)).is_error
    by_position = Tool.from_function(functools.partial(ask, "secret"))
    assert list(by_position.parameters["properties"]) == ["city", "days"]


async def test_decorated_function_keeps_its_schema():
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @logged
    async def look(city: str) -> str:
        return city

    assert list(properties(look)) == ["city"]
    assert (await call(look, city="Oslo")).result == "Oslo"


def test_decorator_makes_callable_tool():
    @tool
    def plain(x: int) -> int:
        return x + 1

    @tool(name="other", timeout_s=2.5)
    def given_more(x: int) -> int:
        return x + 2

    assert isinstance(plain, Tool)
    assert plain(1) == 2
    assert (given_more.name, given_more.timeout_s) == ("other", 2.5)


def test_tool_is_frozen():
    made = Tool.from_function(google)
    with pytest.raises(AttributeError):
        made.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_functions_and_tools_are_found_by_name():
    other = Tool.from_function(google, name="other")
    assert list(as_tools([google, other])) == ["google", "other"]
    assert as_tools([other])["other"] is other


def positional_only(city: str, /) -> None: ...
def many_values(*values: int) -> None: ...
def many_options(**options: int) -> None: ...
def no_schema(city: str, lock: threading.Lock) -> None: ...
def no_json(callback: Callable[[], None]) -> None: ...
def unresolved(city: Any) -> None: ...


unresolved.__annotations__["city"] = "Nowhere"


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (positional_only, "city"),
        (many_values, "values"),
        (many_options, "options"),
        (no_schema, "lock"),
        (no_json, "callback"),
        (unresolved, "city"),
        (Station.ask, "self"),
    ],
)
def test_unusable_parameter_is_named(function: Callable[..., Any], parameter: str):
    with pytest.raises(ConfigurationError, match=f"{function.__name__}.*'{parameter}'"):
        as_tools([function])


@pytest.mark.parametrize(
    "items",
    [
        [google, google],
        [lambda: 1],
        [Station],
        ["google"],
        [functools.partial(lambda: 1)],
    ],
    ids=["one name twice", "lambda", "class", "text", "partial of a lambda"],
)
def test_as_tools_rejects_invalid_items(items: list[Any]):
    with pytest.raises(ConfigurationError):
        as_tools(items)


@pytest.mark.parametrize("name", ["a b", "", "ä", "x" * 65, "a.b", "a\n"])
def test_name_refused_by_providers_is_refused(name: str):
    with pytest.raises(ConfigurationError):
        Tool(name=name, description="", parameters={}, function=google, bind=lambda arguments, context: {})
    with pytest.raises(ConfigurationError):
        Tool.from_function(google, name=name)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_timeout_must_be_positive(timeout_s: float):
    with pytest.raises(ConfigurationError):
        Tool.from_function(google, timeout_s=timeout_s)


def test_closed_schema_is_strict():
    def closed(city: str, unit: Unit, limits: Range, spot: Annotated[Point, "Where."]) -> None: ...

    made = Tool.from_function(closed)
    assert made.strict
    assert made.parameters["$defs"]["Range"]["additionalProperties"] is False
    assert made.parameters["properties"]["spot"] == {
        "anyOf": [{"$ref": "#/$defs/Point"}],
        "description": "Where.",
    }
    assert not Tool.from_function(closed, strict=False).strict


class Tree(BaseModel):
    children: list["Tree"]


def with_default(x: int = 1) -> None: ...
def with_mapping(x: dict[str, int]) -> None: ...
def with_anything(x: Any) -> None: ...
def with_pattern(x: Annotated[str, Field(min_length=1)]) -> None: ...
def with_recursion(x: Tree) -> None: ...
def with_inner_default(x: City) -> None: ...


@pytest.mark.parametrize(
    "function",
    [with_default, with_mapping, with_anything, with_pattern, with_recursion, with_inner_default],
)
def test_schema_changed_by_strictness_is_not_strict(function: Callable[..., Any]):
    assert not Tool.from_function(function).strict


def test_strict_on_demand_requires_every_argument():
    made = Tool.from_function(google, strict=True)
    assert made.strict
    assert made.parameters["required"] == ["city", "days"]
    assert "default" not in made.parameters["properties"]["days"]


@pytest.mark.parametrize("function", [with_mapping, with_anything])
def test_open_schema_cannot_be_strict(function: Callable[..., Any]):
    with pytest.raises(ConfigurationError, match=r"arguments\.x"):
        Tool.from_function(function, strict=True)


@requirement("R72")
async def test_arguments_are_converted_to_annotated_types():
    seen: list[Any] = []

    def take(unit: Unit, city: City, point: Point, day: date, pair: tuple[int, str], tags: set[str]) -> None:
        seen.extend((unit, city, point, day, pair, tags))

    outcome = await call(
        take,
        unit="k",
        city={"name": "Oslo"},
        point={"x": 1, "y": 2.5},
        day="2026-03-04",
        pair=[1, "a"],
        tags=["t"],
    )
    assert outcome == ToolOutcome(None)
    assert seen == [Unit.KELVIN, City(name="Oslo"), Point(1.0, 2.5), date(2026, 3, 4), (1, "a"), {"t"}]


async def test_signature_default_is_passed_as_same_object():
    shared = [3]
    seen: list[object] = []

    def take(x: list[int] = shared, y: list[int] = Field(default_factory=lambda: [7])) -> None:  # noqa: B008
        seen.extend((x, y))

    await call(take)
    assert seen[0] is shared
    assert seen[1] == [7]


def test_default_without_json_form_is_left_out_of_schema():
    missing = object()

    def take(x: Any = missing) -> None: ...

    assert properties(take) == {"x": {}}


@requirement("R72")
async def test_invalid_arguments_are_listed_and_function_is_not_called():
    calls: list[object] = []

    def take(city: str, days: int, spots: list[Point]) -> None:
        calls.append(city)

    outcome = await call(take, days="soon", spots=[{"x": 1, "y": "far"}], town="Oslo")
    message = outcome.result["message"]
    assert outcome.is_error
    assert outcome.result["error"] == "InvalidArguments"
    assert "city: required" in message
    assert re.search(r'\bdays: .+; it was "soon"', message)
    assert "spots[0].y:" in message
    unknown = next(line for line in message.splitlines() if line.startswith("- town:"))
    assert "city, days, spots" in unknown
    assert calls == []


@pytest.mark.parametrize("arguments", [None, "{}", [], 3, {"x": object()}, {"x": "\ud800"}, {1: {2}}])
async def test_non_object_arguments_are_error_result(arguments: object):
    calls: list[object] = []

    def take(x: str = "") -> None:
        calls.append(x)

    outcome = await Tool.from_function(take).run(arguments, context(), LIMITS)
    assert outcome.is_error
    msgspec.json.encode(outcome.result)
    assert calls == []


async def test_many_invalid_arguments_make_short_message():
    def take(numbers: list[int]) -> None: ...

    outcome = await call(take, numbers=["x" * 1000] * 1000)
    assert len(outcome.result["message"]) < 10_000
    assert "980 more" in outcome.result["message"]


async def test_failing_validator_is_error_result():
    def explode(value: str) -> str:
        raise SystemExit(value)

    def take(x: Annotated[str, AfterValidator(explode)]) -> None: ...

    outcome = await call(take, x="s3cret")
    assert outcome.result == {"error": "SystemExit"}
    assert outcome.is_error


async def test_context_is_passed_but_not_in_schema():
    async def look(city: str, ctx: ToolContext, maybe: ToolContext | None = None) -> list[Any]:
        return [city, ctx.call_id, ctx.name, maybe is ctx]

    assert list(properties(look)) == ["city"]
    assert (await call(look, city="Oslo")).result == ["Oslo", "call-1", "a_tool", True]


@requirement("R72")
async def test_thread_progress_arrives_in_loop_before_result():
    seen: list[tuple[object, int]] = []

    def work(ctx: ToolContext) -> int:
        for done in range(3):
            ctx.progress({"done": done, "at": date(2026, 1, 1)})
        return threading.get_ident()

    made, home = Tool.from_function(work), threading.get_ident()
    for _ in range(10):  # The first call starts a thread; the event loop waits a moment for the others.
        seen.clear()
        outcome = await made.run({}, context(lambda value: seen.append((value, threading.get_ident()))), LIMITS)
        assert seen == [({"done": done, "at": "2026-01-01"}, home) for done in range(3)]
        assert outcome.result != home


async def test_sync_function_can_wait_for_calling_event_loop():
    loop = asyncio.get_running_loop()

    async def answer(number: int) -> int:
        return number

    def ask(number: int) -> int:
        return asyncio.run_coroutine_threadsafe(answer(number), loop).result()

    for number in range(3):
        assert (await call(ask, number=number)).result == number
    outcomes = await asyncio.gather(*(call(ask, number=number) for number in range(8)))
    assert [outcome.result for outcome in outcomes] == list(range(8))


@requirement("R72")
async def test_async_tool_progress_arrives_at_once():
    seen: list[object] = []

    async def work(ctx: ToolContext) -> int:
        ctx.progress("half")
        return len(seen)

    assert (await Tool.from_function(work).run({}, context(seen.append), LIMITS)).result == 1


async def test_progress_without_json_form_is_tool_error():
    def work(ctx: ToolContext) -> None:
        ctx.progress(object())

    assert (await call(work)).result["error"] == "TypeError"


async def test_progress_after_call_ended_is_dropped():
    seen: list[object] = []
    release = threading.Event()
    threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def work(ctx: ToolContext) -> None:
        threads.put(threading.current_thread())
        release.wait(BOUND_S)
        ctx.progress("late")

    outcome = await Tool.from_function(work).run({}, context(seen.append), SHORT)
    release.set()
    thread = await asyncio.to_thread(threads.get, timeout=BOUND_S)  # It may start after the call has timed out.
    await asyncio.to_thread(thread.join, BOUND_S)
    assert outcome.result["error"] == "TimeoutError"
    assert seen == []


async def run_and_watch(function: Callable[..., Any], seen: list[object]) -> ToolOutcome:
    return await Tool.from_function(function).run({}, context(seen.append), LIMITS)


async def test_generator_yields_progress_then_result():
    def count() -> Iterator[int]:
        yield 1
        yield 2
        yield 3

    async def count_async() -> AsyncIterator[int]:
        for number in (1, 2, 3):
            await asyncio.sleep(0)
            yield number

    @functools.wraps(count_async)
    def count_wrapped() -> AsyncIterator[int]:
        return count_async()

    for function in (count, count_async, count_wrapped):
        seen: list[object] = []
        assert await run_and_watch(function, seen) == ToolOutcome(3)
        assert seen == [1, 2]


async def test_generator_return_value_is_result():
    def count():
        yield 1
        yield 2
        return "done"

    seen: list[object] = []
    assert await run_and_watch(count, seen) == ToolOutcome("done")
    assert seen == [1, 2]


async def test_generator_without_yields_returns_null():
    def nothing() -> Iterator[int]:
        yield from ()

    async def nothing_async() -> AsyncIterator[int]:
        for number in ():
            yield number

    assert await call(nothing) == ToolOutcome(None)
    assert await call(nothing_async) == ToolOutcome(None)


async def test_generator_failing_after_progress_is_error():
    def count() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("s3cret")

    seen: list[object] = []
    outcome = await run_and_watch(count, seen)
    assert outcome.result == {"error": "KeyError"}
    assert seen == [1]


@requirement("F31")
async def test_endless_generator_is_closed_after_timeout():
    started, closed = threading.Event(), threading.Event()

    def endless() -> Iterator[int]:
        started.set()
        try:
            while True:
                yield 1
        finally:
            closed.set()

    for timeout_s in (0.05, 1, BOUND_S):  # The thread of a short call may start after its timeout.
        outcome = await call(endless, Limits(tool_timeout_s=timeout_s))
        assert outcome.result["error"] == "TimeoutError"
        if started.is_set():
            break
    assert await asyncio.to_thread(closed.wait, BOUND_S)


@requirement("R72")
async def test_sync_tools_run_concurrently_and_see_context_variables():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(10)
        return variable.get()

    first, second = await asyncio.gather(call(meet), call(meet))
    assert first == second == ToolOutcome("set")


@requirement("R72")
async def test_async_tools_run_in_loop():
    async def where() -> int:
        return threading.get_ident()

    assert (await call(where)).result == threading.get_ident()


class LookupFailed(ToolError):
    pass


@requirement("R72")
@pytest.mark.parametrize("error", [ToolError("no such city"), LookupFailed("no such city")])
async def test_tool_error_message_reaches_model(error: ToolError):
    def sync_tool() -> None:
        raise error

    async def async_tool() -> None:
        raise error

    for function in (sync_tool, async_tool):
        outcome = await call(function)
        assert outcome.result == {"error": type(error).__name__, "message": "no such city"}
        assert outcome.is_error


class Odd(BaseException):
    pass


@requirement("F31", "R72")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("s3cret"),
        SystemExit("s3cret"),
        KeyboardInterrupt("s3cret"),
        asyncio.CancelledError("s3cret"),
        StopIteration("s3cret"),
        GeneratorExit("s3cret"),
        Odd("s3cret"),
        ExceptionGroup("s3cret", [ValueError("s3cret")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_other_exceptions_show_model_only_their_type(error: BaseException):
    def sync_tool() -> None:
        raise error

    async def async_tool() -> None:
        raise error

    async def async_generator() -> AsyncIterator[int]:
        yield 1
        raise error

    for function in (sync_tool, async_tool, async_generator):
        outcome = await call(function)
        assert outcome.is_error
        assert outcome.result.keys() == {"error"}
        # Python itself turns a StopIteration of a coroutine into a RuntimeError.
        assert outcome.result["error"] in (type(error).__name__, "RuntimeError")
        assert isinstance(outcome.exception, type(error) | RuntimeError)


async def test_exception_is_logged(caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("why")

    await call(fail)
    (record,) = caplog.records
    assert record.getMessage() == "tool fail raised ValueError"
    assert "ValueError: why" in caplog.text
    assert "in fail" in caplog.text
    assert record.exc_info is None  # It would carry the locals of the frames.


async def test_tool_error_with_failing_str_is_result():
    class Mute(ToolError):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Mute

    assert (await call(fail)).result == {"error": "Mute"}


@requirement("F31")
def test_exit_inside_tool_does_not_end_process():
    ran = script(
        "import asyncio, sys\n"
        "from sidestream.tools.tool import Tool, ToolContext\n"
        "def leave(): sys.exit(3)\n"
        "async def leave_async(): raise KeyboardInterrupt\n"
        "async def main():\n"
        "    for f in (leave, leave_async):\n"
        "        print((await Tool.from_function(f).run({}, ToolContext('1', 'x'))).result['error'])\n"
        "asyncio.run(main())\n"
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["SystemExit", "KeyboardInterrupt"])


@requirement("F31", "R72")
async def test_hanging_sync_tool_times_out_at_once():
    release = threading.Event()
    began = time.monotonic()
    outcome = await call(hang(release), SHORT)
    assert outcome.is_error
    assert outcome.result["error"] == "TimeoutError"
    assert "0.05 seconds" in outcome.result["message"]
    assert time.monotonic() - began < 10
    release.set()


def hang(release: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        release.wait(BOUND_S)

    return wait


async def test_tool_timeout_overrides_limit():
    release = threading.Event()
    made = Tool.from_function(hang(release), timeout_s=0.05)
    outcome = await made.run({}, context(), Limits(tool_timeout_s=3600))
    assert outcome.result["error"] == "TimeoutError"
    release.set()


@requirement("F31", "R72")
async def test_async_tool_is_cancelled_at_timeout_and_cleans_up():
    cleaned: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    outcome = await call(wait, SHORT)
    assert outcome.result["error"] == "TimeoutError"
    assert cleaned == [True]


@requirement("F31")
async def test_async_tool_ignoring_cancellation_does_not_block_run():
    release = asyncio.Event()
    ended = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    outcome = await asyncio.wait_for(call(stubborn, SHORT), 30)
    assert outcome.result["error"] == "TimeoutError"
    release.set()
    await ended.wait()


async def test_cancelled_run_cancels_async_tool_and_leaves_no_task():
    started = asyncio.Event()
    cleaned: list[bool] = []

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    before = asyncio.all_tasks()
    run = asyncio.create_task(call(wait))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert cleaned == [True]
    assert asyncio.all_tasks() == before


async def test_cancelled_run_does_not_wait_for_thread():
    started = asyncio.Event()
    release = threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(BOUND_S)

    run = asyncio.create_task(call(wait))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not release.is_set()
    release.set()


@requirement("F31")
def test_hung_thread_does_not_keep_process_alive():
    ran = script(
        "import asyncio, threading\n"
        "from sidestream.tools.tool import Tool, ToolContext\n"
        "def hang(): threading.Event().wait()\n"
        "made = Tool.from_function(hang, timeout_s=0.05)\n"
        "print(asyncio.run(made.run({}, ToolContext('1', 'x'))).result['error'])\n"
    )
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "TimeoutError", "")


async def test_late_coroutine_is_closed_without_warning():
    release = threading.Event()
    late: list[Coroutine[Any, Any, None]] = []
    threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    async def inner() -> None: ...

    def outer() -> Coroutine[Any, Any, None]:
        threads.put(threading.current_thread())
        release.wait(BOUND_S)
        late.append(inner())
        return late[0]

    outcome = await call(outer, SHORT)
    release.set()
    thread = await asyncio.to_thread(threads.get, timeout=BOUND_S)  # It may start after the call has timed out.
    await asyncio.to_thread(thread.join, BOUND_S)
    assert outcome.result["error"] == "TimeoutError"
    assert inspect.getcoroutinestate(late[0]) == inspect.CORO_CLOSED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (None, None),
        (True, True),
        (City(name="Oslo"), {"name": "Oslo", "title": "town"}),
        ([Point(1, 2)], [{"x": 1, "y": 2}]),
        (Pair(1, datetime(2026, 1, 2)), {"firstValue": 1, "at": "2026-01-02T00:00:00"}),
        ({"pair": [Pair(2)]}, {"pair": [{"firstValue": 2, "at": None}]}),
        (Tally({True: 3, 7: 1}), {"counts": {"true": 3, "7": 1}}),
        (date(2026, 1, 2), "2026-01-02"),
        (Unit.KELVIN, "k"),
        ({3}, [3]),
        ((1, "a"), [1, "a"]),
        (b"\xff\xfe", "__4="),
        ({1: Path("/tmp")}, {"1": "/tmp"}),
        (float("nan"), "NaN"),
        (2**70, 2**70),
        (SecretStr("s3cret"), "**********"),
        ("half \ud800", "half ?"),
        (["half \ud800"], ["half ?"]),
    ],
    ids=repr,
)
async def test_results_become_json_values(value: object, expected: object):
    def give() -> object:
        return value

    async def give_async() -> object:
        return value

    for function in (give, give_async):
        outcome = await call(function)
        assert outcome == ToolOutcome(expected)
        assert type(outcome.result) is type(expected)
        msgspec.json.encode(outcome.result)


def endless_list() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@requirement("F31")
@pytest.mark.parametrize("value", [object(), {"lock": threading.Lock()}, int, endless_list()], ids=type)
async def test_result_without_json_form_is_type_error(value: object):
    def give() -> object:
        return value

    outcome = await call(give)
    assert outcome.is_error
    assert outcome.result["error"] == "TypeError"


@requirement("F31")
async def test_long_text_is_truncated_with_byte_count():
    def give() -> str:
        return "x" * 5000

    outcome = await call(give, Limits(max_tool_result_bytes=1000))
    kept = outcome.result.count("x")
    assert not outcome.is_error
    assert 900 < kept < 1000
    assert f"{kept} of 5000 bytes" in outcome.result
    assert len(msgspec.json.encode(outcome.result)) <= 1000


async def test_long_structure_becomes_beginning_of_its_json():
    def give() -> list[int]:
        return list(range(1000))

    outcome = await call(give, Limits(max_tool_result_bytes=200))
    total = len(msgspec.json.encode(list(range(1000))))
    assert outcome.result.startswith("[0,1,2,3,")
    assert f"of {total} bytes" in outcome.result


@requirement("F31")
async def test_fifty_megabytes_are_truncated_to_limit():
    def give() -> dict[str, str]:
        return {"data": "é" * 25_000_000}

    outcome = await call(give)
    assert len(msgspec.json.encode(outcome.result)) <= LIMITS.max_tool_result_bytes
    assert outcome.result.endswith(" of 50000011 bytes are shown]")


async def test_long_errors_and_progress_are_truncated():
    seen: list[Any] = []
    limits = Limits(max_tool_result_bytes=1000)

    def fail(ctx: ToolContext) -> None:
        ctx.progress("p" * 5000)
        raise ToolError("e" * 5000)

    outcome = await Tool.from_function(fail).run({}, context(seen.append), limits)
    assert len(msgspec.json.encode(outcome.result)) <= 1000
    assert "of 5000 bytes" in outcome.result["message"]
    assert "of 5000 bytes" in seen[0]


@given(text=st.text(), max_bytes=st.integers(100, 400))
def test_truncated_text_is_longest_fitting_prefix(text: str, max_bytes: int):
    text = text * 20
    outcome = asyncio.run(echo_tool.run({"text": text}, context(), Limits(max_tool_result_bytes=max_bytes)))
    if outcome.is_error:
        assert any(0xD800 <= ord(character) < 0xE000 for character in text)
        return
    assert len(msgspec.json.encode(outcome.result)) <= max_bytes
    kept, note, _ = outcome.result.rpartition("\n[cut: ")
    if not note:
        assert outcome.result == text
        return
    assert text.startswith(kept)
    # No more is lost than one character or escape, and the digits that a smaller count saves.
    assert len(msgspec.json.encode(outcome.result)) > max_bytes - 12


@tool
async def echo_tool(text: str) -> str:
    return text
