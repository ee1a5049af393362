"""The `openai` SDK, pointed at a server: the Responses API over any provider."""

import asyncio
import json
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest
from pydantic import BaseModel

from requirements import requirement
from server.chat_client import paused
from server.response_client import ADD, KEY, Served, events_in, responding, said, served_agents
from sidestream import Agent, CodeInterpreter, OpenAIResponsesOptions
from sidestream.mcp import MCPServer
from sidestream.providers.openai.responses import OpenAIServerSideTool
from sidestream.server.responses.api import whole
from sidestream.server.responses.input_items import read_input
from sidestream.server.responses.request import PreparedRequest, ResponsesRequest, prepared
from sidestream.server.responses.service import Base, base_after, base_of, find_response, start
from sidestream.store.ids import ConversationId
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    Reply,
    ResponsesScript,
    error_reply,
    json_reply,
    sse,
)
from support.response_events import StreamChecker, check_events, check_response
from support.waiting import eventually

Json = Any


@requirement("R140")
async def test_response_is_same_whole_streamed_and_retrieved(tmp_path: Path):
    replies = [ResponsesScript().text(["Hel", "lo."]).reply() for _ in range(2)]
    async with responding(replies, tmp_path) as served:
        whole = await served.client.responses.create(
            model="main",
            input="Hi",
            temperature=0.5,
            max_output_tokens=99,
            metadata={"a": "b"},
            instructions="Be brief.",
        )
        assert (whole.output_text, whole.status, whole.model) == ("Hello.", "completed", "main")
        assert (whole.temperature, whole.max_output_tokens, whole.metadata) == (0.5, 99, {"a": "b"})
        assert whole.usage is not None
        assert whole.usage.total_tokens > 0
        sent = served.fake.requests[0].json
        assert (sent["temperature"], sent["max_output_tokens"], sent["instructions"]) == (0.5, 99, "Be brief.")
        again = await served.client.responses.retrieve(whole.id)
        assert again.to_dict() == whole.to_dict()
        events = await events_in(await served.client.responses.create(model="main", input="Hi", stream=True))
        response = check_events(events)
        assert response["output"][0]["content"][0]["text"] == "Hello."
        retrieved = await served.client.responses.retrieve(response["id"])
        assert retrieved.to_dict() == openai.types.responses.Response.model_validate(response).to_dict()


