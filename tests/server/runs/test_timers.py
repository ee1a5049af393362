"""Messages that are sent later, approvals that expire, and what the server says of its runs and its engine."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.chat_client import paused
from server.serving import JOB, agent_of, serving
from sidestream.server.server import Server
from sidestream.store.records import Row
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.stores import BOUND_S

LOOK = ResponsesScript().function_call("look", {}, "c1")


def look() -> str:
    """Looks."""
    return "seen"


def question(text: str = "Hi.") -> Any:
    return {"id": "c1", "messages": [{"id": f"u-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}]}


async def rows_until(server: Server, conversation: str, kind: str, count: int) -> list[Row]:
    """The rows up to so many of a kind, as they are written."""
    rows: list[Row] = []
    async with asyncio.timeout(BOUND_S), aclosing(server.store.tail(conversation)) as written:
        async for row in written:
            rows.append(row)
            if [each.kind for each in rows].count(kind) == count:
                return rows
    raise AssertionError


@requirement("R160")
async def test_calls_are_denied_when_approval_times_out(tmp_path: Path) -> None:
    replies = [LOOK.reply(), ResponsesScript().text("Then not.").reply(), ResponsesScript().text("Hello.").reply()]
    async with (
        FakeProvider(replies) as fake,
        serving({"main": agent_of(fake, tools=[look], approval="ask")}, tmp_path, approval_s=0.05) as (server, client),
    ):
        await client.post("/api/chat", json=question("Look."))
        await rows_until(server, "/c1", "finish", 2)
        chat = (await client.get("/api/chat/c1")).json()
        assert chat["run"]["status"] == "complete"
        assert "nobody decided in time" in str(fake.requests[1].json["input"])
        assert not [part for part in chat["messages"][-1]["parts"] if part["type"] == "data-notice"]
        answer = await client.post("/api/chat", json=question("Hello?"))
        assert (answer.status_code, "Hello." in answer.text) == (200, True)


@requirement("R160")
async def test_run_with_expired_approval_can_be_cancelled_instead(tmp_path: Path) -> None:
    agents = ResponsesScript().text("Hello.").reply()
    async with FakeProvider([LOOK.reply(), agents]) as fake:
        main = {"main": agent_of(fake, tools=[look], approval="ask")}
        async with serving(main, tmp_path, approval_s=0.05, on_expiry="stop") as (server, client):
            await client.post("/api/chat", json=question("Look."))
            await rows_until(server, "/c1", "cancelled", 1)
            answer = await client.post("/api/chat", json=question("Hello?"))
            assert (answer.status_code, "Hello." in answer.text) == (200, True)


@requirement("R160")
async def test_server_can_keep_expired_approvals_waiting(tmp_path: Path) -> None:
    async with FakeProvider([LOOK.reply()]) as fake:
        main = {"main": agent_of(fake, tools=[look], approval="ask")}
        async with serving(main, tmp_path, approval_s=0.001, on_expiry="wait") as (_, client):
            await client.post("/api/chat", json=question("Look."))
            refused = await client.post("/api/chat", json=question("Hello?"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "waiting")
            stats = (await client.get("/api/engine")).json()
            assert (stats["waiting"], stats["queued"], stats["running"]) == (1, 0, 0)


@requirement("R160")
async def test_message_is_sent_at_its_time_and_not_before(tmp_path: Path) -> None:
    async with (
        FakeProvider([ResponsesScript().text("Good morning.").reply()]) as fake,
        serving({"main": agent_of(fake)}, tmp_path) as (server, client),
    ):
        at = time.time() + 1.0
        accepted = await client.post("/api/chat", json=question("Wake me."), headers={"X-Sidestream-At": str(at)})
        assert (accepted.status_code, accepted.json()["at"]) == (202, pytest.approx(at, abs=1e-3))
        run = (await client.get("/api/chat/c1")).json()["run"]
        assert (run["status"], run["at"]) == ("running", pytest.approx(at, abs=1e-3))
        assert (await client.post("/api/chat", json=question("Now?"))).status_code == 409
        assert not fake.requests
        rows = await rows_until(server, "/c1", "finish", 1)
        assert next(row.time for row in rows if row.kind == "step-start") >= at
        chat = (await client.get("/api/chat/c1")).json()
        assert (chat["run"]["status"], chat["run"].get("at")) == ("complete", None)
        assert "Good morning." in str(chat["messages"][-1]["parts"])


@requirement("R160")
async def test_scheduled_response_is_queued_until_its_time(tmp_path: Path) -> None:
    async with (
        FakeProvider([ResponsesScript().text("Good morning.").reply()]) as fake,
        serving({"main": agent_of(fake)}, tmp_path) as (server, client),
    ):
        later = {"X-Sidestream-At": str(time.time() + 1.0)}
        body = {"model": "main", "input": "Wake me."}
        assert (await client.post("/v1/responses", json=body, headers=later)).status_code == 400
        made = (await client.post("/v1/responses", json={**body, "background": True}, headers=later)).json()
        assert made["status"] == "queued"
        ((conversation, _),) = [(info.id, info.last) for info in await server.store.conversations(prefix="/")]
        await rows_until(server, conversation, "finish", 1)
        response = (await client.get(f"/v1/responses/{made['id']}")).json()
        assert (response["id"], response["status"]) == (made["id"], "completed")
        assert response["output"][0]["content"][0]["text"] == "Good morning."


@requirement("R160")
@pytest.mark.parametrize("time_text", ["tomorrow", "2027-01-31T08:00:00", "-5", "99999999999", "nan"])
async def test_time_invalid_or_beyond_one_year_is_rejected(tmp_path: Path, time_text: str) -> None:
    async with FakeProvider([]) as fake, serving({"main": agent_of(fake)}, tmp_path) as (_, client):
        refused = await client.post("/api/chat", json=question(), headers={"X-Sidestream-At": time_text})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_time")


@requirement("R160")
async def test_scheduled_message_can_be_stopped(tmp_path: Path) -> None:
    async with FakeProvider([]) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        later = {"X-Sidestream-At": str(time.time() + 3600)}
        await client.post("/api/chat", json=question("Later."), headers=later)
        (listed,) = await runs(client)
        assert (listed["driver"], listed["chat"]) == (None, "c1")
        assert (await client.post(f"/api/runs/{listed['id']}/stop")).json() == {"stopped": True}
        assert await runs(client) == []
        assert (await server.runs.execution.engine.stats()).waiting == 0


async def runs(client: httpx2.AsyncClient) -> list[Any]:
    return (await client.get("/api/runs")).json()["runs"]


@requirement("R160")
async def test_runs_are_listed_with_worker_stopped_and_resumed(tmp_path: Path) -> None:
    gate = asyncio.Event()
    replies = [
        sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One")),
        ResponsesScript().text("Two.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        main = {"main": agent_of(fake)}
        async with serving(main, tmp_path) as (server, client), serving(main, tmp_path) as (_, other):
            info = await server.runs.start(server.agent("main"), "/c1", "Count.", JOB)
            await rows_until(server, "/c1", "text-delta", 1)
            (here,), (there,) = await runs(client), await runs(other)
            assert (here["id"], here["driver"], here["chat"]) == (info.id, "this server", "c1")
            assert (there["id"], there["since"]) == (info.id, here["since"])
            assert there["driver"].startswith("process ")
            stats = (await other.get("/api/engine")).json()
            assert (stats["running"], stats["here"], stats["takeovers"]) == (1, 0, 0)
            assert (await other.post(f"/api/runs/{info.id}/stop")).json() == {"stopped": True}
            assert await runs(client) == []
            assert (await other.post(f"/api/runs/{info.id}/resume")).status_code == 202
            rows = await rows_until(server, "/c1", "finish", 1)
            assert [row.kind for row in rows].count("cancelled") == 1
            assert (await server.store.conversation("/c1").messages())[-1].text == "Two."


FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
SHOWN = {"name": "look", "description": "Looks.", "schema": {"type": "object", "properties": {}}}
MESSAGES = [{"role": "user", "content": "Look."}]


async def test_unanswered_function_of_client_stops_run(tmp_path: Path) -> None:
    replies = [LOOK.reply(), ResponsesScript().text("Hello.").reply()]
    async with (
        FakeProvider(replies) as fake,
        serving({"main": agent_of(fake)}, tmp_path, answer_s=0.05) as (server, client),
    ):
        await client.post("/api/chat", json={**question("Look."), "functions": [SHOWN]})
        await rows_until(server, "/c1", "cancelled", 1)
        assert len(fake.requests) == 1
        answer = await client.post("/api/chat", json=question("Hello?"))
        assert (answer.status_code, "Hello." in answer.text) == (200, True)


async def test_late_function_output_is_refused_by_responses(tmp_path: Path) -> None:
    async with (
        FakeProvider([LOOK.reply()]) as fake,
        serving({"main": agent_of(fake)}, tmp_path, answer_s=0.05) as (
            server,
            client,
        ),
    ):
        tools = [{"type": "function", **FUNCTION}]
        first = (await client.post("/v1/responses", json={"model": "main", "input": "Look.", "tools": tools})).json()
        (id,) = [info.id for info in await server.store.conversations()]
        await rows_until(server, id, "cancelled", 1)
        output = [{"type": "function_call_output", "call_id": "c1", "output": "seen"}]
        late = {"model": "main", "input": output, "previous_response_id": first["id"], "tools": tools}
        assert (await client.post("/v1/responses", json=late)).status_code == 400


async def test_stateless_calls_are_not_listed_and_do_not_wait(tmp_path: Path) -> None:
    replies = [LOOK.reply(), ResponsesScript().text("Seen.").reply(), LOOK.reply(), LOOK.reply()]
    replies.append(ResponsesScript().text("Hello.").reply())
    async with FakeProvider(replies) as fake, serving({"main": agent_of(fake)}, tmp_path) as (server, client):
        tools = [{"type": "function", "function": FUNCTION}]
        body = {"model": "main", "messages": MESSAGES, "tools": tools}
        asked = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        (call,) = asked["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
        body["messages"] = [*MESSAGES, asked, result]
        answer = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        assert answer["content"] == "Seen."
        tool = {"name": "look", "description": "Looks.", "input_schema": FUNCTION["parameters"]}
        given = {"model": "main", "messages": MESSAGES, "tools": [tool], "max_tokens": 9}
        assert (await client.post("/v1/messages", json=given)).json()["stop_reason"] == "tool_use"
        unstored = {"model": "main", "input": "Look.", "tools": [{"type": "function", **FUNCTION}], "store": False}
        assert (await client.post("/v1/responses", json=unstored)).json()["output"][0]["name"] == "look"
        await client.post("/api/chat", json=question("Hello?"))

        for info in await server.store.conversations():
            await settled(server, info.id)
        stats = (await client.get("/api/engine")).json()
        assert (stats["queued"], stats["running"], stats["waiting"]) == (0, 0, 0)
        assert (await client.get("/api/runs")).json()["runs"] == []
        listed = (await client.get("/api/conversations")).json()["conversations"]
        assert [entry["id"] for entry in listed] == ["c1"]
        found = (await client.get("/api/conversations", params={"search": "Look"})).json()["conversations"]
        assert found == []
        everything = (await client.get("/api/conversations", params={"all": "true"})).json()["conversations"]
        assert len(everything) == 4


async def settled(server: Server, conversation: str) -> None:
    """Waits until this process has released the run."""
    while conversation in server.runs.live or await server.runs.is_busy(conversation):
        async for _ in server.runs.follow(conversation):
            pass
        await asyncio.sleep(0)
    await server.runs.execution.worker.ended(conversation)


async def test_approval_of_stateless_call_still_waits(tmp_path: Path) -> None:
    async with FakeProvider([LOOK.reply()]) as fake:
        main = {"main": agent_of(fake, tools=[look], approval="ask")}
        async with serving(main, tmp_path) as (server, client):
            refused = await client.post("/v1/chat/completions", json={"model": "main", "messages": MESSAGES})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "approval_required")
            (info,) = await server.store.conversations()
            await settled(server, info.id)
            assert (await client.get("/api/engine")).json()["waiting"] == 1
