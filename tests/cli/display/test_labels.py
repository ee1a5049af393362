"""The terminal and the web UI show the same label for a call, live and after a reload."""

import io
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import cli
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen
from sidestream.parts import (
    Finish,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    ToolCall,
    ToolResult,
    Usage,
)
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.replay.provider import replay
from sidestream.testing import Recording, ReplayTransport

DEMO = Path(cli.__file__).parent / "commands" / "demo"
RECORDINGS = sorted(DEMO.glob("*.json"))
CALLS = {
    "file_search": ({"queries": ["rain"]}, {"results": [{"filename": "a.md"}, {"filename": "a.md"}]}),
    "web_fetch": ({"url": "https://a.example/page"}, {"title": "A page", "text": "Rain."}),
    "shell": ({"commands": ["ls", "pwd"]}, {"output": [{"stdout": "a", "outcome": {"exit_code": 2}}]}),
    "apply_patch": ({"operation": {"type": "update_file", "path": "a.py", "diff": "+a\n+b\n-c"}}, {"status": "ok"}),
    "memory": ({"command": "view", "path": "/memories"}, "a.md"),
    "computer_use": ({"actions": [{"type": "click", "x": 412, "y": 96}]}, {}),
    "weather": ({"city": "Oslo"}, "rain"),
}
"""Tool → input and result of a call that no recording of the demo has."""


async def recorded(file: Path) -> list[StreamPart]:
    loaded = Recording.load(file)
    parts: list[StreamPart] = []
    for run in replay(loaded, ReplayTransport(loaded)):
        async with run:
            parts += [part async for part in run]
    return parts


def on_terminal(parts: list[StreamPart]) -> list[str]:
    err = io.StringIO()
    view = ProgressView(Screen(io.StringIO(), err), detail=Detail(hints=False))
    for part in parts:
        view.feed(part)
    return err.getvalue().splitlines()


def on_page(parts: list[StreamPart]) -> tuple[dict[str, str], dict[str, str]]:
    """Call → the label of its last live state; and the same of a snapshot."""
    encoder, folding = UIMessageEncoder("m1"), UIMessageFold()
    chunks = [chunk for part in parts for chunk in encoder.feed(part)]
    folding.feed(chunks)
    return _labels(chunks), _labels(folding.message()["parts"])


def _labels(parts: list[dict[str, Any]]) -> dict[str, str]:
    return {part["id"]: part["data"]["label"] for part in parts if part["type"] == "data-tool"}


def check(parts: list[StreamPart]) -> list[str]:
    """Compares both; returns the labels."""
    live, stored = on_page(parts)
    assert live == stored
    lines = iter(on_terminal(parts))
    assert [label for label in live.values() if not any(line.startswith(label) for line in lines)] == []
    return list(live.values())


@requirement("R171")
@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)
async def test_labels_match_for_recorded_runs(file: Path):
    assert check(await recorded(file))


@requirement("R171")
@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("tool", CALLS)
def test_labels_match_for_every_tool(tool: str, is_error: bool):
    given, result = CALLS[tool]
    hosted = tool != "weather"
    parts: list[StreamPart] = [
        StreamStart(()),
        StepStart(0),
        ToolCall("c1", tool, tool, hosted, given),
        ToolResult("c1", tool, tool, {"message": "It\nbroke."} if is_error else result, is_error, hosted),
        StepFinish(0, "stop", Usage()),
        Finish("stop", Usage()),
    ]
    (label,) = check(parts)
    assert label


def test_terminal_strips_controls_from_label():
    label = "Searched “\x1b[31mrain\u202e”"
    parts: list[StreamPart] = [
        StreamStart(()),
        StepStart(0),
        ToolCall("c1", "web_search", "web_search", True, {"query": "\x1b[31mrain\u202e"}),
        ToolResult("c1", "web_search", "web_search", {}, False, True),
        Finish("stop", Usage()),
    ]
    assert list(on_page(parts)[0].values()) == [label]
    assert on_terminal(parts)[0] == "Searched “rain”"
