"""Streams that lie: what they say must come out right, or as an error, and the conversation goes on after it."""

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostile.corpus import SCRIPTS, with_events
from hostile.judge import Judged, judge
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.errors import ProtocolError
from sidestream.limits import MAX_UNPARSED_BYTES, Limits
from sidestream.parts import Custom, Raw, Source, StreamPart, TextDelta, TextEnd, ToolCall
from sidestream.replay.recording import EVENT_STREAM, Exchange, RecordedRequest, RecordedResponse
from sidestream.results.results import ChatResult
from sidestream.store import open_store
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    Reply,
    ResponsesScript,
    encode_events,
)
from sidestream.transport.calls import DONE
from sidestream.wire.sse import Splitter

APIS = sorted(SCRIPTS)
every_api = pytest.mark.parametrize("api", APIS)
MODELS = {
    "anthropic": "anthropic",
    "google": "google",
    "google-interactions": "google:interactions/gemini-3-flash-preview",
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
}
WORDS = ["The answer ", "is not ", "42."]
Frames = list[bytes]


def script(api: str, words: Sequence[str] = WORDS, name: str = "first") -> Any:
    made = {
        "anthropic": MessagesScript(id=f"msg_{name}"),
        "google": GeminiScript(response_id=f"g_{name}"),
        "google-interactions": InteractionScript(interaction_id=f"int_{name}"),
        "openai-chat": ChatScript(id=f"c_{name}"),
        "openai-responses": ResponsesScript(id=f"resp_{name}"),
    }
    return made[api].text(list(words))


def frames_of(made: Any) -> Frames:
    """The data of the events of a script."""
    splitter = Splitter(1 << 30)
    return [*splitter.feed(encode_events(made.reply().body)), *splitter.flush()]


def reply(frames: Frames) -> Reply:
    body = b"".join(b"data: %b\n\n" % data.replace(b"\n", b"\ndata: ") for data in frames)
    return Reply(status=200, content_type=EVENT_STREAM, body=body)


