"""`sidestream replay` decodes recordings offline."""

import asyncio
from pathlib import Path

import pytest

from cli.command import Run
from requirements import requirement
from sidestream import Agent, cli
from sidestream.parts import Error, File, Finish, StreamPart, StreamStart, TextDelta, part_from_json
from sidestream.providers.openai.responses.websocket import RESPONSES_WEBSOCKET
from sidestream.replay.provider import replay
from sidestream.stream import grammar
from sidestream.testing import (
    AwaitedSteer,
    Exchange,
    FakeProvider,
    RecordedRequest,
    RecordedResponse,
    Recording,
    RecordingTransport,
    ReplayTransport,
    ResponsesScript,
    encode_events,
    sse,
)
from sidestream.wire import WebSocketTransport

DEMO = Path(cli.__file__).parent / "commands" / "demo"
ASKED = RecordedRequest("POST", "/v1/responses", {"model": "gpt-5.6"})


def streamed(script: ResponsesScript) -> Exchange:
    return Exchange(RecordedResponse(200, "text/event-stream", encode_events(script.events()).decode()), ASKED)


def refused(status: int, code: str) -> Exchange:
    return Exchange(RecordedResponse(status, "application/json", {"error": {"code": code, "message": "no"}}), ASKED)


async def parts_of(recording: Recording) -> list[StreamPart]:
    return [part for run in replay(recording, ReplayTransport(recording)) async for part in run]


@requirement("R93")
@pytest.mark.parametrize("name", sorted(path.name for path in DEMO.glob("*.json")))
def test_json_output_equals_decoder_output(sidestream: Run, name: str):
    done = sidestream("replay", str(DEMO / name), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    parts = asyncio.run(parts_of(Recording.load(DEMO / name)))
    assert done.stdout.encode() == b"".join(part.to_json().encode() + b"\n" for part in parts)
    grammar.check(parts)
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "stop"


@requirement("R93")
def test_each_exchange_is_stream_and_recorded_error_exits_0(sidestream: Run, tmp_path: Path):
    listing = Exchange(RecordedResponse(body={"data": []}), RecordedRequest("GET", "/v1/models"))
    whole = Exchange(RecordedResponse(body=ResponsesScript().text("two").response()), ASKED)
    exchanges = (streamed(ResponsesScript().text("one")), refused(400, "bad"), listing, whole)
    Recording(exchanges).save(tmp_path / "r.json")
    done = sidestream("replay", "r.json", "--json")
    assert done.returncode == 0
    streams: list[list[StreamPart]] = []
    for line in done.stdout.splitlines():
        part = part_from_json(line)
        if isinstance(part, StreamStart):
            streams.append([])
        streams[-1].append(part)
    assert len(streams) == 3
    for parts in streams:
        grammar.check(parts)
    start, error, finish = streams[1]
    assert isinstance(start, StreamStart)
    assert isinstance(error, Error)
    assert (error.status, error.code) == (400, "bad")
    assert isinstance(finish, Finish)
    assert finish.reason == "error"


def test_replay_prints_like_live_run(sidestream: Run, tmp_path: Path):
    Recording((streamed(ResponsesScript().text("one")), refused(429, "slow"))).save(tmp_path / "r.json")
    done = sidestream("replay", "r.json", "--pace", "0")
    assert (done.returncode, done.stdout) == (0, "one\n")
    assert "r.json, exchange 1 of 2" in done.stderr
    assert "error: " in done.stderr


def test_files_of_recording_are_saved(sidestream: Run, tmp_path: Path):
    done = sidestream("replay", str(DEMO / "code_run.json"), str(DEMO / "image.json"), "--out", "made")
    assert done.returncode == 0
    saved = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert {name: data[:4] for name, data in saved.items()} == {
        "day_length.png": b"\x89PNG",
        "image_1.png": b"\x89PNG",
    }
    for name in ("code_run.json", "image.json"):
        (file,) = [part for part in asyncio.run(parts_of(Recording.load(DEMO / name))) if isinstance(part, File)]
        assert file.name is not None
        assert saved[file.name] == file.data


@pytest.mark.parametrize(
    "content",
    [None, "", "{}", "[1]", "not JSON", '{"exchanges": [{"request": {}}]}', '{"exchanges": []}'],
)
def test_invalid_recording_is_named_and_others_are_played(sidestream: Run, tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "bad.json").write_text(content)
    Recording((streamed(ResponsesScript().text("one")),)).save(tmp_path / "good.json")
    done = sidestream("replay", "bad.json", "good.json")
    assert (done.returncode, done.stdout) == (2, "one\n")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "bad.json" in line


def test_recording_without_model_exchange_is_reported(sidestream: Run, tmp_path: Path):
    listing = Exchange(RecordedResponse(body={"data": []}), RecordedRequest("GET", "/v1/models"))
    Recording((listing,)).save(tmp_path / "r.json")
    done = sidestream("replay", "r.json", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "GET /v1/models" in done.stderr


@requirement("R115")
def test_recorded_websocket_exchange_plays(sidestream: Run, tmp_path: Path):
    async def record(fake: FakeProvider) -> Recording:
        recorder = RecordingTransport(WebSocketTransport(RESPONSES_WEBSOCKET))
        await Agent("openai-responses", base_url=fake.base_url, transport=recorder).send("hi")
        return recorder.recording

    with FakeProvider([ResponsesScript().reasoning("Hm.").text("Over a socket").reply()]).in_thread() as fake:
        asyncio.run(record(fake)).save(tmp_path / "socket.json")
        assert fake.requests[0].is_websocket
    done = sidestream("replay", "socket.json")
    assert done.returncode == 0
    assert done.stdout == "Over a socket\n"


@requirement("R115")
def test_recorded_steered_answer_plays_with_its_successor(sidestream: Run, tmp_path: Path):
    events = ResponsesScript(id="r1").text(["Once ", "upon"]).incomplete("steered").events()
    successor = ResponsesScript(id="r2").text("In short.").events()

    async def record(fake: FakeProvider) -> Recording:
        recorder = RecordingTransport(WebSocketTransport(RESPONSES_WEBSOCKET))
        agent = Agent("openai-responses", base_url=fake.base_url, transport=recorder)
        async with agent.stream("hi") as run:
            async for part in run:
                if isinstance(part, TextDelta) and part.delta == "Once ":
                    await run.steer("Shorter.")
        return recorder.recording

    with FakeProvider([sse([*events[:5], AwaitedSteer(), *events[5:], *successor])]).in_thread() as fake:
        asyncio.run(record(fake)).save(tmp_path / "steered.json")
        assert len(fake.steers) == len(fake.requests) == 1
    done = sidestream("replay", "steered.json", "--json")
    assert done.returncode == 0
    parts = [part_from_json(line) for line in done.stdout.splitlines()]
    assert [part.raw_reason for part in parts if isinstance(part, Finish)] == ["steered", "completed"]
    assert "".join(part.delta for part in parts if isinstance(part, TextDelta)) == "Once uponIn short."
