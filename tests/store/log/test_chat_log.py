"""A chat with a store: what is written while it streams, and what another process makes of it."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ApprovalError, Chat, tool
from sidestream.errors import (
    ConfigurationError,
    ConflictError,
    RunError,
    StoreError,
    StreamTruncatedError,
    ToolServerError,
)
from sidestream.messages.message import DataPart
from sidestream.parts import Custom, Error, Finish, StreamPart, ToolResult
from sidestream.store import Store, open_store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.segments import INCREMENTS
from sidestream.store.records import Row
from sidestream.store.sqlite.store import SqliteStore
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript, error_reply, responses_text, sse
from sidestream.tools import approvals
from sidestream.turn.ledger import UNCERTAIN
from support.stores import BOUND_S


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = open_store(tmp_path / "talks.db")
    yield opened
    await opened.aclose()


class Desk:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def look(self, name: str) -> str:
        """Looks something up."""
        self.done.append(f"look {name}")
        return f"{name} is there"

    def delete(self, name: str) -> str:
        """Deletes something."""
        self.done.append(f"delete {name}")
        return f"{name} is gone"


def agent_at(fake: FakeProvider, desk: Desk | None = None, **settings: Any) -> Agent[str]:
    tools = [desk.look, tool(approval="ask")(desk.delete)] if desk is not None else []
    return Agent("openai-responses", base_url=fake.base_url, **{"tools": tools, **settings})


async def kinds(store: Store, id: str) -> list[str]:
    """The kinds of the records. How many increments there are depends on the time that a block takes."""
    rows = await store.read(id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.kind for row in rows if row.kind not in INCREMENTS]


async def until_shown(store: Store, id: str) -> None:
    """Waits until the open text of a run is in the log."""
    async with asyncio.timeout(BOUND_S), aclosing(store.tail(id)) as tail:
        async for row in tail:
            if row.kind == "text-delta":
                return


def every_file(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def looking() -> list[Any]:
    return [
        ResponsesScript(id="r1").function_call("look", {"name": "a"}, "call_1").reply(),
        ResponsesScript(id="r2").function_call("look", {"name": "b"}, "call_2").reply(),
        ResponsesScript(id="r3").text("Both are there.").reply(),
    ]


@requirement("R82", "R83")
async def test_another_process_continues_where_log_ends(store: Store) -> None:
    script = [ResponsesScript(id=f"r{n}").text(f"answer {n}").reply() for n in range(3)]
    async with FakeProvider(script) as fake:
        first = Chat(agent_at(fake), store=store, id="talk")
        await first.send("question 0")
        await first.send("question 1")
        second = Chat(agent_at(fake), store=store, id="talk")
        await second.load()
        assert second.messages == first.messages
        await second.send("question 2")
        bodies = [request.json for request in fake.requests]
    assert [body.get("previous_response_id") for body in bodies] == [None, "r0", "r1"]
    assert await Conversation(store, "talk").messages() == second.messages


@requirement("R82")
async def test_log_has_every_finished_block_once_in_order(store: Store) -> None:
    desk = Desk()
    async with FakeProvider(looking()) as fake:
        await Chat(agent_at(fake, desk), store=store, id="talk").send("look")
    step = [
        "request-sent",
        "step-start",
        "response-metadata",
        "tool-call",
        "step-finish",
        "tool-started",
        "tool-result",
    ]
    assert await kinds(store, "talk") == [
        *["message", "run-started", "stream-start"],
        *[*step, *step],
        *["request-sent", "step-start", "response-metadata", "text", "step-finish", "finish"],
    ]


@requirement("R82")
async def test_provider_ids_are_kept_beside_ours(store: Store) -> None:
    async with FakeProvider([ResponsesScript(id="resp_7").text("Hi.").reply()]) as fake:
        await Chat(agent_at(fake), store=store, id="talk").send("Hello")
    records = await Conversation(store, "talk").records()
    (named,) = [record for record in records if record.kind == "response-metadata"]
    assert named.body.parts[0].id == "resp_7"  # type: ignore[union-attr]
    assert named.run.startswith("run_")


@requirement("R76", "R82", "F42")
async def test_approval_is_decided_once_in_another_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    script = [
        ResponsesScript(id="r1").function_call("delete", {"name": "a"}, "call_d").reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]
    async with FakeProvider(script) as fake:
        await Chat(agent_at(fake, desk), store=store, id="talk").send("clean up")
        other = Chat(agent_at(fake, desk), store=store, id="talk")
        await other.load()
        assert other.status == "waiting"
        (waiting,) = other.run_state.approvals
        with pytest.raises(ConfigurationError, match="is waiting"):
            await other.send("something else")
        late = Chat(agent_at(fake, desk), store=store, id="talk")
        await late.load()
        result = await other.resume([waiting.approve()])
        assert result.output == "Done."
        assert desk.done == ["delete a"]
        with pytest.raises(ConfigurationError, match="nothing to resume"):
            await Chat(agent_at(fake, desk), store=store, id="talk").resume()
        # Another process, which has not seen the decision being used, and read the log before it was, or after.
        monkeypatch.setattr(approvals, "_spent", {})
        with pytest.raises(ApprovalError, match="used already"):
            await late.resume([waiting.approve()])
        monkeypatch.setattr(approvals, "_spent", {})
        with pytest.raises(ApprovalError, match="used already"):
            await Chat(agent_at(fake, desk), store=store, id="talk").resume([waiting.approve()])
    assert desk.done == ["delete a"]
    assert (await kinds(store, "talk")).count("approval-decided") == 1


@requirement("R76")
async def test_decision_without_effect_can_be_reused(store: Store) -> None:
    desk = Desk()
    script = [
        ResponsesScript(id="r1").function_call("delete", {"name": "a"}, "call_d").reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake, desk), store=store, id="talk")
        state = (await chat.send("clean up")).run_state
        assert state is not None
        gone = Chat(agent_at(fake, desk, tools=[desk.look, Gone()]), store=store, id="talk")
        decision = state.approvals[0].approve()
        with pytest.raises(ToolServerError):
            await gone.resume([decision])
        other = Chat(agent_at(fake, desk), store=store, id="talk")
        await other.load()
        assert (await other.resume([decision])).output.endswith("Done.")
    assert desk.done == ["delete a"]


class Gone:
    """A toolset whose server does not answer."""

    label = "gone"
    warnings = ()

    async def list(self) -> list[Any]:
        raise ToolServerError("gone", server="gone")

    async def aclose(self) -> None:
        pass


@requirement("R77", "R84")
async def test_failed_turn_can_continue_without_repeating_tools(store: Store) -> None:
    desk = Desk()
    script = [looking()[0], error_reply(400, "no"), ResponsesScript(id="r3").text("There.").reply()]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake, desk), store=store, id="talk")
        with pytest.raises(RunError):
            await chat.send("look")
        await chat.load()
        assert chat.status == "failed"
        assert chat.messages == ()
        result = await chat.resume()
        assert result.output == "There."
        last = fake.requests[-1].json["input"]
    assert desk.done == ["look a"]
    assert [item["output"] for item in last if item.get("type") == "function_call_output"] == ["a is there"]
    assert [message.role for message in chat.messages] == ["user", "model", "tool", "model"]
    assert await Conversation(store, "talk").messages() == chat.messages


async def test_rejected_setting_leaves_chat_unchanged(store: Store) -> None:
    replies = [
        ResponsesScript().function_call("delete", {"name": "a"}, "c1").reply(),
        ResponsesScript().text("Done.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake, Desk()), store=store, id="talk")
        await chat.load()
        with pytest.raises(ConfigurationError):
            chat.stream("Delete it.", temperature=-1)
        assert chat.messages == ()
        await chat.send("Delete it.")
        with pytest.raises(ConfigurationError):
            chat.resume_stream([chat.approvals[0].approve()], temperature=-1)
        result = await chat.resume([chat.approvals[0].approve()])
    assert result.output == "Done."


@requirement("R77")
async def test_next_turn_omits_failed_turn(store: Store) -> None:
    script = [sse(responses_text("two")[:5]), ResponsesScript(id="r2").text("three").reply()]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        with pytest.raises(StreamTruncatedError):
            await chat.send("1")
        assert (await chat.send("2")).output == "three"
    assert [message.text for message in chat.messages] == ["2", "three"]
    assert await Conversation(store, "talk").messages() == chat.messages


@requirement("F26")
async def test_abandoned_run_is_recorded_as_cancelled(store: Store) -> None:
    gate = asyncio.Event()
    async with FakeProvider([sse([*responses_text("never")[:5], gate])]) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        stream = chat.send_stream("1")
        async for chunk in stream:
            if chunk.output:
                break
        await stream.aclose()
        await chat.load()
    assert (await kinds(store, "talk"))[-1] == "cancelled"
    assert (chat.status, chat.messages) == ("cancelled", ())


@requirement("F34")
async def test_two_writers_of_conversation_never_interleave(store: Store) -> None:
    gate = asyncio.Event()
    slow = [*responses_text("first")[:5], gate, *responses_text("first")[5:]]
    async with FakeProvider([sse(slow), ResponsesScript().text("second").reply()]) as fake:
        first = Chat(agent_at(fake), store=store, id="talk")
        second = Chat(agent_at(fake), store=store, id="talk")
        await second.load()
        sending = asyncio.create_task(first.send("1"))
        await fake.wait_for_requests(1)
        with pytest.raises(ConflictError):
            await second.send("2")
        fake.release(gate)
        assert (await sending).output == "first"
    assert [message.text for message in first.messages] == ["1", "first"]
    assert await Conversation(store, "talk").messages() == first.messages


class Counted(SqliteStore):
    """A store that knows which conversations were read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.was_read: list[str] = []

    async def read(self, conversation: str, after: int = 0) -> list[Row]:
        self.was_read.append(conversation)
        return await super().read(conversation, after)


