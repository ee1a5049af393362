"""Threads: the server holds the conversation, requests send what is new, and what it refuses is sent in full."""

from typing import Any, get_args, get_origin

import pytest

from providers.anthropic.messages_wire import decode
from providers.anthropic.test_encode_types import assert_fits
from requirements import requirement
from sidestream import Agent, ChatMessage, RemoteMCP
from sidestream.errors import ProviderError
from sidestream.parts import Custom, Error, ToolResult
from sidestream.providers.anthropic import AnthropicOptions
from sidestream.providers.anthropic.provider import COMPACTION_ERRORS
from sidestream.testing import FakeProvider, MessagesScript, json_reply

BETA = "message-threads-2026-08-12"
THREAD = AnthropicOptions(thread="auto")


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def agent_at(fake: FakeProvider, **settings: Any) -> Agent:
    return Agent("claude", base_url=fake.base_url, **{"options": THREAD, **settings})


def says(text: str, identity: str) -> Any:
    return MessagesScript(id=identity).text(text).reply()


def refused(code: str, status: int = 400, message: str = "no", **details: Any) -> Any:
    error = {"type": "invalid_request_error", "message": message, "details": {"error_code": code, **details}}
    return json_reply(
        {"type": "error", "error": error, "request_id": "req_1"}, status=status, headers={"retry-after-ms": "1"}
    )


def continues(message_id: str) -> dict[str, str]:
    return {"type": "continue", "previous_message_id": message_id}


CREATE = {"type": "create"}


def reasons(parts: Any) -> list[Any]:
    return [part.data["reason"] for part in parts if isinstance(part, Custom)]


@requirement("R50", "R54")
async def test_thread_is_created_once_and_gets_only_new_messages():
    call = MessagesScript(id="msg_1").tool_use("get_weather", {"city": "Rome"}, "toolu_1").reply()
    async with FakeProvider([call, says("Sunny.", "msg_2"), says("Bye.", "msg_3")]) as fake:
        agent = agent_at(fake, tools=[get_weather], system="Be short.")
        result = await agent.send("hi")
        await agent.send("Bye", history=result.messages)
        first, second, third = fake.requests
    assert [r.json["thread"] for r in fake.requests] == [CREATE, continues("msg_1"), continues("msg_2")]
    assert (first.json["system"], len(first.json["tools"])) == ("Be short.", 1)
    for later in (second.json, third.json):
        assert not later.keys() & {"system", "tools"}
    answered = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny in Rome"}
    assert second.json["messages"] == [{"role": "user", "content": [answered]}]
    assert third.json["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Bye"}]}]
    for request in fake.requests:
        assert BETA in request.headers["anthropic-beta"]
        assert_fits({key: value for key, value in request.json.items() if key != "stream"})


@requirement("R55")
async def test_paused_thread_answer_is_resumed_by_empty_request():
    found = {"type": "web_search_result", "url": "https://example.com/a", "title": "A", "encrypted_content": "EqgB"}
    paused = MessagesScript(id="msg_1").server_tool_use("web_search", {"query": "x"}, "srvtoolu_1").pause_turn()
    last = MessagesScript(id="msg_2").result("web_search_tool_result", [found], "srvtoolu_1").text("Found.")
    async with FakeProvider([paused.reply(), last.reply()]) as fake:
        result = await agent_at(fake).send("hi")
        second = fake.requests[1].json
    assert (second["thread"], second["messages"]) == (continues("msg_1"), [])
    # The result still belongs to the call, which only the server was sent.
    results = [part for part in result.parts if isinstance(part, ToolResult)]
    assert [(part.id, part.is_error) for part in results] == [("srvtoolu_1", False)]


CODES = ["thread_not_found", "thread_already_continued", "thread_continue_in_flight", "thread_fingerprint_mismatch"]


@requirement("R54")
@pytest.mark.parametrize("code", CODES)
async def test_refused_thread_is_replaced_with_full_conversation(code: str):
    async with FakeProvider([says("1", "msg_1"), refused(code), says("2", "msg_2"), says("3", "msg_3")]) as fake:
        agent = agent_at(fake)
        history = [*(await agent.send("hi")).messages]
        result = await agent.send("more", history=history)
        await agent.send("and more", history=[*history, *result.messages])
        threads = [request.json["thread"] for request in fake.requests]
        lengths = [len(request.json["messages"]) for request in fake.requests]
    assert threads == [CREATE, continues("msg_1"), CREATE, continues("msg_2")]
    assert lengths == [1, 1, 3, 1]
    assert reasons(result.parts) == ["refused"]


@requirement("R54")
async def test_unsupported_thread_request_switches_to_full_history():
    refusal = refused("thread_unsupported_request", message="thinking is not supported", unsupported=["thinking"])
    async with FakeProvider([refusal, says("1", "msg_1"), says("2", "msg_2")]) as fake:
        agent = agent_at(fake)
        result = await agent.send("hi")
        await agent.send("more", history=result.messages)
        bodies = [request.json for request in fake.requests]
    assert ["thread" in body for body in bodies] == [True, False, False]
    assert [len(body["messages"]) for body in bodies] == [1, 1, 3]
    assert reasons(result.parts) == ["refused"]


