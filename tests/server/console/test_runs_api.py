"""The records of a run over REST: every one of them once, in order, also while it streams; and the run as a file."""

import asyncio
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest

from requirements import requirement
from server.serving import JOB, KEY, agent_of, ended, serving, working
from sidestream import Chat, ChatMessage, tool
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


def priced(calls: list[str]) -> Any:
    def price(item: str) -> str:
        """Look up a price."""
        calls.append(item)
        return "1000 euros"

    return price


def asking(*answers: str) -> list[Any]:
    call = ResponsesScript(id="r0").function_call("price", {"item": "lamp"}, call_id="call_1")
    texts = [ResponsesScript(id=f"r{number}").text(text) for number, text in enumerate(answers, 1)]
    return [sse(script.events()) for script in (call, *texts)]


async def read_run(client: httpx2.AsyncClient, run: str, **params: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = (await client.get(f"/api/runs/{run}/records", params=params)).json()
    return found["run"], found["records"]


@requirement("R221", "R143")
async def test_run_is_forked_with_changed_result_over_http(tmp_path: Path):
    calls: list[str] = []
    async with (
        FakeProvider(asking("1,000 euros.", "10 euros.", "12 euros.", "About 10.", "Ten, as I said.")) as fake,
        serving({"main": agent_of(fake, tools=[priced(calls)])}, tmp_path, allows_functions=["price"]) as (
            server,
            client,
        ),
    ):
        info = await server.runs.start(server.agent("main"), "/talk", "What does a lamp cost?", JOB)
        await ended(server, "/talk")
        described, parent = await read_run(client, info.id)
        assert (described["changeable"], described["forkedFrom"]) == (["price"], None)
        at = next(record["seq"] for record in parent if record["kind"] == "tool-result")
        changed = {"at": at, "results": {"call_1": "10 euros"}}
        forked = await client.post(f"/api/runs/{info.id}/fork", json=changed)
        chat, run = forked.json()["chat"], forked.json()["run"]
        await ended(server, f"/{chat}")
        origin, records = await read_run(client, run)
        shown = (await client.get(f"/api/chat/{chat}")).json()
        # The fork is forked in turn, with a message instead of another result; and the original after its end.
        again = (await client.post(f"/api/runs/{run}/fork", json={"at": at, "message": "With taxes?"})).json()
        await ended(server, f"/{again['chat']}")
        second, _ = await read_run(client, again["run"])
        whole = await client.post(f"/api/runs/{info.id}/fork", json={"at": parent[-1]["seq"]})
        later = next(record["seq"] for record in reversed(records) if record["kind"] == "step-start")
        deeper = (await client.post(f"/api/runs/{run}/fork", json={"at": later})).json()
        await ended(server, f"/{deeper['chat']}")
        nested, _ = await read_run(client, deeper["run"])
        follow = {"at": parent[-1]["seq"], "message": "Ten?"}
        next_turn = (await client.post(f"/api/runs/{info.id}/fork", json=follow)).json()
        await ended(server, f"/{next_turn['chat']}")
        third, following = await read_run(client, next_turn["run"])
        chats = (await client.get("/api/conversations")).json()["conversations"]
        untouched = await read_run(client, info.id)
        outputs = [[e["output"] for e in r.json["input"] if e.get("call_id") and "output" in e] for r in fake.requests]
    assert forked.status_code == whole.status_code == 201
    assert whole.json()["run"] is None
    assert calls == ["lamp"]
    assert outputs == [[], ["1000 euros"], ["10 euros"], ["10 euros"], ["10 euros"], []]
    assert origin["forkedFrom"] == {
        "chat": "talk", "run": info.id, "at": at, "changes": {"result": {"call_1": "10 euros"}}
    }  # fmt: skip
    assert (second["forkedFrom"]["run"], second["forkedFrom"]["changes"]) == (run, {"message": "With taxes?"})
    assert [record["seq"] for record in records[: at - 1]] == [record["seq"] for record in parent[: at - 1]]
    assert [record["kind"] for record in records[:at]] == [record["kind"] for record in parent[:at]]
    assert (text_of(records), records[-1]["kind"]) == ("10 euros.", "finish")
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert "10 euros." in json.dumps(shown["messages"][1])
    assert third["forkedFrom"]["at"] == parent[-1]["seq"]
    assert [record["kind"] for record in following[:3]] == ["message", "forked", "run-started"]
    assert text_of(following) == "Ten, as I said."
    title = "What does a lamp cost?"
    assert (nested["forkedFrom"]["run"], nested["forkedFrom"]["at"]) == (run, later)
    forks = (chat, deeper["chat"], again["chat"], whole.json()["chat"], next_turn["chat"])
    assert {entry["id"]: entry["title"] for entry in chats} == {"talk": title, **dict.fromkeys(forks, f"Fork: {title}")}
    assert untouched == (described, parent)


@requirement("R221", "F30")
async def test_forks_are_limited_to_owner_and_policy(tmp_path: Path):
    anna, ben = "token-of-anna-0123456789", "token-of-ben-01234567890"
    calls: list[str] = []
    closed = {"allows_functions": False, "allows_instructions": False, "allows_models": False}
    settings: dict[str, Any] = {"tokens": [anna, ben], **closed}
    async with (
        FakeProvider(asking("1,000 euros.", "Again: 1,000 euros.")) as fake,
        serving({"main": agent_of(fake, tools=[priced(calls)])}, tmp_path, **settings) as (server, client),
    ):
        conversation = f"{owner_name(anna)}/talk"
        info = await server.runs.start(server.agent("main"), conversation, "What does a lamp cost?", JOB)
        await ended(server, conversation)
        described, records = await read_run(client, info.id)
        at = next(record["seq"] for record in records if record["kind"] == "tool-result")
        path = f"/api/runs/{info.id}/fork"

        async def refused(body: dict[str, Any], **headers: str) -> tuple[int, str | None]:
            answer = await client.post(path, json=body, headers=headers)
            return answer.status_code, answer.json()["error"]["param"]

        assert await refused({"at": at}, Authorization=f"Bearer {ben}") == (404, None)
        assert await refused({"at": at, "results": {"call_1": "10 euros"}}) == (403, "results")
        assert await refused({"at": at, "deny": ["call_1"]}) == (403, "deny")
        assert await refused({"at": at, "system": "Obey."}) == (403, "instructions")
        assert await refused({"at": at, "model": "openai-responses:other"}) == (404, "model")
        assert await refused({"at": 1000}) == (400, "at")
        assert await refused({"at": at, "headers": {}}) == (400, None)
        assert len(await server.store.conversations()) == 1
        # What adds nothing to the agent is open.
        forked = (await client.post(path, json={"at": at})).json()
        await ended(server, f"{owner_name(anna)}/{forked['chat']}")
        _, continued = await read_run(client, forked["run"])
    assert described["changeable"] == []
    assert text_of(continued) == "Again: 1,000 euros."
    assert owner_name(anna) not in json.dumps(continued)
    assert calls == ["lamp"]


@requirement("R221", "F30")
async def test_fork_refused_for_its_history_keeps_nothing(tmp_path: Path):
    hello = sse(ResponsesScript(id="h").text("Hello.").events())
    async with FakeProvider([hello, *asking("1,000 euros.")]) as fake:
        agents = {"main": agent_of(fake, tools=[priced([])])}
        async with serving(agents, tmp_path) as (server, _):
            await Chat(agents["main"], [ChatMessage.system("Be brief.")], store=server.store, id="/talk").send("Hi.")
            info = await server.runs.start(server.agent("main"), "/talk", "What does a lamp cost?", JOB)
            await ended(server, "/talk")
        async with serving(agents, tmp_path, allows_instructions=False) as (server, client):
            _, records = await read_run(client, info.id)
            at = next(record["seq"] for record in records if record["kind"] == "tool-result")
            answer = await client.post(f"/api/runs/{info.id}/fork", json={"at": at})
            kept = [found.id for found in await server.store.conversations()]
        sent = len(fake.requests)
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "messages")
    assert (kept, sent) == (["/talk"], 3)


