"""Agents with `context=`: long conversations are kept within the model's window, visibly and without harm."""

from pathlib import Path
from typing import Any

import pytest

from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    ConfigurationError,
    Context,
    ContextOverflowError,
    OpenAIResponsesOptions,
    RunState,
    StreamPart,
    UnsupportedError,
    Usage,
    open_store,
)
from sidestream.messages import validate_history
from sidestream.messages.shortening import OVERFLOWED, SHORTENED
from sidestream.parts import Custom, InputUsage, OutputUsage, StreamStart
from sidestream.providers import ModelRequest
from sidestream.providers.openai.responses.options import ContextManagement
from sidestream.run.settings import RunHooks
from sidestream.stream.errors import part_of_error
from sidestream.testing import (
    FakeProvider,
    GeminiScript,
    MessagesScript,
    ModelReply,
    ResponsesScript,
    ScriptedModel,
    ScriptedReply,
    check_stream,
    error_reply,
    json_reply,
    tool_call,
)
from support.left_runs import Log

LONG = "word " * 2000  # about 2,500 tokens
WINDOW = 10_000


def long_history(turns: int) -> list[ChatMessage]:
    return [m for n in range(turns) for m in (ChatMessage.user(f"q{n} {LONG}"), ChatMessage.model(f"a{n} {LONG}"))]


async def parts_of(agent: Agent[Any], prompt: str = "now?", **call: Any) -> list[StreamPart]:
    async with agent.stream(prompt, **call) as run:
        parts = [part async for part in run]
    check_stream(parts)
    return parts


def notices(parts: list[StreamPart], kind: str = SHORTENED) -> list[Any]:
    return [part.data for part in parts if isinstance(part, Custom) and part.kind == kind]


def summarising(request: ModelRequest) -> ModelReply:
    """Answers, or summarises if that is what it is asked."""
    return "They counted." if "summary" in (request.system or "") else f"{len(request.messages)} messages"


async def test_history_within_window_is_unchanged() -> None:
    model = ScriptedModel(summarising, context_window=WINDOW)
    parts = await parts_of(Agent(model, context=Context()), history=long_history(1))
    assert notices(parts) == []
    assert len(model.requests) == 1


async def test_unknown_window_warns_only_for_long_history() -> None:
    for history, expected in (([], 0), (long_history(3), 1)):
        start, *_ = await parts_of(Agent(ScriptedModel(["ok"]), context=Context()), history=history)
        assert isinstance(start, StreamStart)
        assert len(start.warnings) == expected


async def test_older_turns_are_summarised_before_overflow_with_notice() -> None:
    model = ScriptedModel(summarising, context_window=WINDOW)
    parts = await parts_of(Agent(model, context=Context(keep_turns=1)), history=long_history(3))
    (notice,) = notices(parts)
    assert (notice["reason"], notice["dropped"], notice["summary"]) == ("threshold", [[0, 6]], "They counted.")
    summary, answer = model.requests
    assert "q0 word" in summary.messages[0].text
    assert [message.text.split("\n\n")[-1] for message in answer.messages] == ["They counted.", "now?"]
    assert validate_history(answer.messages) == []


async def test_summary_cost_counts_for_run() -> None:
    usage = Usage(InputUsage(1000, 1000), OutputUsage(50, 50))
    model = ScriptedModel(
        [ScriptedReply(["Sum."], usage=usage), ScriptedReply(["ok"], usage=usage)], context_window=WINDOW
    )
    result = await Agent(model, context=Context()).send("now?", history=long_history(3))
    assert result.usage is not None
    assert result.usage.input.total == 2000


async def test_another_model_can_summarise() -> None:
    cheap, model = ScriptedModel(["Cheap."]), ScriptedModel(["ok"], context_window=WINDOW)
    parts = await parts_of(Agent(model, context=Context(summary_model=cheap)), history=long_history(3))
    assert notices(parts)[0]["summary"] == "Cheap."
    assert (len(cheap.requests), len(model.requests)) == (1, 1)


async def test_cut_drops_whole_turns_without_request() -> None:
    model = ScriptedModel(["ok"])
    context = Context(strategy="cut", max_tokens=WINDOW, keep_turns=2)
    parts = await parts_of(Agent(model, context=context), history=[ChatMessage.system("s"), *long_history(3)])
    assert "summary" not in notices(parts)[0]
    assert [message.text[:2] for message in model.requests[0].messages] == ["s", "q2", "a2", "no"]


async def test_failed_summary_becomes_cut_with_reason() -> None:
    broken = ScriptedModel([ContextOverflowError("no")])
    model = ScriptedModel(["ok"], context_window=WINDOW)
    (notice,) = notices(await parts_of(Agent(model, context=Context(summary_model=broken)), history=long_history(3)))
    assert "summary" not in notice
    assert "could not be summarised" in notice["message"]


