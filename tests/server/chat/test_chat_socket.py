"""The socket of chats: stopped before it has begun, closed at once, with frames that are none, with a token."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from requirements import requirement
from server.chat_client import Client, Json, chatting, paused, user
from sidestream import Agent
from sidestream.limits import MIB
from sidestream.server import create_app
from sidestream.server.chat.socket import MAX_REQUESTS
from sidestream.testing import FakeProvider, ResponsesScript, sse
from sidestream.text.redaction import Secret
from support.serving import served

SEND = {"type": "send", "requestId": "r1", "id": "c1", "trigger": "submit-message", "messages": [user("Count.")]}
TOKEN = "token-of-anna-0123456789"


def endless() -> list[object]:
    return [sse(paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One"))]


async def conversations(client: Client) -> list[Json]:
    return (await client.json("GET", "/api/conversations"))["conversations"]


@requirement("R141", "R142")
async def test_abort_sent_before_run_starts_cancels_it(tmp_path: Path):
    async with (
        FakeProvider(endless()) as fake,
        chatting(fake, tmp_path) as client,
        client.session.ws_connect(f"{client.url}/api/chat/ws") as socket,
    ):
        await socket.send_json(SEND)
        await socket.send_json({"type": "abort", "requestId": "r1"})
        while [chat["status"] for chat in await conversations(client)] != ["cancelled"]:
            pass
        await socket.send_json({"type": "resume", "requestId": "r2", "id": "c1"})
        assert await socket.receive_json() == {"type": "no-active", "requestId": "r2"}


@requirement("R141", "R142", "F29")
async def test_message_is_sent_when_socket_closes_at_once(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("One.").reply()]) as fake, chatting(fake, tmp_path) as client:
        async with client.session.ws_connect(f"{client.url}/api/chat/ws") as socket:
            await socket.send_json(SEND)
        while not await conversations(client):
            pass
        await client.stream()
        assert (await client.chat())["run"]["status"] == "complete"


@requirement("R144", "F46")
@pytest.mark.parametrize("text", ["[", "[" * 100_000, '"x"', '{"type": "' + "\u0436" * 200 + '", "requestId": "1"}'])
async def test_invalid_frame_closes_socket_with_reason(text: str, tmp_path: Path):
    async with FakeProvider([]) as fake, chatting(fake, tmp_path) as client:
        async with client.session.ws_connect(f"{client.url}/api/chat/ws") as socket:
            await socket.send_str(text)
            closed = await socket.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1003)
            assert closed.extra
        assert await client.json("GET", "/api/conversations")


@requirement("R144", "F46")
async def test_excess_request_fails_alone_and_binary_frame_ends_socket(tmp_path: Path):
    async with (
        FakeProvider(endless()) as fake,
        chatting(fake, tmp_path) as client,
        client.session.ws_connect(f"{client.url}/api/chat/ws") as socket,
    ):
        await socket.send_json(SEND)
        while "One" not in str(await socket.receive_json()):
            pass
        for number in range(MAX_REQUESTS):
            await socket.send_json({"type": "resume", "requestId": f"n{number}", "id": "c1"})
        errors: list[str] = []
        while not errors:
            frame = await socket.receive_json()
            errors += [frame["requestId"]] if frame["type"] == "error" else []
        assert errors == [f"n{MAX_REQUESTS - 1}"]
        await socket.send_json({"type": "abort", "requestId": "r1"})
        while (await socket.receive_json())["type"] not in ("end", "no-active"):  # As far as each has come.
            pass
        await socket.send_bytes(b"{}")
        while (closed := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1003)


@requirement("R141", "R144")
async def test_frame_may_be_as_large_as_http_body(tmp_path: Path):
    async with FakeProvider([]) as fake:
        app = create_app(Agent("openai-responses", base_url=fake.base_url, api_key=TOKEN), store=tmp_path / "talks.db")
        async with (
            served(app) as url,
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/api/chat/ws") as socket,
        ):
            resume = {"type": "resume", "requestId": "r1", "id": "c1", "body": {"more": "x" * (20 * MIB)}}
            await socket.send_json(resume)
            assert (await socket.receive_json())["type"] == "no-active"
            server = app.state.server
            server.settings = replace(server.settings, max_body_bytes=1000)
            await socket.send_json(resume)
            closed = await socket.receive()
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1003)


@requirement("R144", "F46")
async def test_socket_requires_token_and_accepts_it_in_url(tmp_path: Path):
    async with FakeProvider([]) as fake, chatting(fake, tmp_path, tokens=[Secret(TOKEN)]) as client:
        for query in ("", "?token=", "?token=wrong"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.session.ws_connect(f"{client.url}/api/chat/ws{query}")
            assert refused.value.status == 403
        async with client.session.ws_connect(f"{client.url}/api/chat/ws?token={TOKEN}") as socket:
            await socket.send_json({"type": "resume", "requestId": "r1", "id": "c1"})
            assert (await socket.receive_json())["type"] == "no-active"
        await client.json("GET", f"/api/conversations?token={TOKEN}", status=401)