async def test_generated_id_is_not_read_from_working_store(tmp_path: Path) -> None:
    counted = Counted(tmp_path / "talks.db")
    async with FakeProvider([ResponsesScript().text(str(number)).reply() for number in range(4)]) as fake:
        first, second = (Chat(agent_at(fake), store=counted) for _ in range(2))
        named = Chat(agent_at(fake), store=counted, id="talk")
        for chat in (first, second, named):
            await chat.send("1")
        assert counted.was_read == [first.id, "talk"]
        await second.load()
        assert [message.text for message in second.messages] == ["1", "1"]
        same = Chat(agent_at(fake), store=counted)
        same.id = second.id  # As if two processes had made up the same id.
        with pytest.raises(ConflictError):
            await same.send("2")
    await counted.aclose()


class TakenOver(SqliteStore):
    """A store in which somebody else writes to the conversation before any tool is recorded as started."""

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        if any(row.kind == "tool-started" for row in rows):
            raise ConflictError(conversation)
        await super().append(conversation, after, rows, blobs, flush=flush)


@requirement("F34")
@pytest.mark.parametrize("calls", [1, 2])
async def test_conflict_during_calls_raises_conflict_error(tmp_path: Path, calls: int) -> None:
    taken, desk = TakenOver(tmp_path / "talks.db"), Desk()
    script = ResponsesScript()
    for number in range(calls):
        script = script.function_call("look", {"name": "a"}, f"call_{number}")
    async with FakeProvider([script.reply()]) as fake:
        with pytest.raises(ConflictError):
            await Chat(agent_at(fake, desk), store=taken, id="talk").send("Look.")
    await taken.aclose()
    assert desk.done == []


