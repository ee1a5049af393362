"""The log while a run streams: an open block is written in increments, which followers read and a kill cannot take."""

import asyncio
import json
import os
import signal
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, Chat, ImageGeneration
from sidestream.parts import (
    File,
    StepStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolEvent,
    ToolResult,
)
from sidestream.store import LogDetail, Store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.fold import stream_of
from sidestream.store.log.segments import SegmentFold, event_with
from sidestream.store.log.writer import INCREMENT_BYTES, Writer
from sidestream.store.records import Record, Segment
from sidestream.stream import grammar
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.children import started
from support.places import TESTS
from support.stores import BOUND_S

CHILD = TESTS / "support" / "store_child.py"


def events_of(script: ResponsesScript, deltas: list[str]) -> tuple[list[Any], list[Any]]:
    """The events up to the last delta of a text, and those after it."""
    events = script.text(deltas).events()
    last = max(index for index, event in enumerate(events) if event["type"].endswith("output_text.delta"))
    return events[: last + 1], events[last + 1 :]


def text_in(record: Record) -> str:
    parts = record.body.parts if isinstance(record.body, Segment) else ()
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


async def followed(store: Store, id: str, text: str) -> list[Record]:
    """The records that a follower gets until it has read this text."""
    found: list[Record] = []
    async with asyncio.timeout(BOUND_S), aclosing(Conversation(store, id).tail()) as tail:
        async for record in tail:
            found.append(record)
            if "".join(map(text_in, found)) == text:
                break
    return found


