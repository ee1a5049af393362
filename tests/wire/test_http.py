"""The transport against real servers on loopback: what it sends, what it hands on, and how it fails."""

import asyncio
import contextlib
import fcntl
import gzip
import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import termios
import threading
import traceback
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent
from sidestream.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectError,
    LimitError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
    RunError,
    SidestreamError,
    StreamTimeoutError,
    StreamTruncatedError,
)
from sidestream.limits import MIB, Limits
from sidestream.parts import TextDelta
from sidestream.testing import FakeProvider, Keepalives, encode_event, encode_events, responses_text, sse
from sidestream.text.redaction import MAX_SECRETS, redact, register_secret
from sidestream.transport.calls import HttpCall, HttpResponse
from sidestream.wire.http import MALLOC_VARIABLE, HttpTransport, close_session
from sidestream.wire.pool import shared_pool
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.stream import PAUSED_BYTES, WATCH_INTERVAL_S, EventStream
from support.waiting import eventually

LIMITS = Limits(first_byte_timeout_s=60, idle_timeout_s=60)
QUICK = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
NO_RETRY = Limits(max_retries=0, first_byte_timeout_s=60, idle_timeout_s=60)
END = b"0\r\n\r\n"
CANARY = "canary-4c1f9e77-secret"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection(NamedTuple):
    request: Request
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))
        await self.writer.drain()

    async def client_left(self) -> None:
        """Returns when the client closes the connection."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


@dataclass
class Server:
    url: str = ""
    requests: list[Request] = field(default_factory=list[Request])
    connections: int = 0

    def call(self, path: str = "/v1", **fields: object) -> HttpCall:
        return HttpCall(url=self.url + path, **{"body": b"{}", "stream": True, **fields})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def listen(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[int]:
    """A port on loopback; at the end nothing of its connections is left."""
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks[task] = writer
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            del tasks[task]

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task, writer in tasks.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def serve(*scripts: Script) -> AsyncGenerator[Server]:
    """A server that answers the nth request with the nth script, or with the last one."""
    served = Server()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            assert len(headers) == len(lines)  # none is there twice
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = first.split(" ")
            served.requests.append(Request(method, path, headers, body))
            script = scripts[min(len(served.requests), len(scripts)) - 1]
            await script(Connection(served.requests[-1], reader, writer))

    async with listen(handle) as port:
        served.url = f"http://127.0.0.1:{port}"
        yield served


def head(status: int = 200, kind: str | None = "text/event-stream; charset=utf-8", **headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind is not None:
        fields["Content-Type"] = kind
    lines = [f"HTTP/1.1 {status} Some Reason", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


def stream_head(**headers: str) -> bytes:
    return head(Transfer_Encoding="chunked", **headers)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(number: int) -> bytes:
    return b'event: delta\ndata: {"n": %d}\n\n' % number


def answer(status: int, kind: str | None, body: bytes, **headers: str) -> Script:
    async def script(connection: Connection) -> None:
        await connection.write(head(status, kind, Content_Length=str(len(body)), **headers), body)

    return script


def events_of(*numbers: int) -> Script:
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), *(chunk(event(number)) for number in numbers), END)

    return script


async def read(exchange: HttpResponse, numbers: list[int]) -> None:
    """Reads to the end, and keeps the events so far if the stream breaks."""
    while events := await exchange.events():
        numbers += [json.loads(event)["n"] for event in events]


async def numbers_of(exchange: HttpResponse) -> list[int]:
    numbers: list[int] = []
    await read(exchange, numbers)
    return numbers


async def whole(transport: HttpTransport, call: HttpCall, limits: Limits = LIMITS) -> list[int]:
    exchange = await transport.open(call, limits)
    try:
        return await numbers_of(exchange)
    finally:
        await exchange.aclose()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)


@pytest.fixture
def transport() -> HttpTransport:
    return HttpTransport(retry=QUICK)


# What is sent


async def test_call_is_sent_with_its_headers_and_defaults(transport: HttpTransport):
    async with serve(events_of(1)) as server:
        await whole(
            transport, server.call("/v1/x?alt=sse&q=a%2Fb", headers={"Authorization": "Bearer abc"}, body=b"[1]")
        )
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/x?alt=sse&q=a%2Fb", b"[1]")
    assert request.headers["authorization"] == "Bearer abc"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("sidestream/")
    assert len(request.headers["idempotency-key"]) >= 32
    assert "cookie" not in request.headers


async def test_caller_headers_override_defaults_in_any_case(transport: HttpTransport):
    mine = {"idempotency-key": "mine", "USER-AGENT": "mine", "accept": "mine", "content-type": "mine"}
    async with serve(answer(200, "application/json", b"{}")) as server:
        exchange = await transport.open(server.call(stream=False, headers=mine), LIMITS)
        await exchange.aclose()
    assert {name: server.requests[0].headers[name.lower()] for name in mine} == dict.fromkeys(mine, "mine")


async def test_changed_headers_are_sent_in_next_call(transport: HttpTransport):
    headers = {"authorization": "Bearer first"}
    async with serve(events_of(1)) as server:
        assert await whole(transport, server.call(headers=headers)) == [1]
        headers["authorization"] = "Bearer second"
        assert await whole(transport, server.call(headers=headers)) == [1]
        assert await whole(transport, server.call(headers=headers, method="GET", body=None)) == [1]
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", *["Bearer second"] * 2]
    assert ["content-type" in request.headers for request in server.requests] == [True, True, False]


async def test_repeatedly_used_key_stays_redacted(transport: HttpTransport):
    headers = {"authorization": f"Bearer {CANARY}"}
    async with serve(events_of(1)) as server:
        assert await whole(transport, server.call(headers=headers)) == [1]
        for number in range(2 * MAX_SECRETS):
            register_secret(f"another-secret-{number}")
        assert await whole(transport, server.call(headers=headers)) == [1]
    assert CANARY not in redact(f"the key {CANARY} is wrong")


async def test_non_streaming_call_asks_for_json(
    transport: HttpTransport,
):
    async with serve(answer(200, "application/json", b"{}")) as server:
        exchange = await transport.open(server.call(stream=False, method="GET", body=None), LIMITS)
        await exchange.aclose()
    assert server.requests[0].method == "GET"
    assert server.requests[0].headers["accept"] == "application/json"
    assert "content-type" not in server.requests[0].headers


async def test_large_body_arrives_complete(transport: HttpTransport):
    body = b"x" * (3 * MIB)
    async with serve(events_of(1)) as server:
        assert await whole(transport, server.call(body=body)) == [1]
    assert server.requests[0].body == body


async def test_connections_are_reused(transport: HttpTransport):
    async with serve(events_of(1, 2)) as server:
        for _ in range(3):
            assert await whole(HttpTransport(), server.call()) == [1, 2]
        assert len(server.requests) == 3
        assert server.connections == 1


async def test_cookies_are_not_kept(transport: HttpTransport):
    async with serve(answer(200, "application/json", b"{}", Set_Cookie="a=b")) as server:
        for _ in range(2):
            exchange = await transport.open(server.call(stream=False), LIMITS)
            await exchange.body()
    assert "cookie" not in server.requests[1].headers


async def test_key_with_line_break_is_refused_before_sending(transport: HttpTransport):
    call = HttpCall(url="http://127.0.0.1:1/", headers={"Authorization": f"Bearer {CANARY}\n"}, key_variable="SOME_KEY")
    with pytest.raises(ConfigurationError) as caught:
        await transport.open(call, LIMITS)
    assert "SOME_KEY" in str(caught.value)
    assert CANARY not in str(caught.value)


# What is handed on


async def test_events_are_delivered_as_they_arrive(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(x_request_id="r1"), chunk(b": hi\n\n" + event(1)[:9]), chunk(event(1)[9:]))
        await go_on.wait()
        await connection.write(chunk(event(2) + event(3)), END)

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert (exchange.status, exchange.is_stream, exchange.headers["X-Request-Id"]) == (200, True, "r1")
        assert await exchange.events() == [b'{"n": 1}']
        go_on.set()
        assert await numbers_of(exchange) == [2, 3]
        assert await exchange.events() == []
        await exchange.aclose()
        await exchange.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="streams are paused on Linux only")
async def test_events_received_during_pause_are_read_on_resume(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await go_on.wait()
        await connection.write(chunk(event(2)))
        await connection.write(chunk(event(3)))
        await connection.client_left()

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert isinstance(exchange, EventStream)
        assert await exchange.events() == [b'{"n": 1}']
        seen = exchange._content.total_bytes
        exchange.pause()
        assert exchange._paused is not None
        go_on.set()
        await eventually(lambda: _arrived(exchange._paused) >= len(chunk(event(2)) + chunk(event(3))), pause_s=0)
        assert exchange._content.total_bytes == seen
        exchange.resume()
        assert await exchange.events() == [b'{"n": 2}', b'{"n": 3}']
        await exchange.aclose()


def _arrived(connection: socket.socket) -> int:
    """How many bytes the system holds for it."""
    return struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0]


async def test_connection_paused_at_stream_end_is_reused(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await go_on.wait()
        large = b'data: {"n": 2, "text": "%s"}\n\n' % (b"x" * 2 * PAUSED_BYTES)
        await connection.write(chunk(large), chunk(event(3)), END)

    async with serve(script) as server:
        for _ in range(3):
            go_on.clear()
            exchange = await transport.open(server.call(), LIMITS)
            assert isinstance(exchange, EventStream)
            assert await exchange.events() == [b'{"n": 1}']
            exchange.pause()
            go_on.set()
            numbers = [json.loads(each)["n"] for each in await exchange.events()]
            exchange.resume()
            assert numbers + await numbers_of(exchange) == [2, 3]
            await exchange.complete()
        assert server.connections == 1


async def test_stream_without_events_ends_at_once(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(b": nothing\n\ndata: [DONE]\n\n"), END)

    async with serve(script) as server:
        assert await whole(transport, server.call()) == []


@requirement("F08")
async def test_last_event_without_blank_line_is_delivered(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)), chunk(event(2).rstrip()), END)

    async with serve(script) as server:
        assert await whole(transport, server.call()) == [1, 2]


async def test_compressed_stream_is_read(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        packed = gzip.compress(event(1) + event(2))
        await connection.write(stream_head(Content_Encoding="gzip"), chunk(packed[:20]), chunk(packed[20:]), END)

    async with serve(script) as server:
        assert await whole(transport, server.call()) == [1, 2]


@pytest.mark.parametrize("body", [b'{"id": "r1"}', b'{"error": null, "id": "r1"}', b"[]", b"not json", b""])
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json"])
async def test_non_streaming_body_of_stream_call_is_returned(transport: HttpTransport, body: bytes, kind: str):
    async with serve(answer(200, kind, body)) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert not exchange.is_stream
        assert await exchange.body() == body
        await exchange.aclose()
        assert await exchange.body() == body


async def test_non_streaming_response_opens_at_head_and_is_read_later(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(head(200, "application/json", Content_Length="4"), b"12")
        await go_on.wait()
        await connection.write(b"34")

    async with serve(script) as server:
        exchange = await transport.open(server.call(stream=False), LIMITS)
        assert not exchange.is_stream
        go_on.set()
        assert await exchange.body() == b"1234"
        assert await exchange.body() == b"1234"
        await exchange.aclose()


# What is refused


@requirement("F16")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<html>Please log in. api_key=" + CANARY.encode() + b"</html>" + b"x" * 10_000),
        ("text/plain", b"upstream says api_key=" + CANARY.encode()),
        (None, b""),
    ],
)
async def test_wrong_content_type_raises_with_start_of_body(transport: HttpTransport, kind: str | None, body: bytes):
    async with serve(answer(200, kind, body)) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(headers={"Authorization": f"Bearer {CANARY}"}), LIMITS)
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (200, "content-type", False)
    assert CANARY not in caught.value.message
    assert len(caught.value.message) < 700
    assert len(server.requests) == 1


@requirement("F16")
async def test_login_page_is_error_for_non_streaming_call(transport: HttpTransport):
    async with serve(answer(200, "text/html", b"<html>Please log in")) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(stream=False), LIMITS)
    assert "Please log in" in caught.value.message


@requirement("F16")
async def test_json_error_with_success_status_is_error(transport: HttpTransport):
    body = b'{"error": {"message": "No such model", "code": "model_not_found"}}'
    async with serve(answer(200, "application/json", body)) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(), LIMITS)
    assert (caught.value.status, caught.value.code) == (200, "model_not_found")
    assert "No such model" in caught.value.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ProviderError),
        (401, AuthenticationError),
        (403, AuthenticationError),
        (404, ProviderError),
        (422, ProviderError),
    ],
)
async def test_client_error_is_typed_and_not_retried(transport: HttpTransport, status: int, kind: type[ProviderError]):
    body = json.dumps({"error": {"message": f"bad {CANARY}", "code": "c"}}).encode()
    async with serve(answer(status, "application/json", body)) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(headers={"x-api-key": CANARY}, key_variable="SOME_KEY"), LIMITS)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (status, "c", False)
    assert ("SOME_KEY" in caught.value.message) == (kind is AuthenticationError)
    assert CANARY not in caught.value.message
    assert len(server.requests) == 1


async def test_only_start_of_endless_error_body_is_read(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(head(400, "text/plain", Transfer_Encoding="chunked"))
        while True:
            await connection.write(chunk(b"x" * 10_000))

    async with serve(script) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(), LIMITS)
    assert caught.value.status == 400


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "stalled"])
async def test_error_without_body_keeps_its_status(transport: HttpTransport, is_reset: bool):
    async def script(connection: Connection) -> None:
        await connection.write(head(400, "text/plain", Content_Length="100"), b"the start")
        if not is_reset:
            await connection.client_left()
        connection.writer.close()

    async with serve(script) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(), Limits(connect_timeout_s=0.2))
    assert caught.value.status == 400
    assert "the start" in caught.value.message


@pytest.mark.parametrize("location", ["https://user:pass@elsewhere.example/login?token=abc", "/login?token=abc", None])
async def test_post_redirect_is_not_followed_and_names_only_origin(transport: HttpTransport, location: str | None):
    headers = {} if location is None else {"Location": location}
    async with serve(answer(307, None, b"", **headers)) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(), LIMITS)
    assert (caught.value.status, caught.value.code) == (307, "redirect")
    assert "token" not in caught.value.message
    assert "pass" not in caught.value.message
    if location and location.startswith("https"):
        assert "https://elsewhere.example" in caught.value.message
    assert len(server.requests) == 1


# Retries


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_transient_failure_is_retried_with_same_key(transport: HttpTransport, status: int):
    failed = answer(status, "application/json", b"{}")
    async with serve(failed, failed, events_of(1, 2)) as server:
        assert await whole(transport, server.call()) == [1, 2]
        assert await whole(transport, server.call()) == [1, 2]
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


async def test_error_is_final_after_three_tries(transport: HttpTransport):
    async with serve(answer(503, "text/plain", b"no")) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.open(server.call(), LIMITS)
    assert (caught.value.status, caught.value.retryable) == (503, True)
    assert len(server.requests) == 3


@pytest.mark.parametrize("headers", [{"Retry-After-Ms": "1", "Retry-After": "100"}, {"Retry-After": "0.001"}])
async def test_requested_retry_wait_is_respected(headers: dict[str, str]):
    transport = HttpTransport(retry=RetryPolicy(wait_initial_s=3600, wait_max_s=3600))
    async with serve(answer(429, None, b"", **headers), events_of(1)) as server, asyncio.timeout(30):
        assert await whole(transport, server.call()) == [1]


@pytest.mark.parametrize(
    ("requested", "retry_after"), [("3600", 3600.0), ("inf", math.inf), ("Fri, 31 Dec 9999 00:00:00 GMT", None)]
)
async def test_too_long_retry_wait_fails_at_once(transport: HttpTransport, requested: str, retry_after: float | None):
    async with serve(answer(429, None, b"", Retry_After=requested)) as server, asyncio.timeout(30):
        with pytest.raises(RateLimitedError) as caught:
            await transport.open(server.call(), LIMITS)
    assert len(server.requests) == 1
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 120
    assert retry_after is None or caught.value.retry_after == retry_after


@pytest.mark.parametrize(("status", "override", "tries"), [(503, "false", 1), (400, "true", 3)])
async def test_server_header_overrides_retry_table(transport: HttpTransport, status: int, override: str, tries: int):
    async with serve(answer(status, None, b"", x_should_retry=override)) as server:
        with pytest.raises(ProviderError):
            await transport.open(server.call(), LIMITS)
    assert len(server.requests) == tries


@requirement("F02")
@pytest.mark.parametrize("before", [b"", stream_head(), stream_head() + chunk(b": hi\n\n" + event(1)[:15])])
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
async def test_connection_broken_before_first_event_is_retried(transport: HttpTransport, before: bytes, is_reset: bool):
    async def script(connection: Connection) -> None:
        await connection.write(before)
        if is_reset:
            connection.reset()
        else:
            connection.writer.close()

    async with serve(script, events_of(1, 2)) as server:
        assert await whole(transport, server.call()) == [1, 2]
    assert len(server.requests) == 2

    async with serve(script) as server:
        with pytest.raises(ConnectError) as caught:
            await transport.open(server.call(), LIMITS)
    assert (caught.value.code, caught.value.retryable) == ("reset", True)
    assert len(server.requests) == 3


@requirement("F02")
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
async def test_stream_broken_after_event_is_truncated(transport: HttpTransport, is_reset: bool):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1) + event(2)[:20]))
        await go_on.wait()
        if is_reset:
            connection.reset()
        else:
            connection.writer.close()

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert await exchange.events() == [b'{"n": 1}']
        go_on.set()
        for _ in range(2):
            with pytest.raises(StreamTruncatedError) as caught:
                await exchange.events()
        assert caught.value.code == "reset"
        await exchange.aclose()
    assert len(server.requests) == 1


@requirement("F02")
async def test_events_before_break_reach_late_consumer(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        for number in range(2, 50):
            await connection.write(chunk(event(number)))
        connection.writer.close()

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        # The break has reached aiohttp before the consumer reads the rest.
        await eventually(lambda: exchange._content.exception() is not None, pause_s=0)  # type: ignore[attr-defined]
        numbers: list[int] = []
        with pytest.raises(StreamTruncatedError):
            await read(exchange, numbers)
        assert numbers == list(range(1, 50))
        await exchange.aclose()


@pytest.mark.parametrize("garbage", [b"zz\r\nnot a chunk\r\n", b"-5\r\n"])
async def test_broken_framing_in_mid_stream_is_truncated_stream(transport: HttpTransport, garbage: bytes):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await go_on.wait()
        await connection.write(garbage)
        await connection.client_left()

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert await exchange.events() == [b'{"n": 1}']
        go_on.set()
        with pytest.raises(StreamTruncatedError):
            await exchange.events()
        await exchange.aclose()


@requirement("F15", "F22")
@pytest.mark.parametrize("rest", [b"", b"ff\r\n" + event(2)[:5], b"5"], ids=["whole", "half chunk", "half size"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
async def test_partial_event_then_silence_is_idle_timeout(transport: HttpTransport, is_first: bool, rest: bytes):
    async def script(connection: Connection) -> None:
        before = b"" if is_first else chunk(event(1))
        await connection.write(stream_head(), before + chunk(event(2)[:10]) + rest)
        await connection.client_left()

    limits = Limits(idle_timeout_s=0.05, max_retries=0)
    async with asyncio.timeout(30), serve(script) as server:
        with pytest.raises(StreamTimeoutError) as caught:
            await whole(transport, server.call(), limits)
    assert caught.value.code == "idle"


@requirement("F22")
async def test_partial_event_before_late_read_is_idle_timeout(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await connection.write(chunk(event(2)[:10]))
        await connection.client_left()

    async with asyncio.timeout(30), serve(script) as server:
        exchange = await transport.open(server.call(), Limits(idle_timeout_s=0.05, max_retries=0))
        arrived = len(event(1)) + 10
        await eventually(lambda: exchange._content.total_bytes >= arrived, pause_s=0)  # type: ignore[attr-defined]
        numbers: list[int] = []
        with pytest.raises(StreamTimeoutError):
            await read(exchange, numbers)
        assert numbers == [1]
        await exchange.aclose()


@requirement("F22", "F02")
@pytest.mark.parametrize("broken", [b"zz\r\n", b"-5\r\n", b"5\r\nabcdefgh\r\n"])
async def test_partial_event_then_broken_framing_is_connect_error(transport: HttpTransport, broken: bytes):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)[:10]) + broken)
        await connection.client_left()

    async with asyncio.timeout(30), serve(script) as server:
        with pytest.raises(ConnectError) as caught:
            await transport.open(server.call(), Limits(max_retries=0))
    assert caught.value.code == "reset"


@requirement("F22")
async def test_non_streaming_body_with_broken_framing_is_truncated(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(head(kind="application/json", Transfer_Encoding="chunked"), chunk(b'{"a": ') + b"zz\r\n")
        await connection.client_left()

    async with asyncio.timeout(30), serve(script) as server:
        response = await transport.open(server.call(stream=False), Limits(max_retries=0))
        with pytest.raises(StreamTruncatedError):
            await response.body()


@requirement("F22")
async def test_comments_before_first_event_do_not_start_idle_limit(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(b": one\n\n: two"))
        await go_on.wait()
        await connection.write(chunk(b"\n\n" + event(1)), END)

    async with asyncio.timeout(30), serve(script) as server:
        opening = asyncio.create_task(transport.open(server.call(), Limits(idle_timeout_s=0.01, max_retries=0)))
        await asyncio.wait([opening], timeout=0.2)
        assert not opening.done()
        go_on.set()
        exchange = await opening
        assert await exchange.events() == [b'{"n": 1}']
        await exchange.aclose()


@requirement("F02", "R2")
@pytest.mark.parametrize("packets", [1, 2], ids=["with the head", "after the head"])
async def test_events_in_packet_with_broken_framing_are_delivered(transport: HttpTransport, packets: int):
    async def script(connection: Connection) -> None:
        body = chunk(event(1)) + chunk(event(2)) + b"zz\r\nnot a chunk\r\n"
        if packets == 1:
            await connection.write(stream_head(), body)
        else:
            await connection.write(stream_head())
            await connection.write(body)
        await connection.client_left()

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        numbers: list[int] = []
        with pytest.raises(StreamTruncatedError):
            await read(exchange, numbers)
        assert numbers == [1, 2]
        await exchange.aclose()
    assert len(server.requests) == 1


@requirement("F02")
@pytest.mark.parametrize("sent", [b"", b": hi\n\n", event(1)[:20]], ids=["nothing", "comment", "half an event"])
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
async def test_unsized_body_ending_before_first_event_is_retried(transport: HttpTransport, sent: bytes, is_reset: bool):
    async def script(connection: Connection) -> None:
        await connection.write(head(), sent)
        if is_reset:
            connection.reset()
        else:
            connection.writer.close()

    async with serve(script, events_of(1, 2)) as server:
        assert await whole(transport, server.call()) == [1, 2]
    assert len(server.requests) == 2


async def test_unread_events_are_found_with_public_aiohttp_api():
    class PublicOnly:
        """A reader without aiohttp's private methods."""

        def __init__(self, inner: aiohttp.StreamReader) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._inner, name)

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)), chunk(event(2)))
        connection.writer.close()

    async with serve(script) as server:
        exchange = await HttpTransport(retry=QUICK).open(server.call(), LIMITS)
        exchange._content = PublicOnly(exchange._content)  # type: ignore[attr-defined]
        numbers: list[int] = []
        with pytest.raises(StreamTruncatedError):
            await read(exchange, numbers)
        assert numbers == [1, 2]
        await exchange.aclose()