@requirement("F34")
async def test_turn_taken_over_by_another_writer_stops_with_conflict(store: Store) -> None:
    gate = asyncio.Event()
    slow = [*responses_text("first")[:5], gate, *responses_text("first")[5:]]
    async with FakeProvider([sse(slow), ResponsesScript().text("taken over").reply()]) as fake:
        first = Chat(agent_at(fake), store=store, id="talk")
        sending = asyncio.create_task(first.send("1"))
        await until_shown(store, "talk")  # From here on, the first has nothing to write before the gate opens.
        second = Chat(agent_at(fake), store=store, id="talk")
        await second.load()
        assert second.status == "unfinished"
        with pytest.raises(ConfigurationError, match="unfinished"):
            await second.send("2")
        assert (await second.resume()).output == "taken over"
        fake.release(gate)
        with pytest.raises(ConflictError):
            await sending
    assert [message.text for message in second.messages] == ["1", "taken over"]
    assert await Conversation(store, "talk").messages() == second.messages


@requirement("R82")
async def test_interrupted_turn_can_be_dropped(store: Store) -> None:
    script = [
        ResponsesScript(id="r1").function_call("delete", {"name": "a"}, "call_d").reply(),
        ResponsesScript(id="r2").text("Hello.").reply(),
    ]
    async with FakeProvider(script) as fake:
        chat = Chat(agent_at(fake, Desk()), store=store, id="talk")
        await chat.send("clean up")
        await chat.discard()
        assert (chat.status, chat.messages, chat.run_state) == ("complete", (), None)
        await chat.send("hello")
    assert [message.text for message in chat.messages] == ["hello", "Hello."]
    assert await Conversation(store, "talk").messages() == chat.messages


