"""The fake provider: a client gets the scripted replies, faults included, and nothing is left behind."""

import asyncio
import contextlib
import gc
import io
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.replay.transport import pieces
from sidestream.testing import (
    Answer,
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    Keepalives,
    LeakError,
    MessagesScript,
    Received,
    Recording,
    Reply,
    ResponsesScript,
    dropped,
    encode_events,
    error_reply,
    html_page,
    json_reply,
    no_leaks,
    pixel_png,
    recorded,
    responses_function_call,
    responses_text,
    sse,
)
from sidestream.wire.sse import Splitter

EVENTS = responses_text("Hello, world")
BODY = encode_events(EVENTS)
BOUND_S = 30.0


async def ask(fake: FakeProvider, path: str = "/responses", **options: object) -> tuple[int, str, bytes]:
    """Status, content type and body, as a client receives them."""
    async with aiohttp.ClientSession() as session:
        request = session.post(fake.base_url + path, **options)  # pyright: ignore[reportArgumentType]
        async with request as response:
            return response.status, response.headers["content-type"], await response.read()


async def read_until_broken(fake: FakeProvider) -> tuple[bytes, BaseException | None]:
    """The received part of a body, and the error that ended it."""
    read = bytearray()
    async with aiohttp.ClientSession() as session, session.post(fake.base_url) as response:
        try:
            async for data in response.content.iter_any():
                read += data
        except aiohttp.ClientError as error:
            return bytes(read), error
    return bytes(read), None


def events_of(body: bytes) -> list[dict[str, Any]]:
    splitter = Splitter(2**20)
    return [json.loads(event) for event in splitter.feed(body) + splitter.flush()]


@requirement("R93")
async def test_replies_are_given_in_order():
    script = [error_reply(503, "overloaded"), sse(EVENTS), json_reply([1, None])]
    async with no_leaks(), FakeProvider(script) as fake:
        status, content_type, body = await ask(fake)
        assert (status, content_type) == (503, "application/json")
        assert json.loads(body)["error"]["code"] == "overloaded"
        assert await ask(fake) == (200, "text/event-stream", BODY)
        assert await ask(fake) == (200, "application/json", b"[1,null]")
        assert fake.unexpected == []


@pytest.mark.parametrize(
    ("reply", "content_type", "body"),
    [
        (Reply(body=b"\x00\xff"), "application/octet-stream", b"\x00\xff"),
        (Reply(body="héllo"), "text/plain; charset=utf-8", "héllo".encode()),
        (Reply(body={"a": 1}), "application/json", b'{"a":1}'),
        (Reply(body=[{"type": "x"}, {"a": 1}, "[DONE]", b": raw\n\n"]), "text/event-stream",
         b'event: x\ndata: {"type":"x"}\n\ndata: {"a":1}\n\ndata: [DONE]\n\n: raw\n\n'),
        (Reply(body=b"{}", content_type="text/event-stream"), "text/event-stream", b"{}"),
    ],
)  # fmt: skip
async def test_body_is_sent_in_matching_form(reply: Reply, content_type: str, body: bytes):
    async with FakeProvider([reply]) as fake:
        assert await ask(fake) == (200, content_type, body)


