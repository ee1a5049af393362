"""Results, chunks and messages as folds of one stream: both editions of the design as policies of the same events."""

import base64
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.messages.fold import MessageMetadata
from sidestream.messages.message import ChatMessage, DataPart, TextPart, ThinkingPart
from sidestream.messages.references import file_ids, with_file_references
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.replay.provider import ReplayModel
from sidestream.replay.recording import Exchange, RecordedRequest, RecordedResponse, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import ChatResult, ResultMetadata, fold
from sidestream.stream import grammar
from sidestream.testing import ResponsesScript, encode_events, pixel_png
from support.streams import stored

POLICIES: list[tuple[MessageMetadata, ResultMetadata]] = [
    ("session", "accumulated"),  # the later edition, the default
    ("full", "response"),  # the first edition
    ("summary", "accumulated"),
]
CODE = ['import math\nprint("', 'fib", math.pi)']
CITATION = {"type": "url_citation", "url": "https://a.example/", "title": "A", "start_index": 0, "end_index": 5}


def everything() -> ResponsesScript:
    """One response in which five tools work."""
    return (
        ResponsesScript()
        .reasoning(["I ", "think."])
        .web_search("dart news", sources=["https://a.example/"])
        .file_search("fib", results=[{"file_id": "file_1", "text": "1 1 2 3"}])
        .code_interpreter(CODE, logs="fib 3.14\n", container_id="cntr_1")
        .image(pixel_png(blue=7), partials=2)
        .text(["Hello", " world"], annotations=[CITATION])
    )


def agent_for(
    *scripts: ResponsesScript,
    tools: Any = (),
    message: MessageMetadata = "session",
    result: ResultMetadata = "accumulated",
) -> Agent:
    """An agent that plays these responses, one per request."""
    exchanges = tuple(
        Exchange(
            request=RecordedRequest(method="POST", path="/v1/responses", body={"stream": True}),
            response=RecordedResponse(
                status=200, content_type="text/event-stream", body=encode_events(script.events()).decode()
            ),
        )
        for script in scripts
    )
    recording = Recording(exchanges=exchanges)
    return Agent(
        ReplayModel("script", recording),
        transport=ReplayTransport(recording),
        tools=tools,
        message_metadata=message,
        result_metadata=result,
    )


async def chunks_of(agent: Agent, prompt: str = "hi") -> list[ChatResult[str]]:
    return [chunk async for chunk in agent.send_stream(prompt)]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def weather_agent() -> Agent:
    return agent_for(
        ResponsesScript().text(["Let me ", "look."]).function_call("get_weather", {"city": "Oslo"}),
        ResponsesScript().text(["It is ", "sunny."]),
        tools=[get_weather],
    )


@requirement("R10")
@pytest.mark.parametrize(("message", "result"), POLICIES)
async def test_send_equals_fold_of_send_stream(message: MessageMetadata, result: ResultMetadata) -> None:
    chunks = await chunks_of(agent_for(everything(), message=message, result=result))
    sent = await agent_for(everything(), message=message, result=result).send("hi")
    assert "".join(chunk.output for chunk in chunks) == sent.output == "Hello world"
    assert tuple(m for chunk in chunks for m in chunk.messages) == sent.messages
    assert fold(chunks, result) == sent


@requirement("R10", "R18")
async def test_later_message_starts_new_line_only_in_output() -> None:
    chunks = await chunks_of(weather_agent())
    sent = await weather_agent().send("hi")
    assert "".join(chunk.output for chunk in chunks) == sent.output == "Let me look.\nIt is sunny."
    assert [message.text for message in sent.messages if message.role == "model"] == ["Let me look.", "It is sunny."]
    assert tuple(m for chunk in chunks for m in chunk.messages) == sent.messages


@requirement("R18")
async def test_tool_round_before_text_adds_no_newline() -> None:
    scripts = [ResponsesScript().function_call("get_weather", {"city": "Oslo"}), ResponsesScript().text("Shipped!")]
    chunks = await chunks_of(agent_for(*scripts, tools=[get_weather]))
    sent = await agent_for(*scripts, tools=[get_weather]).send("hi")
    assert "".join(chunk.output for chunk in chunks) == sent.output == "Shipped!"


