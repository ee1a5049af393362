"""An answer, streamed and whole; usage; thinking; a second turn; leaving in the middle."""

import asyncio

import pytest

from conformance.suite.subjects import Subject, run_parts
from conformance.suite.wires import Text, Thought, strings
from sidestream import Chat
from sidestream.messages.message import ChatMessage, ThinkingPart
from sidestream.parts import Finish, Raw, ReasoningDelta, ResponseMetadata, StepFinish, TextDelta
from sidestream.providers.capabilities import instead_of
from sidestream.testing import no_leaks
from support.streams import of, one, streamed_text

ANSWER = "The capital of France is Paris."
PROMPT = f"Repeat this sentence exactly, and say nothing else: {ANSWER}"


async def test_send_returns_text_and_two_messages(subject: Subject) -> None:
    async with subject.open(Text(ANSWER)) as talk:
        result = await talk.agent.send(PROMPT)
    assert subject.tells(result.output, ANSWER, "Paris")
    assert [message.role for message in result.messages] == ["user", "model"]
    assert result.messages[-1].text == result.output
    assert result.finish_reason == "stop"
    assert result.metadata["model"]


async def test_text_streams_in_pieces_without_raw_parts(subject: Subject) -> None:
    assert subject.caps.streaming
    async with subject.open(Text(ANSWER)) as talk:
        parts = await run_parts(talk.agent, PROMPT)
    assert subject.tells(streamed_text(parts), ANSWER, "Paris")
    assert len(of(parts, TextDelta)) > 1 or subject.setting == "live"  # A fast model may say it in one piece.
    assert of(parts, Raw) == []
    assert one(parts, ResponseMetadata).provider == subject.row.provider
    assert one(parts, Finish).reason == "stop"


async def test_non_streaming_answer_has_same_parts(subject: Subject) -> None:
    async with subject.open(Text(ANSWER)) as talk:
        parts = await run_parts(talk.agent, PROMPT, stream=False)
    assert subject.tells(streamed_text(parts), ANSWER, "Paris")
    assert of(parts, Raw) == []
    assert one(parts, ResponseMetadata).provider == subject.row.provider
    assert one(parts, Finish).reason == "stop"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_usage_counts_input_and_output(subject: Subject, stream: bool) -> None:
    answer = subject.wire.script(Text(ANSWER), usage=(31, 7))
    async with subject.open(answer.reply() if stream else answer.whole_reply()) as talk:
        parts = await run_parts(talk.agent, PROMPT, stream=stream)
    usage = one(parts, Finish).usage
    assert usage == one(parts, StepFinish).usage
    if subject.setting == "scripted":
        assert (usage.input.total, usage.output.total) == (31, 7)
    assert usage.input.total > 5
    assert usage.output.total > 3


async def test_system_prompt_reaches_model(subject: Subject) -> None:
    async with subject.open(Text("Ahoy!"), system="You are a pirate called Blackbeard.") as talk:
        await talk.agent.send("Who are you? Answer in one sentence.")
        (body,) = talk.bodies
    assert any("Blackbeard" in text for text in strings(body))


async def test_thinking_is_emitted_when_supported(subject: Subject) -> None:
    thought, answer = "I add them up.", "It is 391."
    said = (Thought(thought), Text(answer)) if subject.caps.thinking else (Text(answer),)
    settings = {"options": subject.row.thinks} if subject.row.thinks is not None else {}
    async with subject.open(said, **settings) as talk:
        parts = await run_parts(talk.agent, "What is 17 times 23? Think first.")
    shown = "".join(part.delta for part in of(parts, ReasoningDelta))
    if subject.caps.thinking:
        assert subject.tells(shown, thought, "")
        assert shown
    else:
        assert instead_of(subject.caps, "thinking")
        assert shown == ""
    assert subject.setting == "embedded" or "391" in streamed_text(parts)


