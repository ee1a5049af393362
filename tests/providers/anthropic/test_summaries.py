"""A summary that was requested stands in place of the messages before it."""

from typing import Any

import pytest

from providers.anthropic.test_encode_types import assert_fits
from providers.anthropic.test_tool_changes import Mailbox, additions, names, read_mail, sign_in
from requirements import requirement
from sidestream import Agent, Chat, ChatMessage, open_store
from sidestream.providers.anthropic import AnthropicOptions, Compact, Compaction
from sidestream.testing import FakeProvider, MessagesScript, json_reply

SUMMARISE = AnthropicOptions(compaction=Compaction())


def says(text: str) -> Any:
    return MessagesScript().text(text).reply()


def summary(**fields: Any) -> Any:
    return MessagesScript().compaction("So far.", signature="EqQB", **fields).stop("compaction").reply()


def blocks(body: Any) -> list[tuple[str, list[str]]]:
    return [(message["role"], [block["type"] for block in message["content"]]) for message in body["messages"]]


@requirement("R54")
@pytest.mark.parametrize("stored", [False, True])
async def test_summary_replaces_earlier_messages(stored: bool, tmp_path: Any):
    async with FakeProvider([says("1"), summary(tool_changes=[]), says("2"), says("3")]) as fake:
        agent = Agent("claude", base_url=fake.base_url, system="Be short.")
        store = open_store(tmp_path / "log.db") if stored else None
        chat = Chat(agent, store=store)
        await chat.send("hi")
        await chat.send("Summarise.", options=SUMMARISE)
        await chat.send("more")
        await chat.send("and more")
        if store is not None:
            await store.aclose()
        bodies = [request.json for request in fake.requests]
    assert "compact-2026-09-04" in fake.requests[1].headers["anthropic-beta"]
    assert bodies[1]["compaction"] == {"type": "summarize"}
    after = [("assistant", ["compaction"]), ("user", ["text"])]
    assert blocks(bodies[2]) == after
    assert blocks(bodies[3]) == [*after, ("assistant", ["text"]), ("user", ["text"])]
    sent = {"type": "compaction", "content": "So far.", "signature": "EqQB", "tool_changes": []}
    assert bodies[2]["messages"][0]["content"] == [sent]
    assert bodies[2]["system"] == "Be short."
    assert_fits({key: value for key, value in bodies[2].items() if key != "stream"})


@requirement("R54")
async def test_leading_system_messages_survive_summary():
    async with FakeProvider([summary(), says("2")]) as fake:
        agent = Agent("claude", base_url=fake.base_url)
        history = [ChatMessage.system("Be short."), ChatMessage.user("hi")]
        history += (await agent.send("Summarise.", history=history, options=SUMMARISE)).messages
        await agent.send("more", history=history)
        body = fake.requests[1].json
    assert (body["system"], blocks(body)[0]) == ("Be short.", ("assistant", ["compaction"]))


@requirement("R54")
async def test_failed_or_refused_summary_is_not_used():
    failed = MessagesScript().block({"type": "compaction", "content": None}).stop("compaction").reply()
    refusal = {
        "type": "invalid_request_error",
        "message": "x",
        "details": {"error_code": "compaction_signature_invalid"},
    }
    replies = [failed, says("1"), summary(), json_reply({"type": "error", "error": refusal}, status=400), says("2")]
    async with FakeProvider(replies) as fake:
        agent = Agent("claude", base_url=fake.base_url)
        history = [*(await agent.send("hi", options=SUMMARISE)).messages]
        history += (await agent.send("more", history=history)).messages
        history += (await agent.send("Summarise.", history=history, options=SUMMARISE)).messages
        result = await agent.send("and more", history=history)
        bodies = [request.json for request in fake.requests]
    assert blocks(bodies[1])[0] == ("user", ["text"])
    assert blocks(bodies[3]) == [("assistant", ["compaction"]), ("user", ["text"])]
    assert blocks(bodies[4])[0] == ("user", ["text", "text"])
    assert result.output == "2"


@requirement("R54", "R80")
async def test_tools_added_before_summary_are_repeated_by_it():
    mailbox = Mailbox(sign_in)
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "read_mail"}}
    async with FakeProvider([says("1"), says("2"), summary(tool_changes=[added]), says("3")]) as fake:
        agent = Agent("claude", base_url=fake.base_url, tools=[mailbox])
        history = [*(await agent.send("hi")).messages]
        mailbox.functions.append(read_mail)
        history += (await agent.send("hi", history=history)).messages
        history += (await agent.send("Summarise.", history=history, options=SUMMARISE)).messages
        await agent.send("more", history=history)
        bodies = [request.json for request in fake.requests]
    assert [names(body) for body in bodies] == [["sign_in"]] * 4
    assert additions(bodies[2]) == [(3, ["read_mail"])]
    assert additions(bodies[3]) == []
    assert bodies[3]["messages"][0]["content"][0]["tool_changes"] == [added]


@requirement("R54", "R80")
async def test_summary_within_turn_moves_all_tools_to_top():
    mailbox = Mailbox(sign_in)
    within = MessagesScript().compaction("So far.").text("3").reply()
    async with FakeProvider([says("1"), says("2"), within, says("4")]) as fake:
        agent = Agent("claude", base_url=fake.base_url, tools=[mailbox])
        history = [*(await agent.send("hi")).messages]
        mailbox.functions.append(read_mail)
        history += (await agent.send("hi", history=history)).messages
        compacting = AnthropicOptions(context_management=[Compact()])
        history += (await agent.send("hi", history=history, options=compacting)).messages
        await agent.send("more", history=history)
        last = fake.requests[3].json
    assert (names(last), additions(last)) == (["sign_in", "read_mail"], [])
