"""Tools that appear in mid-conversation are added there; the top of the request stays the same."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from providers.anthropic.test_encode_types import assert_fits
from requirements import requirement
from sidestream import Agent
from sidestream.messages.message import messages_from_json, messages_to_json
from sidestream.parts import Custom
from sidestream.providers.anthropic import AnthropicOptions, Compact
from sidestream.testing import FakeProvider, MessagesScript, error_reply
from sidestream.tools.tool import Tool
from support.mcp_servers.peers import rogue

BETA = "inline-tools-2026-09-15"


def sign_in() -> str:
    """Signs in."""
    return "welcome"


def read_mail() -> str:
    """Reads mail."""
    return "no mail"


def send_mail(text: str) -> str:
    """Sends mail."""
    return "sent"


class Mailbox:
    """A toolset whose tools change, as those of an MCP server do."""

    label = "mailbox"
    warnings: tuple[str, ...] = ()

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.functions = list(functions)

    async def list(self) -> Sequence[Tool]:
        return [Tool.from_function(function) for function in self.functions]

    async def aclose(self) -> None:
        pass


def agent_at(fake: FakeProvider, *tools: Any, model: str = "claude", **settings: Any) -> Agent:
    return Agent(model, base_url=fake.base_url, tools=tools, **settings)


def names(body: Any) -> list[str]:
    return [tool["name"] for tool in body.get("tools", ())]


def additions(body: Any) -> list[tuple[int, list[str]]]:
    """Place of each system message, and the tools that it adds."""
    return [
        (place, [block["tool"]["definition"]["name"] for block in message["content"]])
        for place, message in enumerate(body["messages"])
        if message["role"] == "system"
    ]


def says(text: str) -> Any:
    return MessagesScript().text(text).reply()


@requirement("R54", "R80")
async def test_tool_appearing_mid_run_is_added_after_results():
    mailbox = Mailbox(sign_in)

    def unlock() -> str:
        """Unlocks the mailbox."""
        mailbox.functions += [read_mail, send_mail]
        return "unlocked"

    replies = [
        MessagesScript().tool_use("unlock", {}, "toolu_1"),
        MessagesScript().tool_use("read_mail", {}, "toolu_2"),
    ]
    async with FakeProvider([*(script.reply() for script in replies), says("No mail."), says("Bye.")]) as fake:
        agent = agent_at(fake, unlock, mailbox)
        result = await agent.send("hi")
        assert result.output == "No mail."
        # The notes survive storage of the messages.
        stored = messages_from_json(messages_to_json(result.messages))
        await agent.send("Bye", history=stored)
        bodies = [request.json for request in fake.requests]
        betas = [request.headers.get("anthropic-beta", "") for request in fake.requests]
    assert [names(body) for body in bodies] == [["unlock", "sign_in"]] * 4
    assert len({str(body["tools"]) for body in bodies}) == 1
    assert [additions(body) for body in bodies] == [[], *([[(3, ["read_mail", "send_mail"])]] * 3)]
    assert [BETA in beta for beta in betas] == [False, True, True, True]
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user", "system"]
    # What was sent before is the beginning of what is sent later: the cache of it stays valid.
    for earlier, later in pairwise(bodies):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    for body in bodies:
        assert_fits({key: value for key, value in body.items() if key != "stream"})


@requirement("R54", "R80")
async def test_more_tools_can_be_added_later():
    mailbox = Mailbox(sign_in)
    async with FakeProvider([says("1"), says("2"), says("3"), says("4")]) as fake:
        agent = agent_at(fake, mailbox)
        history: Any = ()
        for new in ([], [read_mail], [send_mail], []):
            mailbox.functions += new
            history = [*history, *(await agent.send("hi", history=history)).messages]
        bodies = [request.json for request in fake.requests]
    assert [additions(body) for body in bodies] == [
        [],
        [(3, ["read_mail"])],
        [(3, ["read_mail"]), (6, ["send_mail"])],
        [(3, ["read_mail"]), (6, ["send_mail"])],
    ]


@requirement("R54", "R80")
@pytest.mark.parametrize("change", ["gone", "other description"])
@pytest.mark.parametrize("which", ["at the top", "added"])
async def test_removed_or_changed_tool_moves_all_tools_to_top(change: str, which: str):
    mailbox = Mailbox(sign_in)
    async with FakeProvider([says("1"), says("2"), says("3"), says("4")]) as fake:
        agent = agent_at(fake, mailbox)
        history = [*(await agent.send("hi")).messages]
        mailbox.functions.append(read_mail)
        history = [*history, *(await agent.send("hi", history=history)).messages]
        place = 0 if which == "at the top" else 1
        gone = mailbox.functions.pop(place)
        if change == "other description":

            def changed() -> str:
                """Something else."""
                return ""

            changed.__name__ = gone.__name__
            mailbox.functions.insert(place, changed)
        history = [*history, *(await agent.send("hi", history=history)).messages]
        mailbox.functions.append(send_mail)
        await agent.send("hi", history=history)
        third, fourth = (request.json for request in fake.requests[2:])
    remaining = [function.__name__ for function in mailbox.functions[:-1]]
    assert (names(third), additions(third)) == (remaining, [])
    assert (names(fourth), additions(fourth)) == (remaining, [(7, ["send_mail"])])


@requirement("R54", "R80")
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("anthropic:claude-sonnet-4-5", AnthropicOptions()),
        ("anthropic:qwen3", AnthropicOptions()),
        ("claude", AnthropicOptions(inline_tools=False)),
        ("claude", AnthropicOptions(context_management=[Compact()])),
    ],
)
async def test_tools_stay_at_top_when_additions_are_unsupported(model: str, options: AnthropicOptions):
    mailbox = Mailbox(sign_in)
    async with FakeProvider([says("1"), says("2")]) as fake:
        agent = agent_at(fake, mailbox, model=model, options=options)
        history = [*(await agent.send("hi")).messages]
        mailbox.functions.append(read_mail)
        await agent.send("hi", history=history)
        second = fake.requests[1]
    assert (names(second.json), additions(second.json)) == (["sign_in", "read_mail"], [])
    assert BETA not in second.headers.get("anthropic-beta", "")


@requirement("R54", "R80")
async def test_refused_tool_addition_moves_all_tools_to_top():
    mailbox = Mailbox(sign_in)
    refusal = error_reply(400, "invalid_request_error", "messages.3.content.0: unknown block type 'tool_addition'")
    async with FakeProvider([says("1"), refusal, says("2"), says("3")]) as fake:
        agent = agent_at(fake, mailbox)
        history = [*(await agent.send("hi")).messages]
        mailbox.functions.append(read_mail)
        result = await agent.send("hi", history=history)
        await agent.send("hi", history=[*history, *result.messages])
        bodies = [request.json for request in fake.requests]
    notices = [part for part in result.parts if isinstance(part, Custom)]
    assert [part.kind for part in notices] == ["sidestream.session-fallback"]
    assert [additions(body) for body in bodies] == [[], [(3, ["read_mail"])], [], []]
    assert [names(body) for body in bodies[2:]] == [["sign_in", "read_mail"]] * 2


@requirement("R54", "R80")
async def test_tool_addition_waits_until_paused_answer_finishes():
    mailbox = Mailbox(sign_in)
    paused = MessagesScript().server_tool_use("web_search", {"query": "x"}, "srvtoolu_1").pause_turn()
    async with FakeProvider([says("1"), paused.reply(), says("2"), says("3")]) as fake:
        agent = agent_at(fake, mailbox)
        history = [*(await agent.send("hi")).messages]
        before = mailbox.list

        async def listed() -> Sequence[Tool]:
            # It appears while the provider works.
            if len(fake.requests) == 2:
                mailbox.functions = [sign_in, read_mail]
            return await before()

        mailbox.list = listed  # type: ignore[method-assign]
        history = [*history, *(await agent.send("hi", history=history)).messages]
        await agent.send("hi", history=history)
        bodies = [request.json for request in fake.requests]
    assert [message["role"] for message in bodies[2]["messages"]][-1] == "assistant"
    assert [len(additions(body)) for body in bodies] == [0, 0, 0, 1]


@requirement("R54", "R80")
async def test_tool_added_by_mcp_server_mid_run_is_added(tmp_path: Path):
    path = tmp_path / "tools.json"

    def lists(*names: str) -> None:
        path.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in names]))

    lists("change")
    replies = [MessagesScript().tool_use("change", {}, "toolu_1"), MessagesScript().tool_use("echo", {}, "toolu_2")]
    async with (
        FakeProvider([says("1"), *(script.reply() for script in replies), says("2")]) as fake,
        agent_at(fake, rogue("--tools", str(path), approval="run")) as agent,
    ):
        history = [*(await agent.send("hi")).messages]
        lists("change", "echo")
        result = await agent.send("hi", history=history)
        bodies = [request.json for request in fake.requests]
    assert result.output == "2"
    assert [names(body) for body in bodies] == [["change"]] * 4
    assert [additions(body) for body in bodies] == [[], [], [(5, ["echo"])], [(5, ["echo"])]]