async def test_cut_non_streaming_body_is_truncated(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(head(200, "application/json", Content_Length="100"), b"{")
        connection.writer.close()

    async with serve(script) as server:
        exchange = await transport.open(server.call(stream=False), LIMITS)
        with pytest.raises(StreamTruncatedError):
            await exchange.body()
        await exchange.aclose()


# Time


@requirement("F22")
@pytest.mark.parametrize("before", [b"", stream_head(), stream_head() + chunk(b": keep-alive\n\n" + event(1)[:15])])
async def test_stall_before_first_event_is_first_byte_timeout(transport: HttpTransport, before: bytes):
    async def script(connection: Connection) -> None:
        await connection.write(before)
        await connection.client_left()

    limits = Limits(first_byte_timeout_s=0.1, idle_timeout_s=60, max_retries=1)
    async with serve(script) as server, asyncio.timeout(30):
        with pytest.raises(StreamTimeoutError) as caught:
            await transport.open(server.call(), limits)
        # The server may read a request only after its time is over.
        await eventually(lambda: len(server.requests) >= 2)
    assert (caught.value.code, caught.value.retryable) == ("first-byte", True)
    assert len(server.requests) == 2


@requirement("F22")
async def test_stall_between_events_is_idle_timeout(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)), chunk(event(2)), chunk(event(3)[:9]))
        await connection.client_left()

    limits = Limits(first_byte_timeout_s=60, idle_timeout_s=0.1)
    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), limits)
        numbers: list[int] = []
        with pytest.raises(StreamTimeoutError) as caught:
            await read(exchange, numbers)
        assert numbers == [1, 2]
        assert caught.value.code == "idle"
        await exchange.aclose()
    assert len(server.requests) == 1