async def test_thinking_is_in_message_but_not_in_output(wired: Subject) -> None:
    if not wired.caps.thinking:
        assert instead_of(wired.caps, "thinking")
        return
    async with wired.open((Thought("Hm, well."), Text("Yes."))) as talk:
        result = await talk.agent.send("Is it so?")
    assert (result.output, result.thinking) == ("Yes.", "Hm, well.")
    assert [part.text for part in result.messages[-1].parts if isinstance(part, ThinkingPart)] == ["Hm, well."]


async def test_chat_remembers_first_turn(subject: Subject) -> None:
    async with subject.open(Text("Nice to meet you, Ada."), Text("Your name is Ada.")) as talk:
        chat = Chat(talk.agent)
        await chat.send("My name is Ada.")
        result = await chat.send("What is my name?")
        first, second = talk.bodies
    assert subject.setting == "embedded" or "Ada" in result.output
    assert [message.role for message in chat.messages] == ["user", "model", "user", "model"]
    is_sent_again = any("My name is Ada." in text for text in strings(second))
    if subject.caps.server_sessions:
        assert not is_sent_again
        assert any(key.startswith("previous_") for key in second)
    else:
        assert instead_of(subject.caps, "server_sessions")
        assert is_sent_again
    assert not any(key.startswith("previous_") for key in first)


async def test_abandoned_stream_does_not_leak(subject: Subject) -> None:
    cut = subject.wire.script(Text("One two three four five six.")).reply()
    # The last frames never come: what ends this stream is the one who reads it.
    stalled = type(cut)(body=[*cut.body[: len(cut.body) // 2 + 1], asyncio.Event()], content_type=cut.content_type)
    async with no_leaks(), subject.open(stalled) as talk:
        async with talk.agent.stream("Count from one to one hundred, in words.") as run:
            async for part in run:
                if isinstance(part, TextDelta):
                    break
        if talk.fake is not None:
            await talk.fake.wait_idle()


async def test_cancelled_send_does_not_leak(subject: Subject) -> None:
    cut = subject.wire.script(Text("One two three four five six.")).reply()
    stalled = type(cut)(body=[*cut.body[: len(cut.body) // 2 + 1], asyncio.Event()], content_type=cut.content_type)
    async with no_leaks(), subject.open(stalled) as talk:
        begun = asyncio.Event()

        async def read() -> None:
            async for chunk in talk.agent.send_stream("Count from one to one hundred, in words."):
                if chunk.output:
                    begun.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(60):
            await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        if talk.fake is not None:
            assert task.cancelled()
            await talk.fake.wait_idle()
        elif not task.cancelled():
            task.result()  # An embedded model may have ended its answer before.


async def test_history_restored_from_json_is_continued(subject: Subject) -> None:
    history = [ChatMessage.user("What is the capital of Spain?"), ChatMessage.model("The capital of Spain is Madrid.")]
    async with subject.open(Text(ANSWER)) as talk:
        chat = Chat.from_json(talk.agent, Chat(talk.agent, history).to_json())
        result = await chat.send("What is the capital of France?")
        (body,) = talk.bodies
    assert subject.tells(result.output, ANSWER, "Paris")
    assert any("Madrid" in text for text in strings(body))


async def test_auth_function_is_called_for_each_request(wired: Subject) -> None:
    tokens = iter(("one", "two"))

    def auth() -> dict[str, str]:
        return {"Authorization": f"Bearer {next(tokens)}"}

    async with wired.open(Text("First."), Text("Second."), api_key=None, auth=auth) as talk:
        outputs = [(await talk.agent.send("hi")).output for _ in range(2)]
        assert talk.fake is not None
        sent = [request.headers for request in talk.fake.requests]
    assert outputs == ["First.", "Second."]
    assert [headers["authorization"] for headers in sent] == ["Bearer one", "Bearer two"]
    assert not {"x-api-key", "x-goog-api-key"} & {name for headers in sent for name in headers}
