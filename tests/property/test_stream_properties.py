"""What holds for the answer of every API, whatever happens to it: in the decoder, the turn, the chunks and the log.

`hostile.judge` checks it; `make fuzz` does the same for minutes, with other seeds.
"""

import json
import tempfile
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from hostile.corpus import closing, events_of, recorded, scripted, with_body, with_events
from hostile.judge import Judged, judge
from hostile.lies import LIES, is_true, told
from hostile.mutations import MUTATIONS, mangled
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.limits import Limits
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.store import open_store

ANSWERS = scripted()
MODELS = {
    "openai-responses": "openai-responses",
    "openai-chat": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "google-interactions": "google:interactions/gemini-3-flash-preview",
}
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=6)
WAYS = st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "index", "delta", "text"]), inner)
    ),
    max_leaves=8,
)

every_api = pytest.mark.parametrize("api", sorted(ANSWERS))
randoms = st.randoms(use_true_random=False)


def mutant(random: Random, exchange: Exchange, ways: list[str]) -> Exchange:
    """An answer to which these things happened."""
    events = original = events_of(exchange)
    for way in ways:
        events = MUTATIONS[way](random, events, [original])
    return with_events(exchange, events)


@requirement("R6", "F08")
@every_api
@settings(max_examples=20)
@given(sizes=SIZES)
async def test_parts_do_not_depend_on_chunking(api: str, sizes: list[int]) -> None:
    judged = await judge(ANSWERS[api], sizes)
    assert judged.errors == []


@requirement("R2", "R4", "F07", "F09")
@every_api
@settings(max_examples=20)
@given(random=randoms, ways=WAYS, sizes=SIZES)
async def test_mutated_events_are_valid_run(api: str, random: Random, ways: list[str], sizes: list[int]) -> None:
    one_end(await judge(mutant(random, ANSWERS[api], ways), sizes))


@requirement("F08")
@every_api
@settings(max_examples=20)
@given(random=randoms, sizes=SIZES)
async def test_mutated_bytes_are_valid_run(api: str, random: Random, sizes: list[int]) -> None:
    exchange = ANSWERS[api]
    one_end(await judge(with_body(exchange, mangled(random, exchange.body_bytes())), sizes))


@requirement("F06", "F07")
@every_api
@settings(max_examples=20)
@given(made=st.lists(JSON, min_size=1, max_size=4), data=st.data())
async def test_any_json_among_events_is_valid_run(api: str, made: list[Any], data: st.DataObject) -> None:
    events = events_of(ANSWERS[api])
    place = data.draw(st.integers(0, len(events)))
    sent = [json.dumps(value).encode() for value in made]
    one_end(await judge(with_events(ANSWERS[api], events[:place] + sent + events[place:])))


@requirement("F01")
@every_api
async def test_cut_after_any_event_is_one_error_and_one_finish(api: str) -> None:
    events = events_of(ANSWERS[api])
    whole = await complete_from(api)
    assert whole >= len(events) - 2, "the answer is complete long before its end"
    for end in range(whole):
        judged = await judge(with_events(ANSWERS[api], events[:end]))
        assert [error.kind for error in judged.errors] == ["truncated"]
        one_end(judged)


@requirement("F01", "F02")
@every_api
@settings(max_examples=20)
@given(data=st.data(), sizes=SIZES)
async def test_cut_after_any_byte_is_one_error_and_one_finish(api: str, data: st.DataObject, sizes: list[int]) -> None:
    body = ANSWERS[api].body_bytes()
    begun = with_body(ANSWERS[api], body[: data.draw(st.integers(0, len(body)))])
    judged = await judge(begun, sizes)
    is_complete = len(events_of(begun)) >= await complete_from(api)
    assert is_complete or [error.kind for error in judged.errors] == ["truncated"]
    one_end(judged)


@requirement("R82", "F01")
@every_api
@settings(max_examples=10)
@given(random=randoms, ways=WAYS)
async def test_mutated_answer_is_stored_as_received(api: str, random: Random, ways: list[str]) -> None:
    answers = (mutant(random, ANSWERS[api], ways), *[closing(api)] * 3)
    agent = Agent(MODELS[api], api_key="k", transport=ReplayTransport(Recording(answers)), limits=Limits(max_steps=3))
    with tempfile.TemporaryDirectory() as folder:
        async with aclosing(open_store(Path(folder) / "talk.db")) as store:
            chat = Chat(agent, store=store, id="talk")
            await chat.load()
            async with chat.stream("Why?", errors="parts") as run:
                one_end(Judged([part async for part in run]))
            assert chat.store_error is None
            again = Chat(agent, store=store, id="talk")
            await again.load()
            is_whole = run.error is None
            assert again.status == ("complete" if is_whole else "failed")
            assert not is_whole or again.messages == tuple(run.turn.state.messages)


@requirement("F57")
@every_api
@pytest.mark.parametrize("lie", sorted(LIES))
async def test_lying_stream_gives_truth_or_error(api: str, lie: str) -> None:
    other = with_body(closing(api), closing(api).body_bytes().replace(b"The end.", b"Another end."))
    told_of = [await told(Random(f"{lie}/{seed}"), lie, ANSWERS[api], [other]) for seed in range(40)]
    assert any(told_of) or (lie, api) in UNTOLD


UNTOLD = {
    # Without numbers of parts.
    ("renumber", "google"),
    # Without a text that comes twice.
    *(("lose_delta", api) for api in ("anthropic", "google", "google-interactions", "openai-chat")),
    # Without results of their own.
    *(("move_result", api) for api in ("google-interactions", "openai-chat", "openai-responses")),
}
"""Lies that an API cannot tell."""


async def test_oracle_rejects_wrong_answers() -> None:
    clean = await judge(closing("openai-chat"))
    events = [event for event in events_of(closing("openai-chat")) if b"end." not in event]
    wrong = await judge(with_events(closing("openai-chat"), events))
    assert is_true(clean, [clean])
    assert not wrong.errors
    assert not is_true(wrong, [clean])


@requirement("F57")
@pytest.mark.parametrize(
    "api", ["anthropic", "google", "google-interactions", "open-responses", "openai-chat", "openai-responses"]
)
async def test_lying_recordings_give_truth_or_error(api: str, recordings: Path) -> None:
    answers = [*recorded(recordings)[api].values()]
    for number, exchange in enumerate(answers):
        random = Random(number)
        await told(random, sorted(LIES)[number % len(LIES)], exchange, [random.choice(answers)])


@requirement("R6", "F07", "F09")
@pytest.mark.parametrize(
    "api", ["anthropic", "google", "google-interactions", "open-responses", "openai-chat", "openai-responses"]
)
async def test_every_recording_is_valid_in_odd_chunks_and_mutated(api: str, recordings: Path) -> None:
    answers = recorded(recordings)[api]
    for number, (name, exchange) in enumerate(answers.items()):
        random = Random(name)
        one_end(await judge(exchange))
        # One mutation of each recording; all of them for every API.
        way = sorted(MUTATIONS)[number % len(MUTATIONS)]
        one_end(await judge(mutant(random, exchange, [way])))


def one_end(judged: Judged) -> None:
    assert judged.parts[-1:] == judged.finishes
    assert len(judged.errors) <= 1


async def complete_from(api: str) -> int:
    """How many events of an answer must arrive for it to be complete."""
    if api not in _COMPLETE:
        events = events_of(ANSWERS[api])
        for end in range(len(events), -1, -1):
            if (await judge(with_events(ANSWERS[api], events[:end]))).errors:
                _COMPLETE[api] = end + 1
                break
    return _COMPLETE[api]


_COMPLETE: dict[str, int] = {}