def cut(frames: Frames, place: int) -> Frames:
    """The frames, one of them cut in half."""
    return [*frames[:place], frames[place][: len(frames[place]) // 2], *frames[place + 1 :]]


def delta_at(frames: Frames, word: str = "is not ") -> int:
    """The event that streams this word."""
    sent = json.dumps(word).encode()
    return next(n for n, data in enumerate(frames) if sent in data)


async def judged(api: str, frames: Frames) -> Judged:
    exchange = Exchange(RecordedResponse(200, EVENT_STREAM, ""), RecordedRequest("POST", SCRIPTS[api][0], {}))
    return await judge(with_events(exchange, frames))


def said(parts: Sequence[StreamPart]) -> str:
    """The text of the answer: what was streamed, and what replaced it."""
    texts: dict[str, str] = {}
    for part in parts:
        if isinstance(part, TextDelta):
            texts[part.id] = texts.get(part.id, "") + part.delta
        elif isinstance(part, TextEnd) and part.text is not None:
            texts[part.id] = part.text
    return "".join(texts.values())


def raws(parts: Sequence[StreamPart]) -> list[Any]:
    return [part.event for part in parts if isinstance(part, Raw)]


def agent_of(api: str, fake: FakeProvider, **settings: Any) -> Agent[Any]:
    return Agent(MODELS[api], base_url=fake.base_url, api_key="k", **settings)


# An event that does not parse


@requirement("R180", "F57")
@every_api
async def test_unparsable_event_is_error(api: str) -> None:
    frames = frames_of(script(api))
    for place, data in enumerate(frames):
        if data == DONE:
            continue
        broken = cut(frames, place)
        found = await judged(api, broken)
        (error,) = found.errors
        assert (error.kind, error.code, error.retryable) == ("protocol", "not-json", True)
        assert [finish.reason for finish in found.finishes] == ["error"]
        # The text of the event is there, and so is all that came after it.
        assert broken[place].decode() in raws(found.parts)
        rest = "".join(word for n, word in enumerate(WORDS) if place != delta_at(frames, WORDS[n]))
        assert said(found.parts) in ("".join(WORDS), rest)


@requirement("R180", "F57")
@every_api
async def test_conversation_continues_after_unparsable_event(api: str, tmp_path: Path) -> None:
    frames = frames_of(script(api))
    broken = [reply(cut(frames, place)) for place in (delta_at(frames), 0)]
    async with aclosing(open_store(tmp_path / "talk.db")) as store, FakeProvider(broken) as fake:
        chat = Chat(agent_of(api, fake), store=store, id="talk")
        await chat.load()
        for _ in broken:
            with pytest.raises(ProtocolError) as caught:
                await chat.send("What is the answer?")
            assert caught.value.result is not None
            assert caught.value.result.finish_reason == "error"
            assert len(caught.value.result.raw) == 1
        fake.add(script(api, name="next").reply())
        again = Chat(agent_of(api, fake), store=store, id="talk")
        await again.load()
        assert again.status == "failed"
        assert (await again.send("Please repeat it.")).output == "The answer is not 42."
        assert again.status == "complete"
        assert b"The answer 42." not in fake.requests[-1].body


@requirement("R180")
@every_api
async def test_answer_with_unparsable_event_runs_no_calls(api: str) -> None:
    calls: list[str] = []

    def look(city: str) -> str:
        """Looks at a city."""
        calls.append(city)
        return "sunny"

    made = script(api)
    made = made.tool_use("look", {"city": "Oslo"}) if api == "anthropic" else _called(made)
    frames = frames_of(made)
    async with FakeProvider([reply(cut(frames, delta_at(frames)))]) as fake:
        with pytest.raises(ProtocolError):
            await agent_of(api, fake, tools=[look]).send("x")
    assert calls == []


def _called(made: Any) -> Any:
    call = made.tool_call if isinstance(made, ChatScript) else made.function_call
    return call("look", {"city": "Oslo"})


@requirement("R180")
@every_api
async def test_raw_text_of_long_event_is_bounded(api: str) -> None:
    frames = frames_of(script(api))
    found = await judged(api, [*frames[:1], b"<html>" + b"x" * 1_000_000, *frames[1:]])
    assert [len(text) for text in raws(found.parts)] == [MAX_UNPARSED_BYTES]


@requirement("F08")
@every_api
@pytest.mark.parametrize("data", [b"", b"ping", b"PING", b": keep-alive", b"heartbeat", b" keepalive "])
async def test_keep_alive_without_json_is_ignored(api: str, data: bytes) -> None:
    frames = frames_of(script(api))
    clean = await judged(api, frames)
    assert (await judged(api, [x for frame in frames for x in (data, frame)])).parts == clean.parts


# A second answer in mid-stream


@requirement("R180", "F57")
@every_api
async def test_second_answer_in_mid_stream_is_error(api: str) -> None:
    first, second = frames_of(script(api)), frames_of(script(api, ["Another ", "answer."], "second"))
    whole = "".join(WORDS)
    for place in range(1, len(first)):
        found = await judged(api, [*first[:place], *second])
        if not found.errors:
            # Nothing of the first had come, or all of it.
            assert said(found.parts) in ("Another answer.", whole)
            continue
        (error,) = found.errors
        assert (error.kind, error.code) == ("protocol", "second-answer")
        assert whole.startswith(said(found.parts))
        assert len(raws(found.parts)) >= 1


@requirement("R180", "F57")
@every_api
async def test_conversation_continues_after_second_answer(api: str, tmp_path: Path) -> None:
    first, second = frames_of(script(api)), frames_of(script(api, name="second"))
    spliced = [*first[: delta_at(first) + 1], *second]
    async with aclosing(open_store(tmp_path / "talk.db")) as store, FakeProvider([reply(spliced)]) as fake:
        chat = Chat(agent_of(api, fake), store=store, id="talk")
        await chat.load()
        with pytest.raises(ProtocolError) as caught:
            await chat.send("What is the answer?")
        assert caught.value.code == "second-answer"
        assert caught.value.result is not None
        assert caught.value.result.output == "The answer is not "
        fake.add(script(api, name="next").reply())
        assert (await chat.send("Please repeat it.")).output == "The answer is not 42."
        assert b"resp_second" not in fake.requests[-1].body


@requirement("R180")
async def test_changing_chunk_ids_are_not_second_answer() -> None:
    chunks = ChatScript().text(WORDS).chunks()
    for number, chunk in enumerate(chunks):
        chunk["id"] = f"chunk-{number}"
    found = await judged("openai-chat", [json.dumps(chunk).encode() for chunk in chunks])
    assert (found.errors, said(found.parts)) == ([], "The answer is not 42.")


@requirement("R180")
async def test_second_answer_in_array_is_error() -> None:
    first, second = GeminiScript(response_id="a").text(["One"]), GeminiScript(response_id="b").text(["Two"])
    body = json.dumps([*first.chunks()[:1], *second.chunks()])
    request = RecordedRequest("POST", SCRIPTS["google"][0], {})
    found = await judge(Exchange(RecordedResponse(200, "application/json", body), request))
    assert [error.code for error in found.errors] == ["second-answer"]
    assert said(found.parts) == "One"


# A final text that differs from its deltas


@dataclass
class City:
    name: str
    people: int


def without(frames: Frames, word: str) -> Frames:
    place = delta_at(frames, word)
    return [*frames[:place], *frames[place + 1 :]]


def with_message(frames: Frames, text: str) -> Frames:
    """Chunks of a chat with the whole message beside the finish reason, as Perplexity sends it."""
    sent = [json.loads(data) if data != DONE else None for data in frames]
    for chunk in sent:
        for choice in (chunk or {}).get("choices", ()):
            if choice.get("finish_reason"):
                choice["message"] = {"role": "assistant", "content": text}
    return [DONE if chunk is None else json.dumps(chunk).encode() for chunk in sent]


def with_steps(frames: Frames, text: str) -> Frames:
    """Events of an interaction whose last one has all steps; the ends of steps are missing."""
    sent = [json.loads(data) for data in frames if data != DONE]
    sent = [event for event in sent if event["event_type"] != "step.stop"]
    for event in sent:
        if event["event_type"] == "interaction.completed":
            step = {"type": "model_output", "content": [{"type": "text", "text": text}]}
            event["interaction"]["steps"] = [{"type": "user_input"}, step]
    return [json.dumps(event).encode() for event in sent]


REPEATS: dict[str, Callable[[Frames, str], Frames]] = {
    "openai-responses": lambda frames, text: frames,
    "openai-chat": with_message,
    "google-interactions": with_steps,
}
"""API → the frames, with the whole text once more."""
repeating = pytest.mark.parametrize("api", sorted(REPEATS))


def lossy(api: str, word: str, words: Sequence[str] = WORDS) -> Frames:
    return without(REPEATS[api](frames_of(script(api, words)), "".join(words)), word)


def joined(chunks: Sequence[ChatResult[Any]]) -> str:
    """The output by its chunks, as a reader that replaces what is corrected has it."""
    texts: dict[str, str] = {}
    for chunk in chunks:
        if chunk.text_id is not None:
            text = texts.get(chunk.text_id, "") + chunk.text
            texts[chunk.text_id] = text if chunk.correction is None else chunk.correction
    return "".join(texts.values())


@requirement("R10", "R181", "F12", "F57")
@repeating
@pytest.mark.parametrize("word", WORDS)
async def test_final_text_is_used_everywhere(api: str, word: str, tmp_path: Path) -> None:
    whole, lost = "".join(WORDS), reply(lossy(api, word))
    is_suffix = word == WORDS[-1]
    async with aclosing(open_store(tmp_path / "talk.db")) as store, FakeProvider([lost] * 4) as fake:
        agent = agent_of(api, fake)
        result = await agent.send("x")
        assert (result.output, result.messages[-1].text, result.finish_reason) == (whole, whole, "stop")
        assert str(result.cited_text()).strip() == whole
        corrected = [notice for notice in result.notices if notice.kind == "sidestream.text-corrected"]
        assert len(corrected) == (0 if is_suffix else 1)
        chunks = [chunk async for chunk in agent.send_stream("x")]
        assert joined(chunks) == whole
        assert [chunk.correction for chunk in chunks if chunk.correction is not None] == [whole] * len(corrected)
        async with agent.stream("x") as run:
            parts = [part async for part in run]
        assert (said(parts), run.output) == (whole, whole)
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        await chat.send("x")
        again = Chat(agent, store=store, id="talk")
        await again.load()
        assert again.messages[-1].text == whole
        # The next turn says what the answer was.
        fake.add(script(api, name="next").reply())
        assert (await again.send("y")).output == whole
        if api == "openai-chat":
            assert whole in json.dumps(json.loads(fake.requests[-1].body)["messages"])


@requirement("R181")
@repeating
async def test_typed_output_is_parsed_from_final_text(api: str) -> None:
    words = ['{"name":"Oslo",', '"people":7', "17000}"]
    async with FakeProvider([reply(lossy(api, words[1], words))] * 2) as fake:
        agent = agent_of(api, fake)
        assert (await agent.send("x", output_type=City)).output == City("Oslo", 717000)
        chunks = [chunk async for chunk in agent.send_stream("x", output_type=City)]
    partials = [chunk.partial_output for chunk in chunks if chunk.partial_output is not None]
    assert partials[-1] == {"name": "Oslo", "people": 717000}


@requirement("R181", "R10")
async def test_correction_in_later_step_keeps_earlier_text() -> None:
    def look(city: str) -> str:
        """Looks at a city."""
        return "sunny"

    called = ResponsesScript(id="resp_0").text("Wait.").function_call("look", {"city": "Oslo"})
    async with FakeProvider([called.reply(), reply(lossy("openai-responses", "is not "))]) as fake:
        result = await agent_of("openai-responses", fake, tools=[look], limits=Limits(max_steps=2)).send("x")
    assert result.output == "Wait.\nThe answer is not 42."
    assert str(result.cited_text()).strip() == result.output


@requirement("R181")
async def test_shorter_final_chat_message_does_not_replace_text() -> None:
    found = await judged("openai-chat", with_message(frames_of(script("openai-chat")), "42."))
    assert said(found.parts) == "The answer is not 42."
    assert not any(isinstance(part, Custom) for part in found.parts)


# Parts with other numbers


def renumbered(events: list[dict[str, Any]], number: Callable[[int, dict[str, Any]], int]) -> Frames:
    return [
        json.dumps({**e, "content_index": number(n, e)} if "content_index" in e else e).encode()
        for n, e in enumerate(events)
    ]


NUMBERS: dict[str, Callable[[int, dict[str, Any]], int]] = {
    "over the response": lambda n, e: e["content_index"] + 1,
    "far away": lambda n, e: e["content_index"] + 7,
    "of each delta": lambda n, e: 0 if e["type"].endswith("added") else n,
}


@requirement("R183", "F57")
@pytest.mark.parametrize("numbers", NUMBERS)
async def test_text_is_emitted_once_with_any_index(numbers: str) -> None:
    made = ResponsesScript().text(WORDS)
    frames = renumbered(made.events(), NUMBERS[numbers])
    found = await judged("openai-responses", frames)
    assert (found.errors, said(found.parts), raws(found.parts)) == ([], "The answer is not 42.", [])
    assert len([part for part in found.parts if isinstance(part, TextEnd)]) == 1
    async with FakeProvider([reply(frames)]) as fake:
        result = await agent_of("openai-responses", fake).send("x")
        assert (result.messages[-1].text, len(result.messages[-1].parts)) == ("The answer is not 42.", 1)
        fake.add(made.reply())
        history = result.messages
        assert (await agent_of("openai-responses", fake).send("y", history=history)).output == "The answer is not 42."


def message_of(*texts: str, first: int = 0) -> list[dict[str, Any]]:
    """A message with several texts, numbered from here on."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    place = {"output_index": 0, "item_id": "msg_1"}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp_1"}}]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}})
    for number, part in enumerate(parts, first):
        at = {**place, "content_index": number}
        empty = {**part, "text": ""}
        events.append({"type": "response.content_part.added", **at, "part": empty})
        events += [{"type": "response.output_text.delta", **at, "delta": word} for word in part["text"].split("|")]
        part["text"] = part["text"].replace("|", "")
        events.append({"type": "response.output_text.done", **at, "text": part["text"]})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": parts}})
    done = {"id": "resp_1", "status": "completed", "output": [{**item, "content": parts}]}
    return [*events, {"type": "response.completed", "response": done}]


@requirement("R183")
@pytest.mark.parametrize("first", [0, 1, 3])
async def test_each_text_of_message_is_emitted_once(first: int) -> None:
    events = message_of("One |two.", "Three |four.", first=first)
    found = await judged("openai-responses", [json.dumps(event).encode() for event in events])
    assert said(found.parts) == "One two.Three four."
    assert len([part for part in found.parts if isinstance(part, TextEnd)]) == 2
    assert not any(isinstance(part, Custom | Raw) for part in found.parts)


@requirement("R183")
async def test_deltas_without_start_and_with_odd_indexes_come_once() -> None:
    events = [event for event in message_of("One |two |three.") if "content_part" not in event["type"]]
    found = await judged("openai-responses", renumbered(events, lambda n, e: n))
    assert said(found.parts) == "One two three."
    lost = [event for event in events if event.get("delta") != "two "]
    found = await judged("openai-responses", renumbered(lost, lambda n, e: n))
    assert said(found.parts) == "One two three."


# Answers of a chat that end without a finish reason


def ended(*deltas: dict[str, Any], usage: bool = True, done: bool = True) -> Frames:
    chunks: list[dict[str, Any]] = [{"id": "c_1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if usage:
        chunks.append({"id": "c_1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    return [json.dumps(chunk).encode() for chunk in chunks] + [DONE] * done


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "look", "arguments": arguments}}]}


@requirement("R183")
@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        ([{"content": "Hel"}, {"content": "lo"}], "stop"),
        ([{"audio": {"id": "a", "transcript": "Hello"}}, {"audio": {"data": "UklGRg=="}}], "stop"),
        ([{"content": "Hello"}, call('{"city":'), call('"Oslo"}')], "tool-calls"),
    ],
    ids=["text", "speech", "call"],
)
async def test_answer_with_usage_and_done_is_complete(deltas: list[dict[str, Any]], reason: str) -> None:
    def look(city: str) -> str:
        """Looks at a city."""
        return f"sunny in {city}"

    frames = ended(*deltas)
    async with FakeProvider([reply(frames), ChatScript().text(" Bye.").reply()]) as fake:
        result = await agent_of("openai-chat", fake, tools=[look]).send("x")
    (notice,) = [notice for notice in result.notices if notice.kind == "sidestream.finish-reason-missing"]
    assert notice.data["reason"] == reason
    assert result.output.startswith("Hello")
    assert [found.result for found in result.tool_results] == (["sunny in Oslo"] if reason == "tool-calls" else [])


@requirement("R183", "F01")
@pytest.mark.parametrize(
    "frames",
    [
        ended({"content": "Hello"}, usage=False),
        ended({"content": "Hello"}, done=False),
        ended({"content": "Hello"}, usage=False, done=False),
        ended({"reasoning_content": "Hm."}),
        ended(),
        ended(call('{"city": "Os')),
        ended({"content": "Hello"}, call('{"city": "Os')),
        ended(call("")),
    ],
    ids=["no usage", "no done", "neither", "thoughts only", "empty", "half a call", "text, half a call", "no input"],
)
async def test_incomplete_chat_stream_is_truncated(frames: Frames) -> None:
    found = await judged("openai-chat", frames)
    assert [error.kind for error in found.errors] == ["truncated"]
    assert not any(isinstance(part, ToolCall) for part in found.parts)


# Sources stay where they belong


@requirement("R181")
async def test_citations_refer_to_final_text() -> None:
    start = len("The answer is not ")
    url = {"type": "url_citation", "url": "https://example.com/", "title": "E", "start_index": start, "end_index": 20}
    frames = without(frames_of(ResponsesScript().text(WORDS, annotations=[url])), "is not ")
    async with FakeProvider([reply(frames)]) as fake:
        result = await agent_of("openai-responses", fake).send("x")
    assert [(source.start, source.end) for source in result.parts if isinstance(source, Source)] == [(start, 20)]
    assert result.cited_text().text == "The answer is not 42[1]."
