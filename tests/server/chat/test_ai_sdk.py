"""The npm packages `ai` and `@ai-sdk/react`, unmodified, against `/api/chat`: what a front end of `useChat` does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from server.chat_client import Client, chatting, paused
from server.node_driver import NodeClient, driving
from sidestream import CodeInterpreter, ImageGeneration, WebSearch
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.npm_packages import cannot_run, installed_version
from support.places import ROOT
from support.streams import PNG

PACKAGES = ROOT / "page" / "node_modules"

Json = Any


def replies(*scripts: ResponsesScript) -> list[Any]:
    return [sse(script.events()) for script in scripts]


@asynccontextmanager
async def talking(path: Path, fake: FakeProvider, **agent: Any) -> AsyncGenerator[tuple[Client, NodeClient]]:
    """A server, and the clients of npm for it."""
    if installed_version(PACKAGES / "ai") is None:
        cannot_run("the page's packages are not installed: make page")
    async with chatting(fake, path, **agent) as client, driving("ai_sdk.mjs", PACKAGES, client.url) as node:
        yield client, node


def parts(state: Json, kind: str) -> list[Json]:
    """The parts of a type in the last message."""
    return [part for part in state["messages"][-1]["parts"] if part["type"] == kind]


def text_of(state: Json) -> str:
    return "".join(part["text"] for part in parts(state, "text"))


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = ResponsesScript().function_call("add", '{"a": 1, "b": 2}', call_id="call_1")


@requirement("R141")
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_use_chat_streams_text_and_reasoning_across_turns(tmp_path: Path, transport: str):
    scripts = ResponsesScript().reasoning("Hm.").text(["Hello ", "there."]), ResponsesScript().text("Again.")
    async with FakeProvider(replies(*scripts)) as fake, talking(tmp_path, fake) as (client, node):
        await node("open", chat="c1", transport=transport)
        first = await node("send", chat="c1", text="Hi.")
        assert (first["status"], first["error"], text_of(first)) == ("ready", None, "Hello there.")
        assert [part["text"] for part in parts(first, "reasoning")] == ["Hm."]
        assert {part["state"] for part in (*parts(first, "text"), *parts(first, "reasoning"))} == {"done"}
        second = await node("send", chat="c1", text="And now?")
        assert [message["role"] for message in second["messages"]] == ["user", "assistant"] * 2
        assert await node("validate", messages=second["messages"]) == 4
        stored = await client.chat()
        assert [message["id"] for message in stored["messages"]] == [message["id"] for message in second["messages"]]
        (finish, _) = (await node("seen", chat="c1"))["finishes"]
        assert finish == {"isAbort": False, "isError": False, "isDisconnect": False, "finishReason": "stop"}


@requirement("R141")
async def test_use_chat_streams_tool_input_then_result(tmp_path: Path):
    scripts = replies(CALL, ResponsesScript().text("3"))
    async with FakeProvider(scripts) as fake, talking(tmp_path, fake, tools=[add]) as (_, node):
        read = await node("read", chat="c1", text="Add.")
        seen = {state for states in read["states"] for state in states}
        assert {"input-streaming", "input-available", "output-available"} <= seen
        (part,) = [part for part in read["last"]["parts"] if part["type"] == "tool-add"]
        assert (part["input"], part["output"], part["toolCallId"]) == ({"a": 1, "b": 2}, 3, "call_1")


@requirement("R141")
async def test_use_chat_shows_hosted_tool_previews_files_and_sources(tmp_path: Path):
    url = "https://en.wikipedia.org/wiki/Otter"
    citation = {"type": "url_citation", "start_index": 0, "end_index": 6, "url": url, "title": "Otter"}
    script = (
        ResponsesScript()
        .web_search("otters", sources=[url])
        .image(PNG, partials=[PNG, PNG])
        .code_interpreter(["print", "(1)"], logs="1\n")
        .text("Otters swim.", annotations=[citation])
    )
    hosted = [WebSearch(), ImageGeneration(partial_images=2), CodeInterpreter()]
    async with (
        FakeProvider(replies(script, script)) as fake,
        talking(tmp_path, fake, server_side_tools=hosted) as (client, node),
    ):
        await node("open", chat="c1")
        state = await node("send", chat="c1", text="Otters?")
        assert state["error"] is None
        tools = {part["type"]: part for part in state["messages"][-1]["parts"] if part["type"].startswith("tool-")}
        assert tools["tool-web_search"]["providerExecuted"] is True
        image = tools["tool-image_generation"]
        assert (image["state"], image.get("preliminary")) == ("output-available", None)
        (file,) = parts(state, "file")
        async with client.session.get(client.url + file["url"]) as response:
            assert (await response.read(), response.headers["content-type"]) == (PNG, "image/png")
        (source,) = parts(state, "source-url")
        assert (source["url"], source["title"]) == (url, "Otter")
        (text,) = parts(state, "text")
        assert (text["citations"][0]["startIndex"], text["citations"][0]["endIndex"]) == (0, 6)
        stages = [
            part["data"]["stage"] for part in (await node("seen", chat="c1"))["data"] if part["type"] == "data-tool"
        ]
        assert "running" in stages
        assert await node("validate", messages=state["messages"]) == 2
        assert (await node("read", chat="c2", text="Otters?"))["previews"] >= 2


@requirement("R141", "F42")
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_use_chat_approval_round_trip_completes(tmp_path: Path, approved: bool, transport: str):
    scripts = replies(CALL, ResponsesScript().text("Done."))
    async with FakeProvider(scripts) as fake, talking(tmp_path, fake, tools=[add], approval="ask") as (client, node):
        await node("open", chat="c1", transport=transport, when="approvals")
        first = await node("send", chat="c1", text="Add.")
        (part,) = parts(first, "tool-add")
        assert (part["state"], part["input"]) == ("approval-requested", {"a": 1, "b": 2})
        assert part["approval"]["signature"]
        after = await node("approve", chat="c1", approval=part["approval"]["id"], approved=approved, reason="No.")
        assert (after["error"], text_of(after)) == (None, "Done.")
        assert [message["id"] for message in after["messages"]] == [message["id"] for message in first["messages"]]
        (part,) = parts(after, "tool-add")
        assert part["state"] == ("output-available" if approved else "output-denied")
        assert await node("validate", messages=after["messages"]) == 2
        assert "output-denied" in str(await client.chat()) or approved


@requirement("R141")
async def test_use_chat_client_tool_calls_return_to_client(tmp_path: Path):
    functions = [{"name": "add", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    async with (
        FakeProvider(replies(CALL, ResponsesScript().text("It is 3."))) as fake,
        talking(tmp_path, fake) as (_, node),
    ):
        await node("open", chat="c1", body={"functions": functions}, when="outputs")
        first = await node("send", chat="c1", text="Add.")
        (part,) = parts(first, "tool-add")
        assert part["state"] == "input-available"
        (call,) = (await node("seen", chat="c1"))["calls"]
        assert (call["toolName"], call["input"]) == ("add", {"a": 1, "b": 2})
        after = await node("output", chat="c1", tool="add", call="call_1", output={"sum": 3})
        assert (after["error"], text_of(after)) == (None, "It is 3.")
        outputs = [item for item in fake.requests[1].json["input"] if item.get("type") == "function_call_output"]
        assert [item["output"] for item in outputs] == ['{"sum":3}']


@requirement("R141")
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_use_chat_shows_run_errors_and_request_errors(tmp_path: Path, transport: str):
    script = ResponsesScript().text("Almost").failed("server_error", "it broke")
    async with FakeProvider(replies(script)) as fake, talking(tmp_path, fake) as (_, node):
        await node("open", chat="c1", transport=transport)
        failed = await node("send", chat="c1", text="Hi.")
        assert failed["status"] == "error"
        assert "it broke" in failed["error"]
        assert text_of(failed) == "Almost"
        await node("open", chat="c2", transport=transport, body={"model": "nobody"})
        refused = await node("send", chat="c2", text="Hi.")
        assert refused["status"] == "error"
        assert "nobody" in refused["error"]


@requirement("R141", "R142", "F29")
async def test_use_chat_resumed_stream_has_whole_answer_after_leaving(tmp_path: Path):
    gate = asyncio.Event()
    script = ResponsesScript().text(["One, ", "two."])
    async with FakeProvider([sse(paused(script, gate, "One"))]) as fake, talking(tmp_path, fake) as (client, node):
        await node("open", chat="c1")
        await node("send", chat="c1", text="Count.", detached=True)
        await node("said", chat="c1", text="One, ")
        left = await node("stop", chat="c1")  # The SDK's own stop only drops the connection.
        assert left["status"] == "ready"
        assert "/c1" in client.server.runs.live
        await node("open", chat="c2")
        assert (await node("resume", chat="c2"))["status"] == "ready"  # 204: nothing to resume.
        for transport in ("http", "websocket"):
            async with driving("ai_sdk.mjs", PACKAGES, client.url) as reloaded:
                stored = (await client.chat())["messages"]
                await reloaded("open", chat="c1", transport=transport, messages=stored[:1])
                await reloaded("resume", chat="c1", detached=True)
                await reloaded("said", chat="c1", text="One, ")
                if transport == "websocket":
                    fake.release(gate)
                    ended = await reloaded("rest", chat="c1")
                    assert text_of(ended) == "One, two."
                    assert ended["messages"][-1]["id"] == (await client.chat())["messages"][-1]["id"]
        assert len(fake.requests) == 1


@requirement("R141")
@pytest.mark.parametrize("way", ["endpoint", "websocket"])
async def test_use_chat_run_stops_by_endpoint_and_socket_abort(tmp_path: Path, way: str):
    gate = asyncio.Event()
    script = ResponsesScript().text(["One, ", "two."])
    async with FakeProvider([sse(paused(script, gate, "One"))]) as fake, talking(tmp_path, fake) as (client, node):
        await node("open", chat="c1", transport="websocket" if way == "websocket" else "http")
        await node("send", chat="c1", text="Count.", detached=True)
        await node("said", chat="c1", text="One, ")
        if way == "endpoint":
            assert await client.json("POST", "/api/chat/c1/stop") == {"stopped": True}
            assert (await node("rest", chat="c1"))["status"] == "ready"
        else:
            await node("stop", chat="c1")
            async for _ in client.server.runs.follow("/c1"):
                pass
        assert (await client.chat())["run"]["status"] == "cancelled"


@requirement("R141")
async def test_use_chat_shows_steering_message_when_client_supports_it(tmp_path: Path):
    gate = asyncio.Event()
    first = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    second = sse(ResponsesScript().text("Faster, then.").events())
    async with FakeProvider([first, second]) as fake, talking(tmp_path, fake) as (client, node):
        await node("open", chat="c1", body={"features": ["steering-message"]})
        await node("send", chat="c1", text="Count.", detached=True)
        await node("said", chat="c1", text="One, ")
        await client.json("POST", "/api/chat/c1/steer", {"text": "Faster."})
        fake.release(gate)
        state = await node("said", chat="c1", text="Faster, then.")
        state = await node("rest", chat="c1")
        assert (state["status"], state["error"]) == ("ready", None)
        (steered,) = parts(state, "steering-message")
        assert steered["parts"] == [{"type": "text", "text": "Faster."}]
        assert await node("validate", messages=state["messages"]) == 2


@requirement("R141")
async def test_use_chat_regenerating_and_editing_create_branches(tmp_path: Path):
    scripts = [ResponsesScript().text(text) for text in ("A1.", "B1.", "C1.")]
    async with FakeProvider(replies(*scripts)) as fake, talking(tmp_path, fake) as (client, node):
        await node("open", chat="c1")
        first = await node("send", chat="c1", text="Q1")
        again = await node("regenerate", chat="c1")
        assert (text_of(again), len(again["messages"])) == ("B1.", 2)
        edited = await node("send", chat="c1", text="Q2", messageId=first["messages"][0]["id"])
        assert (text_of(edited), len(edited["messages"])) == ("C1.", 2)
        assert len((await client.chat())["leaves"]) == 3
