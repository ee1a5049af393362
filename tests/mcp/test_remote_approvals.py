"""The approval policy of remote MCP servers, at every provider: who is asked, who calls the server, what is refused."""

from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    Agent,
    AnthropicOptions,
    ConfigurationError,
    MCPApproval,
    MCPServer,
    OpenAIResponsesOptions,
    RemoteMCP,
    UnsupportedError,
    WebSearch,
)
from sidestream.providers.anthropic.options import AnthropicServerSideTool
from sidestream.providers.openai.responses.options import OpenAIServerSideTool
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript
from sidestream.tools import Question

URL = "https://d.example/mcp"
SUM = {"a": 1, "b": 2}

CALLED_FROM_HERE = {
    "anthropic": lambda: [MessagesScript().tool_use("add", SUM).reply(), MessagesScript().text("Done.").reply()],
    "google": lambda: [GeminiScript().function_call("add", SUM).reply(), GeminiScript().text("Done.").reply()],
    "openai-chat": lambda: [ChatScript().tool_call("add", SUM).reply(), ChatScript().text("Done.").reply()],
}
"""Provider → answers that call the server's tool from here, once."""


def asks(question: Question) -> Any:
    return "ask"


def runs(question: Question) -> Any:
    return "run"


def denies(question: Question) -> Any:
    return "deny"


def requesting() -> list[Any]:
    asked = ResponsesScript(id="r1").mcp_approval_request("d", "search", {"q": "x"})
    return [asked.reply(), ResponsesScript(id="r2").text("Done.").reply()]


OPENAI_CASES = [
    # own, agent's, call's policy → what is sent, and what happens to a request of the provider
    (None, None, None, "always", "ask"),
    (None, "ask", None, "always", "ask"),
    (None, "run", None, "never", "run"),
    (None, "deny", None, "always", "deny"),
    (None, asks, None, "always", "ask"),
    (None, runs, None, "always", "run"),
    (None, denies, None, "always", "deny"),
    (None, "run", "ask", "always", "ask"),
    (None, "ask", "run", "never", "run"),
    (None, None, "deny", "always", "deny"),
    ("never", "ask", None, "never", "run"),
    ("never", "deny", "deny", "never", "run"),
    ("always", "run", None, "always", "ask"),
    ("always", runs, "run", "always", "ask"),
    (MCPApproval(never=["look"]), "run", None, {"never": {"tool_names": ["look"]}}, "ask"),
    (MCPApproval(), "run", None, "always", "ask"),
]


@requirement("R76", "R81")
@pytest.mark.parametrize("form", ["tools", "options"])
@pytest.mark.parametrize(("own", "agents", "calls", "sent", "verdict"), OPENAI_CASES)
async def test_openai_requests_approval_by_server_call_or_agent_policy(
    own: Any, agents: Any, calls: Any, sent: Any, verdict: str, form: str
) -> None:
    remote = RemoteMCP(label="d", url=URL, require_approval=own)
    options = OpenAIResponsesOptions(server_side_tools={OpenAIServerSideTool.MCP}, mcp_config=remote)
    given: dict[str, Any] = {"server_side_tools": [remote]} if form == "tools" else {"options": options}
    async with FakeProvider(requesting()) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, approval=agents, **given)
        result = await agent.send("Search", approval=calls)
        (tool,) = fake.requests[0].json["tools"]
        answers = fake.requests[1].json["input"] if verdict != "ask" else []
    assert tool["require_approval"] == sent
    assert result.finish_reason == ("approval" if verdict == "ask" else "stop")
    assert [answer["approve"] for answer in answers] == {"ask": [], "run": [True], "deny": [False]}[verdict]


@requirement("R76")
async def test_each_server_has_own_policy_and_function_sees_server() -> None:
    seen: list[tuple[str | None, str, bool]] = []

    def policy(question: Question) -> Any:
        seen.append((question.server_label, question.tool, question.is_remote))
        return "deny"

    asked = ResponsesScript(id="r1").mcp_approval_request("d", "search", {}).mcp_approval_request("e", "wipe", {})
    async with FakeProvider([asked.reply()]) as fake:
        servers = [RemoteMCP(label="d", url=URL), RemoteMCP(label="e", url=URL, require_approval="always")]
        agent = Agent("openai-responses", base_url=fake.base_url, server_side_tools=servers, approval=policy)
        result = await agent.send("Both")
    assert seen == [("d", "search", True)]
    assert [(pending.server_label, pending.tool) for pending in result.approvals] == [("e", "wipe")]


@requirement("R76")
@pytest.mark.parametrize("provider", sorted(CALLED_FROM_HERE))
@pytest.mark.parametrize(
    ("own", "policy", "verdict"),
    [
        (None, None, "ask"),
        (None, "ask", "ask"),
        (None, "deny", "deny"),
        (None, runs, "run"),
        (None, denies, "deny"),
        ("always", "run", "ask"),
        (MCPApproval(never=["add"]), "deny", "run"),
    ],
)
async def test_server_is_called_locally_when_provider_lacks_approvals(
    modern_url: str, provider: str, own: Any, policy: Any, verdict: str
) -> None:
    remote = RemoteMCP(label="sums", url=modern_url, require_approval=own)
    async with (
        FakeProvider(CALLED_FROM_HERE[provider]()) as fake,
        Agent(provider, base_url=fake.base_url, server_side_tools=[remote], approval=policy) as agent,
    ):
        first = await agent.send("Add")
        assert modern_url not in str(fake.requests[0].json)
        if verdict == "ask":
            (pending,) = first.approvals
            assert (pending.tool, pending.server_label, pending.is_remote) == ("add", "sums", False)
            await agent.resume(first.run_state, [pending.approve()])
        told = str(fake.requests[1].json)
    assert ("total" in told) == (verdict != "deny")
    assert ("denied" in told) == (verdict == "deny")


