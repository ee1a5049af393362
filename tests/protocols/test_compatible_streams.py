"""Runs as the older APIs of two vendors stream them: their SDKs' own types accept all of it, in order, nothing twice."""

from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from requirements import requirement
from sidestream.jsontext import dumps
from sidestream.parts import (
    Error,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
)
from sidestream.protocols.anthropic_messages import MessagesEncoder, message_of
from sidestream.protocols.chat_completions import ChatCompletionsEncoder, completion
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from support.places import RECORDINGS

EVENTS = TypeAdapter[Any](RawMessageStreamEvent)
USAGE = Usage()


def chat_chunks(parts: list[StreamPart], functions: set[str], **options: Any) -> list[dict[str, Any]]:
    encoder = ChatCompletionsEncoder(id="chatcmpl-1", model="m", created=7, functions=functions, **options)
    chunks = [chunk for part in parts for chunk in encoder.feed(part)]
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(dumps(chunk), strict=True)
    return chunks


def message_events(parts: list[StreamPart], functions: set[str]) -> list[dict[str, Any]]:
    """The events, which are in the order that the API prescribes, or the test fails."""
    encoder = MessagesEncoder(id="msg_1", model="m", functions=functions)
    events = [event for part in parts for event in encoder.feed(part)]
    open_block: int | None = None
    for number, event in enumerate(events):
        EVENTS.validate_json(dumps(event)) if event["type"] != "error" else None
        match event["type"]:
            case "message_start":
                assert number == 0
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                assert open_block == sum(other["type"] == "content_block_start" for other in events[:number])
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case _:
                assert open_block is None
    assert events[-1]["type"] in ("message_stop", "error")
    return events


TURN: list[StreamPart] = [
    StepStart(0),
    ReasoningStart("r"),
    ReasoningDelta("r", "Hm. "),
    ReasoningDelta("r", "Yes."),
    ReasoningEnd("r", signature="sig"),
    TextStart("t"),
    TextDelta("t", "Look"),
    ToolInputStart("c1", "add", False),  # It begins while the text is still open.
    ToolInputDelta("c1", '{"a":'),
    TextDelta("t", "ing."),
    Source("s", "url", url="https://a.example", title="A", start=0, end=4, text_id="t", cited_text="Look"),
    TextEnd("t"),
    ToolInputDelta("c1", " 1}"),
    ToolInputEnd("c1"),
    ToolCall("c1", "add", "add", False, {"a": 1}),
    ToolCall("c2", "add", "add", False, {"a": 2}),
    ToolCall("s1", "web_search", "web_search", True, {"query": "x"}),
    StepFinish(0, "tool-calls", USAGE),
    Finish("tool-calls", USAGE),
]


@requirement("R140")
def test_turn_encodes_as_chat_completion():
    chunks = chat_chunks(TURN, {"add"}, include_usage=True)
    whole = ChatCompletion.model_validate_json(dumps(completion(chunks)), strict=True)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == ("Looking.", "tool_calls")
    assert choice.message.model_dump()["reasoning_content"] == "Hm. Yes."
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]  # type: ignore[union-attr]
    assert calls == [("c1", "add", '{"a": 1}'), ("c2", "add", '{"a":2}')]
    (annotation,) = choice.message.annotations or ()
    assert annotation.url_citation.url == "https://a.example"
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:2]] == ["assistant", None]
    assert chunks[-1]["choices"] == []
    assert whole.usage is not None


@requirement("R140")
def test_turn_encodes_as_message():
    message = Message.model_validate_json(dumps(message_of(message_events(TURN, {"add"}))))
    thinking, text, first, second, search = message.content
    assert (thinking.type, thinking.thinking, thinking.signature) == ("thinking", "Hm. Yes.", "sig")  # type: ignore[union-attr]
    assert (text.type, text.text) == ("text", "Looking.")  # type: ignore[union-attr]
    assert text.citations[0].url == "https://a.example"  # type: ignore[union-attr,index]
    assert [(call.id, call.input) for call in (first, second)] == [("c1", {"a": 1}), ("c2", {"a": 2})]  # type: ignore[union-attr]
    assert (search.type, message.stop_reason) == ("server_tool_use", "tool_use")


@requirement("R181")
def test_final_text_follows_replaced_text():
    source = Source("s", "url", url="https://a.example", start=0, end=5, text_id="t")
    parts = [StepStart(0), TextStart("t"), TextDelta("t", "Helo"), TextEnd("t", text="Hello."), source]
    parts += [StepFinish(0, "stop", USAGE), Finish("stop", USAGE)]
    message = completion(chat_chunks(parts, set()))["choices"][0]["message"]
    assert message["content"] == "Helo\n\nHello."
    assert message["annotations"][0]["url_citation"]["start_index"] == message["content"].index("Hello.")
    content = message_of(message_events(parts, set()))["content"]
    assert [block["text"] for block in content] == ["Helo", "Hello."]


