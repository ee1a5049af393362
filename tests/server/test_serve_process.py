"""`sidestream serve` as a user starts it: interrupted, killed, restarted, with clients in the middle of an answer."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.command import COMMAND, KEY
from requirements import requirement
from server.chat_client import paused, user
from sidestream.server.uvicorn_runner import GRACE_S
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.children import started
from support.serving import printed_address
from support.stores import BOUND_S

BODY = {"id": "c1", "messages": [user("Count.")]}

Json = Any


class Serve:
    """The process, its address, and the header with its token."""

    def __init__(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        self.process = process
        self.url, self.headers = printed_address(line)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.to_thread(self.process.wait, BOUND_S)


@asynccontextmanager
async def serve(fake: FakeProvider, path: Path, *options: str) -> AsyncGenerator[Serve]:
    variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": fake.base_url}
    variables |= {"XDG_CONFIG_HOME": str(path), "XDG_DATA_HOME": str(path)}
    arguments = ("serve", "-m", "openai-responses", "--port", "0", "--store", str(path / "talks.db"), *options)
    with (
        (path / "stderr").open("ab") as errors,
        started(*COMMAND, *arguments, stdout=-1, stderr=errors, env={**os.environ, **variables}, cwd=path) as process,
    ):
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        yield Serve(process, line)


async def chunks_of(response: aiohttp.ClientResponse, until: str | None = None) -> list[Json]:
    """The chunks of a stream to its end, or up to the first that holds this text."""
    found: list[Json] = []
    async for line in response.content:
        if line.startswith(b"data: {"):
            found.append(json.loads(line[6:]))
            if until is not None and until in str(found[-1].get("delta")):
                break
    return found


@requirement("R142", "R141")
async def test_killed_server_continues_answer_after_restart(tmp_path: Path):
    gate = asyncio.Event()
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    again = sse(ResponsesScript().text(["One, ", "two, ", "three."]).events())
    async with (
        asyncio.timeout(BOUND_S),
        FakeProvider([interrupted, again]) as fake,
        aiohttp.ClientSession() as session,
    ):
        async with (
            serve(fake, tmp_path) as server,
            session.post(f"{server.url}api/chat", headers=server.headers, json=BODY) as response,
        ):
            seen = await chunks_of(response, until="One")
            server.process.kill()
            await server.ended()
        async with serve(fake, tmp_path) as server:
            async with session.get(f"{server.url}api/chat/c1/stream", headers=server.headers) as response:
                if response.status == 200:  # Else the answer has ended before anyone could ask.
                    resumed = await chunks_of(response)
                    assert resumed[0]["messageId"] == seen[0]["messageId"]
                    assert "reset-step" in [chunk["type"] for chunk in resumed]
            async with session.get(f"{server.url}api/chat/c1", headers=server.headers) as response:
                chat = await response.json()
            assert [part["text"] for part in chat["messages"][-1]["parts"] if part["type"] == "text"] == [
                "One, two, three."
            ]
            assert chat["run"]["status"] == "complete"


@requirement("R142", "R144")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
async def test_interrupted_server_exits_cleanly_and_keeps_run(tmp_path: Path, name: str):
    gate = asyncio.Event()
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    async with (
        asyncio.timeout(BOUND_S),
        FakeProvider([interrupted, sse(ResponsesScript().text("One, two.").events())]) as fake,
        aiohttp.ClientSession() as session,
    ):
        async with (
            serve(fake, tmp_path) as server,
            session.post(f"{server.url}api/chat", headers=server.headers, json=BODY) as response,
        ):
            await chunks_of(response, until="One")
            server.process.send_signal(signal.Signals[name])
            code = await server.ended()
        assert code in (0, -signal.Signals[name], 128 + signal.Signals[name])
        said = (tmp_path / "stderr").read_text()
        assert "Traceback" not in said, said
        assert "ERROR" not in said, said
        async with serve(fake, tmp_path) as server:
            async with session.get(f"{server.url}api/chat/c1/stream", headers=server.headers) as response:
                await response.read()
            async with session.get(f"{server.url}api/chat/c1", headers=server.headers) as response:
                assert (await response.json())["run"]["status"] == "complete"


@requirement("R142", "R144")
async def test_waiting_requests_are_answered_when_server_stops(tmp_path: Path):
    interrupted = sse(paused(ResponsesScript().text(["One, ", "two."]), asyncio.Event(), "One"))
    async with (
        asyncio.timeout(BOUND_S),
        FakeProvider([interrupted]) as fake,
        aiohttp.ClientSession() as session,
        serve(fake, tmp_path) as server,
    ):
        async with session.post(f"{server.url}api/chat", headers=server.headers, json=BODY) as response:
            (start, *_) = await chunks_of(response, until="One")
        records = f"{server.url}api/runs/{start['messageMetadata']['run']}/records"
        async with session.get(records, headers=server.headers) as response:
            last = (await response.json())["records"][-1]["seq"]
        news = asyncio.create_task(session.get(records, headers=server.headers, params={"after": last, "wait": 25}))
        reader, writer = await half_a_request(server)
        server.process.send_signal(signal.SIGTERM)
        assert (await (await news).json())["records"] == []
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 503 Service Unavailable\r\n"
        assert await server.ended() == -signal.SIGTERM
        writer.close()
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said


async def half_a_request(server: Serve) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a server that reads a body and waits for the rest of it."""
    port = int(server.url.rstrip("/").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ["POST /api/chat HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Content-Length: 9"]
    lines += [f"{name}: {value}" for name, value in server.headers.items()]
    writer.write("\r\n".join([*lines, "Expect: 100-continue", "", "{"]).encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    return reader, writer


@requirement("F26", "R144")
async def test_second_interrupt_does_not_wait_for_closing(tmp_path: Path):
    async with asyncio.timeout(BOUND_S), FakeProvider([]) as fake, serve(fake, tmp_path) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        _, writer = await half_a_request(server)
        server.process.send_signal(signal.SIGINT)
        with suppress(ConnectionError):
            while True:  # Until it does not listen any more.
                _, other = await asyncio.open_connection("127.0.0.1", port)
                other.close()
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert await server.ended() == 130
        assert time.monotonic() - began < GRACE_S - 1
        writer.close()
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
