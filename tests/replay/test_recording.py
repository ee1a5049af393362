"""Recordings: their file, replaying them without a network, and recording live traffic."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.errors import (
    AuthenticationError,
    ConfigurationError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
)
from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.testing import (
    Exchange,
    FakeProvider,
    RecordedRequest,
    RecordedResponse,
    Recording,
    RecordingTransport,
    ReplayTransport,
    ResponsesScript,
    encode_events,
    error_reply,
    pixel_png,
    responses_text,
)
from sidestream.transport.calls import HttpCall

EVENTS = responses_text("Grüße, wörld")
CALL = HttpCall(url="https://api.example.com/v1/responses", body=b"{}", stream=True)


def stream(text: str = encode_events(EVENTS).decode(), path: str = "/v1/responses") -> Exchange:
    return Exchange(RecordedResponse(200, "text/event-stream", text), RecordedRequest("POST", path))


def whole(body: object, status: int = 200, path: str = "/v1/responses", method: str = "POST") -> Exchange:
    return Exchange(RecordedResponse(status, "application/json", body), RecordedRequest(method, path))


def replay(*exchanges: Exchange, **options: object) -> ReplayTransport:
    return ReplayTransport(Recording(exchanges), **options)  # pyright: ignore[reportArgumentType]


async def batches(
    transport: ReplayTransport | RecordingTransport, call: HttpCall = CALL, limits: Limits = DEFAULT_LIMITS
) -> list[list[bytes]]:
    exchange = await transport.open(call, limits)
    assert exchange.is_stream
    read: list[list[bytes]] = []
    while batch := await exchange.events():
        read.append(batch)
    await exchange.aclose()
    return read


async def events(transport: ReplayTransport | RecordingTransport, call: HttpCall = CALL) -> list[dict[str, object]]:
    return [json.loads(event) for batch in await batches(transport, call) for event in batch]


@requirement("R93")
async def test_recorded_stream_is_replayed_verbatim():
    transport = replay(stream())
    assert await events(transport) == EVENTS
    assert transport.remaining == 0


@requirement("R93")
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8))
async def test_events_do_not_depend_on_chunking(sizes: list[int]):
    assert await events(replay(stream(), chunk_size=sizes)) == EVENTS


async def test_single_byte_chunks_give_single_events():
    assert [len(batch) for batch in await batches(replay(stream(), chunk_size=1))] == [1] * len(EVENTS)


async def test_paced_replay_yields_single_events():
    assert [len(batch) for batch in await batches(replay(stream(), pace_s=0.0001))] == [1] * len(EVENTS)


async def test_turns_are_replayed_in_order():
    transport = replay(stream("data: 1\n\n"), whole({"n": 2}), stream("data: 3\n\n"))
    assert await batches(transport) == [[b"1"]]
    second = await transport.open(CALL, DEFAULT_LIMITS)
    assert not second.is_stream
    assert (second.status, await second.body(), await second.events()) == (200, b'{"n":2}', [])
    assert transport.remaining == 1
    assert await batches(transport) == [[b"3"]]


async def test_exchange_for_other_path_is_kept_for_its_call():
    transport = replay(whole({"id": "conv_1"}, path="/v1/conversations"), stream())
    assert await events(transport) == EVENTS
    assert transport.remaining == 1


@pytest.mark.parametrize(
    ("recorded", "called"),
    [
        ("/v1/responses", "https://gateway.example.com/openai/v1/responses?api-version=2"),
        ("/v1/responses", "https://resource.example.com/openai/responses"),
        ("/responses", "http://127.0.0.1:8000/v1/responses"),
        ("/v1/messages?beta=true", "https://api.example.com/v1/messages"),
        ("/v1beta/models/MODEL:generateContent", "https://x.example.com/v1beta/models/pro-3:generateContent"),
        ("/v1beta/models/a:generateContent", "https://x.example.com/v1beta/models/a:streamGenerateContent?alt=sse"),
    ],
)
async def test_paths_match_by_suffix(recorded: str, called: str):
    assert await events(replay(stream(path=recorded)), HttpCall(url=called)) == EVENTS


@pytest.mark.parametrize(
    ("recorded", "call"),
    [
        ("/v1/files", HttpCall(url="https://x.example.com/v1/vector_stores/vs_1/files")),
        ("/v1/responses", HttpCall(url="https://x.example.com/v1/responses", method="GET")),
        ("/v1/responses/a", HttpCall(url="https://x.example.com/v1/responses/b")),
        ("/v1beta/models/a:generateContent", HttpCall(url="https://x.example.com/v1beta/models/a:countTokens")),
    ],
)
async def test_unrecorded_call_raises(recorded: str, call: HttpCall):
    transport = replay(stream(path=recorded))
    with pytest.raises(ProviderError) as caught:
        await transport.open(call, DEFAULT_LIMITS)
    assert (caught.value.status, caught.value.code, transport.remaining) == (404, "not-recorded", 1)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, ProviderError, False),
        (401, AuthenticationError, False),
        (403, AuthenticationError, False),
        (429, RateLimitedError, True),
        (500, ProviderError, True),
    ],
)
async def test_recorded_error_status_raises_like_live_traffic(
    status: int, kind: type[ProviderError], *, retryable: bool
):
    transport = replay(whole({"error": {"code": "bad_thing", "message": "no such thing"}}, status=status))
    with pytest.raises(kind) as caught:
        await transport.open(CALL, DEFAULT_LIMITS)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (status, "bad_thing")
    assert caught.value.retryable is retryable
    assert "no such thing" in caught.value.message


async def test_replay_enforces_live_limits():
    with pytest.raises(ProtocolError):
        await batches(replay(stream()), limits=Limits(max_event_bytes=16))


async def test_closed_replay_yields_no_more_events():
    exchange = await replay(stream(), chunk_size=64).open(CALL, DEFAULT_LIMITS)
    assert await exchange.events()
    await exchange.aclose()
    await exchange.aclose()
    assert await exchange.events() == []


@requirement("R93")
async def test_recorded_download_can_be_repeated(tmp_path: Path):
    path = "/v1/containers/c/files/f/content"
    picture = pixel_png(1, 2, 3)
    Recording(
        (
            Exchange(
                RecordedResponse(200, "image/png", {"base64": b64encode(picture).decode()}),
                RecordedRequest("GET", path),
            ),
            Exchange(RecordedResponse(200, "text/csv", "a,b\n"), RecordedRequest("GET", "/v1/files/t/content")),
        )
    ).save(tmp_path / "download.json")
    transport = ReplayTransport(Recording.load(tmp_path / "download.json"))
    call = HttpCall(method="GET", url="https://api.example.com" + path)
    assert await transport.download(call, DEFAULT_LIMITS) == picture
    assert await transport.download(call, DEFAULT_LIMITS) == picture
    text = HttpCall(method="GET", url="https://api.example.com/v1/files/t/content")
    assert await transport.download(text, DEFAULT_LIMITS) == b"a,b\n"
    assert transport.remaining == 0


async def test_unrecorded_download_is_404():
    with pytest.raises(ProviderError) as caught:
        await replay(stream()).download(HttpCall(method="GET", url="https://x.example.com/v1/x"), DEFAULT_LIMITS)
    assert (caught.value.status, caught.value.code) == (404, "not-recorded")


def test_file_with_only_required_fields_loads(tmp_path: Path):
    file = tmp_path / "small.json"
    file.write_text('{"exchanges": [{"response": {"body": {"a": 1}}}], "later": true}')
    recording = Recording.load(file)
    (exchange,) = recording.exchanges
    assert (recording.source, exchange.request.method, exchange.response.status) == ("", "POST", 200)
    assert exchange.body_bytes() == b'{"a":1}'
    assert not exchange.is_stream


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"exchanges": 1}', '{"exchanges": [{"request": {}}]}'])
def test_invalid_recording_error_names_file(tmp_path: Path, text: str):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"other\.json"):
        Recording.load(file)


def test_missing_file_error_names_it(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"absent\.json"):
        Recording.load(tmp_path / "absent.json")


@pytest.mark.parametrize("body", [None, "text", "", "half \ud83d", {"a": [1]}, [], {}, {"base64": "AP8="}])
def test_saved_recording_round_trips(tmp_path: Path, body: object):
    recording = Recording((whole(body), stream()), source="s", licence="l", exercises="e")
    recording.save(tmp_path / "r.json")
    assert Recording.load(tmp_path / "r.json") == recording


@requirement("R93")
async def test_recorded_live_traffic_replays_identically():
    from sidestream.wire.http import HttpTransport, close_session

    script = ResponsesScript().text("Hello, world")
    refused = error_reply(400, "bad_request", "no such model")
    async with FakeProvider([script.reply(chunk_sizes=7), script.whole_reply(), refused]) as fake:
        fake.add_file("/v1/files/f/content", pixel_png())
        live = RecordingTransport(HttpTransport(), source="here", licence="MIT")
        call = HttpCall(url=f"{fake.base_url}/responses", body=b'{"model":"m","stream":true}', stream=True)
        download = HttpCall(method="GET", url=f"{fake.base_url}/files/f/content")
        assert await events(live, call) == script.events()
        answer = await live.open(call, DEFAULT_LIMITS)
        assert json.loads(await answer.body()) == script.response()
        await answer.aclose()
        with pytest.raises(ProviderError) as first:
            await live.open(call, DEFAULT_LIMITS)
        assert await live.download(download, DEFAULT_LIMITS) == pixel_png()
        await close_session()
        await fake.wait_idle()

    assert (live.recording.source, live.recording.licence) == ("here", "MIT")
    assert [exchange.request.body for exchange in live.recording.exchanges[:3]] == [{"model": "m", "stream": True}] * 3
    played = ReplayTransport(live.recording, chunk_size=5)
    assert await events(played, call) == script.events()
    assert json.loads(await (await played.open(call, DEFAULT_LIMITS)).body()) == script.response()
    with pytest.raises(ProviderError) as second:
        await played.open(call, DEFAULT_LIMITS)
    assert second.value.message == first.value.message
    assert (second.value.status, second.value.code) == (400, "bad_request")
    assert await played.download(download, DEFAULT_LIMITS) == pixel_png()
    assert played.remaining == 0


async def test_interrupted_stream_is_recorded_up_to_last_read():
    inner = replay(stream("data: {}\n\ndata: {}\n\n"), chunk_size=10)
    recorder = RecordingTransport(inner)
    exchange = await recorder.open(CALL, DEFAULT_LIMITS)
    await exchange.events()
    await exchange.aclose()
    assert recorder.recording.exchanges[0].body_bytes() == b"data: {}\n\n"


async def test_recording_contains_no_key(tmp_path: Path):
    canary, tool_canary, query_canary = "canary-4f1d9b7e", "tool-canary-77aa", "query-canary-12"
    body = {"tools": [{"type": "mcp", "headers": {"X-Api-Key": tool_canary}, "authorization": tool_canary + "b"}]}
    call = HttpCall(
        url=f"https://api.example.com/v1/responses?key={query_canary}",
        headers={"Authorization": f"Bearer {canary}", "X-Other": "plain"},
        body=json.dumps(body).encode(),
    )
    recorder = RecordingTransport(
        replay(
            whole({"error": {"message": f"{canary} is wrong"}}, status=401),
            stream(f'data: {{"echo": "{canary} {tool_canary}b", "authorization": null}}\n\ndata: {canary}\n\n'),
        )
    )
    with pytest.raises(AuthenticationError):
        await recorder.open(call, DEFAULT_LIMITS)
    await batches(recorder, call)
    recorder.recording.save(tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert text.count("[redacted]") >= 6
    for secret in (canary, tool_canary, query_canary, "X-Other", "plain"):
        assert secret not in text
    assert await batches(replay(recorder.recording.exchanges[1])) == [
        [b'{"echo":"[redacted] [redacted]","authorization":null}', b"[redacted]"]
    ]


@requirement("R93")
async def test_every_recording_loads_and_replays_to_end(recordings: Path):
    loaded = {file.name: Recording.load(file) for file in recordings.glob("*/*.json")}  # noqa: ASYNC240
    assert loaded
    for name, recording in loaded.items():
        transport = ReplayTransport(recording, chunk_size=4096)
        for exchange in recording.exchanges:
            call = HttpCall(method=exchange.request.method, url="https://api.example.com" + exchange.request.path)
            if exchange.response.status >= 400:
                with pytest.raises(ProviderError) as caught:
                    await transport.open(call, DEFAULT_LIMITS)
                assert caught.value.status == exchange.response.status, name
            elif exchange.is_stream:
                assert await batches(transport, call), name
            else:
                answer = await transport.open(call, DEFAULT_LIMITS)
                assert await answer.body() == exchange.body_bytes(), name
        assert transport.remaining == 0, name