@requirement("R140")
def test_text_of_steps_is_paragraphs_without_server_tool_calls():
    parts: list[StreamPart] = [
        StepStart(0),
        TextStart("a"),
        TextEnd("a", text="First."),
        ToolCall("c1", "add", "add", False, {}),
        StepFinish(0, "tool-calls", USAGE),
        StepStart(1),
        TextStart("b"),
        TextDelta("b", "Then."),
        TextEnd("b"),
        StepFinish(1, "stop", USAGE),
        Finish("stop", USAGE),
    ]
    (choice,) = completion(chat_chunks(parts, set()))["choices"]
    assert choice["message"]["content"] == "First.\n\nThen."
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    message = message_of(message_events(parts, set()))
    assert [block["text"] for block in message["content"]] == ["First.", "Then."]
    assert message["stop_reason"] == "end_turn"


@requirement("R140")
def test_logged_citations_precede_text_with_offsets_in_content():
    parts: list[StreamPart] = [
        StepStart(0),
        TextStart("a"),
        TextDelta("a", "First."),
        TextEnd("a"),
        StepFinish(0, "tool-calls", USAGE),
        StepStart(1),
        Source("s1", "url", url="https://a.example", start=0, end=4, text_id="b"),
        Source("s2", "url", url="https://b.example", text_id="b"),
        TextStart("b"),
        TextDelta("b", "Then."),
        TextEnd("b"),
        StepFinish(1, "stop", USAGE),
        Finish("stop", USAGE),
    ]
    chat = ChatCompletion.model_validate_json(dumps(completion(chat_chunks(parts, set()))), strict=True)
    first, second = (annotation.url_citation for annotation in chat.choices[0].message.annotations or ())
    assert (chat.choices[0].message.content or "")[first.start_index : first.end_index] == "Then"
    assert (second.start_index, second.end_index) == (8, 8)
    message = Message.model_validate_json(dumps(message_of(message_events(parts, set()))))
    urls = [[citation.url for citation in block.citations or ()] for block in message.content]  # type: ignore[union-attr]
    assert urls == [[], ["https://a.example", "https://b.example"]]


@requirement("R140")
def test_refusal_is_separate_field():
    start = TextStart("t", provider_metadata={"p": {"refusal": True}})
    parts: list[StreamPart] = [StepStart(0), start, TextDelta("t", "No."), TextEnd("t")]
    parts += [StepFinish(0, "content-filter", USAGE), Finish("content-filter", USAGE, "refusal")]
    (choice,) = completion(chat_chunks(parts, set()))["choices"]
    assert (choice["message"]["refusal"], choice["message"]["content"]) == ("No.", None)
    assert choice["finish_reason"] == "stop"


@requirement("R140")
def test_failed_run_ends_with_error():
    parts: list[StreamPart] = [TextStart("a"), TextDelta("a", "Fir"), Error("provider", "down", status=529)]
    parts += [TextEnd("a"), Finish("error", USAGE)]
    chat = ChatCompletionsEncoder(id="1", model="m", created=7)
    chunks = [chunk for part in parts for chunk in chat.feed(part)]
    assert chunks[-1]["choices"][0]["finish_reason"] is None
    assert chat.error is not None
    assert message_events(parts, set())[-1]["error"] == {"type": "overloaded_error", "message": "down"}


@requirement("R140")
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings: {RECORDINGS} is not there")
async def test_every_recording_is_valid_in_both_formats():
    count = 0
    for path in sorted(RECORDINGS.rglob("*.json")):
        recording = Recording.load(path)
        for run in replay(recording, ReplayTransport(recording)):
            parts = [part async for part in run]
            functions = {part.name for part in parts if isinstance(part, ToolCall) and not part.provider_executed}
            chunks = chat_chunks(parts, functions)
            events = message_events(parts, functions)
            text = "".join(part.delta for part in parts if isinstance(part, TextDelta))
            # Neither API takes anything back: a final text that is another follows what was streamed.
            text += "".join(part.text or "" for part in parts if isinstance(part, TextEnd))
            if text:
                content = completion(chunks)["choices"][0]["message"]["content"]
                assert content.replace("\n\n", "") == text.replace("\n\n", ""), path
                said = "".join(block.get("text", "") for block in message_of(events)["content"])
                assert said == text, path
            count += 1
    assert count > 100
