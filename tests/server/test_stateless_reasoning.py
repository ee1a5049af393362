"""Storage and reasoning of stateless clients: what they ask for reaches the provider, and comes back from them."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.server import create_app
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, Reply, ResponsesScript
from support.serving import served
from support.stores import BOUND_S

KEY = "key-0123456789"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PROVIDERS: dict[str, tuple[str, list[Reply]]] = {
    "openai": (
        "openai-responses",
        [
            ResponsesScript()
            .reasoning("Ask.", encrypted_content="SECRET")
            .function_call("weather", {"city": "Rome"})
            .reply(),
            ResponsesScript().text("Warm.").reply(),
        ],
    ),
    "anthropic": (
        "anthropic",
        [
            MessagesScript().thinking("Ask.", signature="SECRET").tool_use("weather", {"city": "Rome"}).reply(),
            MessagesScript().text("Warm.").reply(),
        ],
    ),
    "google": (
        "google",
        [
            GeminiScript().thought("Ask.", signature="SECRET").function_call("weather", {"city": "Rome"}).reply(),
            GeminiScript().text("Warm.").reply(),
        ],
    ),
}
SENT: dict[str, dict[str, Any]] = {
    "openai": {"type": "reasoning", "encrypted_content": "SECRET"},
    "anthropic": {"type": "thinking", "thinking": "Ask.", "signature": "SECRET"},
    "google": {"thought": True, "text": "Ask.", "thoughtSignature": "SECRET"},
}


def reasoning_in(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    match name:
        case "openai":
            return [item for item in body["input"] if item.get("type") == "reasoning"]
        case "anthropic":
            blocks = [block for m in body["messages"] if isinstance(m["content"], list) for block in m["content"]]
            return [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        case _:
            return [part for content in body["contents"] for part in content["parts"] if part.get("thought")]


@requirement("R210")
@pytest.mark.parametrize("name", PROVIDERS)
async def test_stateless_responses_client_keeps_reasoning(name: str, tmp_path: Path):
    model, replies = PROVIDERS[name]
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    asked: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"], "tools": tools}
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db", allows_functions=True)
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            question: list[dict[str, Any]] = [{"role": "user", "content": "How warm is Rome?"}]
            first = (await client.post("/v1/responses", json={"input": question, **asked})).json()
            assert first["store"] is False
            kinds = [item["type"] for item in first["output"]]
            assert kinds == ["reasoning", "function_call"], first
            output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "30"}
            history = [*question, *first["output"], output]
            second = (await client.post("/v1/responses", json={"input": history, **asked})).json()
            assert second["output"][-1]["content"][0]["text"] == "Warm."
        sent = [request.json for request in fake.requests]
        if name == "openai":
            assert [body["store"] for body in sent] == [False, False]
            assert all("reasoning.encrypted_content" in body["include"] for body in sent)
        if name == "google":
            assert [body["store"] for body in sent] == [False, False]
        (found,) = reasoning_in(name, sent[1])
        assert found.items() >= SENT[name].items()


@requirement("R210")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", PROVIDERS)
async def test_stateless_messages_client_keeps_reasoning(name: str, streams: bool, tmp_path: Path):
    model, replies = PROVIDERS[name]
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db", allows_functions=True)
        async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:

            async def ask(messages: Any) -> Any:
                if not streams:
                    return await client.messages.create(model="main", max_tokens=500, tools=tools, messages=messages)
                async with client.messages.stream(
                    model="main", max_tokens=500, tools=tools, messages=messages
                ) as stream:
                    return await stream.get_final_message()

            question: Any = {"role": "user", "content": "How warm is Rome?"}
            first = await ask([question])
            assert [block.type for block in first.content] == ["thinking", "tool_use"]
            result: Any = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "30"}
            blocks: Any = [block.to_dict() for block in first.content]
            second = await ask(
                [question, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
            )
            assert second.content[-1].text == "Warm."
        (found,) = reasoning_in(name, fake.requests[1].json)
        assert found.items() >= SENT[name].items()


@requirement("R210")
async def test_encrypted_thinking_without_text_is_redacted_thinking(tmp_path: Path):
    replies = [
        MessagesScript().redacted_thinking("SECRET").text("Yes.").reply(),
        MessagesScript().text("Still yes.").reply(),
    ]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            question = {"role": "user", "content": "Sure?"}
            body: dict[str, Any] = {"max_tokens": 500, "messages": [question]}
            content = (await client.post("/v1/messages", json=body)).json()["content"]
            assert content[0] == {"type": "redacted_thinking", "data": "SECRET"}
            body["messages"] += [{"role": "assistant", "content": content}, question]
            await client.post("/v1/messages", json=body)
        assert reasoning_in("anthropic", fake.requests[1].json) == [content[0]]


@requirement("R210")
async def test_provider_stores_unless_client_forbids(tmp_path: Path):
    replies = [ResponsesScript().text("Hello.").reply() for _ in range(4)]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            message = [{"role": "user", "content": "Hi."}]
            await client.post("/v1/responses", json={"input": "Hi."})
            await client.post("/v1/responses", json={"input": "Hi.", "include": ["reasoning.encrypted_content"]})
            await client.post("/v1/chat/completions", json={"messages": message})
            await client.post("/v1/chat/completions", json={"messages": message, "store": False})
        sent = [request.json for request in fake.requests]
        assert [body.get("store") for body in sent] == [None, None, None, False]
        encrypted = ["reasoning.encrypted_content"]
        assert [body.get("include") for body in sent] == [None, encrypted, None, encrypted]


@requirement("R140")
@pytest.mark.parametrize(("name", "stored"), [("openai", [None, False]), ("openrouter", [None, None])])
async def test_only_openai_is_told_not_to_store_completions(name: str, stored: list[bool | None], tmp_path: Path):
    async with asyncio.timeout(BOUND_S), FakeProvider([ChatScript().text("Hello.").reply() for _ in stored]) as fake:
        agent = Agent(f"{name}:m", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            for given in ({}, {"store": False}):
                message = {"messages": [{"role": "user", "content": "Hi."}], **given}
                assert (await client.post("/v1/chat/completions", json=message)).status_code == 200
        assert [request.json.get("store") for request in fake.requests] == stored