@requirement("R18")
@given(st.lists(st.lists(st.sampled_from(["", "a", "\n", "b\n"]), max_size=3), max_size=4), st.integers(0, 2))
def test_newlines_separate_only_non_empty_strings(messages: list[list[str]], first: int) -> None:
    """`first` is the step at which a resumed run begins."""
    folding = ChunkFold()
    output = ""
    for step, deltas in enumerate(messages, first):
        parts = [StepStart(step), TextStart("t"), *(TextDelta("t", delta) for delta in deltas), TextEnd("t")]
        output += "".join(chunk.output for part in parts for chunk in folding.feed(part))
        folding.feed(StepFinish(step, "stop", Usage()))
    assert output == "\n".join(filter(None, map("".join, messages)))


EVERY_PART: list[StreamPart] = [
    StreamStart(("temperature was left out",)),
    StepStart(0),
    ResponseMetadata("resp_1", "m"),
    ReasoningStart("r"),
    ReasoningDelta("r", "hm"),
    ReasoningEnd("r"),
    ToolInputStart("c", "code_interpreter", True),
    ToolInputDelta("c", '{"code":"1+1"}'),
    ToolInputEnd("c"),
    ToolCall("c", "code_interpreter", "code_interpreter", True, input={"code": "1+1"}),
    ToolEvent("code_interpreter", "running", {}, call_id="c"),
    ToolResult("c", "code_interpreter", "code_interpreter", {"outputs": []}, False, True),
    TextStart("t"),
    TextDelta("t", "two"),
    TextEnd("t"),
    Source("s", "url", url="https://a.example/", text_id="t", end=3),
    File("f", "text/plain", "a.txt", b"a"),
    Custom("sidestream.session-fallback", {"message": "sent again"}),
    Raw("p", {"type": "new"}),
    Steer("m", "accepted", "And then?"),
    ToolApprovalRequest("a", "c", "code_interpreter", {}),
    Error("tool", "a.png could not be downloaded"),
    StepFinish(0, "stop", Usage()),
    Finish("stop", Usage(), "completed"),
]


@requirement("R101")
def test_every_part_is_reachable_from_chunks_and_result() -> None:
    """Deltas are joined: text, thinking, and the input of a call."""
    assert {type(part) for part in EVERY_PART} == set(get_args(StreamPart))
    folding = ChunkFold()
    chunks = [chunk for part in EVERY_PART for chunk in folding.feed(part)]
    result = fold(chunks)
    joined = (TextDelta, ReasoningDelta)
    assert [part for chunk in chunks for part in chunk.parts] == [p for p in EVERY_PART if not isinstance(p, joined)]
    assert list(result.parts) == [p for p in EVERY_PART if not isinstance(p, (*joined, ToolInputDelta))]
    assert (result.output, result.thinking, result.code) == ("two", "hm", "1+1")


@requirement("R101")
def test_warnings_notices_errors_and_raw_parts_reach_result() -> None:
    folding = ChunkFold()
    chunks = [chunk for part in EVERY_PART for chunk in folding.feed(part)]
    result = fold(chunks)
    assert result.warnings == ["temperature was left out"] == chunks[0].warnings
    assert [notice.kind for notice in result.notices] == ["sidestream.session-fallback"]
    assert [error.message for error in result.errors] == ["a.png could not be downloaded"]
    assert [raw.event for raw in result.raw] == [{"type": "new"}]
    for name in ("notices", "errors", "raw"):
        assert [entry for chunk in chunks for entry in getattr(chunk, name)] == getattr(result, name)


@requirement("R101")
def test_fatal_error_is_not_in_result_errors() -> None:
    folding = ChunkFold()
    parts: list[StreamPart] = [StreamStart(()), Error("provider", "no"), Finish("error", Usage())]
    result = fold(chunk for part in parts for chunk in folding.feed(part))
    assert result.errors == []
    assert [part for part in result.parts if isinstance(part, Error)] == [parts[1]]


