"""A call as one line of words, whoever runs it."""

from typing import Any

import pytest

from requirements import requirement
from sidestream.parts import ToolCall, ToolResult
from sidestream.results.tool_labels import MAX_LABEL_CHARS, tool_label
from sidestream.results.tool_runs import ToolRun, tool_runs


def called(tool: str, given: Any, result: Any = None) -> ToolRun:
    (run,) = tool_runs([ToolCall("c1", tool, tool, True, given), ToolResult("c1", tool, tool, result, False, True)])
    return run


def record(tool: str, status: Any = "completed", **fields: Any) -> ToolRun:
    return ToolRun(**{"id": "c1", "call_id": "c1", "tool": tool, "name": tool, "status": status, **fields})


@requirement("R171")
def test_file_search_counts_passages_only_if_sent():
    assert tool_label(called("file_search", {"queries": ["eclipse"]}, {"results": None})) == "Searched “eclipse”"
    found = {"results": [{"filename": "a.md"}, {"filename": "a.md"}, {"file_id": "f2"}]}
    run = called("file_search", {"queries": ["eclipse"]}, found)
    assert (run.result_count, run.file_count) == (3, 2)
    assert tool_label(run) == "3 passages in 2 files"


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("view", "Read notes"),
        ("create", "Saved a note"),
        ("str_replace", "Saved a note"),
        ("delete", "Deleted a note"),
        ("rename", "Renamed a note"),
    ],
)
def test_memory_label_names_command(command: str, label: str):
    assert tool_label(called("memory", {"command": command, "path": "/memories/a.md"})) == label


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"actions": [{"type": "click", "x": 412, "y": 96}]}, "Click 412, 96"),
        ({"actions": [{"type": "type", "text": "Turku"}]}, "Type Turku"),
        ({"actions": [{"type": "keypress", "keys": ["CTRL", "A"]}]}, "Keypress CTRL+A"),
        ({"action": "left_click", "coordinate": [4, 5]}, "Left click 4, 5"),
        ({"action": {"type": "screenshot"}}, "Screenshot"),
        ({"actions": [{"type": "click"}, {"type": "type"}, {"type": "wait"}]}, "3 actions"),
    ],
)
def test_computer_label_names_action(given: Any, label: str):
    assert tool_label(called("computer_use", given)) == label


@pytest.mark.parametrize(
    ("status", "label"),
    [
        ("running", "Asking researcher…"),
        ("waiting", "Asking researcher…"),
        ("completed", "researcher answered"),
        ("failed", "researcher: the model is gone"),
        ("unfinished", "researcher did not answer"),
    ],
)
def test_agent_label_follows_status(status: str, label: str):
    run = record("researcher", status, error="the model is gone" if status == "failed" else None)
    assert tool_label(run, is_agent=True) == label


def test_decision_changes_label():
    run = record("mcp", "waiting", name="times", server="docs")
    assert tool_label(run) == "Calling times on docs…"
    assert tool_label(run, is_allowed=True) == "Asked to call times on docs"
    assert tool_label(run, is_denied=True) == "times was denied"
    done = record("mcp", "completed", name="times", server="docs")
    assert tool_label(done, is_allowed=True) == "docs: times"


@pytest.mark.parametrize(
    ("run", "label"),
    [
        (record("web_search", "unfinished", queries=("rain",)), "Searching “rain”: not finished"),
        (record("image_generation", "unfinished"), "Preview only: not finished"),
        (record("computer_use", "started"), "computer_use…"),
        (record("add", "running"), "add…"),
        (record("add", "waiting"), "add"),
        (record("add", "failed", input='{"a": ', error="expected a value"), "Not run: arguments are not valid JSON"),
    ],
)
def test_incomplete_call_has_label(run: ToolRun, label: str):
    assert tool_label(run) == label


def test_label_is_one_short_line():
    label = tool_label(record("x" * 1000, input={"a": "b"}))
    assert len(label) == MAX_LABEL_CHARS
    assert "\n" not in tool_label(record("web_search", queries=("two\nlines",)))