@requirement("R140", "R142")
async def test_subscriber_resumes_after_any_sequence_number(tmp_path: Path):
    gate = asyncio.Event()
    reply = sse(paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two"))
    async with responding([reply], tmp_path) as served:
        stream = await served.client.responses.create(model="main", input="Count.", stream=True)
        first: list[Json] = []
        async for event in stream:
            first.append(event.to_dict())
            if "two" in str(event.to_dict().get("delta", "")):
                break
        await stream.close()  # The run does not depend on it.
        id = first[0]["response"]["id"]
        now = await served.client.responses.retrieve(id)
        assert (now.status, now.output_text) == ("in_progress", "One, two, ")
        reading = asyncio.create_task(_retrieved(served.client, id, first[-1]["sequence_number"]))
        whole_reading = asyncio.create_task(_retrieved(served.client, id, None))
        served.fake.release(gate)
        rest, whole = await reading, await whole_reading
        check_events(whole)
        assert rest[0]["sequence_number"] == first[-1]["sequence_number"] + 1
        assert first + rest == whole
        assert await _retrieved(served.client, id, whole[-1]["sequence_number"]) == []


async def _retrieved(client: openai.AsyncOpenAI, id: str, after: int | None) -> list[Json]:
    position: Json = {} if after is None else {"starting_after": after}
    return await events_in(await client.responses.retrieve(id, stream=True, **position))


@requirement("R140")
async def test_response_chain_continues_branches_and_ends_at_deletion(tmp_path: Path):
    async with responding(said("One.", "Two.", "Three.", "Four."), tmp_path) as served:
        create, fake = served.client.responses.create, served.fake
        one = await create(model="main", input="1")
        two = await create(model="main", input="2", previous_response_id=one.id)
        assert two.previous_response_id == one.id
        three = await create(model="main", input="3", previous_response_id=one.id)  # Another way from there.
        four = await create(model="main", input="4", previous_response_id=two.id)
        items = [item.to_dict() for item in (await served.client.responses.input_items.list(four.id, order="asc")).data]
        assert [_text(item) for item in items] == ["1", "One.", "2", "Two.", "4"]
        items = [
            item.to_dict() for item in (await served.client.responses.input_items.list(three.id, order="asc")).data
        ]
        assert [_text(item) for item in items] == ["1", "One.", "3"]
        newest = await served.client.responses.input_items.list(four.id, limit=2)
        assert ([_text(item.to_dict()) for item in newest.data], newest.has_more) == (["4", "Two."], True)
        following = await served.client.responses.input_items.list(four.id, after=newest.data[-1].id or "")
        assert [_text(item.to_dict()) for item in following.data] == ["2", "One.", "1"]
        assert fake.requests[3].json["previous_response_id"] != fake.requests[2].json["previous_response_id"]
        await served.client.responses.delete(two.id)
        with pytest.raises(openai.NotFoundError):
            await served.client.responses.retrieve(two.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await create(model="main", input="5", previous_response_id=two.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        assert (await served.client.responses.retrieve(four.id)).output_text == "Four."
        for last in (one, four, three):
            await served.client.responses.delete(last.id)
        assert await served.server.store.conversations() == []


def _text(item: Json) -> str:
    return "".join(part["text"] for part in item["content"])


@requirement("R140")
async def test_concurrent_continuations_of_response_are_branches(tmp_path: Path):
    calling = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1")
    async with responding([*said("First."), *[calling.reply()] * 4, *said(*"abcd")], tmp_path) as served:
        create = served.client.responses.create
        first = await create(model="main", input="Hi")
        asked: Json = {"model": "main", "tools": [ADD]}
        four = await asyncio.gather(
            *(create(**asked, input=str(n), previous_response_id=first.id) for n in range(4)), return_exceptions=False
        )
        assert len({response.id for response in four}) == 4
        output: Json = {"type": "function_call_output", "call_id": "c1", "output": "3"}
        answered = await asyncio.gather(
            *(create(**asked, input=[output], previous_response_id=four[0].id) for _ in range(4))
        )
        assert sorted(response.output_text for response in answered) == [*"abcd"]
        sent = [request.json["input"] for request in served.fake.requests]
        for body in sent[5:]:
            outputs = [item["output"] for item in body if item.get("type") == "function_call_output"]
            assert outputs == ["3"]


async def _owner(served: Served) -> str:
    return ConversationId.parse((await served.server.store.conversations())[0].id).owner


async def _stale(served: Served, **body: Json) -> tuple[str, PreparedRequest, Base]:
    """A request whose base has been read, so that another request can overtake it."""
    given: Json = {"model": "main", **body}
    request = prepared(given, msgspec.convert(given, ResponsesRequest), served.server.settings, "openai")
    owner = await _owner(served)
    return owner, request, await base_of(served.server, owner, request)


@requirement("R140")
async def test_overtaken_continuation_becomes_branch(tmp_path: Path):
    async with responding(said("One.", "Two.", "Three."), tmp_path) as served:
        create = served.client.responses.create
        one = await create(model="main", input="1")
        owner, request, base = await _stale(served, input="3", previous_response_id=one.id)
        await create(model="main", input="2", previous_response_id=one.id)
        info = await start(served.server, owner, request, base, read_input(request.body.input, {}))
        assert (await whole(served.server, info, "openai"))["status"] == "completed"
        items = await served.client.responses.input_items.list(info.id, order="asc")
        assert [_text(item.to_dict()) for item in items.data] == ["1", "One.", "3"]


@requirement("R140")
async def test_overtaken_output_becomes_branch(tmp_path: Path):
    calling = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1")
    async with responding([calling.reply(), *said("Three.", "Also three.")], tmp_path) as served:
        create = served.client.responses.create
        asked: Json = {"tools": [ADD], "input": "Add."}
        first = await create(model="main", **asked)
        output: Json = {"type": "function_call_output", "call_id": "c1", "output": "3"}
        asked = {"tools": [ADD], "input": [output], "previous_response_id": first.id}
        owner, request, base = await _stale(served, **asked)
        assert (await create(model="main", **asked)).output_text == "Three."
        info = await start(served.server, owner, request, base, read_input(request.body.input, {}))
        assert (await whole(served.server, info, "openai"))["output"][0]["content"][0]["text"] == "Also three."


@requirement("R140")
async def test_response_that_is_being_continued_can_be_continued(tmp_path: Path):
    release = asyncio.Event()
    held = sse(paused(ResponsesScript().text("Two."), release, "Two"))
    async with responding([*said("One."), held], tmp_path) as served:
        create = served.client.responses.create
        one = await create(model="main", input="1")
        info = await find_response(served.server, await _owner(served), one.id)
        two = asyncio.create_task(create(model="main", input="2", previous_response_id=one.id))
        await eventually(lambda: len(served.fake.requests) == 2)
        base = await base_after(served.server, info, is_stored=True)
        assert base.conversation is None
        assert [message.text for message in base.messages] == ["1", "One."]
        release.set()
        assert (await two).output_text == "Two."


@requirement("R140")
async def test_client_and_server_functions_work_in_one_turn(tmp_path: Path):
    def server_time() -> str:
        return "noon"

    both = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1").function_call("server_time", {}, "c2")
    replies = [both.reply(), *said("3, at noon.", "4, at noon.")]
    async with responding(replies, tmp_path, tools=[server_time]) as served:
        create = served.client.responses.create
        tools: Json = [ADD]
        first = await create(model="main", input="Add.", tools=tools)
        call, ran = first.output
        assert (call.type, ran.type) == ("function_call", "mcp_call")
        assert (call.name, call.arguments, call.call_id) == ("add", '{"a":1,"b":2}', "c1")  # type: ignore[union-attr]
        assert (ran.name, ran.output) == ("server_time", "noon")  # type: ignore[union-attr]
        output: Json = {"type": "function_call_output", "call_id": "c1", "output": "3"}
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="main", input="Well?", tools=tools, previous_response_id=first.id)
        assert (caught.value.code, caught.value.param) == ("missing_output", "input")
        other: Json = {**output, "call_id": "c9"}
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="main", input=[other], tools=tools, previous_response_id=first.id)
        assert caught.value.param == "input[0].call_id"
        second = await create(model="main", input=[output], tools=tools, previous_response_id=first.id)
        assert second.output_text == "3, at noon."
        outputs = {item["call_id"]: item["output"] for item in served.fake.requests[1].json["input"]}
        assert outputs == {"c1": "3", "c2": "noon"}
        other = {**output, "output": "4"}
        branch = await create(model="main", input=[other], tools=tools, previous_response_id=first.id)
        assert branch.output_text == "4, at noon."


@requirement("R140")
async def test_agent_mcp_servers_run_locally(tmp_path: Path):
    args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
    clock = MCPServer("clock", command=sys.executable, args=args, approval="run")
    arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    calling = ResponsesScript().function_call("convert_time", arguments, "c1").reply()
    async with clock, responding([calling, *said("21:00.")], tmp_path, mcp=[clock]) as served:
        events = await events_in(
            await served.client.responses.create(model="main", input="Noon in Tokyo?", stream=True)
        )
        call, message = check_events(events)["output"]
        assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "clock", "convert_time")
        assert "21:00" in call["output"]
        assert message["content"][0]["text"] == "21:00."
        kinds = [event["type"].removeprefix("response.mcp_call") for event in events if "mcp_call" in event["type"]]
        assert kinds == [".in_progress", "_arguments.delta", "_arguments.done", ".completed"]


