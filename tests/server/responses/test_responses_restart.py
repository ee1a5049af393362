"""A response survives `kill -9` of its server: readers continue after their number, with the same ids and text."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from requirements import requirement
from server.chat_client import paused
from server.response_client import KEY, served_agents
from sidestream import Agent
from sidestream.store import open_store
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support.children import started
from support.response_events import check_events

Json = Any

SERVER = """
import sys
import uvicorn
from sidestream import Agent
from sidestream.server import create_app

agent = Agent("openai-responses", base_url=sys.argv[1], api_key="key-0123456789")
config = uvicorn.Config(create_app({sys.argv[3]: agent}, store=sys.argv[2]), port=0, log_config=None, lifespan="on")

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(config).run()
"""


async def read_until_killed(fake: FakeProvider, path: Path, name: str, **body: Json) -> list[Json]:
    """The events that a client of another process got before that was killed, in the middle of a text."""
    with started(sys.executable, "-c", SERVER, fake.base_url, str(path / "talks.db"), name, stdout=-1) as process:
        port = int(await asyncio.to_thread(process.stdout.readline))
        events: list[Json] = []
        async with aiohttp.ClientSession() as session:
            request = {"model": name, "input": "Count.", "stream": True, **body}
            async with session.post(f"http://127.0.0.1:{port}/v1/responses", json=request) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        events.append(json.loads(line[6:]))
                        if "two" in str(events[-1].get("delta", "")):
                            process.send_signal(signal.SIGKILL)
                            return events
    raise AssertionError("the text never came")


def interrupted(gate: asyncio.Event) -> Any:
    return sse(paused(ResponsesScript().text(["One, ", "two, ", "three."]), gate, "two"))


@requirement("R140", "R142")
@pytest.mark.parametrize("again", [["One, two, three."], ["One, ", "two, ", "three."]], ids=["whole", "in pieces"])
async def test_restarted_stream_continues_with_same_ids_and_text(again: list[str], tmp_path: Path):
    replies = [interrupted(asyncio.Event()), ResponsesScript().text(again).reply()]
    async with FakeProvider(replies) as fake:
        seen = await read_until_killed(fake, tmp_path, "main")
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
            stream = await served.client.responses.retrieve(id, stream=True, starting_after=number)
            rest = [event.to_dict() async for event in stream]
            assert rest[0]["sequence_number"] == number + 1
            response = check_events([*seen, *rest])
            (message,) = response["output"]
            assert message["id"] == next(event["item"]["id"] for event in seen if "item" in event)
            assert message["content"][0]["text"] == "One, two, three."
            assert (await served.client.responses.retrieve(id)).output_text == "One, two, three."
            whole = [event.to_dict() async for event in await served.client.responses.retrieve(id, stream=True)]
            assert [event["type"] for event in whole] == [event["type"] for event in (*seen, *rest)]


@requirement("R140", "R142")
async def test_unresumable_response_fails_with_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "sidestream.durable.worker.reconciler.GONE_S", -1.0
    )  # No other server with this agent is waited for.
    async with FakeProvider([interrupted(asyncio.Event())]) as fake:
        seen = await read_until_killed(fake, tmp_path, "gone", background=True)
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
            stream = await served.client.responses.retrieve(id, stream=True, starting_after=number)
            rest = [event.to_dict() async for event in stream]
            response = check_events([*seen, *rest])
            assert (response["status"], response["error"]["code"]) == ("failed", "server_restarted")
            assert "gone" in response["error"]["message"]


@requirement("R140")
async def test_unstored_response_is_deleted_after_restart(tmp_path: Path):
    async with FakeProvider([interrupted(asyncio.Event())]) as fake:
        await read_until_killed(fake, tmp_path, "main", store=False)
        store = open_store(tmp_path / "talks.db")
        assert len(await store.conversations()) == 1
        await store.aclose()
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        async with served_agents({"main": agent}, fake, tmp_path) as served:
            assert await served.server.store.conversations() == []
        assert len(fake.requests) == 1