@requirement("F15")
@pytest.mark.parametrize(
    ("before", "trickle"),
    [
        (b"", b": keep-alive\n\n"),
        (b"", b"event: ping\n\n"),
        (b"", b"\n"),
        (b"data: ", b"x"),
    ],
    ids=repr,
)
async def test_only_data_resets_idle_timeout(transport: HttpTransport, before: bytes, trickle: bytes):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1) + before))
        while True:
            await connection.write(chunk(trickle))
            await asyncio.sleep(0)

    limits = Limits(first_byte_timeout_s=60, idle_timeout_s=0.2)
    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), limits)
        assert await exchange.events() == [b'{"n": 1}']
        with pytest.raises(StreamTimeoutError) as caught:
            await exchange.events()
        assert caught.value.code == "idle"
        await exchange.aclose()


@requirement("F15", "F22")
@pytest.mark.parametrize("pace_s", [0.0, 0.05, None], ids=["flood", "steady", "silence"])
async def test_comments_alone_time_out_at_idle_limit(transport: HttpTransport, pace_s: float | None):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        if pace_s is None:
            await connection.client_left()
        while pace_s is not None:
            await connection.write(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(pace_s)

    limits = Limits(first_byte_timeout_s=60, idle_timeout_s=1)
    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), limits)
        assert await exchange.events() == [b'{"n": 1}']
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(StreamTimeoutError):
            await exchange.events()
        assert 1 <= asyncio.get_running_loop().time() - started_s < WATCH_INTERVAL_S - 0.5
        await exchange.aclose()


