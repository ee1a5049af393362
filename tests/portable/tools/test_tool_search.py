"""Tool search: deferred tools are found by a ranked search, and offered from then on."""

import pytest

from requirements import requirement
from sidestream import Agent, Chat, Tool, ToolSearch, tool
from sidestream.portable.tools.tool_search import ranked
from sidestream.testing import ChatScript, FakeProvider, MessagesScript, ResponsesScript, ScriptedModel, tool_call
from sidestream.tools.spec import ToolSpec


@tool(defer_loading=True)
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Where.
    """
    return f"sunny in {city}"


@tool(defer_loading=True)
def send_invoice(customer: str) -> str:
    """Sends an invoice to a customer."""
    return f"sent to {customer}"


def now() -> str:
    """The time."""
    return "noon"


TOOLS = [get_weather, send_invoice, now]


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


@requirement("R128")
async def test_deferred_tool_is_offered_once_found_and_later():
    model = ScriptedModel(
        [tool_call("tool_search", query="weather forecast"), tool_call("get_weather", city="Oslo"), "sunny", "bye"]
    )
    chat = Chat(Agent(model, tools=TOOLS, server_side_tools=[ToolSearch(execution="here")]))
    result = await chat.send("How is the weather?")
    await chat.send("Thanks")
    assert offered(model) == [
        ["now", "tool_search"],
        *[["get_weather", "now", "tool_search"]] * 3,
    ]
    first, second = result.tool_results
    assert first.result == {
        "status": "completed",
        "tools": [{"type": "function", "name": "get_weather", "description": "The weather in a city."}],
    }
    assert second.result == "sunny in Oslo"
    assert [event["item"]["type"] for event in result.metadata["tool_search"]][-1] == "tool_search_output"


async def test_every_tool_is_offered_without_tool_search():
    model = ScriptedModel(["hi"])
    await Agent(model, tools=TOOLS).send("x")
    assert offered(model) == [["get_weather", "send_invoice", "now"]]


@requirement("R128")
@pytest.mark.parametrize(
    ("provider", "script"), [("openai-responses", ResponsesScript()), ("anthropic", MessagesScript())]
)
async def test_hosting_provider_gets_tools_with_deferred_loading(
    provider: str, script: ResponsesScript | MessagesScript
):
    async with FakeProvider([script.text("hi").reply()]) as fake:
        agent = Agent(provider, base_url=fake.base_url, api_key="k", tools=TOOLS, server_side_tools=[ToolSearch()])
        await agent.send("x")
        tools = fake.requests[0].json["tools"]
    assert {entry["name"]: entry.get("defer_loading", False) for entry in tools if "name" in entry}.items() >= {
        "get_weather": True,
        "send_invoice": True,
        "now": False,
    }.items()
    assert any("tool_search" in entry.get("type", "") for entry in tools)


async def test_tool_search_runs_locally_when_not_hosted():
    script = [ChatScript().tool_call("tool_search", {"query": "invoice"}).reply(), ChatScript().text("ok").reply()]
    async with FakeProvider(script) as fake:
        agent = Agent("groq:m", base_url=fake.base_url, api_key="k", tools=TOOLS, server_side_tools=[ToolSearch()])
        await agent.send("x")
        names = [[entry["function"]["name"] for entry in request.json["tools"]] for request in fake.requests]
    assert names == [["now", "tool_search"], ["send_invoice", "now", "tool_search"]]


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": {}})


def test_tool_search_weighs_names_and_rare_words_more():
    tools = [
        spec("listUsers", "Lists the users of an account, with invoices."),
        spec("create_invoice", "Makes a bill for an account."),
        spec("get_account", "Reads an account."),
    ]
    assert ranked("invoices of an account", tools)[0].name == "create_invoice"
    assert [entry.name for entry in ranked("list user", tools)] == ["listUsers"]
    assert ranked("weather", tools) == []
    assert ranked("x", []) == []


def test_words_of_other_scripts_are_found():
    assert ranked("погода", [spec("f", "Погода в городе")])


def test_decorator_makes_deferred_tool():
    assert isinstance(get_weather, Tool)
    assert get_weather.defer_loading