async def test_chat_stays_short_using_reported_token_count() -> None:
    def respond(request: ModelRequest) -> ModelReply:
        if "summary" in (request.system or ""):
            return "Sum."
        count = 9000 if len(model.requests) == 2 else 100
        return ScriptedReply(["ok"], usage=Usage(InputUsage(count, count), OutputUsage(1, 1)))

    model = ScriptedModel(respond, context_window=WINDOW)
    chat = Chat(Agent(model, context=Context(keep_turns=1)))
    for text in ("one", "two", "three", "four"):
        await chat.send(text)
    # The second answer took 9,000 tokens, whatever the texts look like: the third turn begins with a summary.
    assert [message.text for message in chat.messages] == [chat.messages[0].text, "three", "ok", "four", "ok"]
    assert chat.messages[0].text.endswith("Sum.")
    assert len(model.requests) == 5


def big_result(n: int) -> str:
    """Something long."""
    return f"{n} {LONG}"


async def test_long_tool_loop_drops_older_rounds_and_keeps_question() -> None:
    def respond(request: ModelRequest) -> ModelReply:
        if "summary" in (request.system or ""):
            return "Looked at some."
        rounds = sum(1 for sent in model.requests if "summary" not in (sent.system or ""))
        return tool_call("big_result", n=rounds) if rounds <= 9 else "done"

    model = ScriptedModel(respond, context_window=WINDOW)
    agent = Agent(model, tools=[big_result], context=Context())
    async with agent.stream("look") as run:
        parts = [part async for part in run]
    check_stream(parts)
    assert len(notices(parts)) >= 2
    for request in model.requests:
        assert validate_history(request.messages) == []
    last = model.requests[-1].messages
    assert last[1].text == "look"
    assert run.turn.state.messages[-1].text == "done"


# When the provider itself says that it is too much


@pytest.mark.parametrize("in_stream", [False, True])
async def test_overflow_is_retried_once_shortened_with_notice(in_stream: bool) -> None:
    error = ContextOverflowError("too long", status=400)
    first: Any = [part_of_error(error)] if in_stream else error
    model = ScriptedModel([first, "ok"])
    agent = Agent(model, context=Context(strategy="cut"))
    parts = await parts_of(agent, history=long_history(3))
    assert len(notices(parts, OVERFLOWED)) == 1
    assert notices(parts)[0]["reason"] == "overflow"
    assert len(model.requests[1].messages) < len(model.requests[0].messages)
    assert parts[-1].reason == "stop"  # pyright: ignore


@pytest.mark.parametrize("in_stream", [False, True])
async def test_second_overflow_is_error(in_stream: bool) -> None:
    error: Any = ContextOverflowError("too long", status=400)
    model = ScriptedModel([[part_of_error(error)] if in_stream else error] * 2)
    with pytest.raises(ContextOverflowError):
        await Agent(model, context=Context(strategy="cut")).send("now?", history=long_history(3))
    assert len(model.requests) == 2


async def test_overflow_after_text_is_error() -> None:
    model = ScriptedModel([["Half an", part_of_error(ContextOverflowError("too long"))], "never"])
    with pytest.raises(ContextOverflowError):
        await Agent(model, context=Context(strategy="cut")).send("now?", history=long_history(3))
    assert len(model.requests) == 1


async def test_overflow_fails_at_once_if_history_cannot_be_shortened() -> None:
    error = ContextOverflowError("too long", status=400)
    for agent, history in (
        (Agent(ScriptedModel([error]), context=Context()), []),
        (Agent(ScriptedModel([error])), long_history(3)),
    ):
        with pytest.raises(ContextOverflowError):
            await agent.send("x", history=history)


async def test_provider_overflow_error_triggers_shorter_retry() -> None:
    script = [error_reply(400, "context_length_exceeded", "too long"), ResponsesScript().text("ok").reply()]
    async with FakeProvider(script) as fake:
        context = Context(strategy="cut", max_tokens=1_000_000)
        agent = Agent("openai-responses", base_url=fake.base_url, context=context)
        assert (await agent.send("now?", history=long_history(3))).output == "ok"
        assert len(fake.requests[1].json["input"]) < len(fake.requests[0].json["input"])


# Providers


async def test_openai_compacts_and_no_message_is_lost() -> None:
    async with FakeProvider([ResponsesScript().text("ok").reply()] * 2) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, context=Context(max_tokens=100_000))
        parts = await parts_of(agent, history=long_history(60))
        await agent.send("hi", context=Context())
        first, second = (request.json for request in fake.requests)
    assert notices(parts) == []
    assert first["context_management"] == [{"type": "compaction", "compact_threshold": 80_000}]
    assert second["context_management"] == [{"type": "compaction"}]