@requirement("F15", "F22")
async def test_comment_flood_from_other_process_times_out(transport: HttpTransport):
    """Each time the timer looks, there is something to read."""
    flood = Keepalives(b": keep-alive\n\n" * 5000, interval_s=0)
    with FakeProvider([sse([event(1)], keepalives=flood)]).in_thread() as fake:
        exchange = await transport.open(
            HttpCall(url=fake.base_url, body=b"{}", stream=True), Limits(idle_timeout_s=0.3)
        )
        assert await exchange.events() == [b'{"n": 1}']
        async with asyncio.timeout(30):
            with pytest.raises(StreamTimeoutError):
                await exchange.events()
        await exchange.aclose()


@requirement("F15", "F22")
async def test_ignored_events_do_not_reset_idle_timeout(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        while True:
            await connection.write(chunk(event(2)))
            await asyncio.sleep(0.01)

    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), Limits(idle_timeout_s=0.2))

        async def ignore_all() -> None:
            while await exchange.events():
                exchange.ignored()

        with pytest.raises(StreamTimeoutError) as caught:
            await ignore_all()
        assert caught.value.code == "idle"
        await exchange.aclose()


@requirement("F15")
async def test_steady_stream_outlives_idle_timeout(transport: HttpTransport):
    loop = asyncio.get_running_loop()
    started_s = loop.time()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head())
        number = 0
        while loop.time() < started_s + 1.5:
            await connection.write(chunk(event(number)))
            number += 1
            await asyncio.sleep(0.01)  # the pace of a stream
        await connection.write(END)

    limits = Limits(first_byte_timeout_s=1, idle_timeout_s=1)
    async with serve(script) as server, asyncio.timeout(30):
        numbers = await whole(transport, server.call(), limits)
        assert numbers == list(range(len(numbers)))
        assert loop.time() > started_s + 1.4


