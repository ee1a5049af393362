"""Forks of logged runs: what comes from the log costs nothing, one fact is changed, and the original stays as it is."""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, tool
from sidestream.errors import ConfigurationError, RunError
from sidestream.jsontext import dumps
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage
from sidestream.messages.sessions import forked as marked
from sidestream.parts import Custom, StepFinish, ToolCall, Usage
from sidestream.providers.openai import OpenAIResponsesOptions
from sidestream.providers.shared.continuation import CONTAINER_REPLACED, FALLBACK
from sidestream.replay.comparison import all_differences
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.run.prompts import user_message
from sidestream.store import LogDetail, Record, Row, Store, open_store
from sidestream.store.log.conversation import Conversation
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    crash_loop,
)
from sidestream.tools.approvals import ApprovalError
from sidestream.tools.server_side import CodeInterpreter, RemoteMCP
from sidestream.tools.tool import Tool, ToolContext
from sidestream.transport.calls import HttpCall, HttpResponse
from sidestream.turn.state import BACKGROUND
from support.golden_runs import APIS, GOLDEN, Shop, calling, played, saying
from support.places import RECORDINGS

SAMPLE = ("openai-responses", "openai-chat", "anthropic", "google")
"""Folders of recordings, of which every fourth is played, except those that wait for an answer in the background."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = open_store(tmp_path / "talks.db")
    yield opened
    await opened.aclose()


def agent_at(fake: FakeProvider, shop: Shop, model: str = "openai-responses:m", **settings: Any) -> Agent[str]:
    tools = [shop.look, tool(approval="ask")(shop.order)]
    return Agent(model, base_url=fake.base_url, **{"tools": tools, "system": "You sell lamps.", **settings})


def essence(rows: Sequence[Row]) -> list[tuple[str, bytes]]:
    """The records without the ids that each conversation has of its own, and without a worker's details."""
    return [(row.kind, re.sub(rb"\b(run|approval)_[0-9a-f]{32}\b", rb"\1", row.body)) for row in rows]


async def at_kind(store: Store, kind: str, nth: int = 0) -> int:
    return [row.seq for row in await store.read("talk") if row.kind == kind][nth]


async def bought(fake: FakeProvider, shop: Shop, store: Store, **settings: Any) -> Chat[str]:
    """A conversation in which a price was looked up, an order approved, and thanks said."""
    chat = Chat(agent_at(fake, shop, **settings), store=store, id="talk")
    await chat.send("What does a lamp cost? Order one.")
    await chat.resume([approval.approve() for approval in chat.approvals])
    return chat


def buying(script: Callable[..., Any]) -> list[Any]:
    return [
        calling(script, ("look", "call_look")),
        calling(script, ("look", "call_again"), ("order", "call_order")),
        saying(script, "It is ordered for 100 euros."),
    ]


async def forks_at_each(chat: Chat[Any], store: Store, records: Sequence[int]) -> None:
    """Fork without a change at these records of the log, replay what follows, and compare it."""
    rows = await store.read("talk")
    for at in records:
        fork = await chat.fork(at, replay=True, strict=True)
        end = next((row.seq - 1 for row in rows[at:] if row.kind == "message"), len(rows))
        copied = await store.read(fork.id)
        assert essence(copied[:end]) == essence(rows[:end])
        assert {row.kind for row in copied[end:]} <= {"forked", "custom"}
        assert fork.forked_from is not None
        assert fork.forked_from.copied == end
        assert fork.forked_from.equal == sum(row.kind == "request-sent" and at < row.seq <= end for row in rows)
        if end == len(rows):
            assert (fork.status, fork.messages) == (chat.status, tuple(like(fork, chat.messages)))
    assert await store.read("talk") == rows
    assert await store.check() == []