@requirement("R76")
@pytest.mark.parametrize(("own", "policy"), [(None, "run"), ("never", None), ("never", "ask")])
async def test_server_without_approval_is_hosted_by_provider(own: Any, policy: Any) -> None:
    remote = RemoteMCP(label="d", url=URL, require_approval=own)
    async with FakeProvider([MessagesScript().text("Hi.").reply(), GeminiScript().text("Hi.").reply()]) as fake:
        for provider in ("anthropic", "google"):
            agent = Agent(provider, base_url=fake.base_url, server_side_tools=[remote], approval=policy)
            await agent.send("Hello")
        anthropic, google = (request.json for request in fake.requests)
    assert anthropic["mcp_servers"] == [{"type": "url", "url": URL, "name": "d"}]
    assert anthropic["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "d"}]
    assert google["tools"] == [{"mcpServers": [{"name": "d", "streamableHttpTransport": {"url": URL}}]}]


@requirement("R76")
@pytest.mark.parametrize("policy", [None, "run"])
async def test_server_in_options_follows_same_rule(modern_url: str, policy: Any) -> None:
    options = AnthropicOptions(
        server_side_tools={AnthropicServerSideTool.MCP, AnthropicServerSideTool.WEB_SEARCH},
        mcp_config=[RemoteMCP(label="sums", url=modern_url)],
    )
    async with (
        FakeProvider(CALLED_FROM_HERE["anthropic"]()) as fake,
        Agent("anthropic", base_url=fake.base_url, options=options, approval=policy) as agent,
    ):
        result = await agent.send("Add")
        body = fake.requests[0].json
    names = [tool.get("mcp_server_name") or tool["name"] for tool in body["tools"]]
    if policy is None:
        assert [pending.server_label for pending in result.approvals] == ["sums"]
        assert "mcp_servers" not in body
        assert set(names) == {"add", "count", "learn", "paint", "web_search"}
    else:
        assert [server["name"] for server in body["mcp_servers"]] == ["sums"]
        assert set(names) == {"sums", "web_search"}


@requirement("R76")
@pytest.mark.parametrize("settings", [{"execution": "provider"}])
async def test_unapprovable_server_is_rejected_before_sending(
    settings: dict[str, Any],
) -> None:
    remote = RemoteMCP(label="d", url=URL, **settings)
    async with FakeProvider([]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, server_side_tools=[remote])
        with pytest.raises(UnsupportedError, match="approval") as caught:
            agent.stream("Hello")
        assert 'require_approval="never"' in str(caught.value)
        assert next(iter(settings)) in str(caught.value)
        assert fake.requests == []


async def test_connector_needs_approval_like_server() -> None:
    mail = RemoteMCP(label="mail", connector="connector_gmail")
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        await Agent("openai-responses", base_url=fake.base_url, server_side_tools=[mail]).send("Hello")
        (tool,) = fake.requests[0].json["tools"]
    assert (tool["connector_id"], tool["require_approval"]) == ("connector_gmail", "always")


async def test_same_server_in_tools_and_options_is_sent_once_in_order() -> None:
    remote = RemoteMCP(label="d", url=URL)
    options = OpenAIResponsesOptions(server_side_tools={OpenAIServerSideTool.MCP}, mcp_config=remote)
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, options=options)
        await agent.send("Hello", server_side_tools=[remote, WebSearch()])
        assert [tool["type"] for tool in fake.requests[0].json["tools"]] == ["mcp", "web_search"]


@pytest.mark.parametrize(
    "settings",
    [
        {"server_side_tools": [RemoteMCP(label="d", url=URL), RemoteMCP(label="d", url="https://e.example/mcp")]},
        {"server_side_tools": [RemoteMCP(label="d", url=URL)], "tools": [MCPServer("d", command="npx")]},
    ],
)
async def test_two_servers_with_same_label_are_rejected(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match="'d'"):
        Agent("openai-responses", base_url="http://127.0.0.1:9", **settings).stream("Hello")


async def test_local_tools_run_unasked_beside_asking_remote_server() -> None:
    done: list[str] = []

    def note(text: str) -> str:
        """Notes something."""
        done.append(text)
        return "noted"

    asked = ResponsesScript(id="r1").mcp_approval_request("d", "search", {}).function_call("note", {"text": "x"}, "c1")
    async with FakeProvider([asked.reply()]) as fake:
        remote = RemoteMCP(label="d", url=URL)
        agent = Agent("openai-responses", base_url=fake.base_url, tools=[note], server_side_tools=[remote])
        result = await agent.send("Both")
    assert done == ["x"]
    assert [pending.server_label for pending in result.approvals] == ["d"]


async def test_one_connection_serves_calls_with_different_policies(modern_url: str) -> None:
    remote = RemoteMCP(label="sums", url=modern_url)
    script = CALLED_FROM_HERE["openai-chat"]
    async with (
        FakeProvider([script()[0], *script()]) as fake,
        Agent("openai-chat", base_url=fake.base_url, server_side_tools=[remote]) as agent,
    ):
        assert (await agent.send("Add")).finish_reason == "approval"
        assert (await agent.send("Add", approval="run")).finish_reason == "stop"
        assert len(agent._local_toolsets._known) == 1  # pyright: ignore[reportPrivateUsage]
