"""The vendors' own SDKs, pointed at a server: Chat Completions and Anthropic's Messages over any provider."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from requirements import requirement
from server.serving import agent_of, serving
from sidestream import Agent, CodeInterpreter, ImageGeneration, Limits, ProviderError, open_store
from sidestream.server import create_app
from sidestream.server.runs.service import job_of
from sidestream.testing import FakeProvider, MessagesScript, Reply, ResponsesScript, error_reply, pixel_png, sse
from support.serving import OPEN, served

KEY = "key-0123456789"
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@asynccontextmanager
async def server_with(replies: list[Reply], path: Path, **settings: Any) -> AsyncGenerator[tuple[str, FakeProvider]]:
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, **settings)
        async with served(create_app({"main": agent}, store=path / "talks.db", **OPEN)) as url:
            yield url, fake


def chat_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def message_client(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


@requirement("R140")
async def test_openai_sdk_gets_whole_and_streamed_completions(tmp_path: Path):
    replies = [ResponsesScript().text(["Hel", "lo."]).reply() for _ in range(2)]
    async with server_with(replies, tmp_path) as (url, fake), chat_client(url) as client:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        history: Any = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
        ]
        whole = await client.chat.completions.create(model="main", messages=history, temperature=0.5, max_tokens=99)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Hello.", "stop")
        assert whole.usage is not None
        sent = fake.requests[0].json
        assert (sent["temperature"], sent["max_output_tokens"]) == (0.5, 99)
        assert "Be brief." in str(sent)
        assert "iVBORw0KGgo=" in str(sent)
        stream = await client.chat.completions.create(
            model="main", messages=history, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello."
        assert chunks[-1].usage is not None


@requirement("R140")
async def test_completions_client_tools_work_beside_server_tools(tmp_path: Path):
    def server_time() -> str:
        return "noon"

    both = ResponsesScript().function_call("add", {"a": 1, "b": 2}, "c1").function_call("server_time", {}, "c2")
    replies = [both.reply(), ResponsesScript().text("3, at noon.").reply()]
    async with server_with(replies, tmp_path, tools=[server_time]) as (url, fake), chat_client(url) as client:
        tools: Any = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
        history: Any = [{"role": "user", "content": "Add."}]
        first = await client.chat.completions.create(model="main", messages=history, tools=tools)
        (choice,) = first.choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("add", '{"a":1,"b":2}')  # type: ignore[union-attr]
        history += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        second = await client.chat.completions.create(model="main", messages=history, tools=tools)
        assert second.choices[0].message.content == "3, at noon."
        outputs = [item for item in fake.requests[1].json["input"] if item.get("type") == "function_call_output"]
        assert [(item["call_id"], item["output"]) for item in outputs] == [("c1", "3")]


@requirement("R140")
async def test_completions_results_of_one_round_are_one_message(tmp_path: Path):
    call: Any = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    history: Any = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c1"}, {**call, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "4"},
    ]
    async with FakeProvider([MessagesScript().text("3 and 4.").reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key=KEY)
        app = create_app({"main": agent}, store=tmp_path / "talks.db", **OPEN)
        async with served(app) as url, chat_client(url) as client:
            tools: Any = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
            await client.chat.completions.create(model="main", messages=history, tools=tools)
        sent = fake.requests[0].json["messages"]
    assert [(message["role"], [block["type"] for block in message["content"]]) for message in sent[1:]] == [
        ("assistant", ["tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result"]),
    ]


@requirement("R140")
async def test_completion_with_output_schema_is_typed(tmp_path: Path):
    async with (
        server_with([ResponsesScript().text('{"a": 1, "b": 2}').reply()], tmp_path) as (url, fake),
        chat_client(url) as client,
    ):
        form: Any = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": ADD, "strict": True}}
        answer = await client.chat.completions.create(
            model="main", messages=[{"role": "user", "content": "?"}], response_format=form
        )
        assert answer.choices[0].message.content == '{"a": 1, "b": 2}'
        assert fake.requests[0].json["text"]["format"]["type"] == "json_schema"
    store = open_store(tmp_path / "talks.db")
    (info,) = await store.conversations()
    (job,) = [found for row in await store.read(info.id) if (found := job_of(row)) is not None]
    assert job.output == ADD  # a run that is resumed after a restart has the type too
    await store.aclose()


@requirement("R140")
async def test_anthropic_sdk_gets_whole_and_streamed_messages(tmp_path: Path):
    replies = [ResponsesScript().text(["Hel", "lo."]).reply() for _ in range(2)]
    async with server_with(replies, tmp_path) as (url, fake), message_client(url) as client:
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        content: Any = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
        asked: Any = {"model": "main", "max_tokens": 99, "system": "Be brief."}
        whole = await client.messages.create(**asked, messages=[{"role": "user", "content": content}])
        assert (whole.content[0].text, whole.stop_reason) == ("Hello.", "end_turn")  # type: ignore[union-attr]
        assert fake.requests[0].json["max_output_tokens"] == 99
        assert "iVBORw0KGgo=" in str(fake.requests[0].json)
        async with client.messages.stream(**asked, messages=[{"role": "user", "content": "Hi"}]) as stream:
            assert "".join([text async for text in stream.text_stream]) == "Hello."
            final = await stream.get_final_message()
        assert final.content[0].text == "Hello."  # type: ignore[union-attr]
        count = await client.messages.count_tokens(model="main", messages=[{"role": "user", "content": "Hi there"}])
        assert 0 < count.input_tokens < 20


@requirement("R140")
async def test_messages_client_tool_calls_return_to_client(tmp_path: Path):
    replies = [
        ResponsesScript().text("Adding.").function_call("add", {"a": 1, "b": 2}, "c1").reply(),
        ResponsesScript().text("3").reply(),
    ]
    async with server_with(replies, tmp_path) as (url, fake), message_client(url) as client:
        asked: Any = {"model": "main", "max_tokens": 99, "tools": [{"name": "add", "input_schema": ADD}]}
        history: Any = [{"role": "user", "content": "Add."}]
        async with client.messages.stream(**asked, messages=history) as stream:
            first = await stream.get_final_message()
        text, call = first.content
        assert (text.type, call.type, first.stop_reason) == ("text", "tool_use", "tool_use")
        assert call.input == {"a": 1, "b": 2}  # type: ignore[union-attr]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}  # type: ignore[union-attr]
        history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(**asked, messages=history)
        assert second.content[0].text == "3"  # type: ignore[union-attr]
        assert "function_call_output" in str(fake.requests[1].json)


@requirement("R140")
async def test_messages_hosted_tools_run_at_provider(tmp_path: Path):
    script = MessagesScript().text("Found.")
    async with FakeProvider([script.reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key=KEY)
        async with (
            served(create_app({"main": agent}, store=tmp_path / "talks.db", **OPEN)) as url,
            message_client(url) as client,
        ):
            tools: Any = [{"type": "web_search_20260318", "name": "web_search"}]
            asked: Any = [{"role": "user", "content": "Search."}]
            answer = await client.messages.create(model="main", max_tokens=99, tools=tools, messages=asked)
            assert answer.content[0].text == "Found."  # type: ignore[union-attr]
        assert fake.requests[0].json["tools"][0]["name"] == "web_search"


@requirement("R140")
async def test_messages_history_may_contain_anthropic_only_blocks(tmp_path: Path):
    async with (
        server_with([ResponsesScript().text("Yes.").reply()], tmp_path) as (url, fake),
        message_client(url) as client,
    ):
        search: Any = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "fruit"}}
        found: Any = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
        answered: Any = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, search, found]
        history: Any = [
            {"role": "user", "content": "Which fruit?"},
            {"role": "assistant", "content": [*answered, {"type": "text", "text": "A papaya."}]},
            {"role": "user", "content": "Sure?"},
        ]
        answer = await client.messages.create(model="main", max_tokens=9, messages=history)
        assert answer.content[0].text == "Yes."  # type: ignore[union-attr]
        assert [item["content"] for item in fake.requests[0].json["input"]] == ["Which fruit?", "A papaya.", "Sure?"]
        counted = await client.messages.count_tokens(model="main", messages=history)
        assert counted.input_tokens > 0


@requirement("R140")
async def test_messages_hosted_tool_restrictions_reach_provider(tmp_path: Path):
    async with FakeProvider([MessagesScript().text("Found.").reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key=KEY, server_side_tools=[CodeInterpreter()])
        async with (
            served(create_app({"main": agent}, store=tmp_path / "talks.db", **OPEN)) as url,
            message_client(url) as client,
        ):
            place = {"type": "approximate", "city": "Bern"}
            tools: Any = [
                {
                    "type": "web_search_20260318",
                    "name": "web_search",
                    "max_uses": 2,
                    "allowed_domains": ["a.example"],
                    "user_location": place,
                },
                {"type": "web_fetch_20260318", "name": "web_fetch", "blocked_domains": ["b.example"]},
            ]
            asked: Any = [{"role": "user", "content": "Search."}]
            await client.messages.create(model="main", max_tokens=99, tools=tools, messages=asked)
        sent = {tool["name"]: tool for tool in fake.requests[0].json["tools"]}
        assert (sent["web_search"]["max_uses"], sent["web_search"]["allowed_domains"]) == (2, ["a.example"])
        assert sent["web_search"]["user_location"] == place
        assert sent["web_fetch"]["blocked_domains"] == ["b.example"]
        assert "code_execution" in sent  # the agent's own


@requirement("R140")
async def test_client_tool_choice_limits_and_forces_tools(tmp_path: Path):
    def server_time() -> str:
        return "noon"

    replies = [ResponsesScript().text("Yes.").reply() for _ in range(7)]
    async with (
        server_with(replies, tmp_path, tools=[server_time]) as (url, fake),
        chat_client(url) as chat,
        message_client(url) as messages,
    ):
        asked: Any = [{"role": "user", "content": "Hi"}]
        functions: Any = [{"type": "function", "function": {"name": name}} for name in ("add", "divide")]
        chosen: Any = {"type": "function", "function": {"name": "add"}}
        allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [chosen]}}
        for choice in ("required", chosen, allowed, "none"):
            await chat.chat.completions.create(model="main", messages=asked, tools=functions, tool_choice=choice)
        tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("add", "divide")]
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
            given: Any = {"tools": tools, "tool_choice": choice}
            await messages.messages.create(model="main", max_tokens=9, messages=asked, **given)
        sent = [request.json for request in fake.requests]
        named, every = {"type": "function", "name": "add"}, {"server_time", "add", "divide"}
        assert [body.get("tool_choice") for body in sent] == [
            "required",
            named,
            "required",
            None,
            "required",
            named,
            None,
        ]
        offered = [{tool["name"] for tool in body.get("tools", ())} for body in sent]
        assert offered == [every, every, {"add"}, set(), every, every, set()]


@requirement("R140")
async def test_json_object_and_json_schema_outputs_are_supported(tmp_path: Path):
    replies = [ResponsesScript().text('{"a": 1, "b": 2}').reply() for _ in range(2)]
    async with (
        server_with(replies, tmp_path) as (url, fake),
        chat_client(url) as chat,
        message_client(url) as messages,
    ):
        asked: Any = [{"role": "user", "content": "?"}]
        form: Any = {"type": "json_object"}
        answer = await chat.chat.completions.create(model="main", messages=asked, response_format=form)
        assert answer.choices[0].message.content == '{"a": 1, "b": 2}'
        config: Any = {"format": {"type": "json_schema", "schema": ADD}}
        await messages.messages.create(model="main", max_tokens=9, messages=asked, output_config=config)
        sent = [request.json["text"]["format"]["schema"] for request in fake.requests]
        assert sent == [{"type": "object"}, ADD]


@requirement("R140")
async def test_failures_raise_error_types_of_each_sdk(tmp_path: Path):
    refused = error_reply(400, "invalid_request_error", "bad")
    async with (
        server_with([refused] * 4, tmp_path) as (url, _),
        chat_client(url) as chat,
        message_client(url) as messages,
    ):
        asked: Any = [{"role": "user", "content": "Hi"}]
        with pytest.raises(openai.BadRequestError, match="bad"):
            await chat.chat.completions.create(model="main", messages=asked)
        with pytest.raises(openai.APIError, match="bad"):
            async for _ in await chat.chat.completions.create(model="main", messages=asked, stream=True):
                pass
        with pytest.raises(anthropic.BadRequestError, match="bad"):
            await messages.messages.create(model="main", max_tokens=9, messages=asked)
        with pytest.raises(anthropic.APIStatusError, match="bad"):
            async with messages.messages.stream(model="main", max_tokens=9, messages=asked) as stream:
                await stream.get_final_message()
        with pytest.raises(openai.NotFoundError, match="nobody"):
            await chat.chat.completions.create(model="nobody", messages=asked)
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            await messages.messages.create(model="nobody", max_tokens=9, messages=asked)


LOST = [
    event
    for event in ResponsesScript().text(["The answer ", "is not ", "42."]).events()
    if event.get("delta") != "is not "
]
"""A delta is missing, so that the final text replaces what was streamed."""
WHOLE = "The answer is not 42."


@requirement("R181")
async def test_every_api_returns_whole_final_text(tmp_path: Path) -> None:
    asked: Any = [{"role": "user", "content": "Hi"}]
    async with (
        server_with([sse(LOST)] * 6, tmp_path) as (url, _),
        chat_client(url) as chat,
        message_client(url) as messages,
    ):
        response = await chat.responses.create(model="main", input="Hi")
        assert response.output_text == WHOLE
        async with chat.responses.stream(model="main", input="Hi") as events:
            assert (await events.get_final_response()).output_text == WHOLE
        completion = await chat.chat.completions.create(model="main", messages=asked)
        assert completion.choices[0].message.content == WHOLE
        # These two take nothing back. The final text follows what was streamed.
        chunks = [c async for c in await chat.chat.completions.create(model="main", messages=asked, stream=True)]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said.endswith(WHOLE)
        message = await messages.messages.create(model="main", max_tokens=9, messages=asked)
        assert [block.text for block in message.content if block.type == "text"] == [WHOLE]
        async with messages.messages.stream(model="main", max_tokens=9, messages=asked) as stream:
            message = await stream.get_final_message()
        assert [block.text for block in message.content if block.type == "text"][-1] == WHOLE


COMPLETIONS = "/v1/chat/completions"
MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "add"}}
BAD_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"properties": None}, "strict": True}}


@requirement("R140")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {}, "messages"),
        (COMPLETIONS, {"messages": []}, "messages"),
        (COMPLETIONS, {"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role"),
        (COMPLETIONS, {"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
        (COMPLETIONS, {"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        (COMPLETIONS, {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (COMPLETIONS, {"messages": [USER], "temperature": 3}, "temperature"),
        (COMPLETIONS, {"messages": [USER], "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (COMPLETIONS, {"messages": [USER], "tools": [TOOL, TOOL]}, "tools[1].function.name"),
        (COMPLETIONS, {"messages": [USER], "tools": [BAD_TOOL]}, "tools[0].function.parameters"),
        (
            COMPLETIONS,
            {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "add"}}},
            "tool_choice.function.name",
        ),
        (
            COMPLETIONS,
            {"messages": [USER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (COMPLETIONS, {"messages": [USER], "n": 2}, "n"),
        (COMPLETIONS, {"messages": [USER], "reasoning_effort": "much"}, "reasoning_effort"),
        (
            COMPLETIONS,
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        (
            COMPLETIONS,
            {"messages": [USER, {"role": "tool", "tool_call_id": "x", "content": ""}]},
            "messages[1].tool_call_id",
        ),
        (
            COMPLETIONS,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
                ]
            },
            "messages[0].content[0].image_url.url",
        ),
        (MESSAGES, {}, "messages"),
        (MESSAGES, {"messages": [USER], "tools": [{"type": "memory_20250818", "name": "memory"}]}, "tools[0].type"),
        (MESSAGES, {"messages": [USER], "max_tokens": 0}, "max_tokens"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]}, "messages[0].content[0].type"),
        (MESSAGES, {"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        (MESSAGES, {"messages": [USER], "tool_choice": {"type": "tool", "name": "add"}}, "tool_choice.name"),
        (MESSAGES, {"messages": [USER], "tools": [{"name": "f", "input_schema": {"properties": 7}}]}, "tools[0].input"),
        (MESSAGES, {"messages": [USER], "tools": [{"name": "f"}, {"name": "f"}]}, "tools[1].name"),
        (MESSAGES, {"messages": [USER], "tools": [{"type": "web_search_20250305", "max_uses": -1}]}, "tools[0]"),
    ],
)
async def test_malformed_requests_get_typed_error_with_param(
    path: str, body: dict[str, Any], param: str | None, tmp_path: Path
):
    async with server_with([], tmp_path) as (url, _), httpx2.AsyncClient() as client:
        answer = await client.post(url + path, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        if path == COMPLETIONS:
            assert error["param"] == param
        else:  # The API has no field for it.
            assert error["message"].startswith(param or "")
        for data, kind, status in (
            (b"{", "application/json", 400),
            (b"[]", "application/json", 400),
            (b"{}", "text/plain", 415),
            (b"{}", "application/x-www-form-urlencoded", 415),
        ):
            answer = await client.post(url + path, content=data, headers={"content-type": kind})
            assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)


UPSTREAM = [
    # The provider's status and code, then status, OpenAI's type, Anthropic's type and code that clients get.
    (429, "rate_limit_exceeded", 429, "rate_limit_error", "rate_limit_error", "rate_limit_exceeded"),
    (401, "invalid_api_key", 401, "authentication_error", "authentication_error", "invalid_api_key"),
    (403, "no_access", 403, "permission_error", "permission_error", "no_access"),
    (404, "model_not_found", 404, "not_found", "not_found_error", "model_not_found"),
    (400, "context_window_exceeded", 400, "invalid_request_error", "invalid_request_error", "context_length_exceeded"),
    (529, "overloaded_error", 529, "overloaded_error", "overloaded_error", "overloaded_error"),
    (503, "UNAVAILABLE", 503, "overloaded_error", "overloaded_error", "UNAVAILABLE"),
    (500, "internal", 502, "server_error", "api_error", "internal"),
]


@requirement("R214")
@pytest.mark.parametrize(("sent", "sent_code", "status", "openai_type", "anthropic_type", "code"), UPSTREAM)
async def test_upstream_error_keeps_type_and_code_in_every_api(
    tmp_path: Path, sent: int, sent_code: str, status: int, openai_type: str, anthropic_type: str, code: str
) -> None:
    failing = error_reply(sent, sent_code, "Please wait, or read https://example.com/limits.")
    asked = [{"role": "user", "content": "Hi"}]
    async with FakeProvider([failing] * 6) as fake:
        agent = agent_of(fake, limits=Limits(max_retries=0))
        async with serving({"main": agent}, tmp_path) as (_, client):

            async def ask(path: str, **body: Any) -> tuple[int, list[Any]]:
                response = await client.post(path, json={"model": "main", **body})
                text = response.text
                found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
                return response.status_code, [json.loads(line) for line in found or [text]]

            whole = [
                await ask("/v1/responses", input="Hi"),
                await ask("/v1/chat/completions", messages=asked),
                await ask("/v1/messages", messages=asked, max_tokens=9),
            ]
            streams = [
                await ask("/v1/responses", input="Hi", stream=True),
                await ask("/v1/chat/completions", messages=asked, stream=True),
                await ask("/v1/messages", messages=asked, max_tokens=9, stream=True),
            ]
    assert [answered for answered, _ in whole] == [status] * 3
    assert [events[-1]["error"]["type"] for _, events in whole] == [openai_type, openai_type, anthropic_type]
    assert [events[-1]["error"].get("code", code) for _, events in whole] == [code] * 3
    (_, events), (_, chunks), (_, blocks) = streams
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == code
    assert (chunks[-1]["error"]["type"], chunks[-1]["error"]["code"]) == (openai_type, code)
    assert blocks[-1]["error"]["type"] == anthropic_type
    everything = json.dumps([*whole, *streams])
    assert fake.base_url.removesuffix("/v1") not in everything
    messages = [events[-1]["error"]["message"] for _, events in (*whole, *streams[1:])]
    assert len(set(messages)) == 1
    assert str(sent) not in messages[0]
    assert "read https://example.com/limits" in messages[0]


@requirement("R214")
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_requested_wait_reaches_clients_and_callers(tmp_path: Path, status: int):
    failing = error_reply(status, headers={"Retry-After": "3600"})  # Longer than any retry waits.
    asked = [{"role": "user", "content": "Hi"}]
    bodies = {
        "/v1/responses": {"input": "Hi"},
        "/v1/chat/completions": {"messages": asked},
        "/v1/messages": {"messages": asked, "max_tokens": 9},
    }
    async with FakeProvider([failing] * 4) as fake, agent_of(fake) as agent:
        with pytest.raises(ProviderError) as raised:
            await agent.send("Hi")
        async with serving({"main": agent}, tmp_path) as (_, client):
            answers = [await client.post(path, json={"model": "main", **body}) for path, body in bodies.items()]
    assert (raised.value.status, raised.value.retry_after) == (status, 3600)
    assert [(each.status_code, each.headers.get("retry-after")) for each in answers] == [(status, "3600")] * 3


PICTURE = pixel_png(1, 2, 3)
TOKEN = "token-of-anna-0123456789"


@asynccontextmanager
async def drawing_server(path: Path, count: int) -> AsyncGenerator[tuple[str, FakeProvider]]:
    """A server with a token, whose agent draws a picture and then says something, so often."""
    replies = [ResponsesScript().image(PICTURE).text('{"a": 1, "b": 2}').reply() for _ in range(count)]
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY, server_side_tools=[ImageGeneration()])
        async with served(create_app({"main": agent}, store=path / "talks.db", tokens=[TOKEN], **OPEN)) as url:
            yield url, fake


@requirement("R214")
async def test_openai_sdk_gets_signed_links_to_files(tmp_path: Path):
    async with (
        drawing_server(tmp_path, 2) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client,
        httpx2.AsyncClient() as browser,
    ):
        given: Any = [{"role": "user", "content": "Draw"}]
        whole: Any = await client.chat.completions.create(model="main", messages=given)
        (file,) = whole.choices[0].message.files
        assert file["mime_type"] == "image/png"
        assert (await browser.get(file["url"])).content == PICTURE
        assert (await browser.get(file["url"].partition("?")[0])).status_code == 401
        chunks: Any = await client.chat.completions.create(model="main", messages=given, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in chunks]
        assert [delta.files[0]["mime_type"] for delta in deltas if getattr(delta, "files", None)] == ["image/png"]


@requirement("R214")
async def test_anthropic_sdk_gets_signed_links_to_files(tmp_path: Path):
    async with (
        drawing_server(tmp_path, 4) as (url, fake),
        anthropic.AsyncAnthropic(base_url=url, api_key=TOKEN, max_retries=0) as client,
        httpx2.AsyncClient() as browser,
    ):
        given: Any = [{"role": "user", "content": "Draw"}]
        whole = await client.messages.create(model="main", max_tokens=9, messages=given)
        async with client.messages.stream(model="main", max_tokens=9, messages=given) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            answer, links = (block for block in message.content if block.type == "text")
            (file,) = getattr(links, "files", [])
            assert (answer.text, file["mime_type"]) == ('{"a": 1, "b": 2}', "image/png")
            assert links.text.endswith(f"]({file['url']})")
            assert (await browser.get(file["url"])).content == PICTURE
        again = [*given, {"role": "assistant", "content": streamed.to_dict()["content"]}, *given]
        await client.messages.create(model="main", max_tokens=9, messages=again)
        assert "/api/blobs/" not in str(fake.requests[-1].json)
        schema: Any = {"format": {"type": "json_schema", "schema": ADD}}
        parsed = await client.messages.create(model="main", max_tokens=9, messages=given, output_config=schema)
        assert [block.text for block in parsed.content if block.type == "text"] == ['{"a": 1, "b": 2}']