def like(fork: Chat[Any], messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages, with the marks of a fork if it has any."""
    return marked(messages) if any("forked" in str(message.metadata) for message in fork.messages) else [*messages]


@requirement("R221")
@pytest.mark.parametrize("detail", [None, LogDetail(wire=True)], ids=["usual", "wire"])
@pytest.mark.parametrize("name", GOLDEN)
async def test_unchanged_fork_replays_rest_without_requests(store: Store, name: str, detail: LogDetail | None) -> None:
    shop, run = Shop(), GOLDEN[name]
    async with FakeProvider(run.replies) as fake:
        chat = await played(run, fake, shop, store, detail)
        done = list(shop.done)
        assert len(fake.requests) == len(run.replies)
        await forks_at_each(chat, store, range(1, chat.head + 1))
        assert len(fake.requests) == len(run.replies)
    assert shop.done == done


def answering(request: Any) -> Any:
    """An answer of the API that was asked."""
    found = [script for end, script in ENDS.items() if end in request.path]
    return saying(found[0], '{"name": "Oslo", "people": 3}')


ENDS = {"/responses": ResponsesScript, "/completions": ChatScript, "/messages": MessagesScript, ":": GeminiScript}


@requirement("R221")
@pytest.mark.parametrize("name", [name for name in GOLDEN if "hosted" not in name])
async def test_fork_continues_with_other_provider(store: Store, name: str) -> None:
    shop, run = Shop(), GOLDEN[name]
    names = [*APIS]
    other = names[(names.index(run.model) + 1) % len(names)]
    async with FakeProvider(run.replies) as fake:
        chat = await played(run, fake, shop, store)
        for at in range(1, chat.head + 1, 3):
            fake.add(answering)
            model = Agent(other, base_url=fake.base_url, api_key="k").model
            fork = await chat.fork(at, model=model)
            if fork.status != "complete":
                result = await fork.resume([approval.approve() for approval in fork.approvals])
                assert result.finish_reason in ("stop", "approval")
            elif at < chat.head:
                assert (await fork.send("Thanks.")).finish_reason == "stop"
            assert [row.seq for row in await store.read("talk")] == [*range(1, chat.head + 1)]


def sample() -> list[Path]:
    if not RECORDINGS.is_dir():
        return []
    found = {name: sorted((RECORDINGS / name).glob("*.json")) for name in SAMPLE}
    return [path for name in found for path in found[name] if "background" not in path.stem][:: len(SAMPLE)]


class Counted:
    """A transport that counts what is sent."""

    def __init__(self, recording: Recording) -> None:
        self.sent = 0
        self._inner = ReplayTransport(recording)

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        self.sent += 1
        return await self._inner.open(call, limits)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        return await self._inner.download(call, limits)


def stub(name: str, done: list[str]) -> Tool[Any]:
    """A function under a name that a recording calls."""
    schema = {"type": "object", "properties": {}}
    return Tool(
        name=name,
        description="Do it.",
        parameters=schema,
        function=lambda: done.append(name),
        bind=lambda arguments, context: {},
    )


async def names_called(agent: Agent[Any], prompt: str, **call: Any) -> list[str]:
    """The functions that a model calls."""
    async with agent.stream(prompt, errors="parts", **call) as run:
        calls = [part async for part in run if isinstance(part, ToolCall) and not part.provider_executed]
    return [*dict.fromkeys(call.name for call in calls if call.tool == call.name)]


@requirement("R221")
@pytest.mark.parametrize("path", sample(), ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_recorded_run_forks_at_each_record(store: Store, path: Path) -> None:
    body = Recording.load(path).exchanges[0].request.body
    stream = not isinstance(body, dict) or body.get("stream") is not False
    model, key = f"{path.parent.name}:m", "test-key-123456"
    playing = Agent(model, transport=ReplayTransport(Recording.load(path)), api_key=key)
    names, done = await names_called(playing, "Go on.", stream=stream), list[str]()
    transport = Counted(Recording.load(path))
    agent = Agent(model, transport=transport, api_key=key, tools=[stub(name, done) for name in names])
    chat = Chat(agent, store=store, id="talk")
    with suppress(RunError):
        await chat.send("Go on.", stream=stream)
    await chat.load()
    before = transport.sent, [*done]
    assert transport.sent
    await forks_at_each(chat, store, range(1, chat.head + 1, 1 + chat.head // 20))
    assert (transport.sent, done) == before


CHANGES: dict[str, dict[str, Any]] = {
    "result": {"results": {"call_look": "It costs 200 euros"}},
    "system": {"system": "You sell chairs."},
    "model": {"model": "other"},
    "message": {"message": "Take a green one."},
    "deny": {"deny": ["call_look"]},
}
PLACES: dict[str, dict[str, str]] = {
    "openai-responses": {
        "result": r"input\[2\]\.output",
        "system": "instructions",
        "model": "model",
        "message": r"input\[3\]",
        "deny": r"input\[2\]\.output",
    },
    "openai-chat": {
        "result": r"messages\[3\]\.content",
        "system": r"messages\[0\]\.content",
        "model": "model",
        "message": r"messages\[4\]",
        "deny": r"messages\[3\]\.content",
    },
    "anthropic": {
        "result": r"messages\[2\]\.content\[0\]\.content",
        "system": "system",
        "model": "model",
        "message": r"messages\[2\]\.content\[1\]",
        "deny": r"messages\[2\]\.content\[0\]\.(?:content|is_error)",
    },
    "google": {
        "result": r"contents\[2\]\.parts\[0\]\.functionResponse\.response.*",
        "system": r"systemInstruction\.parts\[0\]\.text",
        "message": r"contents\[3\]",
        "deny": r"contents\[2\]\.parts\[0\]\.functionResponse\.response.*",
    },
}
"""Pattern of the paths at which the first request of a fork differs, by API and changed fact. Google names the model in
the URL."""


@requirement("R221")
@pytest.mark.parametrize("fact", CHANGES)
@pytest.mark.parametrize("model", APIS)
async def test_first_request_of_fork_differs_by_changed_fact(store: Store, model: str, fact: str) -> None:
    api, shop, script = model.partition(":")[0], Shop(), APIS[model]
    changes = {**CHANGES[fact], **({"model": f"{api}:gemini-other"} if fact == "model" else {})}
    options = OpenAIResponsesOptions(store=False) if api == "openai-responses" else None
    async with FakeProvider([*GOLDEN[f"{api}-buys"].replies, saying(script, "Now it is different.")]) as fake:
        chat = await played(GOLDEN[f"{api}-buys"], fake, shop, store, options=options)
        rows, done, at = await store.read("talk"), list(shop.done), await at_kind(store, "tool-result")
        fork = await chat.fork(at, replay=True, **changes)
        assert (len(fake.requests), shop.done) == (3, done)
        assert fork.forked_from is not None
        assert fork.forked_from.changes
        result = await fork.resume()
        assert result.output == "Now it is different."
        assert result.usage == fork_usage(await Conversation(store, fork.id).records())
        recorded, new = fake.requests[1].json, fake.requests[3].json
        assert fake.requests[3].path.count("gemini-other") == (fact == "model" and api == "google")
    copied = await store.read(fork.id)
    assert essence(copied[: at - 1]) == essence(rows[: at - 1])
    differences = [found.path for found in all_differences(recorded, new)]
    place = PLACES[api].get(fact)
    assert [path for path in differences if place is None or not re.fullmatch(place, path)] == []
    assert bool(differences) == (place is not None)
    assert fork.forked_from.parted.startswith(f"record {at + 1}, {differences[0] if differences else 'model'}: ")
    assert (await Conversation(store, fork.id).requests())[1].body == new
    assert await store.read("talk") == rows
    assert shop.done == done


def fork_usage(records: Sequence[Record]) -> Usage:
    """What the steps after the origin of a fork used."""
    own = [record for record in records if record.seq > next(one.seq for one in records if one.kind == "forked")]
    steps = [part for record in own for part in getattr(record.body, "parts", ()) if isinstance(part, StepFinish)]
    return sum((step.usage for step in steps[1:]), steps[0].usage)


def in_container(model: str, number: int) -> Any:
    """An answer whose code ran in the container `cntr_<number>`."""
    match model.partition(":")[0]:
        case "anthropic":
            script: Any = MessagesScript(container=f"cntr_{number}").code_execution("1", stdout="1")
            return script.text(f"It is {number}.").reply()
        case "google":
            made = InteractionScript(interaction_id=f"i{number}").text(f"It is {number}.")
            return made.finish("completed", environment_id=f"cntr_{number}").reply()
        case _:
            made = ResponsesScript(id=f"r{number}").code_interpreter("1", container_id=f"cntr_{number}")
            return made.text(f"It is {number}.").reply()


CONTAINERS: dict[str, tuple[str, Any, str]] = {
    "held": ("openai-responses:m", None, FALLBACK),
    "unstored": ("openai-responses:m", OpenAIResponsesOptions(store=False), CONTAINER_REPLACED),
    "messages": ("anthropic:m", None, CONTAINER_REPLACED),
    "interactions": ("google:interactions/gemini-m", None, CONTAINER_REPLACED),
}


@requirement("R221")
@pytest.mark.parametrize("way", CONTAINERS)
@pytest.mark.parametrize("is_complete", [True, False])
async def test_container_of_original_is_not_used(store: Store, way: str, is_complete: bool) -> None:
    model, options, kind = CONTAINERS[way]
    base = {"base_path": ""} if "google" in model else {}
    async with FakeProvider([in_container(model, number) for number in (1, 2, 3, 4)], **base) as fake:
        tools = [CodeInterpreter(reuse_container=True)]
        agent = Agent(model, base_url=fake.base_url, server_side_tools=tools, options=options)
        chat = Chat(agent, store=store, id="talk")
        await chat.send("Count.")
        at = len(await store.read("talk"))
        fork = await (chat.fork(at) if is_complete else chat.fork(at, message="Again."))
        result = await (fork.send("Again.") if is_complete else fork.resume())
        assert [notice.kind for notice in result.notices] == [kind]
        await fork.send("And again.")
        await chat.send("Go on.")
        _, first, own, original = [dumps(request.json).decode() for request in fake.requests]
    assert "cntr_1" not in first
    assert "cntr_1" not in own
    assert "cntr_2" in own
    assert "cntr_1" in original
    assert '"r1"' not in first


@requirement("R221")
async def test_fork_is_silent_about_container_that_no_turn_keeps(store: Store) -> None:
    model = "anthropic:m"
    async with FakeProvider([in_container(model, number) for number in (1, 2, 3)]) as fake:
        agent = Agent(model, base_url=fake.base_url, server_side_tools=[CodeInterpreter()])
        chat = Chat(agent, store=store, id="talk")
        await chat.send("Count.")
        fork = await chat.fork(len(await store.read("talk")))
        assert (await fork.send("Again.")).notices == []
        await chat.send("Again.")
        _, own, original = [request.json for request in fake.requests]
    assert own == original


@requirement("R221")
async def test_conversation_at_provider_is_not_extended(store: Store) -> None:
    answers = [ResponsesScript(id=f"r{n}", conversation={"id": "conv_1"}).text(f"{n}.").reply() for n in (1, 2)]
    rest = [ResponsesScript(id=f"r{n}").text(f"{n}.").reply() for n in (3, 4)]
    async with FakeProvider([*answers, *rest]) as fake:
        options = OpenAIResponsesOptions(conversation="conv_1")
        chat = Chat(Agent("openai-responses:m", base_url=fake.base_url, options=options), store=store, id="talk")
        await chat.send("One?")
        await chat.send("Two?")
        fork = await chat.fork(len(await store.read("talk")), message="Three?")
        assert [notice.kind for notice in (await fork.resume()).notices] == [FALLBACK]
        await fork.send("Four?")
        second, third, fourth = [request.json for request in fake.requests[1:]]
    assert (second["conversation"], len(second["input"])) == ("conv_1", 1)
    assert "conversation" not in third
    assert [item["content"] for item in third["input"]] == ["One?", "1.", "Two?", "2.", "Three?"]
    assert (fourth.get("conversation"), fourth["previous_response_id"]) == (None, "r3")


@requirement("R221")
async def test_denied_call_of_fork_does_not_run(store: Store) -> None:
    shop = Shop()
    async with FakeProvider([*buying(ResponsesScript), saying(ResponsesScript, "Then not.")]) as fake:
        chat = await bought(fake, shop, store)
        done = list(shop.done)
        fork = await chat.fork(await at_kind(store, "finish"), deny=["call_order"])
        result = await fork.resume()
        (denied,) = [entry for entry in fake.requests[-1].json["input"] if entry.get("call_id") == "call_order"]
    assert "denied" in denied["output"]
    assert result.output == "Then not."
    assert shop.done.count("order lamp") == done.count("order lamp") == 1


@requirement("R221")
async def test_denied_call_of_provider_is_not_approved(store: Store) -> None:
    script = [
        ResponsesScript(id="r1").mcp_approval_request("desk", "remove", {"item": "lamp"}),
        ResponsesScript(id="r2").text("Removed."),
        ResponsesScript(id="r3").text("Then not."),
        ResponsesScript(id="r4").text("Then not."),
    ]
    async with FakeProvider([made.reply() for made in script]) as fake:
        desk = RemoteMCP(label="desk", url="https://desk.example/mcp")
        chat = Chat(
            Agent("openai-responses:m", base_url=fake.base_url, server_side_tools=[desk]), store=store, id="talk"
        )
        await chat.send("Remove the lamp.")
        await chat.resume([approval.approve() for approval in chat.approvals])
        asked = await at_kind(store, "approval-asked")
        call = next(item["approval_request_id"] for item in fake.requests[-1].json["input"])
        for at in (asked, asked + 1):  # While it waits, and before.
            fork = await chat.fork(at, deny=[call])
            assert (await fork.resume()).output == "Then not."
            (answer,) = [item for item in fake.requests[-1].json["input"] if item["type"] == "mcp_approval_response"]
            assert (answer["approval_request_id"], answer["approve"]) == (call, False)
        for late in ("approval-decided", "request-sent"):
            with pytest.raises(ConfigurationError, match="fork at record"):
                await chat.fork(await at_kind(store, late, -1), deny=[call])
        assert len(fake.requests) == 4


@requirement("R221", "R76")
async def test_pending_approvals_of_fork_have_their_own_ids(store: Store) -> None:
    shop = Shop()
    async with FakeProvider([*buying(ResponsesScript), saying(ResponsesScript, "Ordered.")]) as fake:
        chat = Chat(agent_at(fake, shop), store=store, id="talk")
        await chat.send("Order a lamp.")
        fork = await chat.fork(len(await store.read("talk")))
        (original,), (own,) = chat.approvals, fork.approvals
        assert own.approval_id != original.approval_id
        assert own.run_id != original.run_id
        with pytest.raises(ApprovalError):
            await fork.resume([original.approve()])
        await fork.resume([own.approve()])
        assert shop.done.count("order lamp") == 1
        await chat.load()
        assert chat.approvals == (original,)


@requirement("R221", "R84")
async def test_started_tool_is_not_repeated_by_fork(store: Store) -> None:
    shop = Shop()
    async with FakeProvider(buying(ResponsesScript)) as fake:
        chat = await bought(fake, shop, store)
        done = list(shop.done)
        fork = await chat.fork(await at_kind(store, "tool-started"))
        await fork.resume()
        assert [approval.call_id for approval in fork.approvals] == ["call_look"]
        assert len(fake.requests) == 3
    assert shop.done == done


@requirement("R221", "R84")
@pytest.mark.parametrize("policy", ["ask", "retry", "fail"])
@pytest.mark.parametrize("kind", ["step-finish", "approval-decided"])
async def test_tool_that_original_ran_is_not_silently_run_again(store: Store, kind: str, policy: Any) -> None:
    keys: list[str] = []

    def order(name: str, context: ToolContext[Any]) -> str:
        """Order an item."""
        keys.append(context.idempotency_key)
        return f"{name} is ordered"

    approval: Any = "ask" if kind == "approval-decided" else "run"
    replies = [calling(ResponsesScript, ("order", "call_1")), *[saying(ResponsesScript, "Ordered.")] * 2]
    async with FakeProvider(replies) as fake:
        tools = [tool(approval=approval, on_interruption=policy)(order)]
        chat = Chat(Agent("openai-responses:m", base_url=fake.base_url, tools=tools), store=store, id="talk")
        await chat.send("Order a lamp.")
        if chat.approvals:
            await chat.resume([asked.approve() for asked in chat.approvals])
        fork = await chat.fork(await at_kind(store, kind))
        result = await fork.resume()
        assert [asked.call_id for asked in fork.approvals] == (["call_1"] if policy == "ask" else [])
        assert keys == [keys[0]] * (2 if policy == "retry" else 1)
        assert result.finish_reason == ("approval" if policy == "ask" else "stop")


@requirement("R221")
async def test_strict_fork_raises_at_first_difference(store: Store) -> None:
    shop = Shop()
    async with FakeProvider(buying(ResponsesScript)) as fake:
        chat = await bought(fake, shop, store)
        before = await store.conversations()
        at = await at_kind(store, "tool-result")
        with pytest.raises(ConfigurationError, match=r"input\[0\].output.*100 euros.*cheap"):
            await chat.fork(at, results={"call_look": "cheap"}, strict=True)
        with pytest.raises(ConfigurationError, match="fork at record"):
            await chat.fork(await at_kind(store, "finish", -1), results={"call_look": "cheap"})
        with pytest.raises(ConfigurationError, match="call_look"):
            await chat.fork(at, results={"call_look": 1}, deny=["call_look"])
        with pytest.raises(ConfigurationError, match="call_none"):
            await chat.fork(at, results={"call_none": 1})
        with pytest.raises(ConfigurationError, match="at must be one of"):
            await chat.fork(1000)
        assert len(fake.requests) == 3
    assert await store.conversations() == before


@requirement("R221")
async def test_background_response_of_original_is_not_taken(store: Store) -> None:
    script = [ResponsesScript(id="r1").text("One.").reply(), ResponsesScript(id="r2").text("Two.").reply()]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, Shop(), options=OpenAIResponsesOptions(background=True))
        chat = Chat(agent, store=store, id="talk")
        await chat.send("Count.")
        fork = await chat.fork(await at_kind(store, "custom"))
        result = await fork.resume()
        assert [request.method for request in fake.requests] == ["POST", "POST"]
    assert result.output == "Two."
    records = [record.body for record in await Conversation(store, fork.id).records()]
    lost = [part for body in records for part in getattr(body, "parts", ()) if isinstance(part, Custom)]
    assert "lost" in [part.data["status"] for part in lost if part.kind == BACKGROUND]


@requirement("R221")
async def test_fork_after_complete_turn_takes_message_as_next(store: Store) -> None:
    shop = Shop()
    async with FakeProvider([*buying(ChatScript), saying(ChatScript, "You are welcome.")]) as fake:
        chat = await bought(fake, shop, store, model="openai-chat:m")
        fork = await chat.fork(len(await store.read("talk")), message="Thanks.")
        assert (await fork.resume()).output == "You are welcome."
        assert fake.requests[-1].json["messages"][-1] == {"role": "user", "content": "Thanks."}
    assert len(fork.messages) == len(chat.messages) + 2
    assert fork.messages[-2].text == user_message("Thanks.").text


@requirement("R221")
async def test_fork_at_last_step_has_end_of_turn(store: Store) -> None:
    async with FakeProvider([saying(ResponsesScript, "Hello."), saying(ResponsesScript, "Again.")]) as fake:
        chat = Chat(agent_at(fake, Shop()), store=store, id="talk")
        await chat.send("Hi.")
        at = await at_kind(store, "step-finish")
        tried: list[dict[str, Any]] = [{}, {"strict": True}, {"message": "Again?"}]
        for changes in tried:
            fork = await chat.fork(at, **changes)
            kinds = [row.kind for row in await store.read(fork.id)]
            assert kinds[at - 1 :] == [
                "step-finish",
                "finish",
                *(["message"] if "message" in changes else []),
                "forked",
            ]
        assert (await fork.resume()).output == "Again."


@requirement("R221")
async def test_fork_keeps_ids_of_others_in_texts(store: Store) -> None:
    asked = f"What went wrong in run_{'0a' * 16} and approval_{'1b' * 16}?"
    async with FakeProvider([saying(ResponsesScript, "Nothing."), saying(ResponsesScript, "Really.")]) as fake:
        chat = Chat(agent_at(fake, Shop()), store=store, id="talk")
        await chat.send(asked)
        fork = await chat.fork(len(await store.read("talk")), message="Really?")
        await fork.resume()
    assert [message.text for message in fork.messages] == [asked, "Nothing.", "Really?", "Really."]
    own = {row.run for row in await store.read("talk")} & {row.run for row in await store.read(fork.id)}
    assert own <= {""}


def forked(folder: Path) -> None:
    """The program that is killed: it forks a conversation of a store that is there already."""

    async def work() -> None:
        shutil.copytree(folder.parent / "given", folder, dirs_exist_ok=True)
        store = open_store(folder / "talks.db")
        url = (folder / "url").read_text()
        agent = Agent("openai-responses:m", base_url=url, api_key="k", tools=[Shop().look])
        chat = Chat(agent, store=store, id="talk")
        await chat.fork(8, results={}, replay=True, id="fork")
        await store.aclose()

    asyncio.run(work())


@requirement("R221")
@pytest.mark.timeout(320)
def test_killed_fork_leaves_original_untouched(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    rows = asyncio.run(original(given / "talks.db"))
    seen = set[int]()
    for run in crash_loop(forked, tmp_path):
        if not (run.folder / "talks.db").exists():
            continue
        found, copied, problems = asyncio.run(inspected(run.folder / "talks.db"))
        assert found == rows
        assert len(copied) in (0, len(rows) + 1)
        assert [problem.kind for problem in problems if problem.kind != "orphan-blob"] == []
        seen.add(len(copied))
    assert seen == {0, len(rows) + 1}


async def original(path: Path) -> list[Row]:
    store = open_store(path)
    replies = [calling(ResponsesScript, ("look", "call_1")), saying(ResponsesScript, "100 euros.")]
    async with FakeProvider(replies) as fake:
        path.with_name("url").write_text(fake.base_url)
        agent = Agent("openai-responses:m", base_url=fake.base_url, tools=[Shop().look])
        await Chat(agent, store=store, id="talk").send("What does it cost?")
    rows = await store.read("talk")
    await store.aclose()
    return rows


async def inspected(path: Path) -> tuple[list[Row], list[Row], list[Any]]:
    store = open_store(path)
    found = await store.read("talk"), await store.read("fork"), await store.check()
    await store.aclose()
    return found