@requirement("R140")
async def test_client_supplied_history_needs_no_server_state(tmp_path: Path):
    calling = ResponsesScript().reasoning("Adding.").function_call("add", {"a": 1, "b": 2}, "c1").reply()
    async with responding([calling, *said("3.")], tmp_path) as served:
        create, tools = served.client.responses.create, [ADD]
        history: Json = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Add."}]
        first = await create(model="main", input=history, tools=tools, store=False)  # type: ignore[arg-type]
        assert first.store is False
        history += [item.to_dict() for item in first.output]
        history.append(
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]}
        )
        second = await create(model="main", input=history, tools=tools, store=False)  # type: ignore[arg-type]
        assert second.output_text == "3."
        sent = str(served.fake.requests[1].json["input"])
        assert all(word in sent for word in ("Be brief.", "Add.", "function_call_output", "c1"))
        for response in (first, second):
            with pytest.raises(openai.NotFoundError):
                await served.client.responses.retrieve(response.id)
        assert await served.server.store.conversations() == []


@requirement("R140")
@pytest.mark.parametrize("dialect", ["openai", "open-responses"])
async def test_history_may_refer_to_items_of_any_own_response(dialect: Any, tmp_path: Path):
    script = ResponsesScript().reasoning("Hm.").web_search("fruit").text("A papaya.")
    tokens = ["token-of-anna-0123456789", "token-of-ben-0123456789"]
    settings: Json = {"dialect": dialect, "tokens": tokens}
    async with responding([script.reply(), *said("Yes.")], tmp_path, server=settings) as served:
        anna, ben = (served.client_of(token) for token in tokens)
        first = await anna.responses.create(model="main", input="Which fruit?")
        ids = [item.id for item in first.output]
        assert len(set(ids)) == len(ids) >= 3
        references: Json = [{"type": "item_reference", "id": id} for id in ids]
        said_before: Json = {"role": "user", "content": "Which fruit?"}
        history: Json = [said_before, *references, {"role": "user", "content": "Sure?"}]
        again = await anna.responses.create(model="main", input=history)
        assert again.output_text == "Yes."
        sent = served.fake.requests[1].json["input"]
        assert [item["content"] for item in sent if item.get("role")] == ["Which fruit?", "A papaya.", "Sure?"]
        counted = await anna.responses.input_tokens.count(model="main", input=history)
        assert counted.input_tokens > 0
        for client, given in ((ben, references[-1]), (anna, {"type": "item_reference", "id": f"{ids[-1]}9"})):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.create(model="main", input=[given])
            assert caught.value.param == "input[0].id"


@requirement("R140")
async def test_responses_approval_is_bound_to_stored_call(tmp_path: Path):
    removed: list[int] = []

    def remove(id: int) -> str:
        removed.append(id)
        return "gone"

    calling = [ResponsesScript().function_call("remove", {"id": 7}, "c1").reply() for _ in range(2)]
    replies = [calling[0], *said("Done."), calling[1], *said("As you like.")]
    async with responding(replies, tmp_path, tools=[remove], approval="ask") as served:
        create = served.client.responses.create
        asked = await create(model="main", input="Remove 7.")
        (request,) = asked.output
        assert request.type == "mcp_approval_request"
        assert (request.name, request.arguments, request.server_label) == ("remove", '{"id":7}', "server")
        answer: Json = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        changed = {**request.to_dict(), "arguments": '{"id":8}'}
        history: Json = [{"role": "user", "content": "Remove 8."}, changed, answer]
        with pytest.raises(openai.PermissionDeniedError):  # Nothing of a posted history counts.
            await create(model="main", input=history)
        done = await create(model="main", input=[answer], previous_response_id=asked.id)
        assert ([item.type for item in done.output], done.output_text) == (["mcp_call", "message"], "Done.")
        assert done.output[0].approval_request_id == request.id  # type: ignore[union-attr]
        assert removed == [7]
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await create(model="main", input=[answer], previous_response_id=done.id)
        assert (caught.value.code, caught.value.param) == ("nothing_waits", "input[0].approval_request_id")
        asked = await create(model="main", input="Again.", previous_response_id=done.id)
        denial: Json = {**answer, "approval_request_id": asked.output[0].id, "approve": False, "reason": "no"}
        denied = await create(model="main", input=[denial], previous_response_id=asked.id)
        assert ([item.type for item in denied.output], denied.output_text) == (["message"], "As you like.")
        assert removed == [7]
        items = (await served.client.responses.input_items.list(denied.id)).data
        assert (items[0].type, items[0].approve) == ("mcp_approval_response", False)  # type: ignore[union-attr]


@requirement("R140")
async def test_remote_mcp_approval_goes_back_to_provider(tmp_path: Path):
    asking = ResponsesScript().mcp_approval_request("crm", "remove", {"id": 7})
    called = ResponsesScript().mcp_call("crm", "remove", {"id": 7}, output="gone").text("Done.")
    server: Json = {"mcp_hosts": ["crm.example"]}
    tool: Json = {
        "type": "mcp",
        "server_label": "crm",
        "server_url": "https://crm.example/mcp",
        "require_approval": "always",
    }
    async with responding([asking.reply(), called.reply()], tmp_path, server=server) as served:
        create = served.client.responses.create
        secret: Json = {**tool, "authorization": "token-of-the-crm"}
        asked = await create(model="main", input="Remove 7.", tools=[secret])
        assert served.fake.requests[0].json["tools"][0]["authorization"] == "token-of-the-crm"
        assert "token-of-the-crm" not in str(asked.to_dict())
        assert asked.tools[0].to_dict()["server_url"] == "https://crm.example/mcp"
        (request,) = asked.output
        answer: Json = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = await create(model="main", input=[answer], tools=[tool], previous_response_id=asked.id)
        assert [item.type for item in done.output] == ["mcp_call", "message"]
        (sent,) = served.fake.requests[1].json["input"]
        assert (sent["type"], sent["approve"]) == ("mcp_approval_response", True)
    assert b"token-of-the-crm" not in b"".join(map(Path.read_bytes, tmp_path.glob("talks.db")))  # noqa: ASYNC240


