"""A provider's values of another type, end to end: from its stream to the store, and back in another process."""

import json
from random import Random
from typing import Any

import pytest

from hostile.corpus import SCRIPTS, events_of, scripted, with_events
from hostile.judge import stored
from hostile.mutations import MUTATIONS
from requirements import requirement
from sidestream import Agent, Chat, ChatMessage, TextPart, ToolContext
from sidestream.errors import StoreError
from sidestream.parts import Custom, File, Source, StepFinish, StepStart, StreamStart, ToolEvent, Usage
from sidestream.store import Store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.writer import NOT_STORED, Writer
from sidestream.store.records import Row, Segment
from sidestream.testing import ChatScript, FakeProvider, MessagesScript, ScriptedModel, tool_call
from sidestream.tools.context import Emitted
from support.stores import Opens

MUTANTS = 12
"""Answers of each API."""


@requirement("F58", "F07")
@pytest.mark.parametrize("api", sorted(SCRIPTS))
async def test_retyped_answer_can_be_loaded_and_continued(api: str, store: Store):
    exchange = scripted()[api]
    for number in range(MUTANTS):
        random = Random(f"{api}/{number}")
        events = events_of(exchange)
        for _ in range(random.choice((1, 3))):
            events = MUTATIONS[random.choice(("recount", "retype"))](random, events, [events])
        await stored(with_events(exchange, events), store, f"talk-{number}")


COUNTS: list[Any] = [True, False, "1", 1.5, -1, 2**70, None, [1], {"n": 1}]


@requirement("F58")
@pytest.mark.parametrize("count", COUNTS, ids=repr)
async def test_count_of_wrong_type_leaves_conversation_loadable(count: Any, opens: Opens):
    usage = {"input_tokens": count, "output_tokens": 5, "server_tool_use": {"web_search_requests": count}}
    replies = [MessagesScript(usage=usage).text("One.").reply(), MessagesScript().text("Two.").reply()]
    async with FakeProvider(replies) as fake:
        agent = Agent("anthropic", base_url=fake.base_url, api_key="k")
        first = Chat(agent, store=opens(), id="talk")
        result = await first.send("Why?")
        assert first.store_error is None
        assert result.usage is not None
        assert all(type(value) is int for value in result.usage.server_tool_use.values())
        await Chat(agent, store=opens(), id="talk").send("And then?")  # another process, as far as the log can tell
    async with FakeProvider([ChatScript().text("Three.").reply()]) as fake:
        other = Chat(Agent("groq:m", base_url=fake.base_url, api_key="k"), store=opens(), id="talk")
        await other.send("And now?")
    messages = await Conversation(opens(), "talk").messages()
    assert [message.text for message in messages] == ["Why?", "One.", "And then?", "Two.", "And now?", "Three."]


@requirement("F58")
async def test_unstorable_message_does_not_start_run(store: Store):
    model = ScriptedModel(["One.", "Two."])
    chat = Chat(Agent(model), store=store, id="talk")
    await chat.send("Why?")
    odd = ChatMessage.user(TextPart("x"), TextPart(5))  # pyright: ignore[reportArgumentType]
    with pytest.raises(StoreError):
        await chat.send(odd)
    assert len(model.requests) == 1
    assert (await chat.send("And then?")).output == "Two."
    messages = await Conversation(store, "talk").messages()
    assert [message.text for message in messages] == ["Why?", "One.", "And then?", "Two."]


async def with_step(store: Store, server_tool_use: dict[str, Any], **fields: Any) -> None:
    """Stores a turn, then changes the end of its step to what a writer that checks nothing would have stored."""
    await Chat(Agent(ScriptedModel(["One."])), store=store, id="old").send("Why?")
    rows = await store.read("old")
    changed: list[Row] = []
    for row in rows:
        body = json.loads(row.body)
        if row.kind == "step-finish":
            body["parts"][0]["usage"]["server_tool_use"] = server_tool_use
            body["parts"][0] |= fields
        changed.append(
            Row(seq=row.seq, time=row.time, run=row.run, kind=row.kind, body=json.dumps(body).encode(), blobs=row.blobs)
        )
    await store.delete("old")
    await store.append("old", 0, changed)