@requirement("R221", "R76")
@pytest.mark.parametrize("has_worker", [True, False])
async def test_fork_of_waiting_run_waits_for_its_own_decision(tmp_path: Path, has_worker: bool):
    calls: list[str] = []
    settings: dict[str, Any] = {"engine": "embedded" if has_worker else None, "allows_functions": False}
    async with FakeProvider(asking("Then not.", "1,000 euros.")) as fake:
        agent = agent_of(fake, tools=[tool(approval="ask")(priced(calls))])
        async with (
            working(tmp_path / "talks.db", "embedded", agent) if has_worker else nullcontext(),
            serving({"main": agent}, tmp_path, **settings) as (server, client),
        ):
            info = await server.runs.start(server.agent("main"), "/talk", "What does a lamp cost?", JOB)
            await ended(server, "/talk")
            _, parent = await read_run(client, info.id)
            ends = [record["seq"] for record in parent if record["kind"] in ("approval-asked", "finish")]

            async def forked(at: int, change: dict[str, Any]) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
                answer = (await client.post(f"/api/runs/{info.id}/fork", json={"at": at, **change})).json()
                await ended(server, f"/{answer['chat']}")
                _, records = await read_run(client, answer["run"])
                chat = (await client.get(f"/api/chat/{answer['chat']}")).json()
                waiting = [part["data"] for part in chat["messages"][-1]["parts"] if part["type"] == "data-approval"]
                return chat, text_of(records), waiting

            # A call that asked for approval can be denied on a restricted server.
            _, text, _ = await forked(ends[-1], {"deny": ["call_1"]})
            assert (text, calls) == ("Then not.", [])
            # The fork's approval is its own: deciding on it leaves the original waiting.
            asked, _, _ = await forked(ends[0], {})
            same, text, (approval,) = await forked(ends[-1], {})
            assert (asked["run"]["status"], same["run"]["status"], text, calls) == ("waiting", "waiting", "", [])
            decision = {"approvalId": approval["approval"], "approved": True, "digest": approval["digest"]}
            await client.post("/api/chat", json={"id": same["id"], "decisions": [decision]})
            await ended(server, f"/{same['id']}")
            _, allowed = await read_run(client, same["run"]["id"])
            original = (await client.get("/api/chat/talk")).json()
    assert text_of(allowed) == "1,000 euros."
    assert calls == ["lamp"]
    assert original["run"]["status"] == "waiting"
    assert approval["approval"] not in json.dumps(original)
