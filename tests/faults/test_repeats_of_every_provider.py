"""Events that come twice, too late, without their beginning or under other ids: the exact outcome for every API.

An API can only be as exact as what its events carry. Responses number their events and send a final payload
(tests/faults/test_stream_faults.py). Interactions have event ids. Messages have block indexes, so that all but a
repeated delta is recognised. Chunks of Chat Completions and of generateContent carry nothing that tells a repeat from
the same words said twice: what they say counts as often as it comes, and a call whose arguments were doubled never runs.
"""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from hostile.corpus import SCRIPTS, events_of, scripted, with_events
from hostile.judge import judge
from requirements import requirement
from sidestream import Agent
from sidestream.errors import ProtocolError
from sidestream.limits import MIB, Limits
from sidestream.parts import Raw, StreamPart, TextDelta, ToolCall, ToolEvent, ToolInputEnd, ToolInputStart
from sidestream.testing import FakeProvider, Reply

APIS = sorted(SCRIPTS)
Event = dict[str, Any]


def events(api: str) -> list[Event]:
    return [json.loads(event) for event in events_of(scripted()[api])]


async def parts_of(api: str, sent: list[Event]) -> list[StreamPart]:
    return (await judge(with_events(scripted()[api], [json.dumps(event).encode() for event in sent]))).parts


def split(parts: list[StreamPart]) -> tuple[list[StreamPart], list[Any]]:
    """The parts without the journeys of tools, and the events that were passed on as raw ones."""
    kept = [part for part in parts if not isinstance(part, Raw | ToolEvent)]
    return kept, [part.event for part in parts if isinstance(part, Raw)]


def said(parts: list[StreamPart]) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


def calls(parts: list[StreamPart]) -> list[tuple[str, Any, bool]]:
    made = [part for part in parts if isinstance(part, ToolCall) and not part.provider_executed]
    return [(call.name, call.input, call.input_error is not None) for call in made]


def is_delta(api: str, event: Event) -> bool:
    """True if an event adds to what is there, and nothing in it says that it came before."""
    match api:
        case "anthropic":
            return event["type"] == "content_block_delta"
        case "openai-chat":
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            return any(delta.get(key) for key in ("content", "reasoning_content"))
        case "google":
            return True
        case _:
            return False


@requirement("F09")
@pytest.mark.parametrize("api", [api for api in APIS if api != "google"])
async def test_recognisable_repeats_are_ignored(api: str) -> None:
    sent = events(api)
    clean, _ = split(await parts_of(api, sent))
    for place, event in enumerate(sent):
        if not is_delta(api, event):
            parts, raws = split(await parts_of(api, [*sent[: place + 1], *sent[place:]]))
            assert parts == clean
            assert raws in ([], [event])


@requirement("F09")
@pytest.mark.parametrize("api", ["anthropic", "google-interactions", "openai-chat", "openai-responses"])
async def test_stream_restarted_after_content_gives_same_parts(api: str) -> None:
    sent = events(api)
    # A chat's finish reason is its end; only the usage follows.
    parts, raws = split(await parts_of(api, [*sent[:-1], *sent]))
    assert parts == split(await parts_of(api, sent))[0]
    assert all(event in sent for event in raws)


DOUBLED = {
    "anthropic": "One,One, two, two, three. three.The end.",
    "openai-chat": "One,One, two, two, three. three.The end.",
    "google": "One,One, two, two, three. three.The end.",
    "google-interactions": "One, two, three.The end.",
    "openai-responses": "One, two, three.The end.",
}


@requirement("F09")
@pytest.mark.parametrize("api", APIS)
async def test_repeated_events_give_text_once_only_when_they_have_ids(api: str) -> None:
    parts = await parts_of(api, [event for event in events(api) for event in (event, event)])
    assert said(parts) == DOUBLED[api]
    starts = [part.id for part in parts if isinstance(part, ToolInputStart)]
    assert sorted(starts) == sorted({part.id for part in parts if isinstance(part, ToolInputEnd)})
    weather = ("get_weather", {"city": "Oslo"}, False)
    expected = {
        # The arguments came twice, one after the other: that is no JSON, so it never runs.
        "anthropic": [("get_weather", None, True)],
        # Two chunks with the same call are two calls: nothing says otherwise.
        "google": [weather, weather],
    }
    assert calls(parts) == expected.get(api, [weather])


LATE = {
    "anthropic": ("content_block_stop", "content_block_delta"),
    "google-interactions": ("step.stop", "step.delta"),
}


@requirement("F09")
@pytest.mark.parametrize("api", sorted(LATE))
async def test_delta_after_block_end_is_raw(api: str) -> None:
    stop, delta = LATE[api]
    sent = [{key: value for key, value in event.items() if key != "event_id"} for event in events(api)]
    kinds = [event.get("type") or event["event_type"] for event in sent]
    clean = await parts_of(api, sent)
    for end, kind in enumerate(kinds):
        index = sent[end].get("index")
        late = [e for e, k in zip(sent, kinds, strict=True) if k == delta and e.get("index") == index]
        if kind == stop and late:
            parts, raws = split(await parts_of(api, [*sent[: end + 1], late[0], *sent[end + 1 :]]))
            # What a server-side tool sends is a tool event, which is its raw form.
            assert raws in ([late[0]], [])
            assert said(parts) == said(clean)
            assert calls(parts) == calls(clean)


