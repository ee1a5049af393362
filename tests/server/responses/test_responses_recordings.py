"""OpenAI's own streams, replayed through the server: what a client gets is what the service sent, from the log."""

from pathlib import Path
from typing import Any

import httpx2

from protocols.test_responses_stream import (
    DIFFERENT,
    RESPONSE_FIELDS,
    allowed,
    kinds,
    needs_recordings,
    sent_by,
    without_ids,
)
from requirements import requirement
from server.response_client import served_agents
from server.responses.test_responses_api import frames_of
from sidestream import Agent
from sidestream.replay.provider import model_exchanges
from sidestream.replay.recording import Recording
from sidestream.testing import FakeProvider
from support.places import RECORDINGS
from support.response_events import check_events

Json = Any
STREAMS = sorted((RECORDINGS / "openai-responses").glob("*.json"))
NOT_HERE = {
    **DIFFERENT,
    "v-openai-apply-patch-tool-delete.1-stream": "a call of a tool that requests to the server cannot have",
    "v-openai-client-tool-search.2-stream": "a call of a tool that requests to the server cannot have",
}
"""Recordings that do not come out as they came, each with its reason."""


def joined(events: list[Json]) -> list[Json]:
    """The events with neighbouring deltas as one: the log writes what has come every 30 ms."""
    found: list[Json] = []
    for event in (event for event in events if not is_annotation(event)):
        last = found[-1] if found else {}
        same = ("type", "item_id", "content_index", "summary_index", "command_index")
        if isinstance(event.get("delta"), str) and all(last.get(name) == event.get(name) for name in same):
            found[-1] = {**last, "delta": last["delta"] + event["delta"]}
        else:
            found.append(event)
    return found


def is_annotation(event: Json) -> bool:
    """True for a source, which the log may have before or after the deltas that it came between."""
    return event["type"] == "response.output_text.annotation.added"


def functions_in(events: list[Json]) -> list[Json]:
    """The functions that the recorded client had, and those that the model called."""
    items = [event["item"] for event in events if "item" in event]
    names = {item["name"] for item in items if item["type"] == "function_call"}
    return [{"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in names]


@requirement("R140")
@needs_recordings
async def test_server_reproduces_recordings_verbatim(tmp_path: Path):
    given = {path.stem: sent_by(model_exchanges(Recording.load(path))[0]) for path in STREAMS}
    names = [name for name, events in given.items() if events and name not in NOT_HERE]
    agents = {name: Agent(f"replay:{RECORDINGS / 'openai-responses' / name}.json") for name in names}
    async with (
        FakeProvider([]) as fake,
        served_agents(agents, fake, tmp_path) as served,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        for name in names:
            include = ["reasoning.encrypted_content"]
            tools = functions_in(given[name])
            body = {
                "model": name,
                "input": "?",
                "stream": True,
                "include": include,
                "tools": tools,
                "background": given[name][0]["response"].get("background") or False,
            }
            made = frames_of(await client.post(f"{served.url}/v1/responses", json=body))
            check_events(made, typed=False)
            ours, theirs = without_ids(made), without_ids(given[name])
            assert [event for event in ours if is_annotation(event)] == [e for e in theirs if is_annotation(e)], name
            ours, theirs = joined(ours), joined(theirs)
            assert kinds(ours) == kinds(theirs), name
            for event, wanted in zip(ours, theirs, strict=True):
                if "response" in event:
                    event = {**event, "response": {field: event["response"][field] for field in RESPONSE_FIELDS}}
                    wanted["response"]["model"] = name
                expected = allowed(event, wanted)
                differing = [field for field in expected if event.get(field) != expected[field]]
                assert not differing, f"{name}: {event['type']}"
    assert len(names) > 20
