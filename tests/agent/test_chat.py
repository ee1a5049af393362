"""Chats: a history that grows, and stays as it was when a turn fails."""

import asyncio

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ConfigurationError
from sidestream.errors import StreamTruncatedError
from sidestream.messages.message import messages_to_json
from sidestream.testing import FakeProvider, ResponsesScript, no_leaks, responses_text, sse


@requirement("R77")
async def test_chat_keeps_history_and_continues_by_session() -> None:
    script = [ResponsesScript(id=f"r{n}").text(f"answer {n}").reply() for n in range(3)]
    async with FakeProvider(script) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        for n in range(3):
            assert (await chat.send(f"question {n}")).output == f"answer {n}"
        bodies = [request.json for request in fake.requests]
    assert [message.text for message in chat.messages] == [
        f"{who} {n}" for n in range(3) for who in ("question", "answer")
    ]
    assert [body.get("previous_response_id") for body in bodies] == [None, "r0", "r1"]
    assert all(len(body["input"]) == 1 for body in bodies)


@requirement("R77", "F01")
async def test_failed_turn_leaves_history_unchanged() -> None:
    script = [
        ResponsesScript().text("one").reply(),
        sse(responses_text("two")[:5]),
        ResponsesScript().text("three").reply(),
    ]
    async with FakeProvider(script) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        await chat.send("1")
        before = chat.messages
        with pytest.raises(StreamTruncatedError):
            await chat.send("2")
        assert chat.messages == before
        assert (await chat.send("3")).output == "three"


@requirement("R77")
async def test_cancelled_or_abandoned_turn_leaves_history_unchanged() -> None:
    gate = asyncio.Event()
    slow = [*responses_text("never")[:5], gate]
    async with no_leaks(), FakeProvider([sse(slow), sse(slow)]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        task = asyncio.create_task(chat.send("1"))
        await fake.wait_for_requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = chat.send_stream("2")
        async for chunk in stream:
            if chunk.output:
                break
        await stream.aclose()
        assert chat.messages == ()
        gate.set()


async def test_streamed_turn_joins_history_after_last_chunk() -> None:
    async with FakeProvider([ResponsesScript().text(["He", "llo"]).reply()]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        assert "".join([chunk.output async for chunk in chat.send_stream("hi")]) == "Hello"
    assert [message.role for message in chat.messages] == ["user", "model"]


@requirement("R15")
async def test_chat_round_trips_through_json_to_another_agent() -> None:
    async with FakeProvider([ResponsesScript(id="r1").text("one").reply()]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url))
        await chat.send("1")
    text = chat.to_json()
    assert text == messages_to_json(chat.messages)
    async with FakeProvider([ResponsesScript(id="r2").text("two").reply()]) as fake:
        other = Chat.from_json(Agent("openai-responses:gpt-4.1", base_url=fake.base_url), text)
        assert other.messages == chat.messages
        await other.send("2")
        body = fake.requests[0].json
    assert "previous_response_id" not in body
    assert len(body["input"]) == 3


async def test_chat_rejects_history_and_resume_without_waiting_turn() -> None:
    chat = Chat(Agent("openai-responses", base_url="http://127.0.0.1:1"))
    with pytest.raises(ConfigurationError):
        await chat.send("hi", history=[])
    with pytest.raises(ConfigurationError):
        await chat.resume([])