@requirement("F58")
async def test_boolean_count_of_older_version_is_ignored(store: Store):
    await with_step(store, {"web_search": True, "web_fetch": 2})
    records = await Conversation(store, "old").records()
    (step,) = [record.body for record in records if record.kind == "step-finish"]
    assert isinstance(step, Segment)
    (part,) = step.parts
    assert isinstance(part, StepFinish)
    assert part.usage.server_tool_use == {"web_fetch": 2}
    assert [it for it in await store.check() if it.kind != "orphan-blob"] == []
    chat = Chat(Agent(ScriptedModel(["Two."])), store=store, id="old")
    assert (await chat.send("And then?")).output == "Two."


@requirement("F58")
async def test_damaged_record_is_named_with_its_reason(store: Store):
    await with_step(store, {}, step="first")
    (seq,) = [row.seq for row in await store.read("old") if row.kind == "step-finish"]
    with pytest.raises(StoreError) as raised:
        await Conversation(store, "old").messages()
    assert f"record {seq} (step-finish)" in str(raised.value)
    assert "$.parts[0].step" in str(raised.value)
    (problem,) = [it for it in await store.check() if it.kind != "orphan-blob"]
    assert (problem.kind, problem.conversation) == ("unreadable-record", "old")
    assert f"record {seq} (step-finish)" in problem.message
    assert "$.parts[0].step" in problem.message


INVALID_PARTS: dict[str, Emitted] = {
    "source": Source("s", "url", url=5),  # pyright: ignore[reportArgumentType]
    "file": File("f", None, data=b"x"),  # pyright: ignore[reportArgumentType]
    "object": ToolEvent("t", "delta", {"x": object()}),
    "integer": ToolEvent("t", "delta", {"x": 10**5000}),
    "key": Custom("c", {(1, 2): 3}),
    "depth": ToolEvent("t", "delta", {"x": json.loads("[" * 200 + "]" * 200)}),
}


@requirement("F58")
@pytest.mark.parametrize("name", INVALID_PARTS)
async def test_tool_emitting_invalid_part_fails(name: str, store: Store):
    def work(context: ToolContext) -> str:
        """Emits."""
        context.emit(INVALID_PARTS[name])
        return "unreachable"

    chat = Chat(Agent(ScriptedModel([tool_call("work"), "ok"]), tools=[work]), store=store, id="talk")
    result = await chat.send("Why?")
    assert [(entry.result, entry.is_error) for entry in result.tool_results] == [({"error": "TypeError"}, True)]
    assert chat.store_error is None
    assert (await Conversation(store, "talk").messages())[-1].text == "ok"


@requirement("F58")
async def test_writer_rejecting_record_leaves_log_loadable(store: Store):
    await Chat(Agent(ScriptedModel(["One."])), store=store, id="talk").send("Why?")
    head = (await Conversation(store, "talk").state()).head
    writer = Writer(store, "talk", head)
    writer.begin("r", model="m", opening=[ChatMessage.user("Next?")], message_metadata="session", decisions=())
    writer.feed([StreamStart(()), StepStart(0)])
    assert await writer.commit() is None
    writer.feed([Source("s", "url", url=5), StepFinish(0, "stop", Usage())])  # pyright: ignore[reportArgumentType]
    notice = await writer.commit()
    assert isinstance(notice, Custom)
    assert notice.kind == NOT_STORED
    assert isinstance(writer.error, StoreError)
    assert (await store.read("talk"))[-1].kind == "step-start"
    state = await Conversation(store, "talk").state()
    assert (state.status, [message.text for message in state.messages]) == ("unfinished", ["Why?", "One."])