@requirement("R112", "R161")
async def test_leaving_run_writes_its_open_block(store: Store) -> None:
    shown, _ = events_of(ResponsesScript(), ["Shown ", "before."])
    detail = LogDetail(interval_s=3600.0)  # Only what is written at once comes in time.
    async with FakeProvider([sse([*shown, asyncio.Event()])]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk", log=detail)
        await chat.load()
        run = chat.stream("1")
        async for part in run:
            if isinstance(part, TextDelta) and part.delta == "before.":
                break
        await run.leave()
        records = await Conversation(store, "talk").records()
        assert "".join(map(text_in, records)) == "Shown before."


@requirement("R112", "R160")
async def test_left_run_is_unfinished_and_another_chat_resumes_it(store: Store) -> None:
    shown, _ = events_of(ResponsesScript(), ["Shown ", "before."])
    again = ResponsesScript(id="r2").text("From the beginning.").reply()
    async with FakeProvider([sse([*shown, asyncio.Event()]), again]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)
        chat = Chat(agent, store=store, id="talk")
        await chat.load()
        run = chat.stream("1")
        async for part in run:
            if isinstance(part, TextDelta) and part.delta == "before.":
                break
        await run.leave()
        other = Chat(agent, store=store, id="talk")
        await other.load()
        assert other.status == "unfinished"
        assert (await other.resume()).output == "From the beginning."
    assert [message.text for message in other.messages] == ["1", "From the beginning."]


@requirement("R112")
async def test_only_subscribers_read_open_block_as_deltas(store: Store, opens: Any) -> None:
    gate = asyncio.Event()
    shown, rest = events_of(ResponsesScript(id="r1"), ["Shown ", "before ", "the end."])
    async with FakeProvider([sse([*shown, gate, *rest])]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        sending = asyncio.create_task(chat.send("1"))
        found = await followed(opens(), "talk", "Shown before the end.")
        assert found[-1].kind == "text-delta"
        assert isinstance(found[-1].body.parts[0], TextStart) or len(found) > 1  # type: ignore[union-attr]
        # A reader who comes now finds the open block too, and no message of it.
        state = await Conversation(store, "talk").state()
        assert (state.status, state.messages) == ("unfinished", ())
        fake.release(gate)
        assert (await sending).output == "Shown before the end."
    rows = await store.read("talk")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert sum(b"Shown" in row.body for row in rows) == 1
    records = await Conversation(store, "talk").records()
    (text,) = [record for record in records if record.kind in ("text", "text-delta")]
    assert [type(part) for part in text.body.parts] == [TextStart, TextDelta, TextEnd]  # type: ignore[union-attr]
    assert text_in(text) == "Shown before the end."
    grammar.check(stream_of(records))
    assert [message.text for message in await Conversation(store, "talk").messages()] == ["1", "Shown before the end."]


@requirement("R112")
async def test_each_pause_of_text_is_written(store: Store, opens: Any) -> None:
    gates = asyncio.Event(), asyncio.Event()
    (*shown, last), rest = events_of(ResponsesScript(id="r1"), ["First ", "second."])
    async with FakeProvider([sse([*shown, gates[0], last, gates[1], *rest])]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        sending = asyncio.create_task(chat.send("1"))
        await followed(opens(), "talk", "First ")
        fake.release(gates[0])
        await followed(opens(), "talk", "First second.")
        fake.release(gates[1])
        await sending


@requirement("R112")
async def test_code_can_be_tailed_while_it_is_written(store: Store, opens: Any) -> None:
    gate = asyncio.Event()
    events = ResponsesScript(id="r1").code_interpreter(["print(1)\n", "print(2)"]).text("Done.").events()
    first = next(index for index, event in enumerate(events) if event["type"].endswith("code.delta"))
    async with FakeProvider([sse([*events[: first + 1], gate, *events[first + 1 :]])]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        sending = asyncio.create_task(chat.send("1"))
        async with asyncio.timeout(BOUND_S), aclosing(Conversation(opens(), "talk").tail()) as tail:
            async for record in tail:
                events_seen = [part for part in getattr(record.body, "parts", ()) if isinstance(part, ToolEvent)]
                if any(part.event["type"].endswith("code.delta") for part in events_seen):
                    break
        fake.release(gate)
        await sending
    parts = stream_of(await Conversation(store, "talk").records())
    deltas = [part for part in parts if isinstance(part, ToolEvent) and part.event["type"].endswith("code.delta")]
    assert [part.event["delta"] for part in deltas] == ["print(1)\nprint(2)"]


@requirement("R112")
async def test_long_text_is_written_early_in_bounded_increments(store: Store) -> None:
    """Without the clock: the loop never gets to a timer, since nothing is awaited but the store."""
    writer = Writer(store, "talk", 0, gap_s=0)
    writer.begin("run_1", model="x:y", opening=(), message_metadata="session", decisions=())
    writer.feed([TextStart("t")])
    piece = "0123456789abcdef" * 16
    for _ in range(10):
        writer.feed([TextDelta("t", piece) for _ in range(INCREMENT_BYTES // len(piece))])
        await writer.commit()
    writer.feed([TextEnd("t")])
    await writer.commit()
    rows = await store.read("talk")
    sizes = [len(row.body) for row in rows if row.kind == "text-delta"]
    assert len(sizes) == 10
    assert max(sizes) < INCREMENT_BYTES + 200
    assert sum(len(row.body) for row in rows) < 1.05 * 10 * INCREMENT_BYTES
    (text,) = [record for record in await Conversation(store, "talk").records() if record.kind == "text"]
    assert text_in(text) == piece * (10 * INCREMENT_BYTES // len(piece))


@requirement("R112")
async def test_abandoned_run_logs_shown_text_and_cancellation(store: Store) -> None:
    gate = asyncio.Event()
    shown, _ = events_of(ResponsesScript(id="r1"), ["Shown ", "and left."])
    async with FakeProvider([sse([*shown, gate])]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        await chat.load()
        seen = ""
        async with chat.stream("1") as run:
            async for part in run:
                seen += part.delta if isinstance(part, TextDelta) else ""
                if seen == "Shown and left.":
                    break
        await chat.load()
    records = await Conversation(store, "talk").records()
    assert "".join(map(text_in, records)) == "Shown and left."
    assert (chat.status, chat.messages, records[-1].kind) == ("cancelled", (), "cancelled")


@requirement("R112", "F32")
async def test_kill_loses_no_written_increment(where: str, opens: Any) -> None:
    shown, _ = events_of(ResponsesScript(id="r1"), ["It was ", "shown."])
    again = ResponsesScript(id="r2").text("It is complete.").reply()
    async with FakeProvider([sse([*shown, asyncio.Event()]), again]) as fake:
        with started(sys.executable, str(CHILD), "chat", where, fake.base_url) as child:
            store = opens()
            await followed(store, "talk", "It was shown.")
            child.send_signal(signal.SIGKILL)
            child.wait(BOUND_S)
        state = await Conversation(store, "talk").state()
        assert (state.status, state.messages) == ("unfinished", ())
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        assert (await chat.resume()).output == "It is complete."
    records = await Conversation(store, "talk").records()
    # What the killed process had shown stays in the log; the history has what counts.
    assert "".join(map(text_in, records)) == "It was shown.It is complete."
    assert [message.text for message in chat.messages] == ["1", "It is complete."]
    assert await store.check() == []


# Content that would stand twice


PREVIEW, IMAGE = os.urandom(20_000), b"\x89PNG\r\n\x1a\n" + os.urandom(30_000)


@pytest.fixture
async def drawn(tmp_path: Path) -> AsyncGenerator[Any]:
    async def draw(**options: Any) -> tuple[Store, list[Record]]:
        from sidestream.store import open_store

        store = open_store(tmp_path / "talks.db")
        stores.append(store)
        script = ResponsesScript(id="r1").image(IMAGE, partials=[PREVIEW]).text("A cat.")
        async with FakeProvider([script.reply()]) as fake:
            agent = Agent(
                "openai-responses", base_url=fake.base_url, server_side_tools=[ImageGeneration(partial_images=1)]
            )
            await Chat(agent, store=store, id="talk", **options).send("draw")
        return store, await Conversation(store, "talk").records()

    stores: list[Store] = []
    yield draw
    for store in stores:
        await store.aclose()


def copies(folder: Path, data: bytes) -> list[bytes]:
    """The blobs that hold these bytes, as they are or as base64."""
    files = [file.read_bytes() for file in (folder / "talks.db.blobs").rglob("*") if file.is_file()]
    return [content for content in files if data in content or b64encode(data) in content]


@requirement("R16")
async def test_delivered_bytes_are_logged_once_and_previews_never(drawn: Any, tmp_path: Path) -> None:
    store, records = await drawn()
    parts = stream_of(records)
    assert [part.data for part in parts if isinstance(part, File)] == [IMAGE]
    events = [part.event for part in parts if isinstance(part, ToolEvent)]
    assert b64encode(IMAGE).decode() in json.dumps(events)  # read back as the provider sent it
    assert b64encode(PREVIEW).decode() not in json.dumps(events)
    assert (copies(tmp_path, IMAGE), copies(tmp_path, PREVIEW)) == ([IMAGE], [])
    rows = await store.read("talk")
    assert not any(b64encode(IMAGE) in row.body for row in rows if row.kind == "tool-event")
    assert not [part for part in parts if isinstance(part, ToolResult) and part.preliminary]


@requirement("R16")
def test_previews_of_subagents_are_omitted() -> None:
    picture = b64encode(PREVIEW).decode()
    event = {"type": "image.partial", "picture": picture, "index": 0}
    nested = ToolEvent("image_generation", "delta", event, call_id="inner", provider_stage="partial")
    result = {"picture": picture}
    preview = ToolResult("inner", "image_generation", "image_generation", result, False, True, preliminary=True)
    forwarded = [
        ToolEvent("helper", "delta", to_builtins(part), call_id="outer", provider_stage=part.type)
        for part in (nested, preview)
    ]
    (segment,) = SegmentFold().feed([StepStart(0), *forwarded, StepStart(1)])[1:-1]
    (kept,) = segment.parts
    assert picture not in kept.to_json()
    assert kept.event["event"]["index"] == 0  # type: ignore[union-attr]
    assert picture in forwarded[0].to_json()  # The live part is as it was.


@requirement("R16")
async def test_previews_are_logged_on_request(drawn: Any, tmp_path: Path) -> None:
    _, records = await drawn(log=LogDetail(previews=True))
    parts = stream_of(records)
    grammar.check(parts)
    (preview,) = [part.result for part in parts if isinstance(part, ToolResult) and part.preliminary]
    assert preview["partial_image_b64"] == b64encode(PREVIEW).decode()
    assert (copies(tmp_path, IMAGE), copies(tmp_path, PREVIEW)) == ([IMAGE], [PREVIEW])


DELTA = ToolEvent(
    "search", "running", {"delta": "a"}, call_id="c1", provider_tool="lookup", provider_stage="lookup.delta"
)


def test_deltas_of_one_call_join_in_log():
    joined = event_with(DELTA, replace(DELTA, event={"delta": "b"}))
    assert joined is not None
    assert joined.event == {"delta": "ab"}


@pytest.mark.parametrize(
    "changed",
    [{"call_id": "c2"}, {"provider_tool": "other"}, {"provider_stage": "other.delta"}, {"event": {"done": "b"}}],
    ids=lambda changed: next(iter(changed)),
)
def test_delta_of_other_call_stays_apart_in_log(changed: dict[str, Any]):
    assert event_with(DELTA, replace(DELTA, **{"event": {"delta": "b"}, **changed})) is None


def test_events_that_are_not_deltas_stay_apart_in_log():
    done = replace(DELTA, provider_stage="lookup.done")
    assert event_with(done, done) is None
