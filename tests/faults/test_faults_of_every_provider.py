"""The faults of a stream, for every API: the same kinds of part, whoever the provider is.

Cuts, chunks and mutations of every API are in tests/property/test_stream_properties.py.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from hostile.corpus import SCRIPTS, events_of, scripted, with_body, with_events
from hostile.judge import Judged, judge
from requirements import requirement
from sidestream.parts import Finish, Raw, StepFinish, StreamPart, TextDelta, ToolCall, ToolResult
from sidestream.replay.recording import EVENT_STREAM, Exchange, RecordedRequest, RecordedResponse
from sidestream.testing import (
    ChatScript,
    GeminiScript,
    InteractionScript,
    MessagesScript,
    ResponsesScript,
    encode_events,
)

APIS = sorted(SCRIPTS)
every_api = pytest.mark.parametrize("api", APIS)
Build = Callable[[Any], Any]


def exchange_of(api: str, script: Any) -> Exchange:
    path = SCRIPTS[api][0]
    body = encode_events(script.reply().body).decode("utf-8", "surrogatepass")
    return Exchange(RecordedResponse(200, EVENT_STREAM, body), RecordedRequest("POST", path, {"stream": True}))


async def parts_of(api: str, script: Any) -> Judged:
    return await judge(exchange_of(api, script))


def new(api: str) -> Any:
    """An empty script of an API."""
    return type(SCRIPTS[api][1])()


def of(parts: list[StreamPart], kind: Any) -> list[Any]:
    return [part for part in parts if isinstance(part, kind)]


def text_of(parts: list[StreamPart]) -> str:
    return "".join(part.delta for part in of(parts, TextDelta))


def call(script: Any, arguments: Any, call_id: str = "call_1") -> Any:
    """The script with a call of a client's function."""
    match script:
        case ResponsesScript():
            return script.function_call("look", arguments, call_id)
        case ChatScript():
            return script.tool_call("look", arguments, call_id)
        case MessagesScript():
            return script.tool_use("look", arguments, call_id)
        case InteractionScript():
            return script.function_call("look", arguments, call_id=call_id)
        case _:
            return script.function_call("look", arguments)


# How an answer ends

FAILED: dict[str, Build] = {
    "openai-responses": lambda s: s.failed("server_error", "it broke"),
    "openai-chat": lambda s: s.error("server_error", "it broke"),
    "anthropic": lambda s: s.error("overloaded_error", "it broke"),
    "google": lambda s: s.error(503, "UNAVAILABLE", "it broke"),
    "google-interactions": lambda s: s.error("UNAVAILABLE", "it broke"),
}
SHORTENED: dict[str, Build] = {
    "openai-responses": lambda s: s.incomplete(),
    "openai-chat": lambda s: s.stop("length"),
    "anthropic": lambda s: s.stop("max_tokens"),
    "google": lambda s: s.finish("MAX_TOKENS"),
    "google-interactions": lambda s: s.finish("incomplete"),
}
FILTERED: dict[str, Build] = {
    "openai-responses": lambda s: s.incomplete("content_filter"),
    "openai-chat": lambda s: s.stop("content_filter"),
    "anthropic": lambda s: s.refusal(),
    "google": lambda s: s.finish("SAFETY"),
}


@requirement("F03")
@every_api
async def test_provider_error_in_mid_stream_is_one_error_with_code(api: str) -> None:
    judged = await parts_of(api, FAILED[api](new(api).text(["So ", "far"])))
    (error,) = judged.errors
    assert error.kind == "provider"
    assert error.code
    assert error.retryable
    assert "it broke" in error.message
    assert text_of(judged.parts) == "So far"


@requirement("F04")
@every_api
async def test_too_long_answer_finishes_with_length_without_error(api: str) -> None:
    judged = await parts_of(api, SHORTENED[api](new(api).text(["So ", "far"])))
    assert judged.errors == []
    assert [finish.reason for finish in judged.finishes] == ["length"]
    assert text_of(judged.parts) == "So far"


@requirement("F05")
@pytest.mark.parametrize("api", sorted(FILTERED))
async def test_filtered_answer_finishes_as_filtered_without_error(api: str) -> None:
    judged = await parts_of(api, FILTERED[api](new(api).text(["So ", "far"])))
    assert judged.errors == []
    (finish,) = judged.finishes
    assert finish.reason == "content-filter"
    assert finish.raw_reason


# What comes between the events