@requirement("F22")
async def test_consumer_time_does_not_count_as_idle(transport: HttpTransport):
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await go_on.wait()
        await connection.write(chunk(event(2)), END)

    limits = Limits(first_byte_timeout_s=60, idle_timeout_s=0.3)
    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), limits)
        assert await exchange.events() == [b'{"n": 1}']
        waiting = asyncio.create_task(exchange.events())
        await asyncio.sleep(0)  # the watch has begun
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.4)  # a consumer slower than the timeout
        waiting = asyncio.create_task(exchange.events())
        await asyncio.sleep(0)
        go_on.set()
        assert await waiting == [b'{"n": 2}']
        await exchange.aclose()


async def test_stalled_non_streaming_body_is_timeout(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(head(200, "application/json", Content_Length="100"), b"{")
        await connection.client_left()

    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(stream=False), Limits(first_byte_timeout_s=0.2))
        with pytest.raises(StreamTimeoutError) as caught:
            await exchange.body()
        assert caught.value.code == "first-byte"


# Size


@requirement("F14")
async def test_huge_event_below_cap_is_delivered(transport: HttpTransport):
    data = b'{"b64": "' + b"A" * 20_000_000 + b'"}'

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(b"data: " + data + b"\n\n"), END)

    async with serve(script) as server:
        exchange = await transport.open(server.call(), LIMITS)
        assert await exchange.events() == [data]
        assert await exchange.events() == []
        await exchange.aclose()