@requirement("R140")
@pytest.mark.parametrize(
    ("tool", "status", "param"),
    [
        ({"type": "mcp", "server_label": "x", "server_url": "https://other.example/mcp"}, 403, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:9/mcp"}, 403, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "x", "server_url": "http://169.254.169.254/"}, 403, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "x", "server_url": "file:///etc/passwd"}, 400, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "x", "server_url": "https://a@crm.example/"}, 400, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "x", "server_url": "https://crm.example.evil/"}, 403, "tools[0].server_url"),
        ({"type": "mcp", "server_url": "https://crm.example/mcp"}, 400, "tools[0].server_label"),
    ],
)
async def test_requests_may_name_only_allowed_mcp_servers(tool: Json, status: int, param: str, tmp_path: Path):
    async with responding([], tmp_path, server={"mcp_hosts": ["crm.example"]}) as served:
        with pytest.raises(openai.APIStatusError) as caught:
            await served.client.responses.create(model="main", input="Hi", tools=[tool])
        assert (caught.value.status_code, caught.value.param) == (status, param)
        assert not served.fake.requests


@requirement("R140")
async def test_hosted_tools_of_request_run_at_provider(tmp_path: Path):
    script = (
        ResponsesScript()
        .web_search("news", sources=["https://a.example"])
        .code_interpreter("print(1)", logs="1")
        .image(b"final", partials=[b"first"])
        .text("Done.")
    )
    async with responding([script.reply()], tmp_path) as served:
        tools: Json = [
            {"type": "web_search", "search_context_size": "low", "filters": {"allowed_domains": ["a.example"]}},
            {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}},
            {"type": "image_generation", "partial_images": 1, "quality": "low"},
        ]
        events = await events_in(
            await served.client.responses.create(model="main", input="Go.", tools=tools, stream=True)
        )
        response = check_events(events, typed=False)
        kinds = [item["type"] for item in response["output"]]
        assert kinds == ["web_search_call", "code_interpreter_call", "image_generation_call", "message"]
        assert b64decode(response["output"][2]["result"]) == b"final"
        assert [e["type"] for e in events if "partial_image" in e["type"]]
        sent = {tool["type"]: tool for tool in served.fake.requests[0].json["tools"]}
        assert sent["web_search"]["search_context_size"] == "low"
        assert sent["code_interpreter"]["container"]["memory_limit"] == "4g"
        assert sent["image_generation"]["partial_images"] == 1
        assert [tool["type"] for tool in response["tools"]] == list(sent)


@requirement("R140")
async def test_hosted_tool_restrictions_reach_provider(tmp_path: Path):
    one: Json = {"type": "eq", "key": "tenant", "value": "a"}
    two: Json = {"type": "and", "filters": [one, {"type": "in", "key": "year", "value": [2025, 2026]}]}
    network: Json = {"type": "allowlist", "allowed_domains": ["a.example"]}
    tools: Json = [
        {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": two},
        {"type": "code_interpreter", "container": {"type": "auto", "network_policy": network}},
        {"type": "shell", "environment": {"type": "container_auto", "network_policy": {"type": "disabled"}}},
        {"type": "image_generation", "input_image_mask": {"file_id": "file_1"}},
    ]
    async with responding(said("Done.", "Done."), tmp_path) as served:
        create = served.client.responses.create
        response = await create(model="main", input="Go.", tools=tools)
        assert [tool.to_dict() for tool in response.tools] == tools
        await create(model="main", input="Go.", tools=[{**tools[0], "filters": one}])
        first, second = (request.json["tools"] for request in served.fake.requests)
        sent = {tool["type"]: tool for tool in first}
        assert sent["file_search"]["filters"] == two
        assert sent["code_interpreter"]["container"]["network_policy"] == network
        assert sent["shell"]["environment"]["network_policy"] == {"type": "disabled"}
        assert sent["image_generation"]["input_image_mask"] == {"file_id": "file_1"}
        assert second[0]["filters"] == one


@requirement("R140")
async def test_tool_unsupported_by_provider_is_bad_request(tmp_path: Path):
    async with FakeProvider() as fake:
        agent = Agent("openai-chat", base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            for tool in ({"type": "file_search", "vector_store_ids": ["vs_1"]}, {"type": "image_generation"}):
                with pytest.raises(openai.BadRequestError) as caught:
                    await served.client.responses.create(model="main", input="Hi", tools=[tool])  # type: ignore[list-item]
                assert (caught.value.param, caught.value.code) == ("tools", "unsupported")


@requirement("R140")
@pytest.mark.parametrize("format", [None, {"type": "text"}, {"type": "grammar", "syntax": "lark", "definition": "x"}])
async def test_custom_tool_takes_string_input(format: Json, tmp_path: Path):
    call = ResponsesScript().function_call("sql", {"input": "select 1"}, "c1")
    async with responding([call.reply(), *said("One.")], tmp_path) as served:
        tool: Json = {"type": "custom", "name": "sql", **({"format": format} if format else {})}
        create = served.client.responses.create
        first = await create(model="main", input="Count.", tools=[tool])
        (item,) = first.output
        assert (item.type, item.input) == ("custom_tool_call", "select 1")  # type: ignore[union-attr]
        output: Json = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "1"}  # type: ignore[union-attr]
        second = await create(model="main", input=[output], previous_response_id=first.id, tools=[tool])
        assert second.output_text == "One."


@requirement("R140")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"name": {"type": "string"}}},
        {"$ref": "#/$defs/City", "$defs": {"City": {"type": "object", "properties": {"name": {"type": "string"}}}}},
    ],
)
async def test_schema_without_type_is_sent_as_object(schema: Json, tmp_path: Path):
    async with responding(said('{"name": "Bern"}'), tmp_path) as served:
        form: Json = {"type": "json_schema", "name": "city", "schema": schema}
        response = await served.client.responses.create(model="main", input="Which?", text={"format": form})
        assert response.output_text == '{"name": "Bern"}'
        sent = served.fake.requests[0].json["text"]["format"]["schema"]
        assert (sent["type"], list(sent["properties"])) == ("object", ["name"])