@requirement("F06")
@every_api
async def test_unknown_event_anywhere_only_adds_raw_part(api: str) -> None:
    exchange = scripted()[api]
    events, clean = events_of(exchange), (await judge(exchange)).parts
    unknown = {"type": "telepathy"}
    for place in range(1, len(events)):
        parts = (
            await judge(with_events(exchange, [*events[:place], json.dumps(unknown).encode(), *events[place:]]))
        ).parts
        assert [part.event for part in of(parts, Raw)] == [unknown]
        assert [part for part in parts if not isinstance(part, Raw)] == clean


NOISE = {
    "CRLF": lambda body: body.replace(b"\n", b"\r\n"),
    "CR": lambda body: body.replace(b"\n", b"\r"),
    "a BOM": lambda body: b"\xef\xbb\xbf" + body,
    "comments": lambda body: body.replace(b"\n\n", b"\n\n: keep-alive\n\n"),
    "empty data": lambda body: body.replace(b"\n\n", b"\n\ndata:\n\n"),
    "pings": lambda body: body.replace(b"\n\n", b"\n\ndata: ping\n\n"),
    "[DONE] everywhere": lambda body: body.replace(b"\n\n", b"\n\ndata: [DONE]\n\n"),
    "fields of SSE": lambda body: body.replace(b"\n\n", b"\nid: 7\nretry: 5\n\n"),
}


@requirement("F08")
@every_api
@pytest.mark.parametrize("noise", NOISE)
async def test_noise_around_events_does_not_change_parts(api: str, noise: str) -> None:
    exchange = scripted()[api]
    noisy = with_body(exchange, NOISE[noise](exchange.body_bytes()))
    assert (await judge(noisy)).parts == (await judge(exchange)).parts


# Calls


@requirement("F13")
@pytest.mark.parametrize("api", [api for api in APIS if api != "google"])  # Gemini sends arguments as an object.
async def test_broken_json_arguments_are_never_input(api: str) -> None:
    judged = await parts_of(api, call(new(api), '{"city": "Os'))
    (made,) = of(judged.parts, ToolCall)
    assert made.input is None
    assert made.input_error
    assert made.input_text == '{"city": "Os'
    (answered,) = of(judged.parts, ToolResult)
    assert answered.is_error


@requirement("F17")
@every_api
@pytest.mark.parametrize(
    "text", ['"', "\\", "\n\r\t", "\u2028\u2029", "😀", "\x00\x7f", "'''\\\"", "\\u0041", "\ud83d"]
)
async def test_odd_characters_in_arguments_round_trip(api: str, text: str) -> None:
    value = {"code": f"x = r{text}"}
    # Where arguments are streamed, one character at a time.
    arguments = [*json.dumps(value)] if api in ("openai-chat", "anthropic") else value
    (made,) = of((await parts_of(api, call(new(api), arguments))).parts, ToolCall)
    assert made.input == value


def place_of(event: dict[str, Any]) -> int | None:
    """Which of several calls an event belongs to."""
    if "choices" in event:
        calls = event["choices"][0]["delta"].get("tool_calls") if event["choices"] else None
        return calls[0]["index"] if calls else None
    return event.get("output_index", event.get("index"))


@requirement("F18")
@pytest.mark.parametrize("api", [api for api in APIS if api != "google"])  # Gemini sends each call at once.
async def test_concurrently_streamed_calls_do_not_mix(api: str) -> None:
    script = call(call(new(api), {"n": "the first one"}, "call_a"), {"n": "the second one"}, "call_b")
    exchange = exchange_of(api, script)
    events = [json.loads(event) for event in events_of(exchange)]
    places = [place_of(event) for event in events]
    first, last = places.index(0), len(places) - 1 - places[::-1].index(1)
    groups = [[event for event in events[first : last + 1] if place_of(event) == place] for place in (0, 1)]
    mixed = [event for pair in itertools.zip_longest(*groups) for event in pair if event is not None]
    assert mixed != events[first : last + 1]
    sent = [
        {k: v for k, v in e.items() if k != "sequence_number"} for e in (*events[:first], *mixed, *events[last + 1 :])
    ]
    parts = (await judge(with_events(exchange, [json.dumps(event).encode() for event in sent]))).parts
    assert {made.id: made.input for made in of(parts, ToolCall)} == {
        "call_a": {"n": "the first one"},
        "call_b": {"n": "the second one"},
    }


@requirement("F01", "R4")
@every_api
async def test_answer_without_events_is_error(api: str) -> None:
    judged = await judge(with_body(scripted()[api], b""))
    assert [error.kind for error in judged.errors] == ["truncated"]
    assert [part.reason for part in of(judged.parts, Finish | StepFinish)] == ["error", "error"]


def test_every_script_in_package_is_covered() -> None:
    assert {type(script) for _, script in SCRIPTS.values()} == {
        ResponsesScript,
        ChatScript,
        MessagesScript,
        GeminiScript,
        InteractionScript,
    }
