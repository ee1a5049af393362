"""Runs in plain scripts and threads: sync forms of sending, chatting and streaming."""

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, AuthenticationError, Chat, ConfigurationError, ToolResult
from sidestream.parts import Finish, TextDelta
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, json_reply

REFUSED = json_reply({"error": {"message": "bad key", "code": "invalid_api_key"}}, status=401)


def lookup(word: str) -> str:
    """Looks a word up."""
    return f"{word}!"


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent("openai-responses", base_url=fake.base_url, **settings)


def texts(*answers: str) -> FakeProvider:
    return FakeProvider([ResponsesScript().text([answer[:3], answer[3:]]).reply() for answer in answers])


@requirement("R107")
def test_stream_sync_yields_parts_of_run_with_tools() -> None:
    replies = [ResponsesScript().function_call("lookup", {"word": "sea"}).reply(), ResponsesScript().text("ok").reply()]
    with FakeProvider(replies).in_thread() as fake, agent_at(fake, tools=[lookup]).stream_sync("hi") as run:
        parts = list(run)
        assert run.error is None
        assert run.output == "ok"
        assert run.state.approvals == ()
    grammar.check(parts)
    assert [part.result for part in parts if isinstance(part, ToolResult)] == ["sea!"]


@requirement("R107")
def test_sync_chunks_match_async_chunks() -> None:
    with texts("Hello", "Hello").in_thread() as fake:
        agent = agent_at(fake)
        chunks = list(agent.send_stream_sync("hi"))
        result = agent.send_sync("hi")
    assert "".join(chunk.output for chunk in chunks) == result.output == "Hello"
    assert next(message for chunk in chunks for message in chunk.messages) == result.messages[0]
    assert chunks[-1].finish_reason == "stop"


@requirement("R107")
def test_typed_sync_stream_has_partial_and_final_output() -> None:
    with FakeProvider([ResponsesScript().text(['{"a":', "1}"]).reply() for _ in range(2)]).in_thread() as fake:
        agent = agent_at(fake)
        chunks = list(agent.send_stream_sync("hi", output_type=dict[str, int]))
        with agent.stream_sync("hi", output_type=dict[str, int]) as run:
            assert [part for part in run if isinstance(part, Finish)]
            assert run.output == {"a": 1}
    assert [chunk.partial_output for chunk in chunks if chunk.output][-1] == {"a": 1}


@requirement("R107")
def test_sync_stream_left_early_is_closed_and_agent_reusable() -> None:
    with texts("Hello", "World").in_thread() as fake:
        agent = agent_at(fake)
        with agent.stream_sync("hi") as run:
            next(part for part in run if isinstance(part, TextDelta))
        assert list(run) == []
        for _ in agent.send_stream_sync("hi"):
            break


@requirement("R107")
@pytest.mark.parametrize("stored", [False, True])
def test_sync_chat_keeps_history(tmp_path: Path, stored: bool) -> None:
    with texts("One", "Two", "Three", "Four").in_thread() as fake:
        chat = Chat(agent_at(fake), store=tmp_path / "talk.db" if stored else None)
        assert chat.send_sync("first").output == "One"
        assert "".join(chunk.output for chunk in chat.send_stream_sync("second")) == "Two"
        with chat.stream_sync("third") as run:
            assert isinstance(list(run)[-1], Finish)
        again = Chat(agent_at(fake), store=tmp_path / "talk.db", id=chat.id) if stored else chat
        assert again.send_sync("fourth").output == "Four"
    assert [message.text for message in again.messages] == [
        *("first", "One", "second", "Two"),
        *("third", "Three", "fourth", "Four"),
    ]


@requirement("R107")
def test_sync_approval_can_be_decided_and_resumed() -> None:
    call = ResponsesScript().function_call("lookup", {"word": "sea"})
    with FakeProvider([call.reply(), ResponsesScript().text("done").reply()] * 2).in_thread() as fake:
        agent = agent_at(fake, tools=[lookup], approval=lambda question: True)
        waiting = agent.send_sync("hi")
        decisions = [approval.approve() for approval in waiting.approvals]
        assert agent.resume_sync(waiting.run_state, decisions).output == "done"
        chat = Chat(agent)
        assert chat.send_sync("hi").finish_reason == "approval"
        assert chat.resume_sync([approval.approve() for approval in chat.approvals]).output == "done"


@requirement("R107")
def test_sync_error_traceback_hides_event_loop() -> None:
    for act in (
        lambda agent: agent.send_sync("hi"),
        lambda agent: list(agent.send_stream_sync("hi")),
        lambda agent: list(agent.stream_sync("hi")),
        lambda agent: Chat(agent).send_sync("hi"),
    ):
        _fails_without_a_word_of_loops(act)


def _fails_without_a_word_of_loops(act: Callable[[Agent], object]) -> None:
    with FakeProvider([REFUSED]).in_thread() as fake:
        with pytest.raises(AuthenticationError) as caught:
            act(agent_at(fake))
        assert "no running event loop" not in "".join(traceback.format_exception(caught.value))


@requirement("R107")
@pytest.mark.parametrize(
    ("act", "instead"),
    [
        (lambda agent: agent.send_sync("hi"), r"await agent\.send"),
        (lambda agent: agent.stream_sync("hi"), r"agent\.stream"),
        (lambda agent: agent.send_stream_sync("hi"), r"agent\.send_stream"),
        (lambda agent: Chat(agent).send_sync("hi"), r"await chat\.send"),
        (lambda agent: Chat(agent).stream_sync("hi"), r"chat\.stream"),
        (lambda agent: Chat(agent).send_stream_sync("hi"), r"chat\.send_stream"),
        (lambda agent: Chat(agent).resume_sync(), r"await chat\.resume"),
    ],
)
async def test_sync_call_inside_event_loop_names_async_form(act: Callable[[Agent], object], instead: str) -> None:
    with pytest.raises(ConfigurationError, match=instead):
        act(Agent("openai-responses", base_url="http://127.0.0.1:1"))


@requirement("R107")
async def test_sync_calls_work_in_thread_beside_running_loop() -> None:
    async with texts("Hello") as fake:
        result = await asyncio.to_thread(agent_at(fake).send_sync, "hi")
    assert result.output == "Hello"
