"""Tests of the comparison of requests, with the requests of recordings and of other clients."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.recorded import RECORDINGS
from sidestream.replay.comparison import RequestComparison, all_differences, first_difference
from sidestream.replay.recording import Recording

CALLED = {
    "model": "gpt-5.6",
    "instructions": "Answer briefly. Today is 2026-11-18.",
    "input": [
        {"role": "user", "content": "How is Oslo?"},
        {"type": "function_call", "call_id": "call_8fK2aBc9dEf0", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call", "call_id": "call_7aaaBc9dEf01", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "call_8fK2aBc9dEf0", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_7aaaBc9dEf01", "output": "sun"},
    ],
    "tools": [
        {"type": "function", "name": "weather", "description": "Search the weather"},
        {"type": "function", "name": "news", "description": "Find news"},
    ],
}


def changed(**paths: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CALLED), **paths}


def test_first_difference_names_path_and_both_values() -> None:
    tools = copy.deepcopy(CALLED["tools"])
    tools[0]["description"] = "Find the weather"
    found = first_difference(CALLED, changed(tools=tools))
    assert found is not None
    assert str(found) == "tools[0].description: 'Search the weather' → 'Find the weather'"


def test_renamed_ids_are_equal_if_renaming_is_consistent() -> None:
    text = json.dumps(CALLED).replace("call_8fK2aBc9dEf0", "call_NEW00000001").replace("call_7aaa", "call_9zzz")
    assert all_differences(CALLED, json.loads(text)) == []
    swapped = json.loads(text)
    swapped["input"][3]["call_id"], swapped["input"][4]["call_id"] = (
        swapped["input"][4]["call_id"],
        swapped["input"][3]["call_id"],
    )
    found = first_difference(CALLED, swapped)
    assert found is not None
    assert found.path == "input[3].call_id"


def test_ids_of_one_run_stay_same_in_all_its_requests() -> None:
    comparison = RequestComparison()
    first, second = {"previous_response_id": "resp_a"}, {"previous_response_id": "resp_b"}
    assert list(comparison.differences(first, second)) == []
    assert [each.path for each in comparison.differences(first, {"previous_response_id": "resp_c"})] == [
        "previous_response_id"
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Now: 2026-11-18T09:00:00Z", "Now: 2026-11-19T10:30:21Z"),
        ("request 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "request 6fa459ea-ee8a-3ca4-894e-db77e160355e"),
        ("see toolu_01A09q90qw90lq917835lq9", "see toolu_01B77q90qw90lq917835000"),
        ("boundary=8fk2ABCD99", "boundary=1111ABCD22"),
    ],
)
def test_times_and_nonces_in_texts_are_equal(before: str, after: str) -> None:
    assert first_difference({"text": before}, {"text": after}) is None
    assert first_difference({"text": before}, {"text": f"{after}!"}) is not None


def test_day_in_system_prompt_may_differ_and_in_question_not() -> None:
    assert first_difference(CALLED, changed(instructions="Answer briefly. Today is 2026-11-19.")) is None
    asked = {"messages": [{"role": "user", "content": "What was on 2026-11-18?"}]}
    other = {"messages": [{"role": "user", "content": "What was on 2026-11-19?"}]}
    assert str(first_difference(asked, other)) == (
        "messages[0].content: 'What was on 2026-11-18?' → 'What was on 2026-11-19?'"
    )


def test_arguments_in_strings_are_compared_as_json() -> None:
    calls = copy.deepcopy(CALLED["input"])
    calls[1]["arguments"] = '{ "city": "Oslo" }'
    assert first_difference(CALLED, changed(input=calls)) is None
    calls[1]["arguments"] = '{"city":"Bergen"}'
    assert str(first_difference(CALLED, changed(input=calls))) == "input[1].arguments.city: 'Oslo' → 'Bergen'"


def test_ids_that_program_chose_must_be_equal() -> None:
    before = {"type": "function_call", "arguments": '{"order_id": "A-17", "created_at": 1794000000}'}
    after = {"type": "function_call", "arguments": '{"order_id": "A-18", "created_at": 1794000001}'}
    assert [each.path for each in all_differences(before, after)] == ["arguments.order_id", "arguments.created_at"]


def test_order_and_added_entries_are_one_difference_each() -> None:
    found = all_differences(CALLED, changed(tools=[*reversed(CALLED["tools"])]))
    assert [(each.path, each.change) for each in found] == [("tools", "order")]
    assert str(found[0]) == 'tools: order ["weather", "news"] → ["news", "weather"]'
    more = [CALLED["input"][0], {"role": "user", "content": "And Paris?"}, *CALLED["input"][1:]]
    found = all_differences(CALLED, changed(input=more))
    assert [(each.path, each.change) for each in found] == [("input[1]", "added")]


def test_ignored_paths_may_differ() -> None:
    tools = copy.deepcopy(CALLED["tools"])
    tools[1]["description"] = "News"
    assert first_difference(CALLED, changed(tools=tools), ignore=["tools[*].description"]) is None
    assert first_difference(CALLED, changed(model="gpt-6"), ignore=["tools"]) is not None


def test_long_texts_have_diff_of_changed_lines() -> None:
    lines = [f"Rule {number}" for number in range(40)]
    found = first_difference("\n".join(lines), "\n".join([*lines[:20], "Rule twenty", *lines[21:]]))
    assert found is not None
    assert "-Rule 20\n+Rule twenty" in found.diff()
    assert len(found.diff().splitlines()) < 9


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to the strings of a request that say something."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, (*path, at))
    elif path and path[-1] in ("text", "content", "description", "instructions", "system", "output", "model", "query"):
        yield path


def written(path: tuple[Any, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def requests() -> list[Any]:
    files = sorted(Path(RECORDINGS).glob("*/*.json"))
    bodies = [exchange.request.body for file in files for exchange in Recording.load(file).exchanges]
    return [body for body in bodies if isinstance(body, dict)]


def test_changed_string_of_recorded_request_is_only_difference() -> None:
    rng, seen = random.Random(1), 0
    for body in requests():
        assert all_differences(body, copy.deepcopy(body)) == []
        for path in rng.sample(found, min(4, len(found))) if (found := list(leaves(body))) else ():
            other: Any = copy.deepcopy(body)
            target = other
            for step in path[:-1]:
                target = target[step]
            if not isinstance(target[path[-1]], str):
                continue
            target[path[-1]] = f"altered {target[path[-1]]}"
            differences = all_differences(body, other)
            assert [each.path for each in differences] == [written(path)]
            seen += 1
    assert seen > 150