@requirement("R140")
async def test_function_outputs_may_contain_images_and_files(tmp_path: Path):
    image: Json = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    table: Json = {"type": "input_file", "filename": "a.csv", "file_data": "YSxi"}
    content: Json = [{"type": "input_text", "text": "See:"}, image, table]
    call = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1")
    async with responding([call.reply(), *said("Seen.", "Seen.")], tmp_path) as served:
        create = served.client.responses.create
        first = await create(model="main", input="Add.", tools=[ADD])
        output: Json = {"type": "function_call_output", "call_id": "c1", "output": content}
        second = await create(model="main", input=[output], previous_response_id=first.id, tools=[ADD])
        whole: Json = [{"role": "user", "content": "Add."}, first.output[0].to_dict(), output]
        third = await create(model="main", input=whole, tools=[ADD])
        known = {**table, "file_data": "data:text/csv;base64,YSxi"}
        for request, response in zip(served.fake.requests[1:], (second, third), strict=True):
            (sent,) = [item for item in request.json["input"] if item.get("type") == "function_call_output"]
            assert sent["output"] == [content[0], image, known]
            listed = [item.to_dict() async for item in served.client.responses.input_items.list(response.id)]
            assert [item["output"] for item in listed if "output" in item] == [[content[0], image, known]]


def code_with_a_file() -> Any:
    result = {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0}
    made = [{"type": "code_execution_output", "file_id": "file_1"}]
    script = MessagesScript().server_tool_use("code_execution", {"code": "save()"}, "s1")
    return script.result("code_execution_tool_result", {**result, "content": made}, "s1").text("Done.")


CITED: Json = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1", "filename": "a.csv"}
FILES: dict[str, list[Any]] = {
    "anthropic": [
        code_with_a_file().reply(),
        Reply(body=b"a,b\n"),
        json_reply({"id": "file_1", "filename": "a.csv", "mime_type": "text/csv", "size_bytes": 4}),
    ],
    "openai-responses": [
        ResponsesScript()
        .code_interpreter("save()", logs="1")
        .text("Done.", annotations=[{**CITED, "start_index": 0, "end_index": 4}])
        .reply(),
        Reply(body=b"a,b\n"),
    ],
}


@requirement("R140")
@pytest.mark.parametrize("provider", FILES)
async def test_response_files_are_cited_and_can_be_downloaded(provider: str, tmp_path: Path):
    async with FakeProvider(FILES[provider]) as fake:
        agent = Agent(provider, base_url=fake.base_url, api_key=KEY, server_side_tools=[CodeInterpreter()])
        tokens = ["token-of-anna-0123456789", "token-of-ben-0123456789"]
        async with served_agents({"main": agent}, fake, tmp_path, tokens=tokens) as served:
            anna, ben = (served.client_of(token) for token in tokens)
            events = await events_in(await anna.responses.create(model="main", input="Go.", stream=True))
            response = check_events(events, typed=False)
            (cited,) = response["output"][-1]["content"][0]["annotations"]
            assert (cited["type"], cited["filename"]) == ("container_file_citation", "a.csv")
            id, container = cited["file_id"], cited["container_id"]
            fetched = await anna.containers.files.content.retrieve(id, container_id=container)
            assert fetched.content == b"a,b\n"
            assert fetched.response.headers["content-disposition"] == 'attachment; filename="a.csv"'
            described = await anna.containers.files.retrieve(id, container_id=container)
            assert (described.path, described.bytes) == ("a.csv", 4)
            if provider == "anthropic":
                assert [file.id async for file in anna.containers.files.list(container)] == [id]
            for other, name in ((ben, id), (anna, "cfile_other")):
                with pytest.raises(openai.NotFoundError):
                    await other.containers.files.content.retrieve(name, container_id=container)
            with pytest.raises(openai.NotFoundError):
                await anna.containers.files.list("cntr_other")


Provider = tuple[str, Callable[[], Any]]
PROVIDERS: dict[str, Provider] = {
    "openai-responses": ("openai-responses", lambda: ResponsesScript().reasoning("Hm.").text("Hello.")),
    "anthropic": (
        "anthropic",
        lambda: (
            MessagesScript()
            .thinking("Hm.")
            .web_search(
                "q", [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "x"}]
            )
            .text("Hello.")
        ),
    ),
    "google": ("google", lambda: GeminiScript().thought("Hm.").text("Hello.")),
    "openai-chat": ("openai-chat", lambda: ChatScript().reasoning("Hm.").text("Hello.")),
}