@requirement("R11")
async def test_result_holds_only_new_messages_starting_with_user() -> None:
    history = [ChatMessage.user("before"), ChatMessage.model("yes")]
    sent = await weather_agent().send("hi", history=history)
    assert [message.role for message in sent.messages] == ["user", "model", "tool", "model"]
    assert sent.messages[0] == ChatMessage.user("hi")
    assert sent.thinking == ""
    assert sent.finish_reason == "stop"
    assert sent.usage is not None
    assert sent.usage.input.total == 72
    assert sent.id is not None
    assert sent.id.startswith("resp_")


@requirement("R11")
async def test_chunks_carry_each_field_once_and_join_to_result() -> None:
    chunks = await chunks_of(agent_for(everything()))
    sent = await agent_for(everything()).send("hi")
    assert "".join(chunk.thinking for chunk in chunks) == sent.thinking == "I think."
    assert [chunk.id for chunk in chunks if chunk.id is not None] == [sent.id]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None] == ["stop"]
    assert [chunk.usage for chunk in chunks if chunk.usage is not None] == [sent.usage]
    assert chunks[-1].finish_reason == "stop"
    assert "".join(chunk.output for chunk in chunks) == sent.output


@requirement("R12")
@pytest.mark.parametrize(("message", "result"), POLICIES)
async def test_each_tool_event_is_separate_chunk(message: MessageMetadata, result: ResultMetadata) -> None:
    chunks = await chunks_of(agent_for(everything(), message=message, result=result))
    keys = {"web_search", "file_search", "code_interpreter", "image_generation"}
    events = [chunk for chunk in chunks if keys & chunk.metadata.keys()]
    assert len(events) == sum(_is_of_a_server_tool(event) for event in everything().events())
    for chunk in events:
        ((_, value),) = chunk.metadata.items()
        assert isinstance(value, list)
        assert len(value) == 1
        assert (chunk.output, chunk.messages, chunk.usage) == ("", (), None)


def _is_of_a_server_tool(event: dict[str, Any]) -> bool:
    kind = event.get("item", {}).get("type", event["type"])
    return any(name in kind for name in ("web_search", "file_search", "code_interpreter", "image_generation"))


@requirement("R13", "R14")
async def test_result_accumulates_events_in_arrival_order() -> None:
    sent = await agent_for(everything()).send("hi")
    expected: dict[str, list[Any]] = {}
    for event in everything().events():
        kind = event.get("item", {}).get("type", event["type"])
        for key in ("web_search", "file_search", "code_interpreter", "image_generation"):
            if key in kind:
                expected.setdefault(key, []).append(event)
    expected = with_file_references(expected, file_ids(sent.files))
    assert {key: sent.metadata[key] for key in expected} == expected
    assert sent.metadata["thinking"] == sent.thinking == "I think."
    assert sent.metadata["response_id"] == sent.id
    assert sent.metadata["model"] == "gpt-5.6"
    assert sent.metadata["status"] == "completed"
    assert [event["type"].rpartition(".")[2] for event in sent.metadata["web_search"]] == [
        "added",
        "in_progress",
        "searching",
        "completed",
        "done",
    ]


@requirement("R10", "R13")
@pytest.mark.parametrize("store", [True, False])
async def test_summaries_are_separate_in_thinking_and_details(store: bool) -> None:
    script = ResponsesScript(store=store).reasoning(["First ", "one."], "", ["", "Second."]).text("Hi")
    chunks = await chunks_of(agent_for(script))
    sent = await agent_for(script, message="full").send("hi")
    assert "".join(chunk.thinking for chunk in chunks) == sent.thinking == "First one.\n\nSecond."
    assert sent.metadata["thinking"] == sent.thinking
    texts = [entry["text"] for entry in sent.metadata["thinking_details"]]
    assert texts == ["First one.", "Second."]
    message = sent.messages[-1].metadata
    assert message["thinking"] == sent.thinking
    assert message["thinking_details"] == sent.metadata["thinking_details"]
    shown = [part for part in sent.messages[-1].parts if isinstance(part, ThinkingPart)]
    assert [{"id": part.id, "text": part.text} for part in shown] == message["thinking_details"]