@requirement("R54")
@pytest.mark.parametrize("change", ["system", "tools", "edited", "model"])
async def test_changed_conversation_starts_new_thread(change: str):
    async with FakeProvider([says("1", "msg_1"), says("2", "msg_2")]) as fake:
        history = [*(await agent_at(fake, system="A", tools=[get_weather]).send("hi")).messages]
        settings: dict[str, Any] = {"system": "A", "tools": [get_weather]}
        if change == "edited":
            history[0] = ChatMessage.user("Hello")
        elif change == "model":
            settings["model"] = "anthropic:claude-opus-5-5"
        else:
            settings[change] = "B" if change == "system" else []
        model = settings.pop("model", "claude")
        agent = Agent(model, base_url=fake.base_url, options=THREAD, **settings)
        result = await agent.send("more", history=history)
        second = fake.requests[1].json
    assert (second["thread"], len(second["messages"])) == (CREATE, 3)
    expected = {"edited": "history-edited", "model": "model-changed"}.get(change, "setup-changed")
    assert reasons(result.parts) == [expected]


@requirement("R54")
@pytest.mark.parametrize("ending", ["refusal", "fallback"])
async def test_answer_missing_from_thread_starts_new_thread(ending: str):
    script = MessagesScript(id="msg_1").text("No.")
    if ending == "refusal":
        script.refusal()
    else:
        script.block({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}})
    async with FakeProvider([script.reply(), says("2", "msg_2")]) as fake:
        agent = agent_at(fake)
        history = (await agent.send("hi")).messages
        await agent.send("more", history=history)
        second = fake.requests[1].json
    assert (second["thread"], len(second["messages"])) == (CREATE, 3)


@requirement("R54")
async def test_run_from_named_message_continues_from_own_answers():
    call = MessagesScript(id="msg_8").tool_use("get_weather", {"city": "Rome"}, "toolu_1").reply()
    async with FakeProvider([call, says("Sunny.", "msg_9")]) as fake:
        agent = agent_at(fake, tools=[get_weather], options=AnthropicOptions(thread="msg_7"))
        await agent.send("hi")
        threads = [request.json["thread"] for request in fake.requests]
    assert threads == [continues("msg_7"), continues("msg_8")]


def test_every_vendor_compaction_error_has_outcome():
    error_details = pytest.importorskip("anthropic.types.shared.error_details", reason="the vendor's SDK is missing")
    union = get_args(error_details.ErrorDetails)[0]
    codes = {
        code
        for member in get_args(union)
        if get_origin(member) is None
        for code in get_args(member.model_fields["error_code"].annotation)
    }
    assert {code for code in codes if str(code).startswith("compaction_")} == COMPACTION_ERRORS.keys()
    assert {code for code in codes if str(code).startswith("thread_")} == {*CODES, "thread_unsupported_request"}


@requirement("R55")
@pytest.mark.parametrize("code", sorted(COMPACTION_ERRORS))
async def test_compaction_error_is_retried_raised_or_drops_summary(code: str):
    outcome = COMPACTION_ERRORS[code]
    status = 503 if outcome == "retried" else 400
    summary = MessagesScript(id="msg_1").compaction("So far.", signature="EqQB", tool_changes=[]).text("1")
    async with FakeProvider([summary.reply(), refused(code, status), says("2", "msg_2")]) as fake:
        agent = agent_at(fake, options=None)
        history = (await agent.send("hi")).messages
        if outcome == "raised":
            with pytest.raises(ProviderError) as caught:
                await agent.send("more", history=history)
            assert (caught.value.code, caught.value.retryable) == (code, False)
            return
        result = await agent.send("more", history=history)
        assert result.output == "2"
        kinds = [[block["type"] for block in request.json["messages"][1]["content"]] for request in fake.requests[1:]]
    assert kinds == [["compaction", "text"], ["text"] if outcome == "full" else ["compaction", "text"]]


def test_compaction_error_in_stream_sets_retryable():
    for code, outcome in COMPACTION_ERRORS.items():
        parts = decode(MessagesScript().error("invalid_request_error", error_code=code).events())
        (error,) = [part for part in parts if isinstance(part, Error)]
        assert (error.code, error.retryable) == (code, outcome == "retried")


@requirement("R81")
async def test_mcp_listing_is_resent_only_with_its_server():
    server = RemoteMCP(label="docs", url="https://mcp.example", require_approval="never")
    listed = MessagesScript().mcp_listing("docs", [{"name": "find", "input_schema": {"type": "object"}}]).text("1")
    async with FakeProvider([listed.reply(), says("2", "msg_2"), says("3", "msg_3")]) as fake:
        agent = agent_at(fake, options=None, server_side_tools=[server])
        history = (await agent.send("hi")).messages
        await agent.send("more", history=history)
        await agent_at(fake, options=None).send("more", history=history)
        first, with_server, without = fake.requests
    kinds = [[b["type"] for b in r.json["messages"][1]["content"]] for r in (with_server, without)]
    assert kinds == [["mcp_tool_listing", "text"], ["text"]]
    assert "mcp-client-2026-09-15" not in first.headers["anthropic-beta"]
    assert "mcp-client-2026-09-15" in with_server.headers["anthropic-beta"]
