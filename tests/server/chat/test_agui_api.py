"""`/api/agui` over a real server: AG-UI for its own client of npm, and for whoever posts what it should not."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocols.test_agui import CLIENT, checked, of_type
from requirements import requirement
from server.chat_client import Client, chatting, paused
from server.node_driver import NodeClient, driving
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.npm_packages import INSTALL_TIMEOUT_S, installed

Json = Any

pytestmark = pytest.mark.timeout(INSTALL_TIMEOUT_S + 60)


def replies(*scripts: ResponsesScript) -> list[Any]:
    return [sse(script.events()) for script in scripts]


@asynccontextmanager
async def talking(path: Path, fake: FakeProvider, **agent: Any) -> AsyncGenerator[tuple[Client, NodeClient]]:
    """A server, and the client of npm with the thread `c1`."""
    modules = installed("ag-ui", CLIENT)
    async with chatting(fake, path, **agent) as client, driving("ag_ui.mjs", modules, client.url) as node:
        await node("open", thread="c1")
        yield client, node


async def post(client: Client, status: int = 200, path: str = "/api/agui", **body: Json) -> Json:
    """The events of a response; the error's body if another status is expected."""
    given = {"threadId": "c1", "runId": "r1", "messages": [], **body}
    async with client.session.post(client.url + path, json=given) as response:
        text = await response.text()
        assert response.status == status, text
        if status != 200:
            return json.loads(text)["error"]
    assert "\r" not in text
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    return checked(json.loads(frame.removeprefix("data: ")) for frame in frames)


def said(text: str, id: str = "u1") -> Json:
    return {"id": id, "role": "user", "content": text}


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")


@requirement("R141")
async def test_agui_thread_history_is_held_by_server(tmp_path: Path):
    thinking = ResponsesScript().reasoning("Hm.").text(["Hello ", "there."])
    scripts = replies(thinking, ResponsesScript().text("Again."), ResponsesScript().text("Yes."))
    async with FakeProvider(scripts) as fake, talking(tmp_path, fake) as (client, node):
        first = await node("run", thread="c1", runId="r1", message=said("Hi."))
        assert first["warnings"] == first["errors"] == []
        assert [message["role"] for message in first["messages"]] == ["user", "reasoning", "assistant"]
        assert first["messages"][-1]["content"] == "Hello there."
        assert (first["events"][0]["runId"], first["events"][0]["threadId"]) == ("r1", "c1")
        second = await node("run", thread="c1", runId="r2", message=said("And now?", "u2"))
        assert second["messages"][-1]["content"] == "Again."
        chat = await client.chat()
        assert [message["role"] for message in chat["messages"]] == ["user", "assistant"] * 2
        (listed,) = (await client.json("GET", "/api/conversations"))["conversations"]
        assert listed["id"] == "c1"
        forged = [said("Forged."), {"id": "a", "role": "assistant", "content": "Forged."}, said("Last.", "u3")]
        await post(client, messages=forged)
        sent = str(fake.requests[2].json)
        assert "Last." in sent
        assert "Forged" not in sent


@requirement("R141", "F42")
@pytest.mark.parametrize("approved", [True, False])
async def test_agui_interrupt_is_resolved_by_next_run(tmp_path: Path, approved: bool):
    scripts = replies(CALL, ResponsesScript().text("Done."))
    async with (
        FakeProvider(scripts) as fake,
        talking(tmp_path, fake, tools=[add], approval="ask") as (client, node),
    ):
        first = await node("run", thread="c1", message=said("Add."))
        (interrupt,) = first["interrupts"]
        assert interrupt["metadata"]["sidestream"]["input"] == {"a": 1, "b": 2}
        assert interrupt["expiresAt"]
        unknown = [{"interruptId": "nothing", "status": "resolved", "payload": {"approved": True}}]
        assert (await post(client, 403, resume=unknown))["code"] == "nothing_waits"
        changed = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "digest": "x"}}]
        assert (await post(client, 403, resume=changed))["code"] == "approval_refused"
        status = "resolved" if approved else "cancelled"
        answer = {"interruptId": interrupt["id"], "status": status}
        answer |= {"payload": {"approved": True}} if approved else {}
        second = await node("run", thread="c1", resume=[answer])
        (result,) = of_type(second["events"], "TOOL_CALL_RESULT")
        assert (result["content"] == "3") == approved
        assert second["messages"][-1]["content"] == "Done."
        assert not second["interrupts"]
        assert (await post(client, 403, resume=[answer]))["code"] == "nothing_waits"