async def test_anthropic_compacts_with_its_beta() -> None:
    async with FakeProvider([MessagesScript().text("ok").reply()]) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, context=Context(max_tokens=200_000))
        await agent.send("hi")
        body, headers = fake.requests[0].json, fake.requests[0].headers
    (edit,) = body["context_management"]["edits"]
    assert edit["type"] == "compact_20260112"
    assert edit["trigger"] == {"type": "input_tokens", "value": 160_000}
    assert "compact-2026-01-12" in headers["anthropic-beta"]


async def test_explicit_compaction_options_take_precedence() -> None:
    options = OpenAIResponsesOptions(context_management=[ContextManagement(compact_threshold=5)])
    async with FakeProvider([ResponsesScript().text("ok").reply()]) as fake:
        await Agent("openai-responses", base_url=fake.base_url, context=Context(), options=options).send("hi")
        assert fake.requests[0].json["context_management"] == [{"type": "compaction", "compact_threshold": 5}]


async def test_unsupported_provider_compaction_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="summary"):
        await Agent(ScriptedModel([]), context=Context(strategy="provider")).send("hi")


async def test_window_is_read_once_from_provider_model_list() -> None:
    listed = {
        "models": [
            {"name": "models/gemini-test", "inputTokenLimit": WINDOW, "supportedGenerationMethods": ["generateContent"]}
        ]
    }
    async with FakeProvider([GeminiScript().text("ok").reply()] * 3, base_path="") as fake:
        fake.on("GET", "*/models", json_reply(listed))
        agent = Agent("google:gemini-test", base_url=fake.base_url, api_key="k", context=Context(strategy="cut"))
        await agent.send("short")
        assert len(fake.requests) == 1  # A short conversation needs no window.
        for _ in range(2):
            await agent.send("now?", history=long_history(3))
        lists = [request for request in fake.requests if request.method == "GET"]
        assert len(lists) == 1
        assert len(fake.requests[-1].json["contents"]) < 7


async def test_cut_leaves_server_session_with_notice() -> None:
    replies = [
        ResponsesScript(
            id=f"r{n}", usage={"input_tokens": 9000, "output_tokens": 5, "total_tokens": 9005} if n == 1 else None
        )
        .text("ok")
        .reply()
        for n in range(4)
    ]
    async with FakeProvider(replies) as fake:
        agent = Agent(
            "openai-responses", base_url=fake.base_url, context=Context(strategy="cut", max_tokens=WINDOW, keep_turns=1)
        )
        chat = Chat(agent)
        await chat.send("one")
        await chat.send("two")
        async with chat.stream("three") as run:
            parts = [part async for part in run]
        await chat.send("four")
        anchors = [request.json.get("previous_response_id") for request in fake.requests]
        third = fake.requests[2].json["input"]
    assert len(notices(parts)) == 1
    assert anchors == [None, "r0", None, "r2"]
    assert len(third) == 1


# The log


async def test_stored_chat_reloads_shortened_history(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log.db")
    model = ScriptedModel(summarising, context_window=WINDOW)
    agent = Agent(model, context=Context(keep_turns=1))
    chat = Chat(agent, long_history(3), store=store, id="c")
    for text in ("one", "two", LONG, LONG, "three"):
        await chat.send(text)
    again = Chat(agent, store=store, id="c")
    await again.load()
    assert again.messages == chat.messages
    assert len(again.messages) < 6 + 2 * 5
    assert again.messages[0].text.startswith("Summary")
    await again.send("and on")
    await store.aclose()


@pytest.mark.parametrize("in_stream", [False, True])
async def test_run_left_anywhere_is_rebuilt_with_same_history(in_stream: bool) -> None:
    error: Any = ContextOverflowError("too long", status=400)
    overflow = [part_of_error(error)] if in_stream else error
    model = ScriptedModel(["Sum.", tool_call("big_result", n=1), overflow, "Sum again.", "done"], context_window=WINDOW)
    agent = Agent(model, tools=[big_result], context=Context(keep_turns=2))
    history = long_history(3)
    log = Log(history)
    run = agent._begun("now?", None, {"history": history}, RunHooks(log), "parts")  # pyright: ignore
    log.run = run
    async with run:
        async for _ in run:
            log.check()
    assert log.checks > 10
    assert run.turn.state.messages[-1].text == "done"
    assert model.remaining == 0


async def test_approvals_and_resumption_keep_shortened_history() -> None:
    model = ScriptedModel(["Sum.", tool_call("big_result", n=1), "done"], context_window=WINDOW)
    agent = Agent(model, tools=[big_result], context=Context(keep_turns=1), approval=lambda question: "ask")
    waiting = await agent.send("now?", history=long_history(3))
    assert len(waiting.run_state.turn.messages) == 3
    state = RunState.from_json(waiting.run_state.to_json())
    done = await agent.resume(state, [approval.approve() for approval in waiting.approvals])
    assert done.messages[-1].text == "done"


@pytest.mark.parametrize("wrong", [{"strategy": "magic"}, {"keep_turns": 0}, {"threshold": 0}, {"max_tokens": 0}])
def test_invalid_context_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        Context(**wrong)
