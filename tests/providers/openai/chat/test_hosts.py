"""Requests for the tools that hosts of this API run: what is sent, for which models, and what is refused."""

import json
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, ImageGeneration, Location, Shell, WebFetch, WebSearch
from sidestream.errors import NotHostedError, UnsupportedError
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import Encoded, HostsTools, ModelRequest, Settings
from sidestream.providers.registry import caps_of, find_provider, installed_providers
from sidestream.testing import ChatScript, FakeProvider
from sidestream.tools.server_side import ServerSideTool

ASKED = (ChatMessage.user("hi"),)
ENABLED = {"compound_custom": {"tools": {"enabled_tools": ["web_search"]}}}
COUNTRY = Location(country="no")
OSLO = Location(city="Oslo", country="NO")


def encoded(model: str, *tools: ServerSideTool) -> Encoded:
    provider, _, name = model.partition(":")
    settings = Settings(api_key="k")
    return (
        find_provider(provider).chat_model(name, settings).encode(ModelRequest(messages=ASKED, server_side_tools=tools))
    )


def fields(model: str, *tools: ServerSideTool) -> dict[str, Any]:
    """What the tools add to the body of a request."""
    body, plain = (json.loads(encoded(model, *given).call.body or b"") for given in (tools, ()))
    return {name: value for name, value in body.items() if plain.get(name) != value}


ROWS: list[tuple[str, ServerSideTool, dict[str, Any]]] = [
    ("groq:groq/compound", WebSearch(), ENABLED),
    (
        "groq:compound-beta-mini",
        WebSearch(allowed_domains=["a.example"], location=COUNTRY),
        {**ENABLED, "search_settings": {"include_domains": ["a.example"], "country": "no"}},
    ),
    (
        "groq:groq/compound-mini",
        CodeInterpreter(),
        {"compound_custom": {"tools": {"enabled_tools": ["code_interpreter"]}}},
    ),
    ("groq:groq/compound", WebFetch(), {"compound_custom": {"tools": {"enabled_tools": ["visit_website"]}}}),
    ("groq:openai/gpt-oss-20b", WebSearch(), {"tools": [{"type": "browser_search"}]}),
    ("groq:openai/gpt-oss-120b", CodeInterpreter(), {"tools": [{"type": "code_interpreter"}]}),
    ("openrouter:a/b", WebSearch(), {"tools": [{"type": "openrouter:web_search"}]}),
    (
        "openrouter:a/b",
        WebSearch(context_size="high", blocked_domains=["a.example"], max_uses=2, location=OSLO),
        {
            "tools": [
                {
                    "type": "openrouter:web_search",
                    "parameters": {
                        "search_context_size": "high",
                        "excluded_domains": ["a.example"],
                        "max_uses": 2,
                        "user_location": {"type": "approximate", "city": "Oslo", "country": "NO"},
                    },
                }
            ]
        },
    ),
    (
        "openrouter:a/b",
        WebFetch(max_uses=1, max_content_tokens=9),
        {"tools": [{"type": "openrouter:web_fetch", "parameters": {"max_uses": 1, "max_content_tokens": 9}}]},
    ),
    (
        "openrouter:a/b",
        ImageGeneration(quality="high", compression=50),
        {
            "tools": [
                {"type": "openrouter:image_generation", "parameters": {"quality": "high", "output_compression": 50}}
            ]
        },
    ),
    ("perplexity:sonar", WebSearch(), {}),
    (
        "perplexity:sonar-pro",
        WebSearch(context_size="low", location=OSLO, allowed_domains=["a.example"]),
        {
            "web_search_options": {
                "search_context_size": "low",
                "user_location": {"city": "Oslo", "country": "NO"},
            },
            "search_domain_filter": ["a.example"],
        },
    ),
    ("perplexity:sonar", WebSearch(blocked_domains=["b.example"]), {"search_domain_filter": ["-b.example"]}),
]


@requirement("R183")
@pytest.mark.parametrize(("model", "tool", "expected"), ROWS, ids=str)
def test_hosted_tool_is_sent(model: str, tool: ServerSideTool, expected: dict[str, Any]) -> None:
    assert fields(model, tool) == expected


@requirement("R183")
def test_several_hosted_tools_are_joined() -> None:
    both = (WebSearch(), CodeInterpreter())
    assert fields("groq:groq/compound", *both) == {
        "compound_custom": {"tools": {"enabled_tools": ["web_search", "code_interpreter"]}}
    }
    assert fields("groq:openai/gpt-oss-20b", *both)["tools"] == [
        {"type": "browser_search"},
        {"type": "code_interpreter"},
    ]


