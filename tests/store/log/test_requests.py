"""The requests of a run in its log: each is recorded as what it changes, and can be read whole."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, OpenAIResponsesOptions, tool
from sidestream.agent.hooks import Hooks
from sidestream.jsontext import JsonObject, dumps, loads
from sidestream.messages.message import DataPart
from sidestream.store import LogDetail, Store
from sidestream.store.log.conversation import Conversation
from sidestream.store.records import REQUEST, RESPONSE, ResponseReceived, Row, unpack
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript, error_reply, sse
from sidestream.tools.server_side import RemoteMCP
from support.stores import Opens
from support.waiting import eventually

PROMPT = "You look things up for people, and say where they are. " * 8
TOKEN = "mcp-token-4711-abcdef"
PNG = bytes(range(256)) * 100

Scripts = Callable[..., Any]

APIS: dict[str, tuple[str, Scripts]] = {
    "responses": ("openai-responses:m", ResponsesScript),
    "chat": ("openai-chat:m", ChatScript),
    "messages": ("anthropic:m", MessagesScript),
    "gemini": ("google:gemini-m", GeminiScript),
}


def calling(script: Scripts, name: str, nth: int = 1, /, **given: Any) -> Any:
    """A reply that calls a function."""
    made = script()
    match made:
        case ChatScript():
            made.tool_call(name, given, f"call_{nth}")
        case MessagesScript():
            made.tool_use(name, given, f"call_{nth}")
        case GeminiScript():
            made.function_call(name, given, call_id=f"call_{nth}")
        case _:
            made.function_call(name, given, f"call_{nth}")
    return made.reply()


def find(name: str) -> str:
    """Find an item."""
    return f"{name} is in the second drawer of the cupboard beside the window, under the red folder"


def agent_at(fake: FakeProvider, model: str = "openai-responses:m", **settings: Any) -> Agent[str]:
    return Agent(model, base_url=fake.base_url, **{"tools": [find], "system": PROMPT, **settings})


def finding(script: Scripts) -> list[Any]:
    """Two steps, and then an answer to another question."""
    return [
        calling(script, "find", name="stapler"),
        script().text("In the second drawer.").reply(),
        script().text("You are welcome.").reply(),
    ]


async def sent(store: Store, id: str = "talk") -> list[JsonObject]:
    return [request.body for request in await Conversation(store, id).requests()]


async def rows(store: Store, kind: str = REQUEST, id: str = "talk") -> list[Row]:
    return [row for row in await store.read(id) if row.kind == kind]


@requirement("R220")
@pytest.mark.parametrize("api", APIS)
async def test_requests_are_read_whole_as_they_were_sent(store: Store, api: str) -> None:
    model, script = APIS[api]
    async with FakeProvider(finding(script)) as fake:
        chat = Chat(agent_at(fake, model), store=store, id="talk")
        await chat.send("Where is the stapler?")
        await chat.send("Thanks.")
        bodies = [request.json for request in fake.requests]
        paths = [request.path.partition("?")[0] for request in fake.requests]
    found = await Conversation(store, "talk").requests()
    assert [request.body for request in found] == bodies
    assert [request.path for request in found] == paths
    assert [request.step for request in found] == [0, 1, 0]
    assert {request.model for request in found} == {model.replace("openai-chat", "openai")}
    assert await Conversation(store, "talk").request(found[1].seq) == found[1]


@requirement("R220")
@pytest.mark.parametrize("api", APIS)
async def test_request_builds_on_log_of_another_process(opens: Opens, api: str) -> None:
    model, script = APIS[api]
    async with FakeProvider(finding(script)) as fake:
        await Chat(agent_at(fake, model), store=opens(), id="talk").send("Where is the stapler?")
        await Chat(agent_at(fake, model), store=opens(), id="talk").send("Thanks.")
        bodies = [request.json for request in fake.requests]
    store = opens()
    assert await sent(store) == bodies
    first, second, third = [unpack(row).body for row in await rows(store)]
    assert (second.base, third.base) == tuple(row.seq for row in (await rows(store))[:2])  # type: ignore[union-attr]
    assert not {"tools", "system", "instructions", "systemInstruction"} & third.body.keys()  # type: ignore[union-attr]
    assert first.base == 0  # type: ignore[union-attr]


@requirement("R220")
async def test_prompt_and_tools_are_stored_once(store: Store) -> None:
    async with FakeProvider(finding(ChatScript)[:2] * 2) as fake:
        agent = agent_at(fake, "openai-chat:m", tools=[find, tool(name="seek", description="Seek. " * 60)(find)])
        for name in ("talk", "other"):
            await Chat(agent, store=store, id=name).send("Where is the stapler?")
    (one, *later), (two, *_) = await rows(store), await rows(store, id="other")
    assert set(one.blobs) == set(two.blobs)
    assert len(one.blobs) == 2
    assert not any(row.blobs for row in later)
    assert PROMPT.encode() not in one.body


@requirement("R220")
async def test_texts_of_tools_are_not_stored_twice(store: Store) -> None:
    async with FakeProvider(finding(MessagesScript)) as fake:
        await Chat(agent_at(fake, "anthropic:m"), store=store, id="talk").send(
            "Where is the stapler that lay here yesterday evening?"
        )
    said = b"".join(row.body for row in await store.read("talk"))
    assert said.count(b"under the red folder") == 1
    assert said.count(b"Where is the stapler that") == 1


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "after the log has its beginning"])
async def test_corrected_text_is_not_stored_twice(store: Store, is_late: bool) -> None:
    words = ["The stapler is certainly not ", "in the first drawer of the cupboard, ", "so I look again to be sure."]
    events = ResponsesScript().text(words).function_call("find", {"name": "stapler"}).events()
    lossy: list[Any] = [event for event in events if event.get("delta") != words[1]]
    is_logged = asyncio.Event()
    if is_late:
        lossy.insert([event.get("delta") for event in lossy].index(words[0]) + 1, is_logged)
    async with FakeProvider([sse(lossy), ResponsesScript().text("In the second.").reply()]) as fake:
        agent = agent_at(fake, options=OpenAIResponsesOptions(store=False))
        sending = asyncio.ensure_future(Chat(agent, store=store, id="talk").send("Where is the stapler?"))
        if is_late:
            await eventually(lambda: rows(store, "text-delta"))
        is_logged.set()
        await sending
    assert "".join(words) in str((await sent(store))[-1])
    assert b"".join(row.body for row in await store.read("talk")).count("".join(words).encode()) == 1


@requirement("R220")
async def test_attachments_share_their_blobs_with_messages(store: Store) -> None:
    prompt = ["What is it?", DataPart(PNG, "image/png", "a.png")]
    async with FakeProvider([ChatScript().text("Noise.").reply()]) as fake:
        await Chat(agent_at(fake, "openai-chat:m"), store=store, id="talk").send(prompt)
        (body,) = [request.json for request in fake.requests]
    (message,) = await rows(store, "message")
    (request,) = await rows(store)
    assert len(message.blobs) == 1
    assert message.blobs[0] in request.blobs
    assert await sent(store) == [body]


@requirement("R220", "R15")
async def test_secrets_of_tools_are_not_in_records(opens: Opens) -> None:
    server = RemoteMCP(label="desk", url="https://desk.example/mcp", authorization=TOKEN, headers={"X-Key": "abc"})
    async with FakeProvider([ResponsesScript().text("Hi.").reply()]) as fake:
        agent = agent_at(fake, server_side_tools=[server], api_key="sk-test-key-123456")
        store = opens()
        await Chat(agent, store=store, id="talk", log=LogDetail(wire=True)).send("Hello")
        assert TOKEN in dumps(fake.requests[0].json).decode()
    (body,) = await sent(store)
    (tool_sent,) = [entry for entry in body["tools"] if entry["type"] == "mcp"]
    assert tool_sent["authorization"] == "[redacted]"
    assert tool_sent["headers"] == {"X-Key": "[redacted]"}
    blobs = [await store.blob(digest) for row in await store.read("talk") for digest in row.blobs]
    everything = b"".join([*(row.body for row in await store.read("talk")), *blobs])
    assert TOKEN.encode() not in everything
    assert b"sk-test-key" not in everything


@requirement("R220")
async def test_retried_request_has_its_own_record(store: Store) -> None:
    refused = error_reply(400, "previous_response_not_found", "Previous response with id 'r1' not found.")
    script = [ResponsesScript(id="r1").text("Hi.").reply(), refused, ResponsesScript(id="r2").text("Yes.").reply()]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("Hello")
        await chat.send("Again?")
        bodies = [request.json for request in fake.requests]
    assert await sent(store) == bodies
    assert len(bodies) == 3
    assert "previous_response_id" in bodies[1]
    assert "previous_response_id" not in bodies[2]


@requirement("R220")
async def test_hook_sees_requests_before_they_are_stored(store: Store) -> None:
    class WithoutNames(Hooks):
        def before_store(self, record: JsonObject) -> JsonObject:
            return loads(dumps(record).replace(b"stapler", b"(item)"))

    async with FakeProvider(finding(ChatScript)) as fake:
        agent = agent_at(fake, "openai-chat:m", hooks=[WithoutNames()])
        await Chat(agent, store=store, id="talk").send("Where is the stapler?")
        bodies = [request.json for request in fake.requests]
    assert await sent(store) == loads(dumps(bodies).replace(b"stapler", b"(item)"))
    assert all(b"stapler" not in row.body for row in await store.read("talk"))


@requirement("R220")
async def test_wire_keeps_bytes_of_each_response(store: Store) -> None:
    async with FakeProvider(finding(ResponsesScript)) as fake:
        detail = LogDetail(wire=True)
        await Chat(agent_at(fake), store=store, id="talk", log=detail).send("Where is the stapler?")
    kept = [await content_of_response(store, row) for row in await rows(store, RESPONSE)]
    assert [body.step for body in kept] == [0, 1]
    assert b'"response.completed"' in kept[0].content
    assert b"In the second" in kept[1].content
    kinds = [row.kind for row in await store.read("talk")]
    assert kinds[-1] == "finish"
    stored = [await store.blob(row.blobs[0]) for row in await rows(store, RESPONSE)]
    assert all(len(data) < len(body.content) for data, body in zip(stored, kept, strict=True))


async def content_of_response(store: Store, row: Row) -> ResponseReceived:
    found = {digest: await store.blob(digest) for digest in row.blobs}
    body = unpack(row, found.__getitem__).body
    assert isinstance(body, ResponseReceived)
    return body


@requirement("R220")
async def test_deleted_conversation_leaves_no_blob_of_requests(store: Store) -> None:
    async with FakeProvider(finding(ChatScript)[:2] * 2) as fake:
        for name in ("talk", "other"):
            chat = Chat(agent_at(fake, "openai-chat:m"), store=store, id=name, log=LogDetail(wire=True))
            await chat.send("Where is the stapler?")
    shared = {digest for row in await rows(store) for digest in row.blobs}
    own = {digest for row in await rows(store, RESPONSE) for digest in row.blobs}
    assert await store.check() == []
    await store.delete("talk")
    assert await store.check() == []
    assert len(await sent(store, "other")) == 2
    await store.delete("other")
    for digest in shared | own:
        assert not await store.refers_to(digest)


@requirement("R221")
async def test_fork_outlives_deleted_original(store: Store) -> None:
    async with FakeProvider(finding(ChatScript)) as fake:
        chat = Chat(agent_at(fake, "openai-chat:m"), store=store, id="talk")
        await chat.send("Where is the stapler?")
        bodies, rows_before = await sent(store), await store.read("talk")
        fork = await chat.fork(3, replay=True, strict=True)
        await store.delete("talk")
        assert await sent(store, fork.id) == bodies
        assert len(await store.read(fork.id)) == len(rows_before) + 1
        assert await store.check() == []
        assert (await fork.send("Thanks.")).output == "You are welcome."


def long_result(number: int) -> str:
    """Look one entry up."""
    return "\n".join(f"{number}.{line}: the value of entry {line} is {line * number}" for line in range(30))


@requirement("R220")
@pytest.mark.parametrize("api", APIS)
async def test_log_of_twenty_steps_grows_by_less_than_half(store: Store, where: str, api: str) -> None:
    if where.startswith("postgresql"):
        pytest.skip("the rows are the same")
    model, script = APIS[api]
    calls = [calling(script, "long_result", n, number=n) for n in range(1, 20)]
    async with FakeProvider([*calls, script().text("All is looked up.").reply()]) as fake:
        await Chat(agent_at(fake, model, tools=[long_result]), store=store, id="talk").send("Look all of it up.")
    every, requests = await store.read("talk"), await rows(store)
    assert len(requests) == 20
    blobs = {digest for row in requests for digest in row.blobs}
    added = sum(len(row.body) for row in requests) + sum([len(await store.blob(digest)) for digest in blobs])
    before = sum(len(row.body) for row in every if row.kind != REQUEST)
    print(f"{api}: {before:,} bytes without requests, {added:,} more with them ({(before + added) / before:.2f} times)")
    assert before + added <= 1.5 * before