@requirement("F09")
async def test_chat_chunk_after_finish_reason_is_raw() -> None:
    sent = events("openai-chat")
    (late,) = [event for event in sent if event["choices"] and event["choices"][0]["delta"].get("content") == " two,"]
    parts, raws = split(await parts_of("openai-chat", [*sent[:-1], late, sent[-1]]))
    assert (parts, raws) == (await parts_of("openai-chat", sent), [late])


# Beginnings and ends that are missing


@requirement("F10")
@pytest.mark.parametrize("api", ["anthropic", "google-interactions"])
async def test_text_without_start_is_one_block(api: str) -> None:
    starts = ("content_block_start", "step.start")
    sent = [event for event in events(api) if (event.get("type") or event["event_type"]) not in starts]
    parts = await parts_of(api, sent)
    kinds = [part.type for part in parts]
    assert (kinds.count("text-start"), kinds.count("text-end"), said(parts)) == (1, 1, "One, two, three.")
    assert (kinds.count("reasoning-start"), kinds.count("reasoning-end")) == (1, 1)
    # The name and the id of a call are in its beginning: without it there is nothing to call.
    assert calls(parts) == []
    assert [part for part in parts if isinstance(part, Raw)]


@requirement("F10")
@pytest.mark.parametrize("api", ["anthropic", "google-interactions"])
async def test_blocks_without_ends_are_ended_once_each(api: str) -> None:
    ends = ("content_block_stop", "step.stop")
    sent = [event for event in events(api) if (event.get("type") or event["event_type"]) not in ends]
    parts, raws = split(await parts_of(api, sent))
    clean, _ = split(await parts_of(api, events(api)))
    assert sorted(part.to_json() for part in parts) == sorted(part.to_json() for part in clean)
    assert raws == []


@requirement("F10")
async def test_chat_call_without_start_is_one_call_without_tool() -> None:
    sent = events("openai-chat")
    opening = next(e for e in sent if e["choices"] and e["choices"][0]["delta"].get("tool_calls"))
    parts = await parts_of("openai-chat", [event for event in sent if event is not opening])
    assert calls(parts) == [("", {"city": "Oslo"}, False)]
    kinds = [part.type for part in parts]
    assert (kinds.count("tool-input-start"), kinds.count("tool-input-end")) == (1, 1)


# Ids that change


def renamed(api: str, sent: list[Event]) -> list[Event]:
    """The same events under other ids in each of them."""
    changed: list[Event] = json.loads(json.dumps(sent))
    for number, event in enumerate(changed):
        match api:
            case "openai-chat":
                event["id"] = f"x{number}"
                for choice in event["choices"]:
                    for call in choice["delta"].get("tool_calls") or ():
                        call["id"] = f"call_{number}"
            case "google-interactions":
                if "interaction" in event:
                    event["interaction"]["id"] = f"x{number}"
            case _:
                if "message" in event:
                    event["message"]["id"] = f"x{number}"
    return changed


@requirement("F11")
@pytest.mark.parametrize("api", ["anthropic", "google-interactions", "openai-chat"])
async def test_ids_changing_between_events_leave_same_blocks(api: str) -> None:
    sent = events(api)
    clean, parts = await parts_of(api, sent), await parts_of(api, renamed(api, sent))
    assert [part.type for part in parts] == [part.type for part in clean]
    assert (said(parts), calls(parts)) == (said(clean), calls(clean))


# Huge events

CAP = 2 * MIB
AGENTS = {
    "anthropic": "anthropic",
    "google": "google",
    "google-interactions": "google:interactions/gemini-3-flash-preview",
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
}


@requirement("F14")
@pytest.mark.parametrize("api", APIS)
async def test_event_just_below_cap_is_accepted(api: str) -> None:
    text = "A" * (CAP - 2000)
    # The last event of a whole response may hold the text once more.
    async with FakeProvider([type(SCRIPTS[api][1])().text([text]).reply()]) as fake:
        agent = Agent(AGENTS[api], base_url=fake.base_url, api_key="k", limits=Limits(max_event_bytes=CAP))
        assert (await agent.send("hi")).output == text


@requirement("F14")
@pytest.mark.parametrize("api", APIS)
async def test_event_above_cap_closes_connection_with_bounded_memory(api: str) -> None:
    beginning = events_of(scripted()[api])[0].decode()
    piece = b"A" * 65_536
    body = [beginning, b'data: {"text":"', *[piece] * (16 * CAP // len(piece)), b'"}\n\n']
    async with FakeProvider([Reply(body=body, content_type="text/event-stream")]) as fake:
        agent = Agent(AGENTS[api], base_url=fake.base_url, api_key="k", limits=Limits(max_event_bytes=CAP))
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError) as caught:
                await agent.send("hi")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.code == "event-too-large"
        assert peak < 3 * CAP
        async with asyncio.timeout(30):
            await fake.wait_idle()
        assert (fake.connections_open, len(fake.requests)) == (0, 1)
