"""Citations: markers by span, the same number for the same source, live as in the whole result."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream import Citations, RunError
from sidestream.parts import (
    Error,
    Finish,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    Usage,
)
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.results import CitedText
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import ChatResult, fold
from support.places import RECORDINGS

WITH_SOURCES = [
    "anthropic/p-test_anthropic_web_search_tool_stream",
    "anthropic/p-test_anthropic_text_parts_ahead_of_built_in_tool_call",
    "google/p-test_google_model_web_search_tool_stream",
    "google/p-test_google_model_file_search_grounding_gemini_3_True_",
    "google-interactions/v-google-search-stream",
    "openai-responses/v-openai-web-search-tool.1-stream",
]


def source(number: int, end: int | None, *, url: str = "", text_id: str | None = "t", **fields: Any) -> Source:
    return Source(f"s{number}", "url", url=url or f"https://{number}.example/", text_id=text_id, end=end, **fields)


def run_of(*steps: list[StreamPart]) -> list[StreamPart]:
    """A whole run of these steps."""
    parts: list[StreamPart] = [StreamStart(())]
    for number, step in enumerate(steps):
        parts += [StepStart(number), *step, StepFinish(number, "stop", Usage())]
    return [*parts, Finish("stop", Usage())]


def block(text: str, *, size: int = 1, block_id: str = "t") -> list[StreamPart]:
    deltas = [TextDelta(block_id, text[at : at + size]) for at in range(0, len(text), size)]
    return [TextStart(block_id), *deltas, TextEnd(block_id)]


def chunks_of(parts: list[StreamPart]) -> list[ChatResult[str]]:
    folding = ChunkFold()
    return [chunk for part in parts for chunk in folding.feed(part)]


def cited(*parts: StreamPart, style: Any = "numbers") -> CitedText:
    return fold(chunks_of(run_of([*parts]))).cited_text(style)


@requirement("R105")
def test_marker_follows_its_span() -> None:
    made = cited(*block("One fact. Another."), source(1, 9, title="A"), source(2, 18))
    assert made.text == "One fact.[1] Another.[2]"
    assert [(s.number, s.url, s.title) for s in made.sources] == [
        (1, "https://1.example/", "A"),
        (2, "https://2.example/", None),
    ]


@requirement("R105")
def test_repeated_source_keeps_number_and_collects_passages() -> None:
    same = "https://same.example/"
    made = cited(
        *block("abc"), source(1, 1, url=same, cited_text="x"), source(2, 2), source(3, 3, url=same, cited_text="y")
    )
    assert made.text == "a[1]b[2]c[1]"
    assert made.sources[0].passages == ("x", "y")


@requirement("R105")
def test_overlapping_spans_list_each_number_once_in_order() -> None:
    made = cited(
        *block("abcd"),
        source(1, 4, start=0),
        source(2, 3, start=1),
        source(3, 4),
        source(4, 4, url="https://1.example/"),
    )
    assert made.text == "abc[2]d[1][3]"


@requirement("R105")
@pytest.mark.parametrize(("end", "text"), [(99, "abc[1]"), (-5, "[1]abc"), (0, "[1]abc"), (None, "abc[1]")])
def test_out_of_range_span_is_clamped_and_default_end_is_block(end: int | None, text: str) -> None:
    assert cited(*block("abc"), source(1, end)).text == text


@requirement("R105")
def test_offsets_count_characters_and_keep_surrogate_pairs() -> None:
    assert cited(*block("é😀x"), source(1, 2)).text == "é😀[1]x"
    assert cited(*block("\ud83d\ude00x"), source(1, 1)).text == "\ud83d\ude00[1]x"


@requirement("R105", "R18")
def test_blocks_and_steps_are_separate_when_ids_repeat() -> None:
    parts = run_of(
        [*block("ab"), source(1, 1), *block("cd", block_id="u"), source(2, 1, text_id="u")],
        [*block("ef"), source(1, 2, url="https://3.example/")],
    )
    result = fold(chunks_of(parts))
    assert result.output == "abcd\nef"
    assert result.cited_text().text == "a[1]bc[2]d\nef[3]"


@requirement("R105")
def test_tool_files_and_sources_without_block_have_no_number() -> None:
    generated = Source("f", "container_file", file_id="cf", title="a.csv", text_id="t", start=0, end=2)
    assert cited(*block("ab"), generated, source(1, 1, text_id=None)) == CitedText(text="ab")


@requirement("R105")
def test_markers_and_lists_follow_style() -> None:
    parts = [*block("ab"), source(1, 1, title="A [b]\nc"), Source("d", "document", file_id="f_1", text_id="t", end=2)]
    assert str(cited(*parts)) == "a[1]b[2]\n\n[1] A [b] c https://1.example/\n[2] f_1"
    assert str(cited(*parts, style="markdown")) == (
        "a[[1]](https://1.example/)b[2]\n\n1. [A \\[b\\] c](https://1.example/)\n2. f\\_1"
    )
    assert str(cited(*parts, style="footnotes")) == (
        "a[^1]b[^2]\n\n[^1]: [A \\[b\\] c](https://1.example/)\n[^2]: f\\_1"
    )


@requirement("R105")
def test_source_url_cannot_escape_its_marker() -> None:
    made = cited(*block("a"), source(1, 1, url="https://a.example/)[x](javascript:1) <b>"), style="markdown")
    assert made.text == "a[[1]](https://a.example/%29%5Bx%5D%28javascript:1%29%20%3Cb%3E)"
    assert cited(*block("a"), source(1, 1, url="javascript:alert(1)"), style="markdown").text == "a[1]"


@requirement("R105")
def test_final_text_is_cited_instead_of_deltas() -> None:
    parts = [TextStart("t"), TextDelta("t", "abc"), source(1, 2), TextEnd("t", text="xy")]
    assert cited(*parts).text == "xy[1]"


@requirement("R105")
def test_broken_off_run_has_cited_text() -> None:
    parts = run_of(block("One."), [*block("Two."), source(1, 3)])[:-2]
    result = fold(
        chunks_of([*parts, StepFinish(1, "error", Usage()), Error("truncated", "?"), Finish("error", Usage())])
    )
    kept = [message for message in result.messages if message.text == "One."]
    broken = ChatResult(text=result.output, parts=result.parts, messages=tuple(kept))
    assert broken.cited_text().text == "One.\nTwo[1]."


@requirement("R105")
def test_live_marker_is_placed_in_text_if_source_arrives_in_time() -> None:
    citations = Citations()
    parts = run_of(
        [
            TextStart("t"),
            TextDelta("t", "ab"),
            source(1, 2),
            TextDelta("t", "cd"),
            source(2, 6),
            TextDelta("t", "efg"),
            TextEnd("t"),
        ]
    )
    assert "".join(map(citations.feed, parts)) == "ab[1]cdef[2]g" == citations.text


@requirement("R105")
def test_late_live_marker_follows_at_block_end() -> None:
    citations = Citations()
    parts = run_of([*block("abcd"), source(1, 2)], block("ef"))
    assert "".join(map(citations.feed, parts)) == "abcd[1]\nef"
    assert citations.text == "ab[1]cd\nef"


TEXT = st.text(st.sampled_from("ab \n😀é\ud83d\ude00[]"), max_size=12)


@requirement("R105")
@given(
    texts=st.lists(st.tuples(TEXT, st.integers(1, 4)), min_size=1, max_size=4),
    places=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.one_of(st.none(), st.integers(-2, 15))), max_size=6
    ),
    is_late=st.booleans(),
)
def test_removing_markers_restores_text(
    texts: list[tuple[str, int]], places: list[tuple[int, int, int | None]], is_late: bool
) -> None:
    """Several steps, blocks in pieces, sources anywhere, before or after the end of their block."""
    steps: list[list[StreamPart]] = []
    for place, (text, size) in enumerate(texts):
        # Ids come again in later steps, but no provider that does so opens a block for nothing.
        text_id = "t" if text else f"empty{place}"
        own = [
            source(n, end, url=f"https://{url}.example/", text_id=text_id)
            for n, (at, url, end) in enumerate(places)
            if at == place
        ]
        whole = block(text, size=size, block_id=text_id)
        cut = len(whole) if is_late else len(whole) // 2 or 1
        steps.append([*whole[:cut], *own, *whole[cut:]])
    parts = run_of(*steps)
    chunks = chunks_of(parts)
    result = fold(chunks)
    by_parts, by_chunks = Citations(), Citations()
    live = "".join(map(by_parts.feed, parts))
    assert "".join(map(by_chunks.feed, chunks)) == live
    made = result.cited_text()
    assert made == by_parts.cited() == by_chunks.cited()
    for text in (made.text, live):
        for number in range(1, len(made.sources) + 1):
            text = text.replace(f"[{number}]", "")
        assert text == result.output
    assert {s.url for s in made.sources} == {f"https://{url}.example/" for at, url, _ in places if at < len(texts)}


@requirement("R105")
@pytest.mark.parametrize("name", WITH_SOURCES)
def test_recorded_answers_of_every_provider_are_cited(name: str) -> None:
    path = RECORDINGS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no recording: {path} is not there")
    results = asyncio.run(_results(Recording.load(path)))
    spans = 0
    for result in results:
        made = result.cited_text()
        # Each place of a source has one marker, whatever passages of it support that place.
        places = {(s.text_id, s.end, s.url or s.file_id or s.title) for s in result.sources if s.text_id is not None}
        numbers = [f"[{source.number}]" for source in made.sources]
        for claim in result.claims():
            assert claim.text.strip() == claim.text != ""
            assert claim.marker is None or claim.end <= claim.marker[0]
        assert sum(made.text.count(number) - result.output.count(number) for number in numbers) == len(places)
        spans += len(places)
    assert spans > 0


async def _results(recording: Recording) -> list[ChatResult[str]]:
    """The answers of a recording; each has the same citations while it streams."""
    results: list[ChatResult[str]] = []
    for run in replay(recording, ReplayTransport(recording)):
        citations = Citations()
        chunks: list[ChatResult[str]] = []
        with suppress(RunError):
            async for chunk in run.chunks():
                chunks.append(chunk)
                citations.feed(chunk)
        results.append(fold(chunks))
        assert results[-1].cited_text() == citations.cited()
    return results
