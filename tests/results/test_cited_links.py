"""Links with which a model cites: numbers replace them, live, in results, on the terminal, in exports and logs."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream import Agent, Chat, ChatResult, Citations
from sidestream.parts import Source, StepStart, StreamPart, TextDelta, TextEnd, TextStart, part_from_json
from sidestream.protocols.ai_sdk.message import UIMessageEncoder
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.results.results import fold
from sidestream.server.console.runs_api import markdown_text
from sidestream.store import open_store
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.fold import stream_of
from sidestream.stream.markers import MAX_LAG_CHARS, claim_before, marker_at
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, sse
from sidestream.text.html import without_tracking
from support.places import RECORDINGS

PAGE = "https://a.example/x"
TRACKED = f"{PAGE}?utm_source=openai"
CLAIM = "It rains in Oslo, in the U.S. too."
LINK = f"([a.example]({TRACKED}))"
TEXT = f"Hi! {CLAIM} {LINK} And so on."


def annotation(text: str, link: str = LINK, url: str = TRACKED) -> dict[str, Any]:
    start = text.index(link)
    return {"type": "url_citation", "url": url, "title": "A", "start_index": start, "end_index": start + len(link)}


def responses(text: str = TEXT, link: str = LINK) -> Any:
    """An answer as the API streams it: the annotation comes shortly after its link."""
    script = ResponsesScript().text([text], annotations=[annotation(text, link)])
    events = script.events()
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    (noted,) = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    rest = [event for event in events if event not in (delta, noted)]
    at = events.index(delta)
    start, end = text.index(link), text.index(link) + len(link)
    deltas = [{**delta, "delta": piece} for piece in (text[:start], text[start : end + 3], text[end + 3 :])]
    ordered = [*rest[:at], *deltas[:2], noted, *deltas[2:], *rest[at:]]
    return [{**event, "sequence_number": number} for number, event in enumerate(ordered)]


async def answered(provider: str, script: Any) -> tuple[str, ChatResult[str]]:
    """What a terminal gets of an answer, and its result."""
    reply = sse(script) if isinstance(script, list) else script.reply()
    async with FakeProvider([reply]) as fake:
        chunks = [chunk async for chunk in Agent(provider, base_url=fake.base_url).send_stream("hi")]
    citations = Citations()
    return "".join(map(citations.feed, chunks)), fold(chunks)


@requirement("R182")
async def test_number_replaces_link_written_by_model() -> None:
    live, result = await answered("openai-responses", responses())
    cited = result.cited_text()
    assert live == cited.text == f"Hi! {CLAIM} [1] And so on."
    assert cited.listing == f"[1] A {PAGE}"
    assert str(result.cited_text("markdown")) == f"Hi! {CLAIM} [[1]]({PAGE}) And so on.\n\n1. [A]({PAGE})"
    assert result.output == TEXT
    (source,) = result.sources
    assert (source.url, TEXT[source.start : source.end]) == (TRACKED, LINK)
    assert TEXT[source.marker_start : source.marker_end] == LINK
    assert TEXT[source.claim_start : source.claim_end] == CLAIM
    assert [one.url for one in cited.sources] == [TRACKED]


POST = "[The Post](https://a.example/x)"
FORMS = {
    "bare link at the end of a sentence": (f"It rains {POST}.", POST, "It rains [1]."),
    "numbered link": (f"It rains.[[1]]({PAGE}) So.", f"[[1]]({PAGE})", "It rains.[1] So."),
    "parentheses outside the span": (f"It rains ([A]({PAGE})).", f"[A]({PAGE})", "It rains [1]."),
    "address with parentheses": (f"It rains. ([A]({PAGE}_(y)))", f"([A]({PAGE}_(y)))", "It rains. [1]"),
    "several links": (f"It rains. ([A]({PAGE}), {POST})", f"([A]({PAGE}), {POST})", "It rains. [1]"),
    "link that is a word of the sentence": (f"As {POST} says, it rains.", POST, f"As {POST}[1] says, it rains."),
    "claim": ("It rains. So.", "It rains.", "It rains.[1] So."),
}


@pytest.mark.parametrize(("text", "link", "expected"), FORMS.values(), ids=FORMS)
async def test_links_of_servers_are_distinguished_from_text(text: str, link: str, expected: str) -> None:
    live, result = await answered("openai-responses", responses(text, link))
    assert result.cited_text().text == expected
    assert live in (expected, f"{text}[1]")  # A link that may be a word of its sentence is not waited for.


async def test_chat_completions_annotations_are_markers() -> None:
    note = annotation(TEXT)
    script = ChatScript().text(TEXT, annotations=[{"type": "url_citation", "url_citation": note}])
    _, result = await answered("openai-chat", script)
    (source,) = result.sources
    assert TEXT[source.claim_start : source.claim_end] == CLAIM
    assert result.cited_text().text == f"Hi! {CLAIM} [1] And so on."


async def test_markers_after_one_sentence_share_its_claim() -> None:
    other = "([b.example](https://b.example/))"
    text = f"{CLAIM} {LINK} {other} It snows, {LINK}, and thaws. {other}"
    at = [found.start() for found in re.finditer(r"\(\[", text)]
    notes = [
        {**annotation(text), "start_index": start, "end_index": start + len(link), "title": f"{number}"}
        for number, (start, link) in enumerate(zip(at, (LINK, other, LINK, other), strict=True))
    ]
    _, result = await answered("openai-responses", ResponsesScript().text(text, annotations=notes))
    claims = [text[source.claim_start : source.claim_end] for source in result.sources]
    assert claims == [CLAIM, CLAIM, "It snows,", "and thaws."]


@requirement("R182")
async def test_recorded_answer_reads_same_live() -> None:
    recording = RECORDINGS / "openai-responses" / "v-openai-web-search-tool.1-stream.json"
    if not recording.is_file():
        pytest.skip("no recordings")
    chunks = [chunk async for chunk in Agent(f"replay:{recording}").send_stream("hi")]
    citations = Citations()
    live, result = "".join(map(citations.feed, chunks)), fold(chunks)
    cited = result.cited_text()
    assert live == cited.text
    assert "utm_source" not in str(cited)
    assert "](" not in cited.text
    assert all(source.claim_end and source.marker_start for source in result.sources)
    assert "utm_source=openai" in result.output


async def test_log_and_web_ui_keep_markers(tmp_path: Path) -> None:
    store = open_store(tmp_path / "talks.db")
    async with FakeProvider([sse(responses())]) as fake:
        chat = Chat(Agent("openai-responses", base_url=fake.base_url), store=store, id="talk")
        await chat.load()
        result = await chat.send("hi")
    records = await Conversation(store, "talk").records()
    await store.aclose()
    exported, _ = markdown_text(records)
    assert f"Hi! {CLAIM} [^1] And so on." in exported
    assert f"[^1]: [A]({PAGE})\n" in exported
    encoder, message = UIMessageEncoder("m"), UIMessageFold("m")
    parts = [*stream_of(records)]
    assert [part for part in parts if isinstance(part, Source)] == result.sources
    for part in parts:
        message.feed(encoder.feed(part))
    (source,) = [part for part in message.message()["parts"] if part["type"] == "source-url"]
    shown = source["providerMetadata"]["sidestream"]
    assert TEXT[shown["markerStart"] : shown["markerEnd"]] == LINK
    assert TEXT[shown["claimStart"] : shown["claimEnd"]] == CLAIM
    assert source["url"] == TRACKED


def test_source_of_older_log_is_read_as_before() -> None:
    text = '{"type":"source","id":"s","kind":"url","url":"https://a.example/","start":0,"end":4,"text_id":"t"}'
    source = part_from_json(text)
    assert isinstance(source, Source)
    assert (source.end, source.marker_start, source.claim_start) == (4, None, None)
    assert source.to_json() == text


@given(st.text(alphabet='ab ([])\n.:/"h', max_size=60), st.lists(st.integers(1, 7), max_size=30))
def test_text_without_sources_arrives_unchanged(text: str, sizes: list[int]) -> None:
    citations, rest = Citations(), text
    parts: list[StreamPart] = [StepStart(0), TextStart("t")]
    for size in sizes:
        parts.append(TextDelta("t", rest[:size]))
        rest = rest[size:]
    parts += [TextDelta("t", rest), TextEnd("t")]
    assert "".join(map(citations.feed, parts)) == text == citations.text


@given(st.integers(1, len(TEXT)), st.booleans())
def test_link_is_replaced_however_it_is_split(size: int, is_ahead: bool) -> None:
    start = TEXT.index(LINK)
    end = start + len(LINK)
    source = Source("s", "url", url=TRACKED, start=start, end=end, text_id="t", marker_start=start, marker_end=end)
    deltas: list[StreamPart] = [TextDelta("t", TEXT[at : at + size]) for at in range(0, end, size)]
    deltas[-1] = TextDelta("t", TEXT[(len(deltas) - 1) * size : end])
    before = [source, *deltas] if is_ahead else [*deltas, source]
    parts = [StepStart(0), TextStart("t"), *before, TextDelta("t", TEXT[end:]), TextEnd("t")]
    citations = Citations()
    assert "".join(map(citations.feed, parts)) == citations.text == TEXT.replace(LINK, "[1]")


def test_late_source_leaves_its_link_live() -> None:
    start = TEXT.index(LINK)
    end = start + len(LINK)
    source = Source("s", "url", url=TRACKED, start=start, end=end, text_id="t", marker_start=start, marker_end=end)
    citations = Citations()
    text = f"{TEXT}{'.' * MAX_LAG_CHARS}"
    live = "".join(map(citations.feed, [StepStart(0), TextStart("t"), TextDelta("t", text), source, TextEnd("t")]))
    assert live == f"{text}[1]"
    assert citations.text == text.replace(LINK, "[1]")


@pytest.mark.parametrize("span", [(None, 3), (0, None), (3, 3), (-1, 4), (0, 999)])
def test_span_outside_text_is_not_marker(span: tuple[Any, Any]) -> None:
    assert marker_at(TEXT, *span) is None


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("- One thing. - Two. ", "- Two."),
        ("Intro:\n1. It is so ", "It is so"),
        ('He said "no." Then ', "Then"),
        (
            "It closed. Dr. Ott of the U.S. Army paid approx. 5 dollars. ",
            "Dr. Ott of the U.S. Army paid approx. 5 dollars.",
        ),
        ("It closed. See Fig. 3 and No. 5. ", "See Fig. 3 and No. 5."),
        ("Er ging. Am 3. Mai kam er. ", "Am 3. Mai kam er."),
        ("", ""),
    ],
)
def test_claim_is_sentence_before_marker(text: str, claim: str) -> None:
    start, end = claim_before(text, len(text))
    assert text[start:end].removeprefix("- ") == claim.removeprefix("- ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (TRACKED, PAGE),
        (f"{PAGE}?a=1&utm_source=openai&b=2#c", f"{PAGE}?a=1&b=2#c"),
        (f"{PAGE}?a=utm_source", f"{PAGE}?a=utm_source"),
        (f"{PAGE}#?utm_source=1", f"{PAGE}#?utm_source=1"),
        ("", ""),
    ],
)
def test_tracking_parameters_are_not_shown(url: str, shown: str) -> None:
    assert without_tracking(url) == shown
