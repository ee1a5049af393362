"""Faults injected by a real server on loopback, as an agent sees them: a failure never looks like success."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from requirements import requirement
from sidestream.agent.agent import Agent
from sidestream.errors import (
    ProtocolError,
    ProviderError,
    RunError,
    StreamTimeoutError,
    StreamTruncatedError,
)
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.parts import Custom, Error, File, Finish, StreamPart, TextDelta, ToolCall, ToolResult
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    Keepalives,
    Reply,
    ResponsesScript,
    dropped,
    encode_events,
    error_reply,
    html_page,
    json_reply,
    no_leaks,
    pixel_png,
    responses_text,
    sse,
)
from sidestream.tools.server_side import CodeInterpreter
from sidestream.wire.http import HttpTransport
from sidestream.wire.retry import RetryPolicy
from support.waiting import eventually

QUICK = Limits(first_byte_timeout_s=5, idle_timeout_s=5)
AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
HELLO = responses_text(["Hel", "lo ", "world"])
CITED = {"type": "container_file_citation", "container_id": "cntr_1", "start_index": 0, "end_index": 4}


def agent_at(fake: FakeProvider, limits: Limits = QUICK, **settings: Any) -> Agent:
    return Agent(
        "openai-responses:gpt-5.6",
        base_url=fake.base_url,
        api_key="sk-canary-000000000000",
        transport=HttpTransport(retry=AT_ONCE),
        limits=limits,
        **settings,
    )


async def run_parts(agent: Agent, prompt: str = "hi", history: Sequence[ChatMessage] = ()) -> list[StreamPart]:
    async with agent.stream(prompt, history=history, errors="parts") as run:
        parts = [part async for part in run]
    grammar.check(parts)
    return parts


def ending(parts: list[StreamPart]) -> tuple[Error, Finish]:
    error, finish = parts[-2:]
    assert isinstance(error, Error)
    assert isinstance(finish, Finish)
    assert finish.reason == "error"
    return error, finish


def text_of(parts: list[StreamPart]) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


@requirement("F01", "R4")
@pytest.mark.parametrize("kept", range(1, len(HELLO)))
async def test_stream_ending_after_any_event_is_error_and_keeps_parts(kept: int) -> None:
    async with no_leaks(), FakeProvider([sse(HELLO[:kept])]) as fake:
        error, _ = ending(await run_parts(agent_at(fake)))
    assert error.kind == "truncated"


@requirement("F01")
async def test_send_raises_with_partial_message_when_stream_is_cut() -> None:
    async with FakeProvider([sse(HELLO[:6])]) as fake:
        with pytest.raises(StreamTruncatedError) as caught:
            await agent_at(fake).send("hi")
    assert caught.value.result is not None
    assert caught.value.result.output == "Hello "
    assert caught.value.result.messages[-1].text == "Hello "
    assert caught.value.result.messages[-1].metadata == {}
    assert caught.value.result.finish_reason == "error"


@requirement("F02")
async def test_reset_inside_event_is_error_and_drops_partial_event() -> None:
    body = encode_events(HELLO)
    middle = body.index(b'"lo "') + 3
    async with no_leaks(), FakeProvider([sse(HELLO, cut="reset", cut_after_bytes=middle)]) as fake:
        parts = await run_parts(agent_at(fake))
        assert len(fake.requests) == 1
    error, _ = ending(parts)
    assert error.kind == "truncated"
    assert text_of(parts) == "Hel"


@requirement("F02")
async def test_reset_before_any_event_is_retried_with_same_key() -> None:
    replies = [dropped(), sse(HELLO, cut="reset", cut_after_bytes=20), sse(HELLO)]
    async with FakeProvider(replies) as fake:
        parts = await run_parts(agent_at(fake))
        keys = {request.headers["idempotency-key"] for request in fake.requests}
    assert text_of(parts) == "Hello world"
    assert len(fake.requests) == 3
    assert len(keys) == 1


@requirement("F03")
@pytest.mark.parametrize("with_failed", [True, False])
async def test_provider_error_in_mid_stream_is_one_error_without_retry(with_failed: bool) -> None:
    error_event = {"type": "error", "code": "server_error", "message": "it broke", "param": None, "sequence_number": 90}
    tail = ResponsesScript().text(["Hel", "lo"]).failed("server_error", "it broke").events()[-1]
    events = [*HELLO[:5], error_event, *([{**tail, "sequence_number": 91}] if with_failed else [])]
    async with FakeProvider([sse(events), sse(HELLO)]) as fake:
        parts = await run_parts(agent_at(fake))
        assert len(fake.requests) == 1
    error, _ = ending(parts)
    assert (error.kind, error.code, error.retryable) == ("provider", "server_error", True)
    assert sum(isinstance(part, Error) for part in parts) == 1


@requirement("F04")
async def test_incomplete_response_keeps_only_finished_deliverables() -> None:
    script = ResponsesScript().image(pixel_png()).text("so far").incomplete()
    script.item({"type": "image_generation_call", "status": "generating", "result": None})
    async with FakeProvider([script.reply()]) as fake:
        result = await agent_at(fake).send("draw")
    assert result.finish_reason == "length"
    assert [file.name for file in result.files] == ["image_0.png"]


@requirement("F05")
@pytest.mark.parametrize(
    ("script", "raw"),
    [
        (ResponsesScript().refusal("I cannot."), "refusal"),
        (ResponsesScript().incomplete("content_filter"), "content_filter"),
    ],
)
async def test_refusals_and_filters_are_finish_reasons(script: ResponsesScript, raw: str) -> None:
    async with FakeProvider([script.reply()]) as fake:
        finish = (await run_parts(agent_at(fake)))[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.raw_reason) == ("content-filter", raw)


@requirement("F13")
async def test_invalid_json_arguments_are_not_run_and_model_is_told() -> None:
    executed: list[str] = []

    def delete_all(folder: str) -> str:
        """Deletes a folder."""
        executed.append(folder)
        return "done"

    replies = [
        ResponsesScript().function_call("delete_all", '{"folder": "/ho').reply(),
        ResponsesScript().text("Sorry.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        parts = await run_parts(agent_at(fake, tools=[delete_all]))
        second = fake.requests[1].json
    assert executed == []
    (call,) = [part for part in parts if isinstance(part, ToolCall)]
    assert call.input is None
    assert call.input_text == '{"folder": "/ho'
    (result,) = [part for part in parts if isinstance(part, ToolResult)]
    assert result.is_error
    assert second["input"][-1]["type"] == "function_call_output"
    assert "not executed" in second["input"][-1]["output"]
    assert text_of(parts) == "Sorry."


@requirement("F14")
async def test_image_event_of_20_mb_is_accepted() -> None:
    picture = pixel_png() + bytes(20_000_000)
    async with FakeProvider([ResponsesScript().image(picture).reply(chunk_sizes=65536)]) as fake:
        result = await agent_at(fake, Limits(max_retries=0)).send("draw")
    (part,) = [part for part in result.messages[-1].parts if isinstance(part, DataPart)]
    assert part.data == picture


@requirement("F14")
async def test_event_over_cap_is_protocol_error() -> None:
    async with no_leaks(), FakeProvider([responses_reply(200_000)]) as fake:
        with pytest.raises(ProtocolError) as caught:
            await agent_at(fake, Limits(max_event_bytes=50_000)).send("hi")
        await fake.wait_idle()
    assert caught.value.result is not None


def responses_reply(size: int) -> Reply:
    return sse([*HELLO[:5], {"type": "response.output_text.delta", "delta": "x" * size}, *HELLO[5:]])


@requirement("F15", "F22")
async def test_keep_alives_do_not_prevent_idle_timeout() -> None:
    limits = Limits(first_byte_timeout_s=5, idle_timeout_s=0.2)
    async with no_leaks(), FakeProvider([sse(HELLO[:6], keepalives=Keepalives(interval_s=0.01))]) as fake:
        parts = await run_parts(agent_at(fake, limits))
    error, _ = ending(parts)
    assert error.kind == "timeout"
    assert text_of(parts) == "Hello "


@requirement("F15", "F22")
@pytest.mark.parametrize("event", ["{}", "null", '""'])
async def test_empty_events_do_not_prevent_idle_timeout(event: str) -> None:
    limits = Limits(first_byte_timeout_s=5, idle_timeout_s=0.2, max_response_bytes=60_000)
    empty = Keepalives(frame=f"data: {event}\n\n".encode(), interval_s=0.001)
    async with no_leaks(), FakeProvider([sse(HELLO[:6], keepalives=empty)]) as fake:
        parts = await run_parts(agent_at(fake, limits))
    error, _ = ending(parts)
    assert (error.kind, error.code) == ("timeout", "idle")
    assert text_of(parts) == "Hello "


@requirement("F15")
async def test_endless_stream_stops_at_response_cap() -> None:
    endless = Keepalives(frame=encode_events([HELLO[4]]), interval_s=0)
    events = [{key: value for key, value in event.items() if key != "sequence_number"} for event in HELLO[:5]]
    async with no_leaks(), FakeProvider([sse(events, keepalives=endless)]) as fake:
        error, _ = ending(await run_parts(agent_at(fake, Limits(max_response_bytes=500_000))))
    assert error.kind == "limit"


@requirement("F22")
@pytest.mark.parametrize("status_first", [True, False])
async def test_stall_before_first_byte_is_timeout(status_first: bool) -> None:
    stalled = sse(HELLO, stall_after_bytes=0) if status_first else Reply(body=b"", stall_after_bytes=0)
    limits = Limits(first_byte_timeout_s=0.2, idle_timeout_s=5, max_retries=0)
    async with no_leaks(), FakeProvider([stalled]) as fake:
        with pytest.raises(StreamTimeoutError):
            await agent_at(fake, limits).send("hi")


@requirement("F22")
async def test_stall_between_events_is_timeout_and_keeps_parts() -> None:
    limits = Limits(first_byte_timeout_s=5, idle_timeout_s=0.2)
    async with no_leaks(), FakeProvider([sse(HELLO, stall_after_bytes=len(encode_events(HELLO[:6])))]) as fake:
        with pytest.raises(StreamTimeoutError) as caught:
            await agent_at(fake, limits).send("hi")
    assert caught.value.result is not None
    assert caught.value.result.output == "Hello "


@requirement("F16")
@pytest.mark.parametrize(
    "reply",
    [
        html_page(),
        json_reply({"error": {"message": "no credit", "code": "billing"}}),
        Reply(body="nope", content_type="text/plain"),
    ],
)
async def test_reply_without_model_answer_raises_with_status(reply: Reply) -> None:
    async with FakeProvider([reply]) as fake:
        with pytest.raises(ProviderError) as caught:
            await agent_at(fake).send("hi")
    assert caught.value.status == 200
    assert "canary" not in str(caught.value)


@requirement("R9")
async def test_non_streaming_reply_to_streamed_request_is_equal() -> None:
    script = ResponsesScript().text("Hello")
    async with FakeProvider([script.whole_reply(), script.reply()]) as fake:
        whole, streamed = await agent_at(fake).send("hi"), await agent_at(fake).send("hi")
    assert whole.output == streamed.output
    assert whole.messages == streamed.messages


@requirement("F24", "R43")
async def test_refused_session_falls_back_once_to_full_history() -> None:
    replies = [
        ResponsesScript(id="resp_1").text("Hello").reply(),
        error_reply(400, "previous_response_not_found", "Previous response with id 'resp_1' not found."),
        ResponsesScript(id="resp_2").text("Again").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = agent_at(fake)
        first = await agent.send("hi")
        parts = await run_parts(agent, "go on", first.messages)
        bodies = [request.json for request in fake.requests]
    assert bodies[1]["previous_response_id"] == "resp_1"
    assert len(bodies[1]["input"]) == 1
    assert "previous_response_id" not in bodies[2]
    assert len(bodies[2]["input"]) == 3
    assert [part.kind for part in parts if isinstance(part, Custom)] == ["sidestream.session-fallback"]
    assert text_of(parts) == "Again"


@requirement("F24")
async def test_second_session_refusal_is_raised() -> None:
    refusal = error_reply(400, "previous_response_not_found", "Previous response with id 'resp_1' not found.")
    async with FakeProvider([ResponsesScript(id="resp_1").text("Hello").reply(), refusal, refusal]) as fake:
        agent = agent_at(fake)
        first = await agent.send("hi")
        with pytest.raises(RunError) as caught:
            await agent.send("go on", history=first.messages)
    assert caught.value.code == "previous_response_not_found"


@requirement("R33", "F24")
async def test_expired_container_is_replaced_once_and_reported() -> None:
    replies = [
        error_reply(400, "invalid_request_error", "Container cntr_old is expired."),
        ResponsesScript().code_interpreter("1+1", logs="2", container_id="cntr_new").text("2").reply(),
    ]
    async with FakeProvider(replies) as fake:
        parts = await run_parts(agent_at(fake, server_side_tools=[CodeInterpreter(container_id="cntr_old")]))
        containers = [request.json["tools"][0]["container"] for request in fake.requests]
    assert containers[0] == "cntr_old"
    assert containers[1]["type"] == "auto"
    assert [part.kind for part in parts if isinstance(part, Custom)] == ["sidestream.container-replaced"]


@requirement("R40")
async def test_cited_files_are_downloaded_once_as_data_parts() -> None:
    citations = [
        {**CITED, "file_id": "cfile_a", "filename": "plot.png"},
        {**CITED, "file_id": "cfile_a", "filename": "plot.png", "end_index": 3},
        {**CITED, "file_id": "cfile_b", "filename": "table.csv"},
        {**CITED, "file_id": "cfile_c", "filename": "unused.png", "start_index": 4},
    ]
    script = ResponsesScript().code_interpreter("plot()", container_id="cntr_1").text("Done", annotations=citations)
    async with no_leaks(), FakeProvider([script.reply()]) as fake:
        fake.add_file("/v1/containers/cntr_1/files/cfile_a/content", pixel_png(), "application/octet-stream")
        fake.add_file("/v1/containers/cntr_1/files/cfile_b/content", b"x,y\n1,1\n", "application/octet-stream")
        result = await agent_at(fake).send("plot")
        downloads = [request.path for request in fake.requests if request.method == "GET"]
    assert sorted(downloads) == [f"/v1/containers/cntr_1/files/cfile_{x}/content" for x in "ab"]
    parts = [part for part in result.messages[-1].parts if isinstance(part, DataPart)]
    assert [(part.name, part.mime_type) for part in parts] == [("plot.png", "image/png"), ("table.csv", "text/csv")]
    events = [event for event in result.metadata["code_interpreter"] if "annotation" in event]
    assert [event["annotation"] for event in events] == citations


@requirement("R40")
async def test_downloads_run_concurrently_up_to_limit() -> None:
    names = [f"cfile_{x}" for x in "abcde"]
    citations = [{**CITED, "file_id": name, "filename": f"{name}.csv"} for name in names]
    gates = {name: asyncio.Event() for name in names}
    async with no_leaks(), FakeProvider([ResponsesScript().text("Done", annotations=citations).reply()]) as fake:
        for name, gate in gates.items():
            reply = Reply(body=name.encode(), content_type="text/csv", gate=gate)
            fake.on("GET", f"/v1/containers/*/files/{name}/content", reply)

        def fetched() -> list[str]:
            return [request.path.split("/")[-2] for request in fake.requests if request.method == "GET"]

        sending = asyncio.create_task(agent_at(fake, limits=Limits(max_parallel_downloads=2)).send("hi"))
        async with asyncio.timeout(30):
            for finished in range(len(names)):
                expected = min(finished + 2, len(names))
                await eventually(lambda expected=expected: len(fetched()) >= expected, pause_s=0)
                for _ in range(100):  # One more would have come by now.
                    await asyncio.sleep(0)
                assert len(fetched()) == expected
                gates[fetched()[finished]].set()
            result = await sending
    assert sorted(file.name or "" for file in result.files) == [f"{name}.csv" for name in names]


@requirement("R40")
async def test_failed_download_is_reported_and_answer_kept() -> None:
    citation = {**CITED, "file_id": "cfile_a", "filename": "plot.png"}
    async with FakeProvider([ResponsesScript().text("Done", annotations=[citation]).reply()]) as fake:
        fake.on("GET", "/v1/containers/*", error_reply(404, "not_found", "gone"))
        parts = await run_parts(agent_at(fake))
    (error,) = [part for part in parts if isinstance(part, Error)]
    assert (error.kind, error.status) == ("tool", 404)
    assert "plot.png" in error.message
    assert not [part for part in parts if isinstance(part, File)]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"
