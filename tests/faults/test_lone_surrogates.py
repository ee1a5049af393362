"""Half a character, which JSON allows and UTF-8 does not, wherever a provider can put one."""

from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, File
from sidestream.parts import Finish
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript
from sidestream.tools.approvals import digest_of

HALF = "\ud800"


def note(text: str) -> str:
    """Notes a text."""
    raise AssertionError("half a character is no text")


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


@requirement("F07", "R76")
@pytest.mark.parametrize("is_stored", [False, True])
async def test_call_with_lone_surrogate_can_be_approved_and_is_invalid(tmp_path: Path, is_stored: bool) -> None:
    replies = [
        ResponsesScript().function_call("note", {"text": f"a{HALF}"}).reply(),
        ResponsesScript().text("ok").reply(),
    ]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake, tools=[note], approval="ask"), store=tmp_path / "talk.db" if is_stored else None)
        waiting = await chat.send("hi")
        assert [approval.input for approval in waiting.approvals] == [{"text": f"a{HALF}"}]
        assert waiting.run_state.to_json()
        result = await chat.resume([approval.approve() for approval in waiting.approvals])
        (answer,) = fake.requests[1].json["input"]
    assert result.output == "ok"
    assert "InvalidArguments" in answer["output"]


@requirement("F07")
async def test_file_id_with_lone_surrogate_is_failed_download() -> None:
    citation = {"type": "container_file_citation", "container_id": "c", "filename": "a.txt", "start_index": 0}
    script = ResponsesScript().text("See a.txt", annotations=[{**citation, "file_id": f"file_{HALF}", "end_index": 5}])
    async with FakeProvider([script.reply()]) as fake, agent_at(fake).stream("hi") as run:
        parts = [part async for part in run]
    grammar.check(parts)
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"
    assert [part.kind for part in parts if part.type == "error"] == ["tool"]
    assert not [part for part in parts if isinstance(part, File)]


def test_equal_arguments_have_equal_digests() -> None:
    assert digest_of("f", {"a": HALF, "b": 1}) == digest_of("f", {"b": 1, "a": HALF})
    assert digest_of("f", {"a": HALF}) != digest_of("f", {"a": "\ud801"})
    assert digest_of("f", {"b": [1], "a": "ä"}) == digest_of("f", {"a": "ä", "b": [1]})
