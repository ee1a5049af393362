"""The WebSocket of the Responses API, through the `openai` SDK and its session helper, and frame by frame."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

from requirements import requirement
from server.chat_client import paused
from server.response_client import ADD, Served, responding, said
from sidestream.server.responses import socket as responses_socket
from sidestream.testing import ResponsesScript, error_reply, sse
from support.response_events import StreamChecker

Json = Any
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Socket:
    """A socket, frame by frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, **frame: Json) -> None:
        await self.socket.send_str(json.dumps(frame))

    async def create(self, **body: Json) -> None:
        await self.send(type="response.create", model="main", **body)

    async def event(self) -> Json:
        return json.loads(await self.socket.receive_str())

    async def until(self, *kinds: str) -> list[Json]:
        """The events up to one of these types."""
        events = [await self.event()]
        while events[-1]["type"] not in kinds:
            events.append(await self.event())
        return events

    async def response(self) -> Json:
        """The next response, whose events are legal."""
        events = await self.until(*ENDS)
        checker = StreamChecker()
        for event in events:
            event.pop("stream_id", None)
            checker.feed(event)
        checker.end()
        return events[-1]["response"]


def opened(served: Served, session: aiohttp.ClientSession, **headers: str) -> Any:
    return session.ws_connect(f"{served.url}/v1/responses", headers=headers)


@requirement("R140")
async def test_sdk_creates_responses_over_socket(tmp_path: Path):
    async with responding(said("Hello.", "Again."), tmp_path) as served:
        async with served.client.responses.connect() as connection:
            await connection.response.create(model="main", input="Hi")
            kinds: list[str] = []
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.completed":
                    break
            first = event.response  # type: ignore[union-attr]
            assert kinds[0] == "response.created"
            await connection.response.create(model="main", input="Hi", previous_response_id=first.id)
            async for event in connection:
                if event.type == "response.completed":
                    break
            assert event.response.previous_response_id == first.id  # type: ignore[union-attr]
        assert (await served.client.responses.retrieve(first.id)).output_text == "Hello."  # It was stored.


