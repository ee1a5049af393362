"""Sessions of a conversation with a log are small: what only a replay needs is a blob, and is read where it is needed."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat
from sidestream.errors import StoreError
from sidestream.messages.references import blob_of
from sidestream.parts import Custom, StreamPart
from sidestream.providers.openai.responses import OpenAIResponsesOptions
from sidestream.store import Store, open_store
from sidestream.store.blobs.folder import BlobFolder
from sidestream.store.records import Row
from sidestream.store.sqlite.store import SqliteStore
from sidestream.testing import FakeProvider, MessagesScript, ResponsesScript, error_reply

GONE = error_reply(400, "previous_response_not_found", "Previous response with id 'r1' not found.")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    opened = open_store(tmp_path / "talks.db")
    yield opened
    await opened.aclose()


def searching() -> ResponsesScript:
    found = [{"file_id": f"file_{number}", "filename": "a.txt", "score": 0.5, "text": "x" * 40} for number in range(9)]
    return ResponsesScript(id="r1").file_search("news", results=found).text("Found.")


def agent_at(fake: FakeProvider, provider: str = "openai-responses", **settings: Any) -> Agent[str]:
    return Agent(provider, base_url=fake.base_url, **settings)


def session_of(chat: Chat[Any], key: str = "_responses_session") -> dict[str, Any]:
    [session] = [message.metadata[key] for message in chat.messages if key in message.metadata]
    return session


def kinds(fake: FakeProvider, number: int) -> list[str]:
    return [item.get("type", item.get("role")) for item in json.loads(fake.requests[number].body)["input"]]


async def notices(chat: Chat[Any], prompt: str) -> list[dict[str, Any]]:
    await chat.load()
    parts: list[StreamPart] = [part async for part in chat.stream(prompt)]
    return [part.data for part in parts if isinstance(part, Custom) and part.kind == "sidestream.session-fallback"]


@requirement("R42", "R43")
async def test_refused_session_of_logged_conversation_is_resent_whole(store: Store) -> None:
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("Search.")
        assert blob_of(session_of(chat)["items"]) is not None
        assert len(json.dumps(session_of(chat))) < 700
        # Another process has only the log.
        again = Chat(agent_at(fake), store=store, id="talk")
        await again.load()
        assert again.messages == chat.messages
        [notice] = await notices(again, "And?")
    assert (notice["reason"], "is_reduced" in notice) == ("refused", False)
    assert kinds(fake, 1) == ["user"]
    assert kinds(fake, 2) == ["user", "file_search_call", "message", "user"]


@requirement("R42", "R43")
async def test_refused_session_without_log_is_resent_reduced() -> None:
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake))
        await chat.send("Search.")
        assert "items" not in session_of(chat)
        [notice] = await notices(chat, "And?")
    assert (notice["reason"], notice["is_reduced"]) == ("refused", True)
    assert "without the items of hosted tools" in notice["message"]
    assert kinds(fake, 2) == ["user", "message", "user"]


@requirement("R42", "R43")
async def test_logged_history_can_be_used_without_its_log(store: Store) -> None:
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("Search.")
        elsewhere = Chat.from_json(agent_at(fake), chat.to_json())
        [notice] = await notices(elsewhere, "And?")
    assert (notice["reason"], notice["is_reduced"]) == ("refused", True)
    assert kinds(fake, 2) == ["user", "message", "user"]


@requirement("R42")
async def test_unstored_session_is_resent_from_log_every_time(store: Store) -> None:
    unstored = OpenAIResponsesOptions(store=False)
    replies = [searching().reply(), *(ResponsesScript(id=f"r{n}").text("Yes.").reply() for n in (2, 3))]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake, options=unstored), store=store, id="talk")
        await chat.send("Search.")
        assert blob_of(session_of(chat, "_responses_replay_session")["items"]) is not None
        assert await notices(chat, "And?") == []
        assert await notices(Chat(agent_at(fake, options=unstored), store=store, id="talk"), "And then?") == []
    assert kinds(fake, 1)[:3] == ["user", "file_search_call", "message"]
    assert kinds(fake, 2)[:3] == ["user", "file_search_call", "message"]


@requirement("R42", "R43")
async def test_reused_history_keeps_blobs_after_first_chat_is_deleted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "talks.db", BlobFolder(tmp_path / "blobs", grace_s=0))
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        first = Chat(agent_at(fake), store=store, id="first")
        await first.send("Search.")
        second = Chat(agent_at(fake), first.messages, store=store, id="second")
        [notice] = await notices(second, "And?")
        await store.delete("first")
        await store.collect()
        digest = blob_of(session_of(first)["items"])
        assert digest is not None
        assert await store.blob(digest)
        assert await store.check() == []
    await store.aclose()
    assert (notice["reason"], "is_reduced" in notice) == ("refused", False)
    assert kinds(fake, 2) == ["user", "file_search_call", "message", "user"]


@requirement("R43")
async def test_history_of_another_store_is_imported_without_references(store: Store, tmp_path: Path) -> None:
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        first = Chat(agent_at(fake), store=store, id="first")
        await first.send("Search.")
        other = open_store(tmp_path / "other.db")
        [notice] = await notices(Chat(agent_at(fake), first.messages, store=other, id="second"), "And?")
        assert await other.check() == []
        await other.aclose()
    assert (notice["reason"], notice["is_reduced"]) == ("refused", True)


def thinking() -> list[Any]:
    signed = MessagesScript(id="msg_1").thinking("Hm. " * 80, signature="s" * 400)
    return [
        signed.tool_use("look", {"name": "a"}, "toolu_1").reply(),
        *(MessagesScript(id=f"msg_{n}").text("There.").reply() for n in (2, 3)),
    ]


def look(name: str) -> str:
    """Looks."""
    return f"{name} is there"


def blocks(fake: FakeProvider, number: int) -> list[str]:
    sent = json.loads(fake.requests[number].body)["messages"]
    return [block["type"] for message in sent if message["role"] == "assistant" for block in message["content"]]


@requirement("R42")
async def test_signed_blocks_are_resent_from_log(store: Store) -> None:
    async with FakeProvider(thinking()) as fake:
        chat = Chat(agent_at(fake, "anthropic", tools=[look]), store=store, id="talk")
        await chat.send("Look.")
        first = next(message for message in chat.messages if message.role == "model")
        assert blob_of(first.metadata["_anthropic_session"]["blocks"]) is not None
        assert blocks(fake, 1) == ["thinking", "tool_use"]
        assert await notices(Chat(agent_at(fake, "anthropic", tools=[look]), store=store, id="talk"), "And?") == []
    assert blocks(fake, 2) == ["thinking", "tool_use", "text"]


@requirement("R43")
async def test_blocks_missing_in_log_are_omitted_and_reported(store: Store) -> None:
    async with FakeProvider(thinking()) as fake:
        chat = Chat(agent_at(fake, "anthropic", tools=[look]), store=store, id="talk")
        await chat.send("Look.")
        elsewhere = Chat.from_json(agent_at(fake, "anthropic", tools=[look]), chat.to_json())
        [notice] = await notices(elsewhere, "And?")
    assert (notice["reason"], notice["is_reduced"]) == ("log-missing", True)
    assert blocks(fake, 2) == ["tool_use", "text"]


class FailingStore(SqliteStore):
    """A store whose disk is full after the first append."""

    appends = 0

    async def append(
        self,
        conversation: str,
        after: int,
        rows: Sequence[Row],
        blobs: Mapping[str, bytes] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        self.appends += 1
        if self.appends > 1:
            raise StoreError("no space left on the disk")
        await super().append(conversation, after, rows, blobs, flush=flush)


@requirement("R42")
async def test_unwritten_blocks_are_resent_from_memory(tmp_path: Path) -> None:
    failing = FailingStore(tmp_path / "talks.db")
    async with FakeProvider(thinking()) as fake:
        chat = Chat(agent_at(fake, "anthropic", tools=[look]), store=failing, id="talk")
        await chat.send("Look.")
        assert chat.store_error is not None
        assert await notices(chat, "And?") == []
    await failing.aclose()
    assert blocks(fake, 2) == ["thinking", "tool_use", "text"]


def _remove(folder: Path, digest: str) -> None:
    [file] = folder.rglob(digest[2:])
    file.unlink()


@requirement("R43")
async def test_lost_blob_is_reported_and_conversation_continues(store: Store, tmp_path: Path) -> None:
    replies = [searching().reply(), GONE, ResponsesScript(id="r2").text("Again.").reply()]
    async with FakeProvider(replies) as fake:
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.send("Search.")
        digest = blob_of(session_of(chat)["items"])
        assert digest is not None
        _remove(tmp_path, digest)
        [notice] = await notices(chat, "And?")
    assert (notice["reason"], notice["is_reduced"]) == ("refused", True)
    assert kinds(fake, 2) == ["user", "message", "user"]
