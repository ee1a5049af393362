"""The end of steered runs over WebSocket; what their logs and recordings have."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Chat, Limits
from sidestream.parts import Steer, StepFinish, TextDelta
from sidestream.providers.openai.responses.websocket import RESPONSES_WEBSOCKET
from sidestream.store import open_store
from sidestream.testing import (
    AwaitedSteer,
    FakeProvider,
    Recording,
    RecordingTransport,
    no_leaks,
    sse,
)
from sidestream.wire.http import close_session
from sidestream.wire.retry import RetryPolicy
from sidestream.wire.socket.transport import WebSocketTransport
from support.children import started
from support.steered_runs import (
    NATIVE,
    agent_at,
    input_of,
    parent,
    says,
    sent_by,
    steered,
    successor,
    told,
)

CHILD = Path(__file__).with_name("steered_child.py")
BOUND_S = 60


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:
    async with no_leaks():
        yield
        await close_session()


# Ends


@requirement("R115", "R73")
async def test_limit_ends_run_and_abandons_successor():
    hold = asyncio.Event()
    script = [sse([*parent("One", AwaitedSteer()), *successor()[:4], hold]), says("Fresh.", "r5")]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, limits=Limits(max_steps=1))
        parts = await steered(agent.stream("go"), "Hurry.")
        assert [part.status for part in parts if isinstance(part, Steer)] == ["accepted", "failed"]
        await fake.wait_idle()  # Nobody reads the successor, so the server is not left to write it.
        assert (await agent.send("again")).output == "Fresh."
        await close_session()


@requirement("R115")
@pytest.mark.parametrize("moment", ["before the end", "before the successor"])
async def test_leaving_steered_run_leaves_no_leaks(moment: str):
    hold = asyncio.Event()
    events = parent("One", AwaitedSteer(), *([hold] if moment == "before the end" else []))
    async with FakeProvider([sse([*events, hold])]) as fake:
        async with agent_at(fake).stream("go") as run:
            async for part in run:
                if isinstance(part, TextDelta) and part.delta == "One":
                    await run.steer("Hurry.")
                    if moment == "before the end":
                        break
                if isinstance(part, StepFinish):
                    break
        await fake.wait_idle()
        assert [steer.text for steer in run.state.turn.steers] == ["Hurry."]


@requirement("R115")
async def test_run_dropped_before_successor_releases_its_stream():
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), asyncio.Event()])]) as fake:
        run = agent_at(fake).stream("go")
        parts = aiter(run)
        while not isinstance(part := await anext(parts), StepFinish):
            if isinstance(part, TextDelta) and part.delta == "One":
                await run.steer("Hurry.")
        del run, parts
        await fake.wait_idle()


@requirement("R115")
async def test_closing_run_ends_wait_for_successor():
    async with FakeProvider([sse([*parent("One", AwaitedSteer()), asyncio.Event()])]) as fake:
        run = agent_at(fake).stream("go")
        is_over = asyncio.Event()

        async def read() -> list[Any]:
            parts: list[Any] = []
            async for part in run:
                parts.append(part)
                if isinstance(part, TextDelta) and part.delta == "One":
                    await run.steer("Hurry.")
                if isinstance(part, StepFinish):
                    asyncio.get_running_loop().call_soon(is_over.set)  # once the run waits
            return parts

        reading = asyncio.create_task(read())
        await is_over.wait()
        await run.aclose()
        parts = await reading
        assert isinstance(parts[-1], StepFinish)
        await fake.wait_idle()


# Log and recordings


@requirement("R115", "R84")
@pytest.mark.parametrize("moment", ["text", "applied"])
async def test_message_accepted_by_server_survives_kill(tmp_path: Path, moment: str):
    held = asyncio.Event()
    following = [held] if moment == "text" else [*successor()[:4], held]
    entries = [*parent("One", AwaitedSteer(), *([held] if moment == "text" else [])), *following]
    with FakeProvider([sse(entries)]).in_thread() as fake:
        arguments = [sys.executable, str(CHILD), str(tmp_path / "log.db"), fake.base_url, moment, "websocket"]
        with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"accepted\n"
            await fake.wait_for_steers(1)
            if moment == "applied":
                assert child.stdout.readline() == b"applied\n"
            child.kill()
            _, err = child.communicate(timeout=BOUND_S)
        assert child.returncode == -signal.SIGKILL, err.decode()
        fake.release(held)
    async with FakeProvider([says("Rebuilt.")]) as fake:
        store = open_store(tmp_path / "log.db")
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.load()
        assert chat.status == "unfinished"
        state = chat.run_state
        assert state is not None
        assert [steer.text for steer in state.turn.steers] == ([] if moment == "applied" else ["Hurry."])
        await chat.resume()
        await store.aclose()
        assert input_of(fake.requests[0])[-1] == {"role": "user", "content": "Hurry."}
        await close_session()
    said = ["go", "One.", "Hurry.", "Rebuilt."] if moment == "applied" else ["go", "Hurry.", "Rebuilt."]
    assert [message.text for message in chat.messages] == said


@requirement("R115", "R82")
async def test_steered_chat_is_restored_from_log(tmp_path: Path):
    script = [sse([*parent("One", AwaitedSteer()), *successor()]), says("Three.", "r3")]
    async with FakeProvider(script) as fake:
        store = open_store(tmp_path / "log.db")
        chat = Chat(agent_at(fake), store=store, id="talk")
        await chat.load()
        await steered(chat.stream("go"), "Hurry.")
        again = Chat(agent_at(fake), store=store, id="talk")
        await again.load()
        assert again.messages == chat.messages
        await again.send("last")
        assert sent_by(fake.requests[1])["previous_response_id"] == "r2"
        await store.aclose()
        await close_session()


@requirement("R115")
async def test_recording_has_successor_as_separate_exchange():
    script = [sse([*parent("One", AwaitedSteer()), *successor()])]
    async with FakeProvider(script) as fake:
        transport = RecordingTransport(WebSocketTransport(RESPONSES_WEBSOCKET, retry=RetryPolicy()))
        parts = await steered(agent_at(fake, transport=transport).stream("go"), "Hurry.")
        assert told(parts) == NATIVE
        await close_session()
    recording: Recording = transport.recording
    first, second = recording.exchanges
    body: Any = second.request.body
    assert body["steers"][0]["input"][0]["content"] == "Hurry."
    assert body["model"] == first.request.body["model"]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType, reportCallIssue]
    assert b"response.steer.accepted" in first.body_bytes()
    assert b'"Two."' in second.body_bytes()
