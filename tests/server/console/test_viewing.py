"""The viewer of files: a log, a recording and a file of parts are shown as runs; anything else is refused."""

import asyncio
import os
import stat
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from html import unescape
from pathlib import Path

import httpx2
import pytest

from requirements import requirement
from server.serving import JOB, agent_of, ended, serving
from sidestream.cli.commands import demo
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage, DataPart, TextPart
from sidestream.server.console.viewing import open_file, view_app
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support import warm
from support.serving import printed_address
from support.waiting import eventually

RECORDING = Path(demo.__file__).parent / "web_search.json"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


@asynccontextmanager
async def viewing(path: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    app = view_app(await open_file(path), path.name)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client,
    ):
        yield client


@requirement("R143")
async def test_log_is_viewed_with_files_and_open_runs_are_untouched(tmp_path: Path):
    gate = asyncio.Event()
    events = ResponsesScript().text(["One, ", "two."]).events()
    replies = [sse(ResponsesScript().text("Seen.").events()), sse([*events[:5], gate, *events[5:]])]
    async with FakeProvider(replies) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, _):
        message = ChatMessage("user", (TextPart("Look."), DataPart(PNG, "image/png")))
        first = await server.runs.start(server.agent("main"), "/one", message, JOB)
        await ended(server, "/one")
        second = await server.runs.start(server.agent("main"), "/two", "Count.", JOB)
        before = (tmp_path / "talks.db").stat().st_size
        async with viewing(tmp_path / "talks.db") as client:
            found = (await client.get("/api/view")).json()
            records = (await client.get(f"/api/runs/{first.id}/records")).json()
            later = (await client.get(f"/api/runs/{first.id}/records", params={"after": 3})).json()["records"]
            picture = await client.get(f"/api/blobs/{sha256(PNG).hexdigest()}")
            unknown = await client.get("/api/runs/run_0/records")
            posted = await client.post("/api/chat", json={})
        assert (tmp_path / "talks.db").stat().st_size == before
        assert server.runs.live == {"/two": second.id}
        fake.release(gate)
        await ended(server, "/two")
    assert found["file"] == "talks.db"
    assert [run["id"] for run in found["runs"]] == [second.id, first.id]
    assert records["done"]
    assert [record["kind"] for record in records["records"]][:2] == ["message", "run-started"]
    assert [record["seq"] for record in later] == [record["seq"] for record in records["records"] if record["seq"] > 3]
    assert (picture.status_code, picture.content) == (200, PNG)
    assert (unknown.status_code, posted.status_code) == (404, 404)


@requirement("R143")
async def test_recording_is_viewed_as_runs():
    async with viewing(RECORDING) as client:
        found = (await client.get("/api/view")).json()
        run = found["runs"][0]
        records = (await client.get(f"/api/runs/{run['id']}/records")).json()["records"]
    assert found["file"] == "web_search.json"
    assert run["model"]
    kinds = [record["kind"] for record in records]
    assert (kinds[0], kinds[-1]) == ("stream-start", "finish")
    assert {"tool-call", "tool-event", "source", "text-delta"} <= set(kinds)


@requirement("R143")
async def test_parts_file_is_viewed_and_broken_line_is_named(tmp_path: Path):
    async with viewing(RECORDING) as client:
        run = (await client.get("/api/view")).json()["runs"][0]["id"]
        parts = [record["parts"][0] for record in (await client.get(f"/api/runs/{run}/records")).json()["records"]]
    file = tmp_path / "run.jsonl"
    file.write_bytes(b"\n".join(httpx2.Request("POST", "http://x", json=part).read() for part in parts))
    async with viewing(file) as client:
        found = (await client.get("/api/view")).json()["runs"]
        read = (await client.get(f"/api/runs/{found[0]['id']}/records")).json()["records"]
    assert [record["parts"][0] for record in read] == parts
    assert [(record["seq"], record["time"]) for record in read] == [(place, 0) for place in range(1, len(parts) + 1)]
    for content, hint in ((b'{"type":"finish"', "line 1"), (b"\xff\xfe", "file of parts"), (b"", "empty")):
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=hint):
            await open_file(file)
    with pytest.raises(ConfigurationError, match="cannot read"):
        await open_file(tmp_path / "missing.jsonl")


@requirement("R143")
async def test_view_prints_local_url_and_serves_until_stopped():
    process = await warm.start(
        sys.executable, "-m", "sidestream.cli", "view", str(RECORDING), "--no-browser", stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(60):
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            url, token = printed_address(address)
            async with httpx2.AsyncClient(base_url=url.partition("/view")[0], headers=token) as client:
                found = (await client.get("/api/view")).json()
                others = await client.get("/api/view", headers={"Authorization": ""})
                foreign = await client.get("/api/view", headers={"Host": "evil.test"})
            process.terminate()
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert address.startswith("http://127.0.0.1:")
    assert url.endswith("/view/web_search.json")
    assert others.status_code == 401
    assert found["file"] == "web_search.json"
    assert foreign.status_code == 421


@requirement("F48")
async def test_view_shows_token_only_to_browser(tmp_path: Path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opening\nmv {tmp_path}/opening {tmp_path}/opened\n')
    browser.chmod(0o755)
    folders = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    process = await warm.start(
        sys.executable, "-m", "sidestream.cli", "view", str(RECORDING),
        env={**os.environ, **folders, "BROWSER": str(browser)}, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            await eventually((tmp_path / "opened").exists)
            # Every user can read the arguments of a process.
            opened = (tmp_path / "opened").read_text().strip()
            page = Path(opened.removeprefix("file://"))
            assert address.partition("#token=")[2] not in opened
            assert stat.S_IMODE(page.stat().st_mode) == 0o600  # noqa: ASYNC240
            assert address in unescape(page.read_text())  # noqa: ASYNC240
            process.terminate()
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not page.exists()  # noqa: ASYNC240