@requirement("R183")
def test_website_visits_select_latest_compound_version() -> None:
    assert encoded("groq:groq/compound", WebFetch()).call.headers["Groq-Model-Version"] == "latest"
    assert "Groq-Model-Version" not in encoded("groq:groq/compound", WebSearch(), CodeInterpreter()).call.headers


@requirement("R183")
@pytest.mark.parametrize(
    ("model", "tool", "says"),
    [
        ("groq:llama-3.3-70b-versatile", WebSearch(), "groq/compound"),
        ("groq:openai/gpt-oss-20b", WebFetch(), "groq/compound"),
        ("groq:groq/compound", ImageGeneration(), "ImageGeneration"),
        ("openrouter:a/b", Shell(), "Shell"),
        ("perplexity:sonar", CodeInterpreter(), "CodeInterpreter"),
        ("together:a/b", WebSearch(), "WebSearch"),
    ],
    ids=str,
)
def test_tool_that_model_does_not_host_is_refused(model: str, tool: ServerSideTool, says: str) -> None:
    with pytest.raises(NotHostedError, match=says):
        encoded(model, tool)
    provider, _, name = model.partition(":")
    found = find_provider(provider).chat_model(name, Settings(api_key="k"))
    assert isinstance(found, HostsTools)
    assert type(tool) not in found.hosted_tools


@requirement("R183")
@pytest.mark.parametrize(
    ("model", "tool", "says"),
    [
        ("groq:groq/compound", WebSearch(context_size="high"), "context_size"),
        ("groq:groq/compound", WebSearch(location=OSLO), "country"),
        ("groq:openai/gpt-oss-20b", WebSearch(allowed_domains=["a.example"]), "allowed_domains"),
        ("groq:openai/gpt-oss-20b", CodeInterpreter(memory_limit="4g"), "memory_limit"),
        ("openrouter:a/b", WebSearch(allowed_domains=["a.example"], blocked_domains=["b.example"]), "blocked_domains"),
        ("openrouter:a/b", ImageGeneration(partial_images=1), "partial_images"),
        ("perplexity:sonar", WebSearch(max_uses=1), "max_uses"),
    ],
    ids=str,
)
def test_setting_that_host_lacks_is_refused(model: str, tool: ServerSideTool, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        encoded(model, tool)


@requirement("R183")
def test_hosts_are_listed_with_their_tools() -> None:
    listed = {provider.name: provider for provider in installed_providers()}
    assert listed["groq"].server_side_tools == ("code_interpreter", "web_fetch", "web_search")
    assert listed["openrouter"].server_side_tools == ("image_generation", "web_fetch", "web_search")
    assert listed["perplexity"].server_side_tools == ("web_search",)
    assert listed["perplexity"].key_variables == ("PERPLEXITY_API_KEY",)
    assert caps_of("perplexity:sonar").streaming


@requirement("R183")
async def test_groq_session_sends_only_text_back() -> None:
    hit = {"title": "Oslo", "url": "https://oslo.example/", "content": "It rains."}
    first = ChatScript(id="stub").reasoning("<tool>search", field="reasoning")
    first.executed_tool("search", {"query": "Oslo"}, output="Title: Oslo", results=[hit]).text("It rains.")
    second = ChatScript(id="stub").executed_tool("search", {"query": "Bergen"}, output="").text("It pours.")
    async with FakeProvider([first.reply(), second.whole_reply()]) as fake:
        agent = Agent("groq", base_url=fake.base_url, api_key="k", server_side_tools=[WebSearch()])
        chat = Chat(agent)
        one = await chat.send("Oslo?")
        two = await chat.send("Bergen?", stream=False)
        sent = json.loads(fake.requests[-1].body)["messages"]
    assert [message["content"] for message in sent] == ["Oslo?", "It rains.", "Bergen?"]
    assert all(message.keys() == {"role", "content"} for message in sent)
    assert [run.queries for run in (*one.tool_runs, *two.tool_runs)] == [("Oslo",), ("Bergen",)]
    assert one.tool_runs[0].id != two.tool_runs[0].id


@requirement("R183")
async def test_reported_cost_counts_for_budget() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.25}
    async with FakeProvider([ChatScript(usage=usage).text("Rain.").reply()]) as fake:
        result = await Agent("openrouter", base_url=fake.base_url, api_key="k").send("Oslo?")
    assert result.usage is not None
    assert (result.usage.cost, result.usage.unpriced) == (0.25, ())
