"""Other servers with the Responses API: URLs and keys, xAI's tools, sessions, resent items and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hostile.corpus import MORE_RECORDINGS
from requirements import requirement
from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    CodeInterpreter,
    FileSearch,
    ImageGeneration,
    Location,
    OpenAIResponsesOptions,
    RemoteMCP,
    WebSearch,
    XSearch,
)
from sidestream.errors import AuthenticationError, ConfigurationError, MissingKeyError, UnsupportedError
from sidestream.parts import Custom, Finish, ToolCall, ToolEvent
from sidestream.providers import Settings, caps_of, find_provider
from sidestream.providers.openai.responses.presets import AZURE, DEEPSEEK, MANTLE, PRESETS, XAI
from sidestream.providers.protocol import ModelRequest
from sidestream.replay.recording import Recording
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, json_reply
from sidestream.tools.server_side import Network, ServerSideTool
from sidestream.tools.spec import ToolSpec

XAI_FILE = MORE_RECORDINGS / "xai" / "r-xai-web-search-replay.json"
VARIABLES = (
    *("XAI_API_KEY", "XAI_BASE_URL", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL"),
    *("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "AZURE_RESOURCE_NAME"),
    *("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION", "BEDROCK_MANTLE_BASE_URL"),
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def xai_body(*tools: ServerSideTool, **request: Any) -> dict[str, Any]:
    return json.loads(encoded(*tools, **request).call.body or b"")


def encoded(*tools: ServerSideTool, **request: Any) -> Any:
    model = XAI.chat_model("grok-4.3", Settings(api_key="k"))
    return model.encode(ModelRequest(messages=(ChatMessage.user("Hi"),), server_side_tools=tools, **request))


@requirement("R30")
@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_preset_is_found_by_name_and_aliases(preset: Any) -> None:
    for name in (preset.name, *preset.aliases):
        assert find_provider(name) is preset
    assert caps_of(preset.name) == preset.caps


@requirement("R30")
def test_azure_url_comes_from_resource_or_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="AZURE_RESOURCE_NAME"):
        AZURE.chat_model("my-gpt", Settings(api_key="k"))
    monkeypatch.setenv("AZURE_RESOURCE_NAME", "acme")
    with pytest.raises(MissingKeyError, match="AZURE_OPENAI_API_KEY"):
        AZURE.chat_model("my-gpt", Settings())
    call = AZURE.chat_model("my-gpt", Settings(api_key="k")).encode(ModelRequest(messages=(ChatMessage.user("Hi"),)))
    assert call.call.url == "https://acme.openai.azure.com/openai/v1/responses"
    assert call.call.headers["api-key"] == "k"
    assert "Authorization" not in call.call.headers
    for endpoint in ("https://other.openai.azure.com/", "https://other.openai.azure.com/openai/v1"):
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)
        model: Any = AZURE.chat_model("my-gpt", Settings(api_key="k"))
        assert model.base_url == "https://other.openai.azure.com/openai/v1"
    with pytest.raises(ConfigurationError, match="azure:MODEL"):
        AZURE.chat_model("", Settings(api_key="k")).encode(ModelRequest(messages=(ChatMessage.user("Hi"),)))


@requirement("R30")
def test_mantle_url_depends_on_region_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="AWS_REGION or AWS_DEFAULT_REGION"):
        MANTLE.chat_model("openai.gpt-5.6", Settings(api_key="k"))
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-token")
    urls = [MANTLE.chat_model(name, Settings()) for name in ("openai.gpt-5.6", "openai.gpt-oss-20b")]
    assert [model.base_url for model in urls] == [  # pyright: ignore[reportAttributeAccessIssue]
        "https://bedrock-mantle.us-west-2.api.aws/openai/v1",
        "https://bedrock-mantle.us-west-2.api.aws/v1",
    ]
    call = urls[1].encode(ModelRequest(messages=(ChatMessage.user("Hi"),))).call
    assert call.headers["Authorization"] == "Bearer bedrock-token"


def test_stateless_host_stores_no_answer_and_names_no_session() -> None:
    model = DEEPSEEK.chat_model("deepseek-v4-flash", Settings(api_key="k"))
    search = ModelRequest(messages=(ChatMessage.user("Hi"),), server_side_tools=(WebSearch(),), stream=False)
    body = json.loads(model.encode(search).call.body or b"")
    assert body == {
        "model": "deepseek-v4-flash",
        "input": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "web_search"}],
        "store": False,
        "stream": False,
    }
    chosen = OpenAIResponsesOptions(previous_response_id="r")
    with pytest.raises(UnsupportedError, match="previous_response_id"):
        model.encode(ModelRequest(messages=(ChatMessage.user("Hi"),), options=chosen))


@requirement("R36")
def test_xai_tools_are_encoded_in_its_own_form() -> None:
    server = RemoteMCP(
        label="docs", url="https://mcp.example/", allowed_tools=["ask"], require_approval="never", description="Docs."
    )
    body = xai_body(
        WebSearch(blocked_domains=["a.example"]),
        XSearch(allowed_handles=["xai"], from_date="2026-01-01", video_understanding=True),
        CodeInterpreter(),
        FileSearch(stores=["collection_1"], max_results=3),
        ImageGeneration(action="edit"),
        server,
    )
    assert body["tools"] == [
        {"type": "web_search", "excluded_domains": ["a.example"]},
        {
            "type": "x_search",
            "allowed_x_handles": ["xai"],
            "from_date": "2026-01-01",
            "enable_video_understanding": True,
        },
        {"type": "code_interpreter"},
        {"type": "file_search", "vector_store_ids": ["collection_1"], "max_num_results": 3},
        {"type": "image_generation", "action": "edit"},
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://mcp.example/",
            "server_description": "Docs.",
            "allowed_tools": ["ask"],
        },
    ]
    assert body["include"] == ["file_search_call.results"]
    assert "stream_options" not in body


@requirement("R36")
@pytest.mark.parametrize(
    ("refused", "named"),
    [
        (WebSearch(allowed_domains=["a"], blocked_domains=["b"]), "both"),
        (WebSearch(allowed_domains=list("abcdef")), "at most 5"),
        (WebSearch(external_web_access=False), "external_web_access"),
        (XSearch(allowed_handles=["a"], blocked_handles=["b"]), "both"),
        (XSearch(allowed_handles=[str(n) for n in range(11)]), "at most 10"),
        (FileSearch(stores=["c"], score_threshold=0.5), "score_threshold"),
        (CodeInterpreter(network=Network()), "network"),
        (CodeInterpreter(file_ids=["f"]), "file_ids"),
        (ImageGeneration(size="1024x1024"), "size"),
        (RemoteMCP(label="d", connector="c", require_approval="never"), "connector"),
        (RemoteMCP(label="d", url="https://m.example", require_approval="always"), "without approval"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ServerSideTool) else value,
)
def test_xai_refuses_unsupported_settings_before_sending(refused: ServerSideTool, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        encoded(refused)


@requirement("R36")
def test_xai_server_without_allowed_tools_gets_empty_list() -> None:
    server = RemoteMCP(label="wiki", url="https://wiki.example", require_approval="never")
    bodies = [xai_body(replace(server, allowed_tools=allowed)) for allowed in (None, (), ("ask",))]
    assert [body["tools"][0].get("allowed_tools") for body in bodies] == [None, [], ["ask"]]


@requirement("R36")
def test_xai_leaves_out_location_and_container_with_warning() -> None:
    made = encoded(WebSearch(location=Location(city="Oslo")), CodeInterpreter(container_id="cntr_1"))
    assert json.loads(made.call.body)["tools"] == [{"type": "web_search"}, {"type": "code_interpreter"}]
    assert ["location" in made.warnings[0], "container_id" in made.warnings[1]] == [True, True]


@pytest.mark.parametrize("option", [{"background": True}, {"service_tier": "flex"}, {"truncation": "auto"}])
def test_xai_refuses_options_that_it_lacks(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(option))):
        encoded(options=OpenAIResponsesOptions(**option))


def test_function_schema_for_xai_is_open_and_not_strict() -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"type": "object", "properties": {}, "additionalProperties": False}},
        "additionalProperties": False,
    }
    spec = ToolSpec(name="look", description="Look.", parameters=schema)
    (function,) = xai_body(tools=(spec,))["tools"]
    assert "strict" not in function
    assert function["parameters"] == {"type": "object", "properties": {"at": {"type": "object", "properties": {}}}}


@requirement("R37")
async def test_xai_server_with_approval_is_called_from_here() -> None:
    async with FakeProvider([ResponsesScript(dialect="xai").text("Hi.").reply()]) as fake:
        server = RemoteMCP(label="docs", url="http://127.0.0.1:9/mcp")
        async with Agent("xai", base_url=fake.base_url, api_key="k", server_side_tools=[server]) as agent:
            with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
                await agent.send("Hi")
            forced = RemoteMCP(label="docs", url="http://127.0.0.1:9/mcp", execution="provider")
            with pytest.raises(UnsupportedError, match="without approval"):
                await agent.send("Hi", server_side_tools=[forced])
        assert not isinstance(caught.value, UnsupportedError)
        assert fake.requests == []


@requirement("R42")
async def test_xai_session_sends_instructions_once(tmp_path: Path) -> None:
    script = [ResponsesScript(dialect="xai", id=f"r{n}").text(f"Answer {n}.").reply() for n in range(3)]
    async with FakeProvider(script) as fake:

        async def send(text: str, system: str) -> Any:
            async with Agent("xai", base_url=fake.base_url, api_key="k", system=system) as agent:
                return await Chat(agent, store=tmp_path / "s.db", id="talk").send(text)

        await send("One?", "Be brief.")
        await send("Two?", "Be brief.")
        last = await send("Three?", "Be verbose.")
        first, second, third = [request.json for request in fake.requests]
    assert (first["instructions"], first.get("previous_response_id")) == ("Be brief.", None)
    assert (second.get("instructions"), second["previous_response_id"]) == (None, "r0")
    assert [item["content"] for item in second["input"]] == ["Two?"]
    assert (third["instructions"], third.get("previous_response_id")) == ("Be verbose.", None)
    assert [item["content"] for item in third["input"]] == ["One?", "Answer 0.", "Two?", "Answer 1.", "Three?"]
    (notice,) = [part for part in last.parts if isinstance(part, Custom)]
    assert notice.data["reason"] == "setup-changed"


def test_xai_refuses_instructions_for_chosen_session() -> None:
    options = OpenAIResponsesOptions(previous_response_id="r0")
    with pytest.raises(ConfigurationError, match="instructions"):
        encoded(options=options, system="Be brief.")
    assert xai_body(options=options)["previous_response_id"] == "r0"


@requirement("R43")
async def test_xai_answer_that_is_not_stored_is_resent_in_order() -> None:
    answer = (
        ResponsesScript(dialect="xai")
        .reasoning("Hm.", encrypted_content="thought-1")
        .web_search("news", sources=["https://a.example/"])
        .x_search({"query": "news"})
        .code_interpreter("print(1)", logs="1\n")
        .tool_output("output-1")
        .tool_output("output-2")
        .reasoning(encrypted_content="thought-2")
        .text("Done.")
    )
    async with FakeProvider([answer.reply(), ResponsesScript(dialect="xai").text("OK.").reply()]) as fake:
        options = OpenAIResponsesOptions(store=False)
        tools = [WebSearch(), XSearch(), CodeInterpreter()]
        async with Agent("xai", base_url=fake.base_url, api_key="k", options=options, server_side_tools=tools) as agent:
            chat = Chat(agent)
            result = await chat.send("News?")
            await chat.send("Thanks.")
        sent = fake.requests[1].json["input"]
    grammar.check(result.parts)
    items = answer.response()["output"]
    assert isinstance(items, list)
    assert sent[1:-2] == items[:-1]
    assert sent[1]["id"] == sent[-3]["id"]  # Two reasoning items share their id.
    assert sent[-2:] == [
        {"type": "message", "role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ]
    assert result.usage is not None
    assert result.usage.cost == pytest.approx(0.00524105)


@requirement("R43", "R183")
@pytest.mark.skipif(not XAI_FILE.exists(), reason=f"no recordings: {XAI_FILE} is not there")
async def test_recorded_xai_answer_is_resent_as_recorded() -> None:
    first, second = Recording.load(XAI_FILE).exchanges
    async with FakeProvider([json_reply(first.response.body), json_reply(second.response.body)]) as fake:
        options = OpenAIResponsesOptions(store=False)
        async with Agent("xai", base_url=fake.base_url, api_key="k", options=options) as agent:
            chat = Chat(agent)
            prompts = [
                request["content"] for request in (first.request.body["input"][0], second.request.body["input"][-1])
            ]
            results = [await chat.send(prompt, server_side_tools=[WebSearch()], stream=False) for prompt in prompts]
        sent = fake.requests[1].json
    recorded = second.request.body["input"]
    assert sent["input"][:-2] == recorded[:-2]
    assert sent["input"][-2]["content"] == recorded[-2]["content"][0]["text"]
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert results[1].output == "OK"


@requirement("R3")
async def test_search_of_x_streams_stages_and_never_waits() -> None:
    script = ResponsesScript(dialect="xai").x_search({"query": "from:xai"}).text("Found.")
    async with (
        FakeProvider([script.reply()]) as fake,
        Agent("grok", base_url=fake.base_url, api_key="k", server_side_tools=[XSearch()]) as agent,
    ):
        result = await agent.send("What does xAI say?")
    grammar.check(result.parts)
    (call,) = [part for part in result.parts if isinstance(part, ToolCall)]
    assert (call.tool, call.input, call.provider_executed) == ("x_search", {"query": "from:xai"}, True)
    assert [part.stage for part in result.parts if isinstance(part, ToolEvent)] == ["started", "running", "completed"]
    assert [part.reason for part in result.parts if isinstance(part, Finish)] == ["stop"]
    assert result.parts[-1].type == "finish"


@requirement("R3")
async def test_other_models_search_x_by_delegation(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ResponsesScript(dialect="xai").x_search({"query": "from:xai"}).text("Grok is out.")
    outer = ResponsesScript().function_call("x_search", {"query": "xAI"})
    replies = [outer.reply(), inner.reply(), ResponsesScript().text("It is out.").reply()]
    async with FakeProvider(replies) as fake:
        monkeypatch.setenv("XAI_API_KEY", "k")
        monkeypatch.setenv("XAI_BASE_URL", fake.base_url)
        async with Agent(
            "openai-responses", base_url=fake.base_url, api_key="k", server_side_tools=[XSearch()]
        ) as agent:
            result = await agent.send("What is new at xAI?")
        assert fake.requests[1].json["tools"] == [{"type": "x_search"}]
    assert result.output == "It is out."


@requirement("R30")
async def test_wrong_key_for_xai_is_authentication_error() -> None:
    text = "Incorrect API key provided: k. You can obtain an API key from https://console.x.ai."
    refused = json_reply({"code": "invalid-argument", "error": text}, status=400)
    async with FakeProvider([refused]) as fake, Agent("xai", base_url=fake.base_url, api_key="k") as agent:
        with pytest.raises(AuthenticationError) as caught:
            await agent.send("Hi")
    assert (caught.value.status, caught.value.code) == (400, "invalid-argument")
    assert "XAI_API_KEY" in str(caught.value)