@requirement("F14")
@pytest.mark.parametrize("first", [b"", event(1)], ids=["at once", "after an event"])
async def test_event_over_cap_closes_connection_with_bounded_memory(transport: HttpTransport, first: bytes):
    cap = 8 * MIB
    has_left = asyncio.Event()
    piece = chunk(b"A" * 16_384)

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(first + b"data: "))
        try:
            while True:
                await connection.write(piece)
        finally:
            has_left.set()

    async with serve(script) as server, asyncio.timeout(30):
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError) as caught:
                await whole(transport, server.call(), Limits(max_event_bytes=cap))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.code == "event-too-large"
        assert peak < 3 * cap
        await has_left.wait()
    assert len(server.requests) == 1


@requirement("F15")
async def test_endless_stream_hits_response_cap_with_flat_memory(transport: HttpTransport):
    has_left = asyncio.Event()
    batch = chunk(b"".join(event(number) for number in range(1000)))

    async def script(connection: Connection) -> None:
        await connection.write(stream_head())
        try:
            while True:
                await connection.write(batch)
        finally:
            has_left.set()

    limits = Limits(max_response_bytes=12 * MIB)
    async with serve(script) as server, asyncio.timeout(60):
        exchange = await transport.open(server.call(), limits)
        count = 0

        async def consume() -> None:
            nonlocal count
            while events := await exchange.events():
                count += len(events)

        tracemalloc.start()
        try:
            with pytest.raises(LimitError) as caught:
                await consume()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.code == "max_response_bytes"
        assert count > 280_000
        assert peak < 3 * MIB
        await has_left.wait()
        await exchange.aclose()


@requirement("F28")
async def test_sleeping_reader_pauses_server_but_not_other_runs():
    most = 64 * MIB
    sent, paused, go_on = 0, asyncio.Event(), asyncio.Event()
    opening = responses_text("Hello")
    place = next(at for at, known in enumerate(opening) if str(known["type"]).endswith("output_text.delta"))
    delta = encode_event({**opening[place], "delta": "x" * 4000, "sequence_number": None})

    async def endless(connection: Connection) -> None:
        """Sends until the client takes no more, and goes on when it does."""
        nonlocal sent
        connection.writer.transport.set_write_buffer_limits(0)
        await connection.write(stream_head(), chunk(encode_events(opening[:place])))
        while sent < most:
            connection.writer.write(chunk(delta))
            sent += len(delta)
            try:
                await asyncio.wait_for(connection.writer.drain(), 1)
            except TimeoutError:
                paused.set()
                await go_on.wait()
        paused.set()

    async def brief(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(encode_events(opening)), END)

    async with serve(endless, brief) as server, asyncio.timeout(30):
        agent = Agent("openai-responses", base_url=server.url, api_key="k", transport=HttpTransport())
        async with agent.stream("hi") as run:
            while not isinstance(await anext(run), TextDelta):
                pass
            tracemalloc.start()
            await paused.wait()
            held = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # What the kernel buffers is not ours; a buffer without a limit would take all.
            assert sent < most / 2
            assert held < 4 * MIB
            assert (await agent.send("hi")).output == "Hello"
            accepted = sent
            go_on.set()
            read_chars = 0
            while read_chars < 2 * accepted:
                part = await anext(run)
                assert isinstance(part, TextDelta)
                read_chars += len(part.delta)
        await close_session()


@pytest.mark.parametrize("stream", [True, False])
async def test_non_streaming_body_over_cap_is_limit_error(transport: HttpTransport, stream: bool):
    async with serve(answer(200, "application/json", b"x" * 2000)) as server:

        async def read_body() -> bytes:
            exchange = await transport.open(server.call(stream=stream), Limits(max_response_bytes=1999))
            return await exchange.body()

        with pytest.raises(LimitError) as caught:
            await read_body()
    assert caught.value.code == "max_response_bytes"
    assert len(server.requests) == 1


# No connection


async def test_closed_port_is_connect_error_after_all_tries(transport: HttpTransport, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "sidestream.wire")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectError) as caught:
            await transport.open(HttpCall(url=f"{origin}/v1?key={CANARY}"), LIMITS)
    assert (caught.value.code, caught.value.retryable) == ("connect", True)
    assert origin in caught.value.message
    assert CANARY not in caught.value.message + caplog.text
    assert caplog.text.count("retrying in") == 2


async def test_unknown_host_is_connect_error():
    class Nowhere(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET):
            raise OSError("Name or service not known")

        async def close(self) -> None: ...

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Nowhere())) as session:
        with pytest.raises(ConnectError) as caught:
            await HttpTransport(session, retry=QUICK).open(HttpCall(url="https://host.example/v1"), LIMITS)
        assert caught.value.code == "dns"
        assert not session.closed


async def test_plain_server_behind_https_is_tls_error(transport: HttpTransport):
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with listen(plain) as port:
        with pytest.raises(ConnectError) as caught:
            await transport.open(HttpCall(url=f"https://127.0.0.1:{port}/"), NO_RETRY)
    assert caught.value.code == "tls"


@pytest.mark.parametrize("is_pool_ours", [True, False], ids=["our session", "a session passed in"])
async def test_slow_connect_is_connect_error(is_pool_ours: bool):
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listen(silent) as port, aiohttp.ClientSession() as session, asyncio.timeout(30):
        transport = HttpTransport(None if is_pool_ours else session, retry=QUICK)
        limits = Limits(connect_timeout_s=0.1, max_retries=1)
        with pytest.raises(ConnectError) as caught:
            await transport.open(HttpCall(url=f"https://127.0.0.1:{port}/"), limits)
    assert caught.value.code == "connect-timeout"


