"""Tools that a provider runs, through the Messages and Chat Completions APIs."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from sidestream import Agent, CodeInterpreter, WebFetch, WebSearch
from sidestream.server import create_app
from sidestream.testing import FakeProvider, GeminiScript, MessagesScript, Reply, ResponsesScript
from sidestream.tools.server_side import ServerSideTool
from support.serving import served
from support.stores import BOUND_S

KEY = "key-0123456789"
PAGE = {"type": "web_search_result", "url": "https://n.test/", "title": "N", "encrypted_content": "E", "page_age": None}
RAN = {"type": "bash_code_execution_result", "stdout": "a", "stderr": "", "return_code": 0, "content": []}
FOUND = {**PAGE, "title": "https://n.test/", "encrypted_content": ""}
EXECUTED = {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}
CASES: dict[str, tuple[str, ServerSideTool, Any, str, dict[str, Any], str, Any]] = {
    "anthropic-search": (
        *("anthropic", WebSearch(), lambda: MessagesScript().web_search("news", [PAGE])),
        *("web_search", {"query": "news"}, "web_search_tool_result", [PAGE]),
    ),
    "anthropic-bash": (
        *("anthropic", CodeInterpreter(), lambda: MessagesScript().bash("ls", stdout="a")),
        *("bash_code_execution", {"command": "ls"}, "bash_code_execution_tool_result", RAN),
    ),
    "openai-search": (
        *("openai-responses", WebSearch(), lambda: ResponsesScript().web_search("news", sources=["https://n.test/"])),
        *("web_search", {"query": "news"}, "web_search_tool_result", [FOUND]),
    ),
    "google-code": (
        *("google", CodeInterpreter(), lambda: GeminiScript().code("print(1)", "1")),
        *("code_execution", {"code": "print(1)"}, "code_execution_tool_result", EXECUTED),
    ),
}
AGAIN: dict[str, Reply] = {
    "anthropic": MessagesScript().text("Still so.").reply(),
    "openai-responses": ResponsesScript().text("Still so.").reply(),
    "google": GeminiScript().text("Still so.").reply(),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_messages_have_blocks_of_server_tools(case: str, streams: bool, tmp_path: Path):
    model, tool, script, name, given, kind, content = CASES[case]
    replies = [script().text("So it is.").reply(), AGAIN[model]]
    async with asyncio.timeout(BOUND_S), FakeProvider(replies) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key=KEY, server_side_tools=[tool])
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:

            async def ask(*messages: Any) -> Any:
                if not streams:
                    return await client.messages.create(model="main", max_tokens=500, messages=messages)
                async with client.messages.stream(model="main", max_tokens=500, messages=messages) as stream:
                    return await stream.get_final_message()

            question: Any = {"role": "user", "content": "What is new?"}
            first = (await ask(question)).to_dict()
            call, result, text = first["content"]
            assert (call["type"], call["name"], call["input"]) == ("server_tool_use", name, given)
            assert call["id"].startswith("srvtoolu_")
            assert (result["type"], result["tool_use_id"], result["content"]) == (kind, call["id"], content)
            assert (text["text"], first["stop_reason"]) == ("So it is.", "end_turn")
            again = await ask(question, {"role": "assistant", "content": first["content"]}, question)
            assert again.content[-1].text == "Still so."
        assert "So it is." in str(fake.requests[1].json)


async def test_messages_have_fetched_page(tmp_path: Path):
    script = MessagesScript().web_fetch("https://n.test/", "Text.", title="N").text("Read.")
    async with asyncio.timeout(BOUND_S), FakeProvider([script.reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key=KEY, server_side_tools=[WebFetch()])
        app = create_app({"main": agent}, store=tmp_path / "talks.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            body = {"max_tokens": 500, "messages": [{"role": "user", "content": "Read https://n.test/"}]}
            content = (await client.post("/v1/messages", json=body)).json()["content"]
        assert [block["type"] for block in content] == ["server_tool_use", "web_fetch_tool_result", "text"]
        assert content[1]["content"]["content"]["source"]["data"] == "Text."


async def test_web_search_options_add_search(tmp_path: Path):
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is new?"}]}
    place = {"type": "approximate", "approximate": {"city": "Rome", "country": "IT"}}
    options = {"search_context_size": "low", "user_location": place}
    async with asyncio.timeout(BOUND_S), FakeProvider([ResponsesScript().text("Much.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        agents = {"open": agent}
        app = create_app(agents, store=tmp_path / "talks.db", allows_tools=["web_search"])
        closed = create_app(agents, store=tmp_path / "closed.db")
        async with served(app) as url, httpx2.AsyncClient(base_url=url) as client:
            answer = await client.post("/v1/chat/completions", json=body | {"web_search_options": options})
            assert answer.status_code == 200
            bad = body | {"web_search_options": {"search_context_size": "huge"}}
            refused = await client.post("/v1/chat/completions", json=bad)
            assert refused.json()["error"]["param"] == "web_search_options.search_context_size"
        async with served(closed) as url, httpx2.AsyncClient(base_url=url) as client:
            refused = await client.post("/v1/chat/completions", json=body | {"web_search_options": {}})
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "web_search_options")
        (tool,) = fake.requests[0].json["tools"]
        assert (tool["type"], tool["search_context_size"]) == ("web_search", "low")
        assert tool["user_location"].items() >= {"city": "Rome", "country": "IT"}.items()
