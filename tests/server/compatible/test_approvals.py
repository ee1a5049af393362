"""Approvals through APIs that have none: the vendors' SDKs are asked with a call, or told where to decide."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from requirements import requirement
from sidestream import Agent
from sidestream.server import create_app
from sidestream.testing import FakeProvider, Reply, ResponsesScript, sse
from support.serving import OPEN, served
from support.stores import BOUND_S

Json = Any
KEY = "key-0123456789"
ADD: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION: Json = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}}
TOOL: Json = {"name": "add", "description": "Adds.", "input_schema": ADD}
ASK: Json = [{"role": "user", "content": "Delete a.txt"}]
deleted: list[str] = []


def delete(path: str) -> str:
    """Deletes a file."""
    deleted.append(path)
    return f"{path} is deleted"


@pytest.fixture(autouse=True)
def nothing_deleted() -> None:
    deleted.clear()


def script(*calls: tuple[str, str, Json]) -> Reply:
    made = ResponsesScript()
    for id, name, arguments in calls:
        made = made.function_call(name, arguments, call_id=id)
    return sse(made.events())


def said(text: str) -> Reply:
    return sse(ResponsesScript().text([text]).events())


CALL = ("call_1", "delete", {"path": "a.txt"})


@asynccontextmanager
async def server_at(fake: FakeProvider, path: Path, **settings: Any) -> AsyncGenerator[str]:
    agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, tools=[delete], approval="ask")
    async with served(create_app({"main": agent}, store=path / "talks.db", **{**OPEN, **settings})) as url:
        yield url


def chat_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def message_client(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


async def completed(url: str, messages: Json, *, stream: bool, tools: Json = None) -> tuple[Json, str, str]:
    """The message of a completion, its finish reason and its run."""
    async with chat_client(url) as client:
        given: Json = {"model": "main", "messages": messages, "tools": tools or [FUNCTION]}
        if not stream:
            raw = await client.chat.completions.with_raw_response.create(**given)
            choice = raw.parse().choices[0]
            run = raw.headers["x-sidestream-run"]
            return choice.message.model_dump(exclude_none=True), choice.finish_reason, run
        chunks = await client.chat.completions.with_raw_response.create(**given, stream=True)
        state: Json = ChatCompletionStreamState(input_tools=given["tools"])
        async for chunk in chunks.parse():
            state.handle_chunk(chunk)
        run, choice = chunks.headers["x-sidestream-run"], state.get_final_completion().choices[0]
        message = {"role": "assistant", "content": choice.message.content}
        calls = [call.model_dump(exclude={"index"}) for call in choice.message.tool_calls or ()]
        for call in calls:
            call["function"].pop("parsed_arguments", None)
        return message | ({"tool_calls": calls} if calls else {}), choice.finish_reason, run


@requirement("R212")
@pytest.mark.parametrize("stream", [False, True])
async def test_openai_sdk_approves_after_restart(tmp_path: Path, stream: bool) -> None:
    replies = [script(CALL), said("Done."), said("You are welcome.")]
    async with FakeProvider(replies) as fake, asyncio.timeout(BOUND_S):
        async with server_at(fake, tmp_path) as url:
            asked, reason, run = await completed(url, ASK, stream=stream)
        (call,) = asked["tool_calls"]
        given = json.loads(call["function"]["arguments"])
        assert (reason, call["function"]["name"]) == ("tool_calls", "sidestream_approval")
        assert (given["tool"], given["input"], given["call_id"]) == ("delete", {"path": "a.txt"}, "call_1")
        assert deleted == []
        yes = {"role": "tool", "tool_call_id": call["id"], "content": '{"approved": true}'}
        async with server_at(fake, tmp_path) as url:
            answer, reason, again = await completed(url, [*ASK, asked, yes], stream=stream)
            assert (answer["content"], reason, again) == ("Done.", "stop", run)
            assert deleted == ["a.txt"]
            history = [*ASK, asked, yes, answer, {"role": "user", "content": "Thanks"}]
            last, _, other = await completed(url, history, stream=stream)
        assert last["content"] == "You are welcome."
        assert other != run
        assert "sidestream_approval" not in str(fake.requests[-1].json["input"])
        assert "sidestream_approval" not in str(fake.requests[-1].json["tools"])


@requirement("R211", "R212")
async def test_closed_agent_asks_through_declared_tool(tmp_path: Path) -> None:
    declared = [{"type": "function", "function": {"name": "sidestream_approval"}}]
    closed = {"allows_functions": None}
    async with FakeProvider([script(CALL), said("Done.")]) as fake, asyncio.timeout(BOUND_S):
        async with server_at(fake, tmp_path, **closed) as url:
            asked, _, _ = await completed(url, ASK, stream=False, tools=declared)
            (call,) = asked["tool_calls"]
            yes = {"role": "tool", "tool_call_id": call["id"], "content": '{"approved": true}'}
            answer, _, _ = await completed(url, [*ASK, asked, yes], stream=False, tools=declared)
        assert answer["content"] == "Done."


@requirement("R212")
async def test_client_of_closed_agent_declares_only_approval_tool(tmp_path: Path) -> None:
    closed = dict.fromkeys(OPEN, False)
    tool = {"name": "sidestream_approval", "description": "Asks.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": tool}]
    async with FakeProvider([script(CALL), said("Done.")]) as fake, server_at(fake, tmp_path, **closed) as url:
        async with asyncio.timeout(BOUND_S):
            asked, _, _ = await completed(url, ASK, stream=False, tools=tools)
            (call,) = asked["tool_calls"]
            yes = {"role": "tool", "tool_call_id": call["id"], "content": '{"approved": true}'}
            answer, _, _ = await completed(url, [*ASK, asked, yes], stream=False, tools=tools)
        assert (answer["content"], deleted) == ("Done.", ["a.txt"])


@requirement("R212")
async def test_openai_sdk_denies_beside_its_own_function(tmp_path: Path) -> None:
    replies = [script(CALL, ("call_2", "add", {"a": 1})), said("Not deleted.")]
    async with FakeProvider(replies) as fake, server_at(fake, tmp_path) as url, asyncio.timeout(BOUND_S):
        asked, _, _ = await completed(url, ASK, stream=False)
        calls = {call["function"]["name"]: call["id"] for call in asked["tool_calls"]}
        assert set(calls) == {"sidestream_approval", "add"}
        no = {"approved": False, "reason": "Keep it."}
        results = [
            {"role": "tool", "tool_call_id": calls["add"], "content": "2"},
            {"role": "tool", "tool_call_id": calls["sidestream_approval"], "content": json.dumps(no)},
        ]
        answer, _, _ = await completed(url, [*ASK, asked, *results], stream=False)
        assert (answer["content"], deleted) == ("Not deleted.", [])
        outputs = {item["call_id"]: item["output"] for item in fake.requests[-1].json["input"] if "output" in item}
        assert "Keep it." in str(outputs["call_1"])
        assert "2" in str(outputs["call_2"])


@requirement("R212")
@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_sdk_approves_after_restart(tmp_path: Path, stream: bool) -> None:
    async def created(url: str, messages: Json) -> Json:
        async with message_client(url) as client:
            given: Json = {"model": "main", "max_tokens": 99, "messages": messages, "tools": [TOOL]}
            if not stream:
                return await client.messages.create(**given)
            async with client.messages.stream(**given) as events:
                return await events.get_final_message()

    replies = [script(CALL), said("Done."), said("You are welcome.")]
    async with FakeProvider(replies) as fake, asyncio.timeout(BOUND_S):
        async with server_at(fake, tmp_path) as url:
            asked = await created(url, ASK)
        (call,) = asked.content
        assert (asked.stop_reason, call.name, call.input["tool"]) == ("tool_use", "sidestream_approval", "delete")
        turn = {
            "role": "assistant",
            "content": [call.model_dump(exclude_none=True, include={"type", "id", "name", "input"})],
        }
        yes = {"type": "tool_result", "tool_use_id": call.id, "content": '{"approved": true}'}
        async with server_at(fake, tmp_path) as url:
            mixed = {"role": "user", "content": [yes, {"type": "text", "text": "Be quick"}]}
            with pytest.raises(anthropic.BadRequestError):
                await created(url, [*ASK, turn, mixed])
            history = [*ASK, turn, {"role": "user", "content": [yes]}]
            answer = await created(url, history)
            assert (answer.content[0].text, deleted) == ("Done.", ["a.txt"])
            history += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
            assert (await created(url, history)).content[0].text == "You are welcome."
        assert "sidestream_approval" not in str(fake.requests[-1].json)


@requirement("R212")
@pytest.mark.parametrize("stream", [False, True])
async def test_client_without_tools_is_told_where_to_decide(tmp_path: Path, stream: bool) -> None:
    async def read(answering: Any) -> None:
        answer = await answering
        if stream:
            async for _ in answer:
                pass

    async with FakeProvider([script(CALL)] * 2 + [said("Done.")]) as fake, server_at(fake, tmp_path) as url:
        async with chat_client(url) as client, asyncio.timeout(BOUND_S):
            with pytest.raises(openai.APIError) as caught:
                await read(client.chat.completions.create(model="main", messages=ASK, stream=stream))
        assert caught.value.code == "approval_required"
        assert "approval_" in caught.value.message
        assert "delete" in caught.value.message
        page = next(word for word in caught.value.message.split() if word.startswith(url)).rstrip(",")
        async with message_client(url) as messages:
            with pytest.raises(anthropic.APIStatusError, match="sidestream_approval"):
                await read(messages.messages.create(model="main", max_tokens=9, messages=ASK, stream=stream))
        if not stream:
            assert isinstance(caught.value, openai.PermissionDeniedError)
            assert caught.value.response.headers["x-sidestream-run"].startswith("run_")
        await decided(url, page.rpartition("/c/")[2])
        assert deleted == ["a.txt"]


async def decided(url: str, chat: str) -> None:
    """Approves the pending call of a chat as the page does, and reads the rest."""
    async with httpx2.AsyncClient(base_url=url, timeout=BOUND_S) as client:
        shown = (await client.get(f"/api/chat/{chat}")).json()
        parts = shown["messages"][-1]["parts"]
        asked = next(part["data"] | {"id": part["id"]} for part in parts if part["type"] == "data-approval")
        body = {"id": chat, "approvalId": asked["id"], "approved": True, "digest": asked["digest"]}
        answer = await client.post("/api/chat", json=body)
        assert "Done." in answer.text


@requirement("R212")
async def test_used_foreign_and_malformed_answers_are_refused(tmp_path: Path) -> None:
    async with (
        FakeProvider([script(CALL), said("Done.")]) as fake,
        server_at(fake, tmp_path) as url,
        chat_client(url) as client,
    ):
        async with asyncio.timeout(BOUND_S):
            asked, _, _ = await completed(url, ASK, stream=False)
            call = asked["tool_calls"][0]

            async def answered(content: str, id: str = call["id"]) -> Json:
                turn = {**asked, "tool_calls": [{**call, "id": id}]}
                result = {"role": "tool", "tool_call_id": id, "content": content}
                given: Json = [*ASK, turn, result]
                return await client.chat.completions.create(model="main", messages=given, tools=[FUNCTION])

            for content in ("yes", "[]", '{"approved": "true"}', ""):
                with pytest.raises(openai.BadRequestError) as malformed:
                    await answered(content)
                assert malformed.value.code == "invalid_approval"
            with pytest.raises(openai.NotFoundError):
                await answered('{"approved": true}', f"approval_1_{'0' * 32}")
            with pytest.raises(openai.PermissionDeniedError):
                await answered('{"approved": true}', f"approval_1_{call['id'].rpartition('_')[2]}")
            assert deleted == []
            assert (await answered('{"approved": true}')).choices[0].message.content == "Done."
            with pytest.raises(openai.PermissionDeniedError) as used:
                await answered('{"approved": true}')
            assert (used.value.code, deleted) == ("nothing_waits", ["a.txt"])


@requirement("R212")
async def test_every_api_names_its_run(tmp_path: Path) -> None:
    chat = {"id": "c1", "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
    agui = {"threadId": "t1", "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "hi"}]}
    async with FakeProvider([script(CALL)] * 6) as fake, server_at(fake, tmp_path) as url, asyncio.timeout(BOUND_S):
        client = httpx2.AsyncClient(base_url=url, timeout=BOUND_S)
        async with client:
            for path, body in (
                ("/api/chat", chat),
                ("/api/agui", agui),
                ("/v1/responses", {"model": "main", "input": "hi"}),
                ("/v1/responses", {"model": "main", "input": "hi", "stream": True}),
                ("/v1/chat/completions", {"model": "main", "messages": ASK, "tools": [FUNCTION]}),
                ("/v1/messages", {"model": "main", "max_tokens": 9, "messages": ASK, "stream": True}),
            ):
                answer = await client.post(path, json=body)
                run = answer.headers["x-sidestream-run"]
                records = await client.get(f"/api/runs/{run}/records")
                assert (answer.status_code, records.status_code) == (200, 200), path