@requirement("R140")
async def test_sdk_session_helper_routes_streams_and_messages(tmp_path: Path):
    gate = asyncio.Event()
    replies = [sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One")), *said("Quick.", "Steered.")]
    limits = ResponsesWebSocketLimits(
        max_lanes=4, max_events_per_lane=999, max_events=999, max_bytes_per_lane=1 << 20, max_bytes=1 << 20
    )
    async with (
        responding(replies, tmp_path) as served,
        served.client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        slow, quick = session.lane("slow"), session.lane("quick")
        await slow.send({"type": "response.create", "model": "main", "input": "Count."})
        event = await slow.recv()
        assert event.type == "response.created"
        id = event.response.id
        while event.type != "response.output_text.delta":
            event = await slow.recv()
        await quick.send({"type": "response.create", "model": "main", "input": "Hi"})
        assert (await quick.get_final_response()).output_text == "Quick."
        await slow.send({"type": "response.steer", "previous_response_id": id, "input": "Stop."})
        while event.type != "response.steer.accepted":
            event = await slow.recv()
        served.fake.release(gate)
        texts: list[str] = []
        while len(texts) < 2:
            event = await slow.recv()
            if event.type == "response.completed":
                texts.append(event.response.output_text)
        assert texts == ["One, two.", "Steered."]


@requirement("R140")
async def test_multiplexed_streams_run_in_parallel_and_keep_order(tmp_path: Path):
    gate = asyncio.Event()
    replies = [sse(paused(ResponsesScript().text(["Slow, ", "slow."]), gate, "Slow")), *said("Quick.", "After slow.")]
    async with (
        responding(replies, tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.create(input="1", stream_id="a")
        await socket.until("response.output_text.delta")
        await socket.create(input="2", stream_id="a")
        await socket.create(input="3")
        quick = await socket.until(*ENDS)
        assert all("stream_id" not in event for event in quick)
        assert quick[-1]["response"]["output"][0]["content"][0]["text"] == "Quick."
        served.fake.release(gate)
        slow, after = await socket.until(*ENDS), await socket.until(*ENDS)
        assert {event["stream_id"] for event in (*slow, *after)} == {"a"}
        texts = [events[-1]["response"]["output"][0]["content"][0]["text"] for events in (slow, after)]
        assert texts == ["Slow, slow.", "After slow."]


@requirement("R140")
async def test_unstored_response_is_known_only_to_its_socket(tmp_path: Path):
    replies = [*said("One.", "Two."), error_reply(400, "invalid_request_error", "bad"), *said("Three.")]
    async with responding(replies, tmp_path) as served, aiohttp.ClientSession() as session:
        async with opened(served, session) as raw:
            socket = Socket(raw)
            await socket.create(input="1", store=False)
            one = await socket.response()
            await socket.create(input="2", store=False, previous_response_id=one["id"])
            two = await socket.response()
            assert two["previous_response_id"] == one["id"]
            second = served.fake.requests[1].json
            assert (second["store"], len(second["input"])) == (False, 3)  # The provider stores nothing either.
            async with opened(served, session) as another:
                await Socket(another).create(input="?", previous_response_id=two["id"])
                error = await Socket(another).event()
                assert (error["status"], error["error"]["code"]) == (404, "previous_response_not_found")
            await socket.create(input="3", store=False, previous_response_id=two["id"])
            assert [event["type"] for event in await socket.until("response.failed")][-2] == "error"
            await socket.create(input="3", store=False, previous_response_id=two["id"])  # Evicted.
            assert (await socket.event())["error"]["code"] == "previous_response_not_found"
            conversation = served.server.store.conversation((await served.server.store.conversations())[0].id)
        while await conversation.records():  # The server learns of the end after us.
            pass


@requirement("R140", "R142")
async def test_stored_response_outlives_its_socket(tmp_path: Path):
    gate = asyncio.Event()
    reply = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    async with responding([reply], tmp_path) as served, aiohttp.ClientSession() as session:
        async with opened(served, session) as raw:
            socket = Socket(raw)
            await socket.create(input="Count.")
            created = (await socket.until("response.output_text.delta"))[0]
        served.fake.release(gate)
        events = [
            event async for event in await served.client.responses.retrieve(created["response"]["id"], stream=True)
        ]
        assert events[-1].type == "response.completed"


@requirement("R140")
async def test_steering_message_creates_successor_response(tmp_path: Path):
    gate = asyncio.Event()
    replies = [sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One")), *said("Steered.", "Next.")]
    async with (
        responding(replies, tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.create(input="Count.", stream_id="a")
        events = await socket.until("response.output_text.delta")
        id = events[0]["response"]["id"]
        await socket.send(type="response.steer", previous_response_id=id, input="Stop.")
        accepted = await socket.event()
        assert (accepted["type"], accepted["stream_id"]) == ("response.steer.accepted", "a")
        assert accepted["steer"]["previous_response_id"] == id
        served.fake.release(gate)
        events += await socket.until("response.completed")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        successor = await socket.response()
        assert successor["previous_response_id"] == id
        assert successor["output"][0]["content"][0]["text"] == "Steered."
        assert "Stop." in str(served.fake.requests[1].json["input"])
        for each, text in ((id, "One, two."), (successor["id"], "Steered.")):
            assert (await served.client.responses.retrieve(each)).output_text == text
        listed = await served.client.responses.input_items.list(successor["id"], order="asc")
        texts = [item.to_dict()["content"][0]["text"] for item in listed.data]  # type: ignore[index]
        assert texts == ["Count.", "One, two.", "Stop."]
        third = await served.client.responses.create(model="main", input="And?", previous_response_id=successor["id"])
        assert third.output_text == "Next."


@requirement("R140")
async def test_steering_message_waits_for_client_outputs(tmp_path: Path):
    gate = asyncio.Event()
    calling = ResponsesScript().text(["Adding", "."]).function_call("add", {"a": 1, "b": 2}, "c1")
    replies = [sse(paused(calling, gate, "Adding")), *said("3, in French: trois.")]
    async with (
        responding(replies, tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.create(input="Add.", tools=[ADD])
        id = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
        await socket.send(type="response.steer", previous_response_id=id, input="In French.")
        assert (await socket.event())["type"] == "response.steer.accepted"
        served.fake.release(gate)
        await socket.until("response.completed")
        pending = await socket.event()
        assert (pending["type"], pending["reason"]) == ("response.steer.pending", "waiting_for_required_input")
        assert pending["required_input"] == [{"type": "function_call_output", "call_id": "c1", "name": "add"}]
        output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
        await socket.create(input=[output], tools=[ADD], previous_response_id=id)
        assert (await socket.response())["output"][0]["content"][0]["text"] == "3, in French: trois."
        sent = served.fake.requests[1].json["input"]
        assert ["In French." in str(item) for item in sent].count(True) == 1


@requirement("R140")
async def test_undeliverable_steering_message_is_returned(tmp_path: Path):
    gate = asyncio.Event()
    reply = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    async with (
        responding([reply], tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.send(type="response.steer", previous_response_id="resp_0", input="Stop.")
        failed = await socket.event()
        assert (failed["type"], failed["error"]["code"]) == ("response.steer.failed", "response_not_active")
        assert failed["steer"] == {"previous_response_id": "resp_0", "input": "Stop."}
        await socket.create(input="Count.")
        id = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
        for wrong in (
            "",
            [],
            [{"role": "assistant", "content": "x"}],
            [{"type": "function_call_output", "call_id": "c", "output": ""}],
            7,
        ):
            await socket.send(type="response.steer", previous_response_id=id, input=wrong)
            failed = await socket.event()
            assert (failed["type"], failed["error"]["code"]) == ("response.steer.failed", "invalid_input"), wrong
        served.fake.release(gate)
        await socket.until("response.completed")


@requirement("R140")
async def test_response_without_output_prepares_next_one(tmp_path: Path):
    async with (
        responding(said("Papaya."), tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.create(input="Remember: papaya.", generate=False)
        prepared = await socket.response()
        assert (prepared["status"], prepared["output"]) == ("completed", [])
        assert not served.fake.requests
        await socket.create(input="Which?", previous_response_id=prepared["id"])
        await socket.response()
        assert "Remember: papaya." in str(served.fake.requests[0].json["input"])


@requirement("R140")
async def test_invalid_frame_leaves_socket_open(tmp_path: Path):
    async with (
        responding(said("Hi."), tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        for text, param, code in (
            ("{", None, "invalid_json"),
            ("[]", None, "invalid_json"),
            ('{"type": "nothing"}', "type", "unknown_event"),
            ('{"type": "response.create", "stream_id": "a b"}', "stream_id", "invalid_stream_id"),
            ('{"type": "response.create", "input": "Hi", "background": true}', "background", "unsupported_parameter"),
            ('{"type": "response.create", "input": "Hi", "temperature": 9}', "temperature", None),
            ('{"type": "response.create", "input": "Hi", "model": "nobody"}', "model", "model_not_found"),
        ):
            await raw.send_str(text)
            error = await socket.event()
            assert error["type"] == "error"
            assert (error["error"]["param"], error["error"]["code"]) == (param, code)
            assert error["status"] in (400, 404)
        await raw.send_bytes(
            json.dumps({"type": "response.create", "model": "main", "input": "Hi", "stream": True}).encode()
        )
        assert (await socket.response())["status"] == "completed"


@requirement("R140")
async def test_open_responses_dialect_rejects_http_fields_on_socket(tmp_path: Path):
    async with (
        responding(said("Hi."), tmp_path, server={"dialect": "open-responses"}) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        for field, value in (("stream", True), ("stream_options", {}), ("background", False)):
            await raw.send_json({"type": "response.create", "model": "main", "input": "Hi", field: value})
            error = (await socket.event())["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", field)
        await raw.send_json({"type": "response.create", "model": "main", "input": "Hi"})
        assert (await socket.response())["status"] == "completed"


@requirement("R140")
async def test_multiplexed_streams_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(responses_socket, "MAX_LANES", 2)
    async with (
        responding(said("1", "2"), tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        for lane in ("a", "b"):
            await socket.create(input="Hi", stream_id=lane)
            await socket.response()
        await socket.create(input="Hi", stream_id="c")
        assert (await socket.event())["error"]["code"] == "websocket_stream_limit_reached"


@requirement("R140")
async def test_socket_at_end_of_its_life_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(responses_socket, "MAX_LIFE_S", 0.05)
    async with (
        responding([], tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        error = (await Socket(raw).event())["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "websocket_connection_limit_reached")
        assert (await raw.receive()).type is aiohttp.WSMsgType.CLOSE
        assert raw.close_code == 1001


@requirement("R140")
async def test_failed_response_on_socket_has_nested_error(tmp_path: Path):
    reply = ResponsesScript().text("Fir").failed("server_error", "down").reply()
    async with (
        responding([reply], tmp_path) as served,
        aiohttp.ClientSession() as session,
        opened(served, session) as raw,
    ):
        socket = Socket(raw)
        await socket.create(input="Hi")
        events = await socket.until("response.failed")
        error = next(event for event in events if event["type"] == "error")
        assert (error["error"]["message"], error["status"]) == ("down", 500)
        assert "sequence_number" not in error["error"]


@requirement("R140")
async def test_responses_socket_requires_token(tmp_path: Path):
    async with (
        responding([], tmp_path, server={"tokens": ["secret-token-0123456789"]}) as served,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with opened(served, session):
                pass
        assert caught.value.status == 403
