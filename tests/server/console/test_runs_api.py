"""The records of a run over REST: every one of them once, in order, also while it streams; and the run as a file."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2

from requirements import requirement
from server.serving import JOB, KEY, agent_of, ended, serving
from sidestream.parts import part_from_json
from sidestream.server import create_app
from sidestream.server.console import runs_api
from sidestream.server.security import owner_name
from sidestream.store.records import Row
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, sse


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def replies() -> list[Any]:
    call = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")
    return [sse(call.events()), sse(ResponsesScript().text("It is 3.").events())]


def paused(script: ResponsesScript, gate: asyncio.Event, marker: str) -> list[Any]:
    events = script.events()
    index = next(i for i, event in enumerate(events) if marker in str(event.get("delta", "")))
    return [*events[: index + 1], gate, *events[index + 1 :]]


def text_of(records: list[dict[str, Any]]) -> str:
    parts = [part for record in records for part in record.get("parts", ())]
    return "".join(part["delta"] for part in parts if part["type"] == "text-delta")


@requirement("R143", "F30")
async def test_run_is_read_by_sequence_number_without_internal_data(tmp_path: Path):
    async with (
        FakeProvider(replies()) as fake,
        serving({"main": agent_of(fake, tools=[add])}, tmp_path) as (server, client),
    ):
        info = await server.runs.start(server.agent("main"), "/talk", "Add.", JOB)
        await ended(server, "/talk")
        whole = (await client.get(f"/api/runs/{info.id}/records")).json()
        numbers = [record["seq"] for record in whole["records"]]
        middle = numbers[len(numbers) // 2]
        rest = (await client.get(f"/api/runs/{info.id}/records", params={"after": middle})).json()
    assert whole["done"]
    assert (whole["run"]["id"], whole["run"]["chat"], whole["run"]["live"]) == (info.id, "talk", False)
    assert whole["run"]["model"] == "openai-responses:gpt-5.6"
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert [record["seq"] for record in rest["records"]] == [number for number in numbers if number > middle]
    kinds = [record["kind"] for record in whole["records"]]
    assert kinds[0] == "message"
    assert {"run-started", "tool-call", "tool-started", "tool-result", "step-finish", "finish"} <= set(kinds)
    assert text_of(whole["records"]) == "It is 3."
    assert "outcome" not in json.dumps(whole)


@requirement("R143")
async def test_damaged_log_is_omitted_from_active_runs(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    damaged = Row(seq=1, time=time.time(), run="run_0", kind="run-started", body=b"no JSON")
    async with (
        FakeProvider([sse(events)]) as fake,
        serving({"main": agent_of(fake)}, tmp_path) as (server, client),
    ):
        await server.store.append("/damaged", 0, [damaged])
        info = await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        listed = await client.get("/api/runs")
        fake.release(gate)
        await ended(server, "/talk")
    assert [run["id"] for run in listed.json()["runs"]] == [info.id]


@requirement("R143", "F30")
async def test_waiting_subscriber_gets_new_records_and_end(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two")
    async with FakeProvider([sse(events)]) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        info = await server.runs.start(server.agent("main"), "/talk", "Count.", JOB)
        seen: list[dict[str, Any]] = []
        done = False
        async with asyncio.timeout(60):
            while not done:
                after = seen[-1]["seq"] if seen else 0
                page = (await client.get(f"/api/runs/{info.id}/records", params={"after": after, "wait": 20})).json()
                seen += page["records"]
                done = page["done"]
                if "two" in text_of(seen):
                    fake.release(gate)
    assert text_of(seen) == "One, two, three."
    assert [record["seq"] for record in seen] == list(range(seen[0]["seq"], seen[-1]["seq"] + 1))


@requirement("R143")
async def test_long_run_is_read_in_pages(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(runs_api, "PAGE_ROWS", 3)
    async with (
        FakeProvider(replies()) as fake,
        serving({"main": agent_of(fake, tools=[add])}, tmp_path) as (server, client),
    ):
        info = await server.runs.start(server.agent("main"), "/talk", "Add.", JOB)
        await ended(server, "/talk")
        seen: list[int] = []
        done = False
        while not done:
            page = (await client.get(f"/api/runs/{info.id}/records", params={"after": seen[-1] if seen else 0})).json()
            assert len(page["records"]) <= 3
            seen += [record["seq"] for record in page["records"]]
            done = page["done"]
        assert seen == list(range(seen[0], seen[-1] + 1))
        assert len(seen) == len(await server.store.read("/talk"))


@requirement("R143")
async def test_run_is_hidden_from_other_tokens_and_bad_number_is_named(tmp_path: Path):
    tokens = ("token-of-anna-0123456789", "token-of-ben-0123456789")
    async with (
        FakeProvider(replies()) as fake,
        serving({"main": agent_of(fake, tools=[add])}, tmp_path, tokens=tokens) as (server, client),
    ):
        conversation = f"{owner_name(tokens[0])}/talk"
        info = await server.runs.start(server.agent("main"), conversation, "Add.", JOB)
        await ended(server, conversation)
        path = f"/api/runs/{info.id}/records"
        bens = {"Authorization": f"Bearer {tokens[1]}"}
        assert (await client.get(path)).status_code == 200
        assert (await client.get(path, headers=bens)).status_code == 404
        assert (await client.get(f"/api/runs/{info.id}/export", headers=bens)).status_code == 404
        for number in ("-1", "x", "1e3", "9" * 40):
            response = await client.get(path, params={"after": number})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "after")
        unknown = await client.get(f"/api/runs/{info.id}/export", params={"format": "exe"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "format")


@requirement("R143")
async def test_run_exports_as_parts_and_markdown_with_secrets_redacted(tmp_path: Path):
    secret = "sk-live-0123456789abcdefghijklmnop"
    script = ResponsesScript().text(f"Your key is {secret}.")
    async with (
        FakeProvider([*replies()[:1], sse(script.events())]) as fake,
        serving({"main": agent_of(fake, tools=[add])}, tmp_path) as (server, client),
    ):
        info = await server.runs.start(server.agent("main"), "/talk", "Add, then tell my key.", JOB)
        await ended(server, "/talk")
        parts = await client.get(f"/api/runs/{info.id}/export")
        text = await client.get(f"/api/runs/{info.id}/export", params={"format": "markdown"})
    for response in (parts, text):
        assert response.headers["content-disposition"].startswith("attachment")
        assert response.headers["x-sidestream-redacted"] == "1"
        assert secret not in response.text
        assert KEY not in response.text
    grammar.check([part_from_json(line) for line in parts.text.splitlines()])
    assert text.text.startswith("## You\n\nAdd, then tell my key.")
    assert "**add** (here)" in text.text
    assert "Your key is [redacted]" in text.text


@requirement("R144", "F46")
async def test_run_id_with_null_byte_is_not_found(postgres_url: str):
    app = create_app("local", store=postgres_url)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        for method, path in (("GET", "records"), ("GET", "export"), ("POST", "stop"), ("POST", "resume")):
            assert (await client.request(method, f"/api/runs/a%00b/{path}")).status_code == 404
