"""Clients that leave: by default their run continues, or, if the server is to, it is stopped with its last reader."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from requirements import requirement
from server.chat_client import paused, user
from sidestream import Agent
from sidestream.protocols.sse import HEARTBEAT
from sidestream.server import create_app
from sidestream.server.http.event_stream import EventStreamResponse
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.serving import OPEN, served

BODY = {"id": "c1", "messages": [user("Count.")]}


@asynccontextmanager
async def counting(path: Path, **settings: Any) -> AsyncGenerator[tuple[str, Any, aiohttp.ClientSession, Any]]:
    """A server whose next run pauses after its first word; the last value lets it continue."""
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789")
        app = create_app({"main": agent}, store=path / "talks.db", **{**OPEN, **settings})
        async with served(app) as url, aiohttp.ClientSession() as session:
            yield url, app.state.server, session, lambda: fake.release(gate)


async def until(response: aiohttp.ClientResponse, word: str) -> None:
    async for line in response.content:
        if word in line.decode():
            return


async def last_record(server: Any) -> str:
    """The kind of the last record, once no run is in progress."""
    kinds = [record.kind async for record in server.runs.follow("/c1")]
    return kinds[-1]


@requirement("F29", "R142")
@pytest.mark.parametrize("policy", ["detach", "cancel"])
async def test_last_subscriber_leaving_detaches_or_cancels_run(tmp_path: Path, policy: str):
    async with counting(tmp_path, on_disconnect=policy) as (url, server, session, release):
        async with session.post(f"{url}/api/chat", json=BODY) as first:
            await until(first, "One")
            async with session.get(f"{url}/api/chat/c1/stream") as second:
                await until(second, "One")
                first.close()
                # Somebody still reads: the run continues with either policy.
                async with session.get(f"{url}/api/runs") as listed:
                    ((run,),) = (await listed.json()).values()
                assert (run["chat"], run["api"], run["model"]) == ("c1", "chat", "main")
                assert run["cost"] >= 0
                second.close()
        if policy == "detach":
            release()
        assert await last_record(server) == ("finish" if policy == "detach" else "cancelled")
        async with session.get(f"{url}/api/runs") as listed:
            assert await listed.json() == {"runs": []}


@requirement("F29")
async def test_closing_server_leaves_no_run_it_was_about_to_stop(tmp_path: Path):
    async with (
        counting(tmp_path, on_disconnect="cancel") as (url, server, session, _),
        session.post(f"{url}/api/chat", json=BODY) as first,
    ):
        await until(first, "One")
    assert not server.runs._stopping
    assert not server.runs.live


@requirement("F30")
async def test_idle_stream_sends_padded_comments(tmp_path: Path):
    assert HEARTBEAT.startswith(b": ")
    assert HEARTBEAT.endswith(b"\n\n")
    assert HEARTBEAT.count(b"\n") == 2
    assert len(HEARTBEAT) == 2050

    gate = asyncio.Event()

    async def silent() -> AsyncGenerator[bytes]:
        yield b"one"
        await gate.wait()
        yield b"two"

    found: list[bytes] = []

    async def stay() -> Any:
        await asyncio.Event().wait()

    async def take(message: Any) -> None:
        found.append(message.get("body"))
        if len(found) == 5:
            gate.set()

    await EventStreamResponse(silent(), {}, 0.001)({"type": "http"}, stay, take)
    assert found[:5] == [None, b"one", HEARTBEAT, HEARTBEAT, HEARTBEAT]
    assert found[-2:] == [b"two", b""]


async def test_client_disconnect_or_stream_failure_closes_frames() -> None:
    ended: list[str] = []

    async def endless(failure: Exception | None = None) -> AsyncGenerator[bytes]:
        try:
            yield b"one"
            if failure is not None:
                raise failure
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # What is cleaned up may wait for something.
            ended.append("closed")

    sent, is_sent = [], asyncio.Event()

    async def take(message: Any) -> None:
        sent.append(message.get("body"))
        if message.get("body") == b"one":
            is_sent.set()

    async def leave() -> Any:
        await is_sent.wait()
        return {"type": "http.disconnect"}

    await EventStreamResponse(endless(), {})({"type": "http"}, leave, take)
    assert (sent, ended) == ([None, b"one"], ["closed"])

    async def stay() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="broken"):
        await EventStreamResponse(endless(ValueError("broken")), {})({"type": "http"}, stay, take)
    assert ended == ["closed", "closed"]