async def test_connect_timeout_includes_dns_lookup(transport: HttpTransport):
    class Silent(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    connector: Any = (await shared_pool()).session.connector
    connector._resolver = Silent()
    limits = Limits(connect_timeout_s=0.1, first_byte_timeout_s=60, max_retries=0)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(ConnectError) as caught:
                await transport.open(HttpCall(url="http://host.example/"), limits)
    finally:
        await close_session()
    assert caught.value.code == "connect-timeout"


async def test_waiting_for_pooled_connection_is_not_connect_timeout():
    go_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await go_on.wait()
        await connection.write(END)

    async with (
        serve(script, events_of(2)) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        transport = HttpTransport(session, retry=QUICK)
        first = await transport.open(server.call(), NO_RETRY)
        limits = replace(NO_RETRY, connect_timeout_s=0.3)
        second = asyncio.create_task(whole(transport, server.call(), limits))
        await asyncio.wait([second], timeout=1)  # several times the connect timeout
        assert not second.done()
        go_on.set()
        assert await numbers_of(first) == [1]
        assert await second == [2]


async def test_server_not_speaking_http_is_protocol_error(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

    async with serve(script) as server:
        with pytest.raises(ProtocolError) as caught:
            await transport.open(server.call(), LIMITS)
    assert caught.value.code == "not-http"


@pytest.mark.parametrize("url", ["", "host/path", "ftp://host/", "http://", "http://[::1", "http://h:x/"])
async def test_invalid_url_is_refused(transport: HttpTransport, url: str):
    with pytest.raises(SidestreamError):
        await transport.open(HttpCall(url=url), NO_RETRY)


async def test_credentials_in_both_url_and_header_are_refused(transport: HttpTransport):
    call = HttpCall(url=f"http://user:{CANARY}@127.0.0.1:1/", headers={"Authorization": "Bearer abc"})
    with pytest.raises(ConfigurationError) as caught:
        await transport.open(call, LIMITS)
    assert CANARY not in str(caught.value)


# Proxies


async def test_environment_proxy_is_used_except_for_no_proxy_hosts(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
):
    async with serve(events_of(1)) as proxy, serve(events_of(2)) as server:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
        assert await whole(transport, HttpCall(url="http://host.example/v1?x=1", stream=True)) == [1]
        assert proxy.requests[0].path == "http://host.example/v1?x=1"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await whole(transport, server.call()) == [2]


@pytest.mark.parametrize("script", [answer(407, None, b""), answer(403, None, b"")])
async def test_refusing_proxy_is_named_without_password(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch, script: Script
):
    async with serve(script) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("//", f"//user:{CANARY}@"))
        with pytest.raises(ConnectError) as caught:
            await transport.open(HttpCall(url="https://host.example/v1", headers={"x-api-key": CANARY}), LIMITS)
        assert proxy.requests[0].method == "CONNECT"
        assert "proxy-authorization" in proxy.requests[0].headers
    assert caught.value.code == "proxy"
    assert caught.value.status in (403, 407)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


async def test_missing_proxy_is_connect_error(transport: HttpTransport, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", f"http://user:{CANARY}@127.0.0.1:1")
    with pytest.raises(ConnectError) as caught:
        await transport.open(HttpCall(url="http://host.example/v1"), LIMITS)
    assert caught.value.code == "proxy"
    assert CANARY not in "".join(traceback.format_exception(caught.value))


async def test_unsupported_proxy_scheme_is_configuration_error(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("all_proxy", f"socks5://user:{CANARY}@127.0.0.1:1")
    with pytest.raises(ConfigurationError) as caught:
        await transport.open(HttpCall(url="http://host.example/v1"), LIMITS)
    assert CANARY not in str(caught.value)


# Cancellation and sessions


@pytest.mark.parametrize("before", [b"", stream_head(), stream_head() + chunk(event(1))])
async def test_cancelling_closes_connection(transport: HttpTransport, before: bytes):
    has_come, has_left = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.write(before)
        has_come.set()
        await connection.client_left()
        has_left.set()

    async with serve(script) as server, asyncio.timeout(30):
        task = asyncio.create_task(whole(transport, server.call()))
        await has_come.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await has_left.wait()


async def test_closing_ends_wait_of_other_reader(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(stream_head(), chunk(event(1)))
        await connection.client_left()

    async with serve(script) as server, asyncio.timeout(30):
        exchange = await transport.open(server.call(), LIMITS)
        await exchange.events()
        task = asyncio.create_task(exchange.events())
        await asyncio.sleep(0)
        await exchange.aclose()
        with pytest.raises(StreamTruncatedError):
            await task


async def test_many_streams_run_concurrently(transport: HttpTransport):
    arrived = 0
    all_here = asyncio.Event()

    async def script(connection: Connection) -> None:
        nonlocal arrived
        await connection.write(stream_head(), chunk(event(1)))
        arrived += 1
        if arrived == 200:
            all_here.set()
        await all_here.wait()
        await connection.write(chunk(event(2)), END)

    async with serve(script) as server, asyncio.timeout(30):
        results = await asyncio.gather(*(whole(transport, server.call()) for _ in range(200)))
    assert results == [[1, 2]] * 200


async def test_given_session_is_used_and_not_closed():
    async with serve(events_of(1)) as server, aiohttp.ClientSession(headers={"X-Mine": "yes"}) as session:
        transport = HttpTransport(session)
        assert await whole(transport, server.call()) == [1]
        await close_session()
        assert not session.closed
        assert await whole(transport, server.call()) == [1]
        assert server.requests[0].headers["x-mine"] == "yes"
        await session.close()
        with pytest.raises(ConfigurationError):
            await transport.open(server.call(), LIMITS)


async def test_next_call_after_close_makes_new_session(transport: HttpTransport):
    async with serve(events_of(1)) as server:
        await close_session()
        for _ in range(2):
            assert await whole(transport, server.call()) == [1]
            await close_session()
            await close_session()
        assert server.connections == 2


def test_program_running_only_main_leaves_no_open_sockets():
    program = """
import asyncio, sys
from sidestream.transport.calls import HttpCall
from sidestream.limits import Limits
from sidestream.wire.http import HttpTransport

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is not what is tested
    exchange = await HttpTransport().open(HttpCall(url=sys.argv[1], body=b"{}", stream=True), Limits())
    assert await exchange.events() == [b"1"]
    assert await exchange.events() == []

for _ in range(2):
    asyncio.run(main())
"""

    def answer_twice(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                while not connection.recv(4096).endswith(b"{}"):
                    pass
                connection.sendall(stream_head() + chunk(b"data: 1\n\n") + END)
                connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=answer_twice, args=[listener])
        thread.start()
        done = subprocess.run(
            [
                sys.executable,
                "-X",
                "dev",
                "-W",
                "error",
                "-c",
                program,
                f"http://127.0.0.1:{listener.getsockname()[1]}/",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        thread.join(60)
        assert not thread.is_alive()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("setting", "is_taken"), [(None, True), ("0", False)])
def test_malloc_block_is_taken_at_first_request_unless_disabled(setting: str | None, is_taken: bool):
    program = """
import asyncio, tracemalloc
from sidestream.errors import ConnectError
from sidestream.limits import Limits
from sidestream.transport.calls import HttpCall
from sidestream.wire import http

async def main():
    call = HttpCall(url="http://127.0.0.1:1/", body=b"{}")
    transport = http.HttpTransport()
    for _ in range(2):
        tracemalloc.start()
        try:
            await transport.open(call, Limits(max_retries=0))
        except ConnectError:
            print(tracemalloc.get_traced_memory()[1] > 512 * 1024)
        tracemalloc.stop()
    await http.close_session()

asyncio.run(main())
"""
    environment = {name: value for name, value in os.environ.items() if name != MALLOC_VARIABLE}
    environment |= {} if setting is None else {MALLOC_VARIABLE: setting}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.split() == [str(is_taken), "False"]


def test_sockets_are_imported_only_with_transport():
    program = """
import sys
import sidestream, sidestream.text.redaction, sidestream.wire.sse
assert not {"aiohttp", "ssl"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


# Secrets


async def test_secrets_are_absent_from_errors_causes_and_log(
    transport: HttpTransport, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"error": {"message": f"key {CANARY} is bad", "code": CANARY}}).encode()
    headers = {"Authorization": f"Bearer {CANARY}"}

    async def closed(connection: Connection) -> None:
        connection.reset()

    for script in (answer(503, "application/json", body), answer(200, "text/html", body), closed):
        async with serve(script) as server:
            with pytest.raises(RunError) as caught:
                await transport.open(server.call(f"/v1?key={CANARY}", headers=headers), LIMITS)
        error = caught.value
        assert error.__context__ is None
        assert CANARY not in "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    records = "".join(repr(vars(record)) for record in caplog.records if record.name.startswith("sidestream"))
    assert "retrying in" in records
    assert CANARY not in records


# Downloads


async def test_download_is_get_and_returns_whole_body(transport: HttpTransport):
    body = bytes(range(256)) * 5000
    async with serve(answer(200, "image/png", body)) as server:
        call = server.call("/file%20a?sig=a%2Fb%7E", method="GET", body=None, headers={"Authorization": "Bearer abc"})
        assert await transport.download(call, LIMITS) == body
    (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/file%20a?sig=a%2Fb%7E")
    assert request.headers["authorization"] == "Bearer abc"


async def test_download_is_retried(transport: HttpTransport):
    async def cut(connection: Connection) -> None:
        await connection.write(head(200, "image/png", Content_Length="100"), b"half")
        connection.writer.close()

    async with serve(answer(503, None, b""), cut, answer(200, "image/png", b"bytes")) as server:
        assert await transport.download(server.call(method="GET", body=None), LIMITS) == b"bytes"
        assert len(server.requests) == 3


async def test_download_over_cap_is_limit_error_before_reading(transport: HttpTransport):
    left = asyncio.Event()

    async def endless(connection: Connection) -> None:
        await connection.write(head(200, "image/png", Transfer_Encoding="chunked"))
        while True:
            await connection.write(chunk(b"x" * 1000))

    async def announced(connection: Connection) -> None:
        await connection.write(head(200, "image/png", Content_Length="1000000000000"))
        await connection.client_left()
        left.set()

    for script in (endless, announced):
        async with serve(script) as server, asyncio.timeout(30):
            with pytest.raises(LimitError) as caught:
                await transport.download(server.call(), Limits(max_download_bytes=10_000))
            if script is announced:
                await left.wait()
        assert caught.value.code == "max_download_bytes"
        assert len(server.requests) == 1


async def test_stalled_download_is_timeout(transport: HttpTransport):
    async def script(connection: Connection) -> None:
        await connection.write(head(200, "image/png", Content_Length="100"), b"half")
        await connection.client_left()

    async with serve(script) as server, asyncio.timeout(30):
        with pytest.raises(StreamTimeoutError):
            await transport.download(server.call(), Limits(first_byte_timeout_s=0.1, max_retries=1))


async def test_refused_download_is_typed_error(transport: HttpTransport):
    async with serve(answer(401, None, b"")) as server:
        with pytest.raises(AuthenticationError):
            await transport.download(server.call(), LIMITS)


async def test_credentials_follow_redirects_only_within_origin():
    transport = HttpTransport(retry=QUICK, address_policy=lambda address: None)
    headers = {"Authorization": "Bearer abc", "X-Gateway-Pass": "abc", "User-Agent": "mine"}
    async with serve(answer(200, "image/png", b"bytes")) as elsewhere:
        target = answer(302, None, b"", Location=f"{elsewhere.url}/signed?sig=1")
        async with serve(answer(307, None, b"", Location="/next"), target) as server:
            assert await transport.download(server.call(headers=headers), LIMITS) == b"bytes"
    assert [request.path for request in server.requests] == ["/v1", "/next"]
    assert all(request.headers["x-gateway-pass"] == "abc" for request in server.requests)
    assert elsewhere.requests[0].path == "/signed?sig=1"
    assert elsewhere.requests[0].headers["user-agent"] == "mine"
    assert "abc" not in elsewhere.requests[0].headers.values()
    assert "authorization" not in elsewhere.requests[0].headers


async def test_more_than_five_redirects_are_not_followed(transport: HttpTransport):
    async with serve(answer(302, None, b"", Location="/again")) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.download(server.call(), LIMITS)
    assert caught.value.code == "too-many-redirects"
    assert len(server.requests) == 6


@pytest.mark.parametrize("location", ["ftp://host/x", "file:///etc/passwd", "http://[::1", ""])
async def test_redirect_to_other_scheme_is_refused(transport: HttpTransport, location: str):
    async with serve(answer(302, None, b"", Location=location)) as server:
        with pytest.raises(ProviderError) as caught:
            await transport.download(server.call(), LIMITS)
    assert caught.value.code == "redirect"
