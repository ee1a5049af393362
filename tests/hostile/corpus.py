"""Answers to make hostile: one of each wire from the script builders, and what providers really sent, where it is there."""

from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sidestream.providers.protocol import Decoder
from sidestream.providers.registry import providers
from sidestream.replay.recording import (
    EVENT_STREAM,
    Exchange,
    RecordedRequest,
    RecordedResponse,
    Recording,
    splitter_for,
    to_value,
)
from sidestream.testing import (
    ChatScript,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    encode_events,
    pixel_png,
)
from sidestream.transport.calls import DONE
from support.places import RECORDINGS

MORE_RECORDINGS = RECORDINGS.with_name("recordings-more")
"""Of other hosts and servers."""
UNLIMITED = 1 << 40
CITATION = {"type": "url_citation", "url": "https://example.com", "title": "E", "start_index": 0, "end_index": 3}
MESSAGES_USAGE = {
    "input_tokens": 25,
    "cache_read_input_tokens": 3,
    "cache_creation": {"ephemeral_1h_input_tokens": 0},
    "output_tokens": 9,
    "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
    "output_tokens_details": {"thinking_tokens": 2},
}

SCRIPTS: dict[str, tuple[str, Any]] = {
    "openai-responses": (
        "/v1/responses",
        ResponsesScript()
        .reasoning("Let me see.")
        .web_search("news", sources=["https://example.com"])
        .code_interpreter("print(1)", logs="1\n", container_id="cntr_1")
        .image(pixel_png(), partials=1)
        .text("One, two, three.", annotations=[CITATION])
        .function_call("get_weather", {"city": "Oslo"}),
    ),
    "openai-chat": (
        "/v1/chat/completions",
        ChatScript().reasoning("Hm.").text("One, two, three.").tool_call("get_weather", {"city": "Oslo"}),
    ),
    "anthropic": (
        "/v1/messages",
        MessagesScript(usage=MESSAGES_USAGE)
        .thinking("Let me see.")
        .web_search("news")
        .code_execution("print(1)", stdout="1\n", files=["file_1"])
        .text("One, two, three.")
        .tool_use("get_weather", {"city": "Oslo"}),
    ),
    "google": (
        "/v1beta/models/gemini:streamGenerateContent",
        GeminiScript()
        .thought("Let me see.")
        .code("print(1)", "1\n")
        .text("One, two, three.")
        .function_call("get_weather", {"city": "Oslo"}),
    ),
    "google-interactions": (
        "/v1beta/interactions",
        InteractionScript()
        .thought("Let me see.")
        .text("One, two, three.")
        .function_call("get_weather", {"city": "Oslo"}),
    ),
}
"""API → the path of its model calls, and an answer with something of everything."""


_providers = cache(providers)


def decoder_for(request: RecordedRequest) -> Decoder | None:
    """A decoder for the answer to this request; None if it was no model call."""
    found = (each.recorded_decoder(request.method, request.path, request.body) for each in _providers().values())
    return next((decoder for decoder in found if decoder is not None), None)


def scripted() -> dict[str, Exchange]:
    """API → an answer of a builder, as a stream."""
    return {api: _stream(path, encode_events(script.reply().body).decode()) for api, (path, script) in SCRIPTS.items()}


def closing(api: str) -> Exchange:
    """The shortest answer of an API."""
    path, script = SCRIPTS[api]
    return _stream(path, encode_events(type(script)().text("The end.").reply().body).decode())


def recorded(folder: Path = RECORDINGS) -> dict[str, dict[str, Exchange]]:
    """API → name → a model call that was recorded. Empty if there are no recordings."""
    found: dict[str, dict[str, Exchange]] = {}
    for path in sorted(folder.glob("*/*.json")):
        for number, exchange in enumerate(Recording.load(path).exchanges):
            if exchange.response.status < 400 and decoder_for(exchange.request) is not None:
                found.setdefault(path.parent.name, {})[f"{path.stem}#{number}"] = exchange
    return found


def frames_of(exchange: Exchange) -> list[bytes]:
    """The data of each event; of an answer that was not streamed, its body alone."""
    if not exchange.is_stream:
        return [exchange.body_bytes()]
    splitter = splitter_for(exchange.response.content_type, UNLIMITED)
    return splitter.feed(exchange.body_bytes()) + splitter.flush()


def events_of(exchange: Exchange) -> list[bytes]:
    """The data of each event, `[DONE]` left out."""
    return [data for data in frames_of(exchange) if data != DONE]


def with_events(exchange: Exchange, events: list[bytes]) -> Exchange:
    """The same exchange with other events."""
    if not exchange.is_stream:
        return with_body(exchange, events[0] if events else b"")
    plain = replace(exchange, response=replace(exchange.response, content_type=EVENT_STREAM))
    return with_body(plain, b"".join(b"data: %b\n\n" % data.replace(b"\n", b"\ndata: ") for data in events))


def with_body(exchange: Exchange, body: bytes) -> Exchange:
    """The same exchange with other bytes."""
    return replace(exchange, response=replace(exchange.response, body=to_value(body, is_json=False)))


def _stream(path: str, body: str) -> Exchange:
    return Exchange(RecordedResponse(200, EVENT_STREAM, body), RecordedRequest("POST", path, {"stream": True}))