@requirement("R20", "R21")
async def test_messages_hold_only_session_by_default() -> None:
    sent = await agent_for(everything()).send("hi")
    assert set(sent.messages[-1].metadata) == {"_responses_session", "_provenance"}
    assert sent.messages[-1].metadata["_responses_session"]["response_id"] == sent.id


@requirement("R20", "R21", "R22", "R23")
async def test_full_policy_keeps_events_thinking_and_summaries() -> None:
    sent = await agent_for(everything(), message="full", result="response").send("hi")
    assert set(sent.metadata) == {"response_id", "model", "status"}
    metadata = sent.messages[-1].metadata
    assert metadata["thinking"] == "I think."
    assert [event["type"].rpartition(".")[2] for event in metadata["image_generation"]] == [
        "added",
        "in_progress",
        "generating",
        "partial_image",
        "partial_image",
        "completed",
        "done",
    ]
    code = [event for event in metadata["code_interpreter"] if event["type"].endswith("code.delta")]
    assert [event["delta"] for event in code] == ["".join(CODE)]
    summary = metadata["code_interpreter"][-1]
    assert summary == {
        "type": "code_interpreter_call",
        "id": summary["id"],
        "code": "".join(CODE),
        "results": [{"type": "logs", "logs": "fib 3.14\n"}],
        "container_id": "cntr_1",
        "status": "completed",
    }
    found = metadata["file_search"][-1]
    assert {key: found[key] for key in ("type", "queries", "results", "status")} == {
        "type": "file_search_call",
        "queries": ["fib"],
        "results": [{"file_id": "file_1", "text": "1 1 2 3"}],
        "status": "completed",
    }
    assert "web_search_call" not in [event["type"] for event in metadata["web_search"]]


@requirement("R20", "R22")
async def test_summary_policy_keeps_summaries_without_events() -> None:
    sent = await agent_for(everything(), message="summary").send("hi")
    metadata = sent.messages[-1].metadata
    assert set(metadata) == {"_responses_session", "_provenance", "file_search", "code_interpreter"}
    assert [event["type"] for event in metadata["code_interpreter"]] == ["code_interpreter_call"]


@requirement("R23")
async def test_code_deltas_stream_one_by_one() -> None:
    chunks = await chunks_of(agent_for(everything()))
    events = [event for chunk in chunks for event in chunk.metadata.get("code_interpreter", [])]
    assert [event["delta"] for event in events if event["type"].endswith("code.delta")] == CODE


@requirement("R16")
@pytest.mark.parametrize(("message", "result"), POLICIES)
async def test_deliverables_are_parts_and_intermediate_events_metadata(
    message: MessageMetadata, result: ResultMetadata
) -> None:
    sent = await agent_for(everything(), message=message, result=result).send("hi")
    parts = sent.messages[-1].parts
    assert [type(part) for part in parts] == [ThinkingPart, DataPart, TextPart]
    image = next(part for part in parts if isinstance(part, DataPart))
    assert (image.data, image.mime_type, image.name) == (pixel_png(blue=7), "image/png", "image_4.png")
    session = sent.messages[-1].metadata["_responses_session"]
    assert base64.b64encode(image.data).decode() not in str(session)


@requirement("R17")
async def test_chunks_after_text_bring_other_parts_without_output() -> None:
    chunks = await chunks_of(agent_for(everything()))
    last_text = max(index for index, chunk in enumerate(chunks) if chunk.output)
    rest = chunks[last_text + 1 :]
    assert all(chunk.output == "" for chunk in rest)
    assert any(isinstance(part, DataPart) for chunk in rest for message in chunk.messages for part in message.parts)