async def test_status_and_headers_are_as_scripted():
    reply = error_reply(429, "slow_down", "wait", {"Retry-After": "7", "x-should-retry": "true"})
    async with FakeProvider([reply]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        assert response.status == 429
        assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("7", "true")


async def test_unnamed_status_and_bodyless_status_are_sent():
    script = [error_reply(529), Reply(status=204), json_reply(1)]
    async with FakeProvider(script) as fake, aiohttp.ClientSession() as session:
        for expected, beginning in ((529, b'{"error":'), (204, b""), (200, b"1")):
            async with session.post(fake.base_url) as response:
                assert response.status == expected
                assert (await response.read())[:9] == beginning
        assert fake.connections_total == 1


async def test_html_page_replaces_response():
    async with FakeProvider([html_page()]) as fake:
        status, content_type, body = await ask(fake)
        assert (status, content_type) == (200, "text/html; charset=utf-8")
        assert body.startswith(b"<!doctype html>")


@requirement("R93")
@pytest.mark.parametrize("sizes", [1, [3, 1, 50], 7, 10_000])
async def test_body_is_split_into_scripted_chunks(sizes: int | list[int]):
    chunks = [b""]
    async with FakeProvider([sse(EVENTS, chunk_sizes=sizes)]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        async for data, is_end_of_chunk in response.content.iter_chunks():
            chunks[-1] += data
            chunks += [b""] * is_end_of_chunk
    assert [chunk for chunk in chunks if chunk] == list(pieces(BODY, sizes))


@pytest.mark.parametrize(
    ("sizes", "expected"), [(None, [7]), (3, [3, 3, 1]), ([1, 2], [1, 2, 1, 2, 1]), ([], [7]), (9, [7])]
)
def test_pieces_have_given_sizes(sizes: int | list[int] | None, expected: list[int]):
    assert [len(piece) for piece in pieces(b"1234567", sizes)] == expected
    assert b"".join(pieces(b"1234567", sizes)) == b"1234567"


@requirement("R93")
@pytest.mark.parametrize("count", [0, 1, 100, len(BODY) - 1])
async def test_cut_closes_connection_without_end_of_body(count: int):
    async with no_leaks(), FakeProvider([sse(EVENTS, cut_after_bytes=count)]) as fake:
        read, error = await read_until_broken(fake)
        assert read == BODY[:count]
        assert isinstance(error, aiohttp.ClientPayloadError)
        await fake.wait_idle()


@requirement("R93")
async def test_cut_can_look_like_clean_end():
    async with FakeProvider([sse(EVENTS, cut_after_bytes=200, cut="end"), json_reply(1)]) as fake:
        assert await read_until_broken(fake) == (BODY[:200], None)
        assert await ask(fake) == (200, "application/json", b"1")


@requirement("R93")
async def test_reset_breaks_connection_inside_body():
    async with no_leaks(), FakeProvider([sse(EVENTS, cut_after_bytes=200, cut="reset")]) as fake:
        reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        await fake.wait_idle()


async def test_cut_without_position_comes_after_body():
    async with FakeProvider([sse(EVENTS[:3], cut="close")]) as fake:
        read, error = await read_until_broken(fake)
        assert events_of(read) == EVENTS[:3]
        assert isinstance(error, aiohttp.ClientPayloadError)


@requirement("R93")
async def test_stall_lasts_until_client_disconnects():
    reply = sse(EVENTS, stall_after_bytes=300)
    async with no_leaks(), FakeProvider([reply]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        assert await response.content.readexactly(300) == BODY[:300]
        more = asyncio.ensure_future(response.content.read(1))
        done, _ = await asyncio.wait([more], timeout=0.02)
        assert not done
        assert fake.connections_open == 1
        more.cancel()
        response.close()
        await fake.wait_idle()


async def test_stall_does_not_prevent_server_from_stopping():
    async with no_leaks():
        async with FakeProvider([sse(EVENTS, stall_after_bytes=0)]) as fake:
            reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@requirement("R93")
async def test_keepalives_are_sent_until_client_disconnects():
    reply = sse(EVENTS[:1], keepalives=Keepalives(interval_s=0.001))
    async with no_leaks(), FakeProvider([reply]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        first = encode_events(EVENTS[:1])
        expected = first + b": keep-alive\n\n" * 20
        assert await response.content.readexactly(len(expected)) == expected
        assert events_of(expected) == EVENTS[:1]
        response.close()
        await fake.wait_idle()


async def test_frame_is_repeated_as_fast_as_it_is_read():
    many = Keepalives(frame=b"data: {}\n\n", interval_s=0, count=2000)
    async with FakeProvider([sse([], keepalives=many)]) as fake:
        assert await ask(fake) == (200, "text/event-stream", b"data: {}\n\n" * 2000)


@requirement("R93")
async def test_gate_holds_first_byte():
    gate = asyncio.Event()
    async with FakeProvider([sse(EVENTS, gate=gate)]) as fake:
        asking = asyncio.ensure_future(ask(fake))
        await fake.wait_for_requests(1)
        done, _ = await asyncio.wait([asking], timeout=0.02)
        assert not done
        gate.set()
        assert await asking == (200, "text/event-stream", BODY)


async def test_unopened_gate_ends_when_client_disconnects():
    async with no_leaks(), FakeProvider([sse(EVENTS, gate=asyncio.Event())]) as fake:
        asking = asyncio.ensure_future(ask(fake))
        await fake.wait_for_requests(1)
        asking.cancel()
        await fake.wait_idle()


@pytest.mark.parametrize("sizes", [None, 5])
async def test_stream_can_wait_between_events(sizes: int | None):
    gate = asyncio.Event()
    reply = sse([*EVENTS[:2], gate, *EVENTS[2:]], chunk_sizes=sizes)
    async with FakeProvider([reply]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        head = encode_events(EVENTS[:2])
        assert await response.content.readexactly(len(head)) == head
        assert not response.content.at_eof()
        gate.set()
        assert head + await response.content.read() == BODY


@requirement("R93")
async def test_garbage_reply_is_not_http():
    async with no_leaks(), FakeProvider([Reply(garbage=b"\x16\x03 what?\r\n\r\n")]) as fake:
        with pytest.raises(aiohttp.ClientError):
            await ask(fake)
        await fake.wait_idle()


@pytest.mark.parametrize("cut", ["close", "reset"])
async def test_connection_can_be_dropped_before_response(cut: str):
    async with FakeProvider([dropped(cut), json_reply(1)]) as fake:  # pyright: ignore[reportArgumentType]
        with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
            await ask(fake)
        assert await ask(fake) == (200, "application/json", b"1")


async def test_upload_can_break_midway():
    async with no_leaks(), FakeProvider([Reply(cut_upload_after_bytes=1000)]) as fake:
        with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
            await ask(fake, data=io.BytesIO(b"x" * 20_000_000))
        (request,) = fake.requests
        assert request.body == b"x" * 1000


async def test_wrong_content_length_breaks_body():
    async with FakeProvider([Reply(body={"a": 1}, headers={"content-length": "100"}, cut="close")]) as fake:
        read, error = await read_until_broken(fake)
        assert read == b'{"a":1}'
        assert isinstance(error, aiohttp.ClientPayloadError)


@requirement("R93")
async def test_requests_are_recorded_as_received():
    async with FakeProvider([json_reply(1), json_reply(2)]) as fake, aiohttp.ClientSession() as session:
        await session.post(
            fake.base_url + "/responses?a=1&b=", json={"q": "ü"}, headers={"X-Key": "k", "Idempotency-Key": "i"}
        )

        async def chunked():
            yield b"one "
            yield b"two"

        await session.put(fake.base_url + "/files/a%20b", data=chunked())
        first, second = await fake.wait_for_requests(2)
    assert (first.method, first.path, first.query) == ("POST", "/v1/responses", {"a": "1", "b": ""})
    assert (first.headers["x-key"], first.headers["idempotency-key"]) == ("k", "i")
    assert first.json == {"q": "ü"}
    assert (second.method, second.path, second.body, second.json) == ("PUT", "/v1/files/a b", b"one two", None)
    assert second.headers["transfer-encoding"] == "chunked"


@requirement("R93")
async def test_request_beyond_script_gets_error_and_is_recorded():
    async with FakeProvider() as fake:
        status, _, body = await ask(fake)
        assert status == 500
        assert "no reply left in the script" in json.loads(body)["error"]["message"]
        assert fake.unexpected == fake.requests
        assert [request.path for request in fake.unexpected] == ["/v1/responses"]


@requirement("R93")
async def test_rules_are_permanent_and_precede_script():
    async with FakeProvider([json_reply("script")]) as fake:
        fake.on("POST", "/v1/files/*/content", json_reply("rule"))
        for path, expected in (("/files/a/content", "rule"), ("/files/b/content", "rule"), ("/x", "script")):
            assert json.loads((await ask(fake, path))[2]) == expected
        fake.on("POST", "/v1/files/a/*", json_reply("queued"), json_reply("done"))
        answers = [json.loads((await ask(fake, "/files/a/content"))[2]) for _ in range(3)]
        assert answers == ["queued", "done", "done"]


async def test_function_answers_from_request():
    def echo(request: Received) -> Reply:
        return json_reply(request.json, status=201)

    script: list[Answer] = [echo]
    async with FakeProvider(script) as fake:
        assert await ask(fake, json={"a": 1}) == (201, "application/json", b'{"a":1}')


async def test_raising_function_gives_client_500():
    def fail(request: Received) -> Reply:
        raise RuntimeError(f"cannot answer {request.path}")

    async with no_leaks(), FakeProvider([fail]) as fake, aiohttp.ClientSession() as session:
        response = await session.post(fake.base_url)
        assert response.status == 500
        assert "cannot answer /v1" in await response.text()


@requirement("R93")
async def test_files_are_served_at_their_paths():
    async with FakeProvider() as fake, aiohttp.ClientSession() as session:
        fake.add_file("/v1/containers/c/files/f[1]/content", pixel_png(), "image/png")
        for _ in range(2):
            async with session.get(fake.base_url + "/containers/c/files/f[1]/content") as response:
                assert response.headers["content-type"] == "image/png"
                assert response.content_length == len(pixel_png())
                assert await response.read() == pixel_png()
        async with session.head(fake.base_url + "/containers/c/files/f[1]/content") as response:
            assert response.status == 500  # The rule is for GET.
        fake.on("HEAD", "*", json_reply({}))
        async with session.head(fake.base_url) as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_connections_are_kept_alive_and_counted():
    async with FakeProvider([json_reply(n) for n in range(5)]) as fake:
        async with aiohttp.ClientSession() as session:
            for n in range(4):
                async with session.post(fake.base_url) as response:
                    assert await response.json() == n
            assert (fake.connections_open, fake.connections_total) == (1, 1)
        await fake.wait_idle()
        assert fake.connections_open == 0
        async with aiohttp.ClientSession() as session:
            async with session.post(fake.base_url, headers={"connection": "close"}) as response:
                assert await response.json() == 4
            await fake.wait_idle()


async def test_concurrent_clients_get_their_own_replies():
    async with no_leaks(), FakeProvider() as fake, aiohttp.ClientSession() as session:
        fake.on("POST", "/v1/*", lambda request: sse([*EVENTS, {"for": request.path}], chunk_sizes=64))

        async def one(n: int) -> object:
            async with session.post(f"{fake.base_url}/{n}") as response:
                return events_of(await response.read())[-1]["for"]

        assert await asyncio.gather(*map(one, range(50))) == [f"/v1/{n}" for n in range(50)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ],
)
async def test_invalid_request_gets_400(sent: bytes):
    async with no_leaks(), FakeProvider() as fake:
        reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()
        assert fake.requests == []


async def test_old_clients_get_bodies_without_chunks():
    async with FakeProvider([sse(EVENTS)]) as fake:
        reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
        writer.write(b"POST /v1/responses HTTP/1.0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == BODY
        writer.close()
        await writer.wait_closed()


async def test_client_expecting_100_continue_gets_it():
    async with FakeProvider([json_reply(1)]) as fake:
        assert await ask(fake, data=b"x" * 100_000, expect100=True) == (200, "application/json", b"1")
        assert len(fake.requests[0].body) == 100_000


@requirement("R93")
def test_fake_serves_sync_code_and_other_processes():
    program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], data=b'{}').read().decode())"
    threads = {*threading.enumerate()}  # Some of other tests may end meanwhile.
    with FakeProvider([sse(EVENTS), json_reply("other")]).in_thread() as fake:
        with urllib.request.urlopen(fake.base_url + "/responses", data=b"{}") as answer:
            assert answer.read() == BODY
        command = [sys.executable, "-c", program, fake.base_url]
        run = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
        assert run.stdout == '"other"\n'
        asyncio.run(fake.wait_idle())
        assert len(asyncio.run(fake.wait_for_requests(2))) == 2
        port = fake.port
    assert threads.issuperset(threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_gate_opens_from_other_thread():
    gate = asyncio.Event()
    with FakeProvider([json_reply(1, gate=gate)]).in_thread() as fake:
        timer = threading.Thread(target=lambda: (asyncio.run(fake.wait_for_requests(1)), fake.release(gate)))
        timer.start()
        with urllib.request.urlopen(fake.base_url) as answer:
            assert answer.read() == b"1"
        timer.join(BOUND_S)
        assert not timer.is_alive()


async def test_fake_listens_only_on_loopback():
    async with FakeProvider() as fake:
        server = fake._server  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        assert [bound.getsockname() for bound in server.sockets] == [("127.0.0.1", fake.port)]
        assert fake.base_url == f"http://127.0.0.1:{fake.port}/v1"


async def test_recording_is_served_over_http(recordings: Path):
    name = "openai-responses/v-openai-code-interpreter-tool.1-stream.json"
    recording = Recording.load(recordings / name)
    async with FakeProvider(recorded(recording)) as fake:
        assert await ask(fake) == (200, "text/event-stream", recording.exchanges[0].body_bytes())


@requirement("R93")
async def test_resource_outliving_its_block_is_leak():
    left: list[Any] = []
    with pytest.raises(LeakError, match="task"):
        async with no_leaks(rounds=3):
            left.append(asyncio.ensure_future(asyncio.Event().wait()))
    with pytest.raises(LeakError, match="socket"):
        async with no_leaks(rounds=3):
            left.append(socket.socket())
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    with pytest.raises(LeakError, match="forgotten"):
        async with no_leaks(rounds=3):
            thread.start()
    left[0].cancel()
    left[1].close()
    stop.set()
    thread.join(BOUND_S)
    assert not thread.is_alive()


async def test_ending_resource_is_not_leak():
    async with no_leaks():
        ending = asyncio.ensure_future(asyncio.sleep(0.001))
        threading.Thread(target=lambda: None).start()
    assert ending.done()


async def test_leak_does_not_hide_error_of_block():
    tasks: list[asyncio.Future[Any]] = []

    async def fail() -> None:
        async with no_leaks(rounds=1):
            tasks.append(asyncio.ensure_future(asyncio.Event().wait()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    tasks[0].cancel()


def everything() -> ResponsesScript:
    """One response with every kind of item that the builder knows."""
    citation = {"type": "url_citation", "url": "https://example.com", "title": "E", "start_index": 0, "end_index": 5}
    return (
        ResponsesScript(previous_response_id="resp_before")
        .reasoning("**First** thought", "second", encrypted_content="sealed")
        .web_search("news", sources=["https://example.com"])
        .file_search("a question", results=[{"file_id": "file-1", "filename": "a.txt", "score": 0.5, "text": "x"}])
        .code_interpreter("print(1)\n", logs="1\n", images=["https://example.com/plot.png"])
        .image(partials=2, revised_prompt="a dot")
        .mcp_list_tools("wiki", {"name": "ask", "input_schema": {}, "description": None, "annotations": None})
        .mcp_call("wiki", "ask", {"q": 1}, output="answer")
        .mcp_call("wiki", "ask", {"q": 2}, error={"type": "http_error", "code": 500, "message": "down"})
        .mcp_approval_request("wiki", "write", {"q": 3})
        .function_call("get_weather", {"city": "Oslo"}, "call_1")
        .item({"type": "compaction", "encrypted_content": "sealed"}, prefix="cmp")
        .refusal("I cannot")
        .text("Hello there", annotations=[citation], phase="final_answer")
    )


@requirement("R93")
@pytest.mark.parametrize("interleaved", [False, True])
def test_scripted_stream_adds_up_to_whole_response(*, interleaved: bool):
    script = everything()
    events = script.events(interleaved=interleaved)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1] == {
        "type": "response.completed", "sequence_number": len(events) - 1, "response": script.response()
    }  # fmt: skip
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert [done[index] for index in sorted(done)] == script.response()["output"]
    begun: set[object] = set()
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            begun.add(event["item"]["id"])
        assert event.get("item_id") in begun | {None}
    assert len(begun) == len(done)


def test_deltas_add_up_to_final_text():
    events = everything().events()
    for kind, whole in (
        ("output_text", "text"),
        ("refusal", "refusal"),
        ("function_call_arguments", "arguments"),
        ("mcp_call_arguments", "arguments"),
        ("code_interpreter_call_code", "code"),
        ("reasoning_summary_text", "text"),
    ):
        done = [event[whole] for event in events if event["type"] == f"response.{kind}.done"]
        deltas = [event["delta"] for event in events if event["type"] == f"response.{kind}.delta"]
        assert done
        assert "".join(deltas) == "".join(done)


def test_deltas_can_be_given_one_by_one():
    events = responses_text(["He", "", "llo\ud83d"])
    assert [event["delta"] for event in events if "delta" in event] == ["He", "", "llo\ud83d"]
    assert json.loads(encode_events(events).decode().splitlines()[-2][6:]) == events[-1]


def test_ids_are_deterministic_and_differ_between_responses():
    assert everything().events() == everything().events()
    first, second = responses_text("a"), responses_text("b")
    assert first[0]["response"]["id"] != second[0]["response"]["id"]
    assert first[2]["item"]["id"] != second[2]["item"]["id"]
    calls = ResponsesScript().function_call("f", {}).function_call("f", {}).response()["output"]
    assert calls[0]["call_id"] != calls[1]["call_id"]


@pytest.mark.parametrize(
    ("script", "status", "field"),
    [
        (ResponsesScript().text("cut sh").incomplete(), "incomplete", "incomplete_details"),
        (ResponsesScript().failed("server_error", "sorry"), "failed", "error"),
    ],
)
def test_response_can_end_badly(script: ResponsesScript, status: str, field: str):
    last = script.events()[-1]
    assert (last["type"], last["response"]["status"]) == (f"response.{status}", status)
    assert last["response"][field]


def test_function_call_is_made_in_one_line():
    events = responses_function_call("f", '{"broken', "call_9")
    item = events[-1]["response"]["output"][0]
    assert (item["name"], item["arguments"], item["call_id"]) == ("f", '{"broken', "call_9")


def test_scripted_events_have_fields_of_recorded_events(recordings: Path):
    seen: dict[tuple[str, str | None], set[str]] = {}
    for file in sorted(recordings.glob("openai-responses/v-*stream.json")):
        for exchange in Recording.load(file).exchanges:
            for event in events_of(exchange.body_bytes()) if exchange.is_stream else ():
                key = kind_of(event)
                seen[key] = seen[key] & event.keys() if key in seen else {*event}
    scripted = everything().events()
    known = [event for event in scripted if kind_of(event) in seen]
    assert len({kind_of(event) for event in known}) > 25
    for event in known:
        assert seen[kind_of(event)] - event.keys() - {"obfuscation"} == set(), event["type"]


def kind_of(event: dict[str, Any]) -> tuple[str, str | None]:
    return event["type"], event["item"]["type"] if "item" in event else None


async def test_vendor_client_reads_scripted_response():
    openai = pytest.importorskip("openai")
    script = everything()
    async with (
        no_leaks(),
        FakeProvider([error_reply(500), script.reply(chunk_sizes=100), script.whole_reply()]) as fake,
    ):
        async with openai.AsyncOpenAI(base_url=fake.base_url, api_key="k", max_retries=1) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            types = [event.type async for event in stream]
            assert types == [event["type"] for event in script.events()]
            whole = await client.responses.create(model="m", input="hi")
            assert whole.output_text == "Hello there"
        await fake.wait_idle()
    assert [request.json["input"] for request in fake.requests] == ["hi"] * 3


@requirement("R110")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("model", "script"),
    [
        ("openai-responses", ResponsesScript().text("Hello there")),
        ("openai:m", ChatScript().text("Hello there")),
        ("anthropic", MessagesScript().text("Hello there")),
        ("google", GeminiScript().text("Hello there")),
    ],
)
async def test_scripted_reply_has_requested_form(model: str, script: Any, stream: bool):
    base_path = "" if model == "google" else "/v1"
    async with FakeProvider([script.reply()], base_path=base_path) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key="k")
        result = await agent.send("hi", stream=stream)
        assert result.output == "Hello there"
        assert fake.requests[0].asks_for_stream is stream


@pytest.mark.parametrize("stream", [True, False])
async def test_scripted_interaction_has_requested_form(stream: bool):
    async with FakeProvider([InteractionScript().text("Hello there").reply()], base_path="") as fake:
        agent = Agent("google:interactions/gemini-test", base_url=fake.base_url, api_key="k")
        assert (await agent.send("hi", stream=stream)).output == "Hello there"


async def test_reply_faults_apply_without_streaming():
    async with FakeProvider(
        [ResponsesScript().text("Hello").reply(status=503, headers={"x-should-retry": "false"})]
    ) as fake:
        status, kind, _ = await ask(fake, json={"stream": False})
        assert (status, kind) == (503, "application/json")


async def test_failing_sandbox_code_can_be_scripted():
    block = MessagesScript().code_execution("1/0", stderr="ZeroDivisionError", return_code=1).response()["content"][1]
    assert block["content"]["return_code"] == 1


@requirement("R78")
@pytest.mark.parametrize(
    "reply",
    [
        sse(responses_text("Hello")),
        sse(responses_text("x" * 1_000_000)),
        sse(responses_text("Hello"), pace_s=0.001),
        sse(responses_text("Hello"), cut="reset"),
        sse([*responses_text("Hello")[:5], asyncio.Event()]),
    ],
    ids=["short", "long", "paced", "reset", "gated"],
)
async def test_run_cancelled_any_time_causes_no_server_error_in_loop(reply: Reply):
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    for turns in range(60):
        async with FakeProvider([reply]) as fake:
            running = asyncio.create_task(Agent("openai-responses", base_url=fake.base_url).send("hi"))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
        assert fake.connections_open == 0
    gc.collect()  # an exception that nobody has retrieved is reported when its task goes
    await asyncio.sleep(0)
    assert reports == []