@requirement("R140")
@pytest.mark.parametrize("dialect", ["openai", "open-responses"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_responses_api_serves_every_provider(provider: str, dialect: str, tmp_path: Path):
    name, script = PROVIDERS[provider]
    async with FakeProvider([script().reply()]) as fake:
        agent = Agent(name, base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served, httpx2.AsyncClient() as client:
            headers = {"OpenResponses-Version": "2026-04-24"} if dialect == "open-responses" else {}
            body = {"model": "main", "input": "Hi", "stream": True}
            answer = await client.post(f"{served.url}/v1/responses", json=body, headers=headers)
            response = check_events(frames_of(answer), dialect, typed=provider != "openai-responses")
            assert response["output"][-1]["content"][0]["text"] == "Hello."
            assert response["output"][0]["type"] == "reasoning"
            url = f"{served.url}/v1/responses/{response['id']}"
            again = (await client.get(url, headers=headers)).json()
            assert again == response
            assert (type(again["created_at"]), type(again["completed_at"])) == (int, int)


def frames_of(answer: Any) -> list[Json]:
    """The events of a response, whose frames are as both dialects want them."""
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *frames, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    events: list[Json] = []
    for frame in frames:
        first, second = frame.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        events.append(event)
    return events


@requirement("R140")
async def test_response_chain_may_switch_provider(tmp_path: Path):
    scripts: list[Reply] = [
        ResponsesScript().reasoning("Secret.", encrypted_content="of-openai").text("Papaya.").reply(),
        MessagesScript().thinking("Hm.", signature="of-anthropic").text("Mango.").reply(),
        ResponsesScript().text("Kiwi.").reply(),
    ]
    async with FakeProvider(scripts) as fake:
        agents = {name: Agent(name, base_url=fake.base_url, api_key=KEY) for name in ("openai-responses", "anthropic")}
        async with served_agents(agents, fake, tmp_path) as served:
            create = served.client.responses.create
            one = await create(model="openai-responses", input="A fruit?")
            two = await create(model="anthropic", input="Another?", previous_response_id=one.id)
            three = await create(model="openai-responses", input="A third?", previous_response_id=two.id)
            assert (two.output_text, three.output_text) == ("Mango.", "Kiwi.")
            to_anthropic, to_openai = fake.requests[1].json, fake.requests[2].json
            assert "Papaya." in str(to_anthropic)
            assert "of-openai" not in str(to_anthropic)
            assert "of-anthropic" not in str(to_openai)
            assert "Mango." in str(to_openai)


@requirement("R140")
async def test_typed_answer_is_parsed(tmp_path: Path):
    class Numbers(BaseModel):
        a: int
        b: int

    replies = [ResponsesScript().text('{"a": 1, "b": 2}').reply() for _ in range(2)]
    async with responding(replies, tmp_path) as served:
        parsed = await served.client.responses.parse(model="main", input="Numbers?", text_format=Numbers)
        assert parsed.output_parsed == Numbers(a=1, b=2)
        sent = served.fake.requests[0].json["text"]["format"]
        assert (sent["type"], sent["schema"]["required"]) == ("json_schema", ["a", "b"])
        async with served.client.responses.stream(model="main", input="Numbers?", text_format=Numbers) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert "response.completed" in kinds
        assert final.output_parsed == Numbers(a=1, b=2)


@requirement("R140", "R142")
async def test_background_response_is_polled_and_cancelled(tmp_path: Path):
    gate, other = asyncio.Event(), asyncio.Event()
    replies = [
        sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One")),
        sse(paused(ResponsesScript().text(["Three, ", "four."]), other, "Three")),
    ]
    async with responding(replies, tmp_path) as served:
        create, retrieve = served.client.responses.create, served.client.responses.retrieve
        queued = await create(model="main", input="Count.", background=True)
        assert queued.status in ("queued", "in_progress")
        assert queued.background
        with pytest.raises(openai.ConflictError) as caught:
            await create(model="main", input="And?", previous_response_id=queued.id)
        assert caught.value.code == "response_in_progress"
        served.fake.release(gate)
        events = await _retrieved(served.client, queued.id, None)
        assert [event["type"] for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert (await retrieve(queued.id)).output_text == "One, two."
        running = await create(model="main", input="Count.", background=True)
        reading = asyncio.create_task(_retrieved(served.client, running.id, None))
        async for event in await retrieve(running.id, stream=True):
            if event.type == "response.output_text.delta":
                break
        cancelled = await served.client.responses.cancel(running.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "Three, ")
        assert check_events(await reading)["status"] == "cancelled"
        assert (await served.client.responses.cancel(queued.id)).status == "completed"


@requirement("R140")
async def test_cancelling_stops_server_tool(tmp_path: Path):
    began, left = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return ""

    async with responding(
        [ResponsesScript().function_call("wait", {}, "c1").reply()], tmp_path, tools=[wait]
    ) as served:
        started = await served.client.responses.create(model="main", input="Wait.", background=True)
        await began.wait()
        cancelled = await served.client.responses.cancel(started.id)
        await left.wait()
        assert cancelled.status == "cancelled"
        assert [(item.type, item.status) for item in cancelled.output] == [("mcp_call", "incomplete")]  # type: ignore[union-attr]


@requirement("R140")
async def test_tool_choice_limits_offered_tools(tmp_path: Path):
    def server_time() -> str:
        return "noon"

    other: Json = {**ADD, "name": "subtract"}
    tools: Json = [ADD, other, {"type": "web_search"}]
    calling = [
        ResponsesScript().function_call("server_time", {}, "c1").reply(),
        *said("Noon."),
        ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c2").reply(),
    ]
    async with responding([*said("1", "2", "3"), *calling], tmp_path, tools=[server_time]) as served:
        create = served.client.responses.create
        choice: Json = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
        allowed = await create(model="main", input="Hi", tools=tools, tool_choice=choice)
        assert [tool["name"] for tool in served.fake.requests[0].json["tools"]] == ["add"]
        assert served.fake.requests[0].json.get("tool_choice") is None
        assert len(allowed.tools) == 3
        await create(model="main", input="Hi", tools=tools, tool_choice="none")
        assert not served.fake.requests[1].json.get("tools")
        await create(model="main", input="Hi", tools=tools)
        assert len(served.fake.requests[2].json["tools"]) == 4
        await create(model="main", input="Hi", tools=tools, tool_choice="required")
        forced, free = (request.json.get("tool_choice") for request in served.fake.requests[3:5])
        assert (forced, free) == ("required", None)  # Else the model would call tools for ever.
        one: Json = {"type": "function", "name": "add"}
        response = await create(model="main", input="Hi", tools=tools, tool_choice=one)
        assert served.fake.requests[5].json["tool_choice"] == one
        assert response.tool_choice.to_dict() == one  # type: ignore[union-attr]


@requirement("R140")
@pytest.mark.parametrize(
    ("provider", "script", "forced"),
    [
        ("openai-responses", ResponsesScript, ("tool_choice", "required")),
        ("anthropic", MessagesScript, ("tool_choice", {"type": "any"})),
        ("google", GeminiScript, ("toolConfig", None)),  # It cannot be forced there.
    ],
)
async def test_hosted_tool_is_forced_when_provider_supports_it(
    provider: str, script: Any, forced: Json, tmp_path: Path
):
    async with FakeProvider([script().text("Done.").reply() for _ in range(3)]) as fake:
        agent = Agent(provider, base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            tools: Json = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]
            one: Json = {"type": "web_search"}
            allowed: Json = {"type": "allowed_tools", "mode": "required", "tools": [one]}
            for choice in (one, allowed, "required"):
                await served.client.responses.create(model="main", input="Hi", tools=tools, tool_choice=choice)
            sent = [request.json for request in fake.requests]
            assert [body.get(forced[0]) for body in sent] == [forced[1]] * 3
            assert [len(body["tools"]) for body in sent] == [1, 1, 2]


@requirement("R140")
async def test_always_searching_model_is_not_forced(tmp_path: Path):
    async with FakeProvider([ChatScript().text("Done.").reply()]) as fake:
        agent = Agent("openai-chat:gpt-5-search-api", base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            one: Json = {"type": "web_search"}
            await served.client.responses.create(model="main", input="Hi", tools=[one], tool_choice=one)
            sent = fake.requests[0].json
            assert ("web_search_options" in sent, "tools" in sent, "tool_choice" in sent) == (True, False, False)


@requirement("R140")
async def test_request_tools_are_added_to_tools_of_agent_options(tmp_path: Path):
    async with FakeProvider([ResponsesScript().text("Done.").reply()]) as fake:
        options = OpenAIResponsesOptions(server_side_tools={OpenAIServerSideTool.WEB_SEARCH})
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, options=options)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            tools: Json = [{"type": "code_interpreter", "container": {"type": "auto"}}]
            await served.client.responses.create(model="main", input="Hi", tools=tools)
        sent = {tool["type"] for tool in fake.requests[0].json["tools"]}
    assert sent == {"web_search", "code_interpreter"}


@requirement("R140")
async def test_response_at_token_limit_is_incomplete(tmp_path: Path):
    replies = [ResponsesScript().text("Once upon a").incomplete().reply()]
    async with responding(replies, tmp_path) as served:
        response = await served.client.responses.create(model="main", input="Tell.", max_output_tokens=16)
        assert (response.status, response.output[-1].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


@requirement("R140")
async def test_failures_are_http_errors_or_events(tmp_path: Path):
    refused = error_reply(400, "invalid_request_error", "bad")
    broken = ResponsesScript().text("Fir").failed("server_error", "down")
    async with responding([refused, refused, broken.reply(), broken.reply()], tmp_path) as served:
        create = served.client.responses.create
        with pytest.raises(openai.BadRequestError, match="bad"):
            await create(model="main", input="Hi")
        events = await events_in(await create(model="main", input="Hi", stream=True))
        assert check_events(events)["error"]["message"].endswith("bad")
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        failed = await create(model="main", input="Hi")
        assert (failed.status, failed.output_text) == ("failed", "Fir")
        assert failed.error is not None
        again = await served.client.responses.retrieve(failed.id)
        assert again.status == "failed"
        stopped = await events_in(await served.client.responses.retrieve(failed.id, stream=True))
        assert check_events(stopped)["status"] == "failed"


@requirement("R140")
async def test_responses_belong_to_their_token(tmp_path: Path):
    tokens = ["token-of-anna-0123456789", "token-of-ben-0123456789"]
    async with responding(said("Hi.", "No."), tmp_path, server={"tokens": tokens}) as served:
        anna, ben = (served.client_of(token) for token in tokens)
        response = await anna.responses.create(model="main", input="Hi")
        conversation = await anna.conversations.create(metadata={"a": "b"})
        for call in (
            lambda: ben.responses.retrieve(response.id),
            lambda: ben.responses.delete(response.id),
            lambda: ben.responses.cancel(response.id),
            lambda: ben.responses.input_items.list(response.id),
            lambda: ben.responses.create(model="main", input="Hi", previous_response_id=response.id),
            lambda: ben.responses.create(model="main", input="Hi", conversation=conversation.id),
            lambda: ben.conversations.retrieve(conversation.id),
            lambda: ben.conversations.items.list(conversation.id),
            lambda: ben.conversations.delete(conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call()
        with pytest.raises(openai.AuthenticationError):
            await served.client_of("wrong").responses.retrieve(response.id)
        assert (await anna.responses.retrieve(response.id)).output_text == "Hi."


@requirement("R140")
async def test_conversations_collect_items_of_responses(tmp_path: Path):
    async with responding(said("One.", "Two."), tmp_path) as served:
        conversations, create = served.client.conversations, served.client.responses.create
        items: Json = [{"type": "message", "role": "developer", "content": "Be brief."}]
        conversation = await conversations.create(items=items, metadata={"topic": "numbers"})
        assert (conversation.metadata, conversation.object) == ({"topic": "numbers"}, "conversation")
        one = await create(model="main", input="1", conversation=conversation.id)
        assert one.conversation is not None
        assert one.conversation.id == conversation.id
        added = await conversations.items.create(conversation.id, items=[{"role": "user", "content": "By the way."}])  # type: ignore[list-item]
        assert [_text(item.to_dict()) for item in added.data] == ["By the way."]
        await create(model="main", input="2", conversation={"id": conversation.id})
        assert "By the way." in str(served.fake.requests[1].json["input"])
        listed = [item.to_dict() async for item in conversations.items.list(conversation.id, order="asc")]
        assert [_text(item) for item in listed] == ["Be brief.", "1", "One.", "By the way.", "2", "Two."]
        item = await conversations.items.retrieve(str(listed[2]["id"]), conversation_id=conversation.id)
        assert item.to_dict() == listed[2]
        with pytest.raises(openai.BadRequestError) as caught:
            await conversations.items.delete(str(listed[2]["id"]), conversation_id=conversation.id)
        assert caught.value.code == "unsupported"
        assert (await conversations.update(conversation.id, metadata={})).metadata == {}
        assert (await conversations.delete(conversation.id)).deleted
        for missing in (
            lambda: conversations.retrieve(conversation.id),
            lambda: served.client.responses.retrieve(one.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await missing()


@requirement("R140")
async def test_compaction_returns_input_for_continuing(tmp_path: Path):
    async with responding(said("Papaya.", "The user likes papaya.", "Papaya, of course."), tmp_path) as served:
        first = await served.client.responses.create(model="main", input="A fruit?")
        window = await served.client.responses.compact(model="main", previous_response_id=first.id)
        *messages, compaction = [item.model_dump(warnings=False, exclude_none=True) for item in window.output]
        assert ([_text(item) for item in messages], compaction["type"]) == (["A fruit?"], "compaction")
        assert "papaya" not in str(compaction["encrypted_content"])
        assert window.usage.total_tokens > 0
        sent: Json = [*messages, compaction, {"role": "user", "content": "Which was it?"}]
        answer = await served.client.responses.create(model="main", input=sent)
        assert answer.output_text == "Papaya, of course."
        assert "The user likes papaya." in str(served.fake.requests[2].json["input"])
        damaged: Json = [{**compaction, "encrypted_content": str(compaction["encrypted_content"])[:-5]}]
        with pytest.raises(openai.BadRequestError) as caught:
            await served.client.responses.create(model="main", input=damaged)
        assert caught.value.param == "input[0].encrypted_content"
        count = await served.client.responses.input_tokens.count(model="main", input="Hello there, how are you?")
        assert 0 < count.input_tokens < 20


@requirement("R140")
async def test_models_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with responding([], tmp_path) as served:
        assert [model.id async for model in served.client.models.list()] == ["main"]
        assert (await served.client.models.retrieve("main")).owned_by == "openai-responses"
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="any") as client:
            assert [model.display_name async for model in client.models.list()] == ["main"]
        with pytest.raises(openai.NotFoundError):
            await served.client.models.retrieve("nobody")
    async with FakeProvider([]) as fake, served_agents("openai-responses:gpt-x", fake, tmp_path) as served:
        listed = [model.id async for model in served.client.models.list()]
        assert listed[0] == "openai-responses:gpt-x"


@requirement("R140")
async def test_server_dialect_can_be_set_and_chosen(tmp_path: Path):
    async with (
        responding(said("1", "2"), tmp_path, server={"dialect": "open-responses"}) as served,
        httpx2.AsyncClient() as client,
    ):
        url, body = f"{served.url}/v1/responses", {"model": "main", "input": "Hi", "tools": [{"type": "web_search"}]}
        strict = (await client.post(url, json=body)).json()
        check_response(strict, "open-responses")
        assert strict["tools"] == []
        openais = (await client.post(f"{url}?dialect=openai", json=body)).json()
        assert openais["tools"] == [{"type": "web_search"}]
        assert (await client.post(f"{url}?dialect=other", json=body)).json()["error"]["param"] == "dialect"


@requirement("R140")
async def test_stream_resumed_at_any_event_equals_rest_of_stream(tmp_path: Path):
    async with responding(said("Hello."), tmp_path) as served:
        response = await served.client.responses.create(model="main", input="Hi")
        whole = await _retrieved(served.client, response.id, None)
        checker = StreamChecker()
        for event in whole:
            checker.feed(event)
        for after in range(len(whole)):
            assert await _retrieved(served.client, response.id, after) == whole[after + 1 :]


@requirement("R140")
async def test_message_may_accompany_function_outputs(tmp_path: Path):
    calling = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1").reply()
    gate = asyncio.Event()
    answering = sse(paused(ResponsesScript().text(["Three", "."]), gate, "Three"))
    async with responding([calling, answering, *said("Trois.")], tmp_path) as served:
        tools: Json = [ADD]
        first = await served.client.responses.create(model="main", input="Add.", tools=tools)
        given: Json = [
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"role": "user", "content": "In French."},
        ]
        served.fake.release(gate)
        second = await served.client.responses.create(
            model="main", input=given, tools=tools, previous_response_id=first.id
        )
        assert second.status == "completed"
        sent = [str(request.json["input"]) for request in served.fake.requests[1:]]
        assert sum("In French." in text for text in sent) == 1
        wrong: Json = [{"role": "assistant", "content": "No."}, given[0]]
        with pytest.raises(openai.BadRequestError):
            await served.client.responses.create(model="main", input=wrong, previous_response_id=first.id)


@requirement("R140")
async def test_unstored_stream_ends_with_its_client(tmp_path: Path):
    gate = asyncio.Event()
    reply = sse(paused(ResponsesScript().text(["One, ", "two."]), gate, "One"))
    async with responding([reply], tmp_path) as served:
        stream = await served.client.responses.create(model="main", input="Count.", stream=True, store=False)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        (info,) = await served.server.store.conversations()
        await stream.close()
        async for _ in served.server.runs.follow(info.id):  # Until the run is stopped.
            pass
        while await served.server.store.read(info.id):  # It is deleted right after that.
            pass
        assert not served.server.runs.live


@requirement("R140")
async def test_web_ui_lists_conversations_of_responses_api(tmp_path: Path):
    async with responding(said("One.", "Two."), tmp_path) as served, httpx2.AsyncClient(base_url=served.url) as client:
        empty = await served.client.conversations.create()
        response = await served.client.responses.create(model="main", input="1")
        await served.client.responses.delete(response.id)
        await served.client.responses.create(model="main", input="2", conversation=empty.id)
        listed = (await client.get("/api/conversations")).json()["conversations"]
        assert [entry["id"] for entry in listed] == [empty.id]
        chat = await client.get(f"/api/chat/{empty.id}")
        assert (chat.status_code, len(chat.json()["messages"])) == (200, 2)