@requirement("R17")
async def test_answer_without_text_brings_all_parts_in_messages() -> None:
    chunks = await chunks_of(agent_for(ResponsesScript().image(pixel_png(), partials=1)))
    assert "".join(chunk.output for chunk in chunks) == ""
    (model,) = [m for chunk in chunks for m in chunk.messages if m.role == "model"]
    assert [type(part) for part in model.parts] == [DataPart]


@requirement("R24")
@pytest.mark.parametrize(("message", "result"), POLICIES)
async def test_typed_accessors_do_not_depend_on_policy(message: MessageMetadata, result: ResultMetadata) -> None:
    sent = await agent_for(everything(), message=message, result=result).send("hi")
    assert [event.event for event in sent.raw_tool_events] == [
        e for e in everything().events() if _is_of_a_server_tool(e)
    ]
    assert [file.name for file in sent.files] == ["image_4.png"]
    assert [(source.url, source.start, source.end) for source in sent.sources] == [("https://a.example/", 0, 5)]
    assert sent.container_id == "cntr_1"


@requirement("R8", "R24")
async def test_usage_is_reported_per_step_and_once_in_total() -> None:
    async with weather_agent().stream("hi") as run:
        parts = [part async for part in run]
    grammar.check(parts)
    steps = [part.usage for part in parts if isinstance(part, StepFinish)]
    (total,) = [part.usage for part in parts if isinstance(part, Finish)]
    assert len(steps) == 2
    assert total.input.total == sum(usage.input.total for usage in steps)
    assert total.output.total == sum(usage.output.total for usage in steps)
    assert total.raw == {"steps": [usage.raw for usage in steps]}


async def test_stored_parts_fold_to_same_chunks() -> None:
    """A chunk fold of parts that were written to the log and read again is the same."""
    async with agent_for(everything()).stream("hi") as run:
        parts = [part async for part in run]
    again = [stored(part) for part in parts]
    first, second = ChunkFold(), ChunkFold()
    assert [first.feed(part) for part in parts] == [second.feed(part) for part in again]
    assert sum(isinstance(part, ToolEvent) for part in parts) > 10


@requirement("R42")
async def test_response_with_only_tool_work_keeps_its_session() -> None:
    sent = await agent_for(ResponsesScript(id="resp_1").code_interpreter("1+1", logs="2", container_id="cntr_1")).send(
        "hi"
    )
    assert sent.messages[-1].parts == ()
    assert sent.messages[-1].metadata["_responses_session"]["response_id"] == "resp_1"
    assert sent.messages[-1].metadata["_responses_session"]["container_id"] == "cntr_1"


def _plotting() -> ResponsesScript:
    """Code that draws an image, and an image with a preview."""
    plot = "data:image/png;base64," + base64.b64encode(pixel_png(red=9)).decode()
    code = ResponsesScript().code_interpreter(CODE, logs="drawn", images=[plot], container_id="cntr_1")
    return code.image(pixel_png(blue=7), partials=[pixel_png(blue=1)]).text("Done.")


@requirement("R13", "R16")
@pytest.mark.parametrize("message", ["session", "summary", "full"])
async def test_file_bytes_in_metadata_become_references(message: MessageMetadata) -> None:
    sent = await agent_for(_plotting(), message=message).send("Draw.")
    encoded = {file.id: base64.b64encode(file.data or b"").decode() for file in sent.files}
    assert encoded
    kept = [sent.metadata, *(each.metadata for each in sent.messages)]
    for file_id, text in encoded.items():
        assert all(text not in str(metadata) for metadata in kept)
        assert any(text in str(event.event) for event in sent.raw_tool_events), "the live event is unchanged"
        assert f"'$file': '{file_id}'" in str(sent.metadata)
        if message == "full":
            assert f"'$file': '{file_id}'" in str(sent.messages[-1].metadata)


@requirement("R16")
async def test_previews_stay_in_result_metadata() -> None:
    sent = await agent_for(_plotting()).send("Draw.")
    previews = [event for event in sent.metadata["image_generation"] if event["type"].endswith("partial_image")]
    assert [event["partial_image_b64"] for event in previews] == [base64.b64encode(pixel_png(blue=1)).decode()]