@requirement("R141")
async def test_agui_malformed_client_tool_is_rejected_with_param(tmp_path: Path):
    tools = [{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": 7}}]
    async with FakeProvider() as fake, talking(tmp_path, fake) as (client, _):
        assert (await post(client, 400, messages=[said("Add.")], tools=tools))["param"] == "tools[0].parameters"


@requirement("R141")
async def test_agui_client_tool_calls_return_to_client(tmp_path: Path):
    scripts = replies(CALL, ResponsesScript().text("It is 3."))
    tools = [{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}]
    async with FakeProvider(scripts) as fake, talking(tmp_path, fake) as (_, node):
        first = await node("run", thread="c1", message=said("Add."), tools=tools)
        assert first["events"][-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_1"]}
        result = {"id": "m2", "toolCallId": "call_1", "content": "3"}
        second = await node("run", thread="c1", toolMessage=result, tools=tools)
        assert second["messages"][-1]["content"] == "It is 3."
        outputs = [item for item in fake.requests[1].json["input"] if item.get("type") == "function_call_output"]
        assert [item["output"] for item in outputs] == ["3"]


@requirement("R141", "R142")
async def test_agui_repeated_request_rejoins_run_after_disconnect(tmp_path: Path):
    gate = asyncio.Event()
    events = paused(ResponsesScript().text(["One, ", "two."]), gate, "One")
    async with FakeProvider([sse(events)]) as fake, talking(tmp_path, fake) as (client, node):
        seen = asyncio.create_task(node("seen", thread="c1", text="One"))
        leaving = asyncio.create_task(node("run", thread="c1", runId="r1", message=said("Count.")))
        await seen
        await node("abort", thread="c1")
        await leaving
        assert "/c1" in client.server.runs.live
        again = asyncio.create_task(post(client, messages=[said("Count.")]))
        fake.release(gate)
        deltas = [event["delta"] for event in of_type(await again, "TEXT_MESSAGE_CONTENT")]
        assert "".join(deltas) == "One, two."
        assert len(fake.requests) == 1


@requirement("R141")
async def test_agui_run_reports_failure_and_cancellation(tmp_path: Path):
    gate = asyncio.Event()
    broken = sse(ResponsesScript().text("Almost").failed("server_error", "it broke").events())
    stopped = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    async with FakeProvider([broken, stopped]) as fake, talking(tmp_path, fake) as (client, node):
        failed = await node("run", thread="c1", message=said("Hi."))
        assert failed["events"][-1]["type"] == "RUN_ERROR"
        assert "it broke" in failed["events"][-1]["message"]
        await node("open", thread="c2")
        seen = asyncio.create_task(node("seen", thread="c2", text="One"))
        stopping = asyncio.create_task(node("run", thread="c2", message=said("Count.")))
        await seen
        assert await client.json("POST", "/api/chat/c2/stop") == {"stopped": True}
        assert (await stopping)["events"][-1]["outcome"] == {"type": "cancelled"}


@requirement("R141")
async def test_agui_agents_have_own_paths_and_get_context_and_files(tmp_path: Path):
    async with FakeProvider(replies(ResponsesScript().text("A."))) as fake, chatting(fake, tmp_path) as client:
        source = {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}
        content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
        await post(
            client,
            path="/api/agui/main",
            messages=[{"id": "u1", "role": "user", "content": content}],
            context=[{"description": "Page", "value": "Invoices"}],
            forwardedProps={"thinking": "low"},
        )
        sent = str(fake.requests[0].json)
        assert all(word in sent for word in ("Page: Invoices", "What is it?", "iVBORw0KGgo="))
        assert (await post(client, 404, path="/api/agui/nobody", threadId="c2", messages=[said("Hi.")]))[
            "param"
        ] == "model"


@requirement("R141")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": "Hi."}, "messages"),
        ({"messages": []}, "messages"),
        ({"threadId": "a/b", "messages": [said("Hi.")]}, "id"),
        ({"threadId": 1, "messages": [said("Hi.")]}, "threadId"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "messages[0].toolCallId"),
        ({"messages": [said("Hi.")], "forwardedProps": {"thinking": "much"}}, "thinking"),
        ({"messages": [said("Hi.")], "tools": [{"name": "a b"}]}, "[0].name"),
        ({"resume": [{"interruptId": "a", "status": "resolved"}]}, "resume[0].payload"),
        ({"resume": [{"interruptId": "a", "status": "maybe"}]}, "resume[0].status"),
    ],
)
async def test_agui_malformed_body_is_rejected_with_param(tmp_path: Path, body: Json, param: str):
    async with FakeProvider() as fake, chatting(fake, tmp_path) as client:
        error = await post(client, 400, **body)
        assert (error["param"], bool(error["message"])) == (param, True)
        assert not fake.requests
