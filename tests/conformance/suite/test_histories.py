"""Histories that another provider wrote, with its calls, its thinking and its sessions."""

from typing import Any

import pytest

from conformance.suite.subjects import Subject, run_parts, scripted
from conformance.suite.wires import Call, Text, Thought, objects, strings
from requirements import requirement
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.parts import Finish, Raw
from sidestream.testing import pixel_png
from support.streams import of, one, streamed_text

CALLS = (Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Rome"}))


def get_weather(city: str) -> str:
    """The weather in a city."""
    return {"Paris": "sunny", "Rome": "rainy"}.get(city, "cloudy")


async def history_of(author: Subject) -> list[ChatMessage]:
    """A conversation with this provider: it thought, called a function twice at once, and answered."""
    said = (Thought("I should look."), *CALLS)
    answers = said, Text("Sunny in Paris, rainy in Rome.")
    async with author.open(*answers, tools=[get_weather], options=author.row.thinks) as talk:
        result = await talk.agent.send("How is the weather in Paris and in Rome?")
    return list(result.messages)


PRIVATE = ("id", "signature", "encrypted_content", "token", "digest", "history")
"""How the keys end under which a session holds what nobody else may see."""


def sealed_in(messages: list[ChatMessage]) -> set[str]:
    """What the author's sessions hold for itself alone: ids of answers and items, signatures, digests."""
    sessions = [value for message in messages for key, value in message.metadata.items() if key.startswith("_")]
    found = {
        text
        for session in objects(sessions)
        for key in session
        if key.endswith(PRIVATE)
        for text in strings(session[key])
    }
    # The ids of calls are ours as well: they pair a call with its result.
    calls = [call.id for message in messages for call in message.tool_calls]
    return {text for text in found if len(text) > 5 and not any(text in call_id for call_id in calls)}


@requirement("R75")
@pytest.mark.parametrize("author", scripted(), ids=lambda author: f"by {author.id}")
async def test_history_from_other_provider_is_continued(subject: Subject, author: Subject) -> None:
    history = await history_of(author)
    async with subject.open(Text("You are welcome."), tools=[get_weather]) as talk:
        parts = await run_parts(talk.agent, "Thank you!", history=history)
        body = talk.bodies[0]
    assert of(parts, Raw) == []
    assert one(parts, Finish).reason in ("stop", "length")
    assert streamed_text(parts)
    if author.id == subject.id:
        return
    pairs = subject.wire.pairs(body)
    assert [(pair.name, pair.input) for pair in pairs] == [(call.name, call.input) for call in CALLS]
    assert ["sunny" in str(pairs[0].result), "rainy" in str(pairs[1].result)] == [True, True]
    assert any("Sunny in Paris" in text for text in strings(body))
    told = set(strings(body))
    assert {secret for secret in sealed_in(history) if any(secret in text for text in told)} == set()
    assert author.wire.seal is None or not any(author.wire.seal in text for text in told)
    assert not any(key.startswith("previous_") for key in body)


async def test_unanswered_call_gets_not_executed_result(subject: Subject) -> None:
    history = await history_of(scripted()[1])
    open_call = [message for message in history if message.role != "tool"]
    async with subject.open(Text("All right."), tools=[get_weather]) as talk:
        parts = await run_parts(talk.agent, "Never mind. Hello!", history=open_call)
        body = talk.bodies[0]
    assert one(parts, Finish).reason in ("stop", "length")
    results: list[Any] = [pair.result for pair in subject.wire.pairs(body)]
    assert len(results) == 2
    assert all("not executed" in str(result) for result in results)


async def test_history_from_all_providers_is_continued(wired: Subject) -> None:
    history = [message for author in scripted() for message in await history_of(author)]
    async with wired.open(Text("You are welcome."), tools=[get_weather]) as talk:
        parts = await run_parts(talk.agent, "Thank you!", history=history)
        (body,) = talk.bodies
    assert streamed_text(parts) == "You are welcome."
    # What one's own server holds is not sent again.
    assert len(wired.wire.pairs(body)) == 2 * len(scripted()) or wired.caps.server_sessions


async def test_file_from_other_model_is_sent(wired: Subject) -> None:
    made = DataPart(pixel_png(), "image/png", "dot.png")
    history = [ChatMessage.user("Draw a dot."), ChatMessage.model("Here.", made)]
    async with wired.open(Text("It is black.")) as talk:
        result = await talk.agent.send("Which colour has it?", history=history)
        (body,) = talk.bodies
    assert result.output == "It is black."
    assert len(wired.wire.files(body)) == 1
