"""The stages of tool calls are the same on every provider, in every recording."""

from pathlib import Path
from typing import get_args

import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.parts import Stage, ToolEvent, ToolInputDelta
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import fold
from sidestream.testing import ResponsesScript
from sidestream.testing.fake import FakeProvider
from support.places import RECORDINGS

FILES = sorted(RECORDINGS.rglob("*.json")) if RECORDINGS.is_dir() else []
PORTABLE = {"code_execution", "bash_code_execution", "text_editor_code_execution", "google_search", "url_context"}
"""Names of providers that must not be `tool`."""


@requirement("R3", "R182", "R190")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recorded_calls_pass_each_stage_once(path: Path) -> None:
    recording = Recording.load(path)
    for run in replay(recording, ReplayTransport(recording)):
        folding = ChunkFold()
        parts = [part async for part in run]
        result = fold(chunk for part in parts for chunk in folding.feed(part))
        for part in parts:
            if isinstance(part, ToolEvent):
                assert part.stage in get_args(Stage)
                assert part.provider_stage
                assert part.tool not in PORTABLE
        assert sorted(map(repr, result.tool_events)) == sorted(
            repr(stage) for call in result.tool_runs for stage in call.stages
        )
        sent = [part.event for part in parts if isinstance(part, ToolEvent)]
        for call in result.tool_runs:
            path_of = [stage.stage for stage in call.stages]
            assert path_of[:2] == ["started", "running"]
            assert path_of[2:] == ([call.status] if call.status in ("completed", "failed") else [])
            assert {(stage.tool, stage.call_id) for stage in call.stages} == {(call.tool, call.id)}
            assert all(stage.event is None or stage.event in sent for stage in call.stages)


@requirement("R24")
async def test_tool_text_has_inputs_code_and_logs_while_written() -> None:
    script = (
        ResponsesScript().code_interpreter(["1+", "1"], logs="2", container_id="c").mcp_call("docs", "ask", {"q": 1})
    )
    async with FakeProvider([script.text("ok").reply()]) as fake:
        chunks = [chunk async for chunk in Agent("openai-responses", base_url=fake.base_url).send_stream("hi")]
    pieces = [piece for chunk in chunks for piece in chunk.tool_text]
    assert [(piece.tool, piece.kind, piece.text) for piece in pieces if piece.kind == "code"] == [
        ("code_interpreter", "code", "1+"),
        ("code_interpreter", "code", "1"),
    ]
    given = [piece.text for piece in pieces if (piece.tool, piece.kind) == ("mcp", "input")]
    deltas = [part for chunk in chunks for part in chunk.parts if isinstance(part, ToolInputDelta)]
    assert "".join(given) == "".join(part.delta for part in deltas if part.id == pieces[-1].call_id)
    whole = fold(chunks).tool_text
    assert [(piece.tool, piece.kind) for piece in whole] == [
        ("code_interpreter", "code"),
        ("code_interpreter", "logs"),
        ("mcp", "input"),
    ]
    assert [piece.text for piece in whole[:2]] == ["1+1", "2\n"]


@requirement("R190")
async def test_code_of_several_calls_is_separate_text() -> None:
    script = ResponsesScript().code_interpreter("1+1", logs="2").code_interpreter("2+2", logs="4")
    async with FakeProvider([script.text("ok").reply()]) as fake:
        result = await Agent("openai-responses", base_url=fake.base_url).send("hi")
    texts = [(piece.kind, piece.text) for piece in result.tool_text]
    assert texts == [("code", "1+1"), ("logs", "2\n"), ("code", "2+2"), ("logs", "4\n")]
    assert result.code == "1+1\n2+2"