@requirement("R83")
async def test_files_are_stored_as_blobs_and_restored_whole(store: Store, tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + os.urandom(3000)
    question = DataPart(picture, "image/png", "a.png")
    async with FakeProvider([ResponsesScript().text("A picture.").reply()] * 2) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send(["What is this?", question])
        await chat.send(["And this?", question])
        other = Chat(agent_at(fake), store=store, id="talk")
        await other.load()
    assert other.messages == chat.messages
    assert other.messages[0].parts[1] == question
    held = {path: path.read_bytes() for path in every_file(tmp_path)}
    assert [data for data in held.values() if data == picture] == [picture]
    assert not any(picture[8:] in data for path, data in held.items() if path.name.startswith("talks.db"))


@requirement("R82")
async def test_providers_share_one_log(store: Store) -> None:
    async with (
        FakeProvider([ResponsesScript(id="r1").text("From OpenAI.").reply()]) as one,
        FakeProvider([MessagesScript().text("From Anthropic.").reply()]) as two,
    ):
        chat = Chat(agent_at(one), store=store, id="talk")
        await chat.send("1")
        chat = Chat(Agent("anthropic", base_url=two.base_url), store=store, id="talk")
        await chat.send("2")
        assert [m["content"] for m in two.requests[0].json["messages"]][1][0]["text"] == "From OpenAI."
    assert [message.text for message in chat.messages] == ["1", "From OpenAI.", "2", "From Anthropic."]
    started = [record.body for record in await Conversation(store, "talk").records() if record.kind == "run-started"]
    assert [body.model.partition(":")[0] for body in started] == ["openai-responses", "anthropic"]  # type: ignore[union-attr]


@requirement("R82")
async def test_initial_history_is_written_to_log(store: Store) -> None:
    async with FakeProvider([ResponsesScript().text("Hi again.").reply()] * 2) as fake:
        earlier = Chat(agent_at(fake))
        await earlier.send("Hello")
        chat = Chat(agent_at(fake), earlier.messages, store=store, id="talk")
        await chat.send("Hello again")
        other = Chat(agent_at(fake), store=store, id="talk")
        await other.load()
        assert other.messages == chat.messages
        with pytest.raises(ConfigurationError, match="already has a history"):
            await Chat(agent_at(fake), earlier.messages, store=store, id="talk").load()


class FailingStore(SqliteStore):
    """A store that breaks after some appends, as a full disk does."""

    def __init__(self, path: Path, good: int) -> None:
        super().__init__(path)
        self.good = good

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        if self.good == 0:
            raise StoreError("the disk is full")
        self.good -= 1
        await super().append(conversation, after, rows, blobs, flush=flush)


@requirement("F33")
@pytest.mark.parametrize("good", range(6))
async def test_failing_store_leaves_run_intact_and_is_reported_once(tmp_path: Path, good: int) -> None:
    store = FailingStore(tmp_path / "talks.db", good)
    desk = Desk()
    async with FakeProvider([*looking(), ResponsesScript().text("Still here.").reply()]) as fake:
        chat = Chat(agent_at(fake, desk), store=store, id="talk")
        await chat.load()
        async with chat.stream("look") as run:
            parts: list[StreamPart] = [part async for part in run]
        grammar.check(parts)
        assert isinstance(parts[-1], Finish)
        assert parts[-1].reason == "stop"
        notices = [part for part in parts if isinstance(part, Custom) and part.kind == "sidestream.not-stored"]
        assert len(notices) == 1
        assert "disk is full" in str(notices[0].data)
        assert chat.store_error is not None
        # The chat goes on in memory.
        assert (await chat.send("more")).output == "Still here."
    assert len(chat.messages) == 8
    rows = await store.read("talk")
    await store.aclose()
    whole, _ = await _whole_log(tmp_path)
    stored, expected = ([row.kind for row in some if row.kind not in INCREMENTS] for some in (rows, whole))
    assert stored == expected[: len(stored)]


async def _whole_log(folder: Path) -> tuple[list[Row], dict[str, bytes]]:
    store = open_store(folder / "whole.db")
    async with FakeProvider(looking()) as fake:
        await Chat(agent_at(fake, Desk()), store=store, id="talk").send("look")
    rows = await store.read("talk")
    blobs = {digest: await store.blob(digest) for row in rows for digest in row.blobs}
    await store.aclose()
    return rows, blobs


@requirement("R84", "F32")
async def test_run_resumes_from_every_prefix_of_its_log(tmp_path: Path) -> None:
    """Wherever a process ends, a recorded result is not made again, and a tool that may have run is asked about."""
    rows, blobs = await _whole_log(tmp_path)
    for length in range(2, len(rows)):
        store = open_store(tmp_path / f"{length}.db")
        await store.append("talk", 0, rows[:length], blobs)
        kept = [row.kind for row in rows[:length]]
        recorded, started = kept.count("tool-result"), kept.count("tool-started")
        desk = Desk()
        # The answers that the log does not hold yet.
        async with FakeProvider(looking()[kept.count("step-finish") :]) as fake:
            chat = Chat(agent_at(fake, desk), store=store, id="talk")
            await chat.load()
            if chat.status == "complete":
                assert kept[-1] in ("step-finish", "finish")
                await store.aclose()
                continue
            decisions = []
            if started > recorded:
                assert chat.run_state is not None
                (approval,) = chat.run_state.approvals
                assert approval.provenance == UNCERTAIN
                decisions = [approval.approve()]
            async with chat.resume_stream(decisions) as run:
                parts = [part async for part in run]
            assert isinstance(parts[-1], Finish)
            assert parts[-1].reason == "stop"
        names = ["look a", "look b"]
        assert desk.done == names[recorded:]
        assert [part.id for part in parts if isinstance(part, ToolResult)] == ["call_1", "call_2"][recorded:]
        assert [message.role for message in chat.messages] == ["user", "model", "tool", "model", "tool", "model"]
        assert await Conversation(store, "talk").messages() == chat.messages
        await store.aclose()


@requirement("F44")
async def test_key_in_provider_error_is_neither_shown_nor_stored(store: Store, tmp_path: Path) -> None:
    key = "sk-canary-0123456789abcdef"
    failing = ResponsesScript().failed("server_error", f"the key {key} is not welcome")
    async with FakeProvider([failing.reply()]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url, api_key=key), store=store, id="talk")
        await chat.load()
        async with chat.stream("Hello", errors="parts") as run:
            parts = [part async for part in run]
    assert key not in str([part for part in parts if isinstance(part, Error)])
    assert run.error is not None
    assert key not in run.error.message
    await store.aclose()
    assert not any(key.encode() in path.read_bytes() for path in every_file(tmp_path))
