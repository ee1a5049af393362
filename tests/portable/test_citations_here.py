"""Citations of tools that run here: numbered passages, markers that become sources, and what was established."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream import Agent, Chat, ChatMessage, Source, StreamPart, Tool
from sidestream.messages.message import ToolCallPart, ToolResultPart
from sidestream.parts import TextDelta, TextEnd, TextStart
from sidestream.portable.here import Staged
from sidestream.portable.tools.functions import Functions
from sidestream.results.citation_marks import CitationMarks
from sidestream.results.passages import CitablePassage, finding, numbered, passages_in
from sidestream.testing import ScriptedModel, check_stream, tool_call

OSLO = CitablePassage(
    number=1,
    text="Oslo is the capital of Norway. It has 709,037 inhabitants, and was founded in 1040.",
    url="https://oslo.example",
    title="Oslo",
)


def marked(*deltas: str, passages: dict[int, CitablePassage] | None = None) -> tuple[str, list[Source], TextEnd]:
    marks = CitationMarks({1: OSLO} if passages is None else passages)
    parts: list[StreamPart] = [TextStart("t"), *(TextDelta("t", delta) for delta in deltas), TextEnd("t")]
    out = [part for entry in parts for part in marks.read([entry])]
    text = "".join(part.delta for part in out if isinstance(part, TextDelta))
    end = out[-1]
    assert isinstance(end, TextEnd)
    return text, [part for part in out if isinstance(part, Source)], end


ANSWER = "Norway is cold. Oslo is the capital of Norway [cite:1]. It is old."


@requirement("R129")
def test_citation_marker_becomes_source_spanning_sentence():
    text, (source,), end = marked(ANSWER)
    assert text == "Norway is cold. Oslo is the capital of Norway. It is old."
    assert text[source.start : source.end] == "Oslo is the capital of Norway"
    assert (source.url, source.title, source.kind, source.text_id) == (OSLO.url, "Oslo", "url", "t")
    assert (source.cited_text, source.evidence.state) == ("Oslo is the capital of Norway.", "quoted")
    assert end.annotations == (
        {
            "type": "url_citation",
            "url": OSLO.url,
            "title": "Oslo",
            "start_index": source.start,
            "end_index": source.end,
        },
    )


@requirement("R129")
def test_abbreviation_does_not_end_cited_sentence():
    sentence = "Dr. Ott of the U.S. Army paid approx. 5 dollars"
    text, sources, _ = marked(f"It is old. {sentence} [cite:1] [cite:1]. Bye.")
    assert [text[source.start : source.end] for source in sources] == [sentence] * 2


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8))
def test_deltas_can_be_split_anywhere(cuts: list[int]):
    edges = sorted({0, len(ANSWER), *cuts})
    pieces = [ANSWER[a:b] for a, b in pairwise(edges)]
    assert marked(*pieces)[:2] == marked(ANSWER)[:2]


@requirement("R129", "R230")
@pytest.mark.parametrize(
    ("text", "cited", "state"),
    [
        ('Oslo has people [cite:1 "709,037 inhabitants"]', "709,037 inhabitants", "quoted"),
        ('Oslo has people [cite:1 "709,038 inhabitants"]', "709,038 inhabitants", "not-found"),
        ("Oslo is a capital of Norway [cite:1]", "Oslo is the capital of Norway.", "supported"),
        ("It has 709037 inhabitants [cite:1]", "It has 709,037 inhabitants, and was founded in 1040.", "supported"),
        ("It has 709 inhabitants [cite:1]", "It has 709,037 inhabitants, and was founded in 1040.", "contradicted"),
        ("Oslo is not the capital of Norway [cite:1]", "Oslo is the capital of Norway.", "contradicted"),
        ("Norway is the capital of Oslo [cite:1]", "Oslo is the capital of Norway.", "contradicted"),
        ("Oslo was founded in 1040 [cite:1]", "It has 709,037 inhabitants, and was founded in 1040.", "not-found"),
        ("Bergen exports salmon worldwide [cite:1]", "Oslo is the capital of Norway.", "not-found"),
        ('They say "Oslo is the harbour of Norway" [cite:1]', "Oslo is the capital of Norway.", "not-found"),
    ],
)
def test_citation_is_checked_against_passage_text(text: str, cited: str, state: str):
    (source,) = marked(text)[1]
    assert (source.cited_text, source.evidence.state) == (cited, state)
    assert source.evidence.reason


@requirement("R129")
def test_unknown_passage_number_is_marked_not_found():
    text, (source,), _ = marked("Oslo is big [cite: 7].")
    assert text == "Oslo is big."
    assert (source.evidence.state, source.url, source.file_id) == ("not-found", None, None)
    assert source.evidence.reason == "no passage has the number 7"


def test_several_passages_support_one_sentence():
    other = CitablePassage(number=2, text="Oslo is the capital of Norway.", file_id="f", title="a.pdf")
    text, sources, end = marked("Oslo is the capital [cite:1, 2].", passages={1: OSLO, 2: other})
    assert text == "Oslo is the capital."
    assert [source.url or source.file_id for source in sources] == [OSLO.url, "f"]
    assert len({(source.start, source.end) for source in sources}) == 1
    assert end.annotations[1] == {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 19}
    again = marked("Oslo is the capital [cite:1][cite:2].", passages={1: OSLO, 2: other})
    assert again[:2] == (text, sources)


@pytest.mark.parametrize("text", ["a[1] = [cite]", "[cite:x]", "[cite:", "see [1](u) [cite:1", "x [", "  "])
def test_malformed_markers_stay_in_text(text: str):
    assert marked(text)[:2] == (text, [])


def test_results_are_numbered_and_read_back():
    search, after = numbered({"status": "completed", "sources": [{"url": "u", "snippet": "s"}, {"url": "v"}]}, 4)
    assert search["sources"] == [{"cite": 4, "url": "u", "snippet": "s"}, {"url": "v"}]
    page = {"url": "w", "content": {"title": "T", "source": {"type": "text", "data": "the page"}}}
    fetched, last = numbered(page, after)
    assert (after, last) == (5, 6)
    calls = [ToolCallPart(name, name) for name in "abc"]
    results = [
        ToolResultPart("a", "a", search, passages=(4, 4)),
        ToolResultPart("b", "b", fetched, passages=(5, 5)),
        ToolResultPart("c", "c", "text", passages=(6, 6)),
    ]
    assert passages_in([ChatMessage("model", tuple(calls)), ChatMessage("tool", tuple(results))]) == {
        4: CitablePassage(number=4, text="s", url="u"),
        5: CitablePassage(number=5, text="the page", url="w", title="T"),
    }
    assert numbered("text", 1) == ("text", 1)


def test_claim_without_words_is_not_found():
    assert finding(OSLO, "!?", None).evidence.state == "not-found"


async def file_search(queries: list[str]) -> dict[str, Any]:
    """Searches files."""
    entry = {"file_id": "f1", "filename": "oslo.md", "text": OSLO.text, "score": 1.0}
    return {"status": "completed", "queries": queries, "results": [entry, {**entry, "file_id": "f2"}]}


@requirement("R129")
async def test_run_numbers_and_cites_passages_across_calls_and_turns():
    tool = Tool.from_function(file_search, name="file_search", key="file_search")
    call = tool_call("file_search", queries=["oslo"])
    model = ScriptedModel(
        [
            call,
            call,
            "Oslo is the capital of Norway [cite:3].",
            "It has 709,037 inhabitants [cite:1], not 1999 [cite:4].",
        ]
    )
    chat = Chat(Agent(model, tools=[Staged(Functions("file_search", [tool]))]))
    async with chat.stream("Where?") as run:
        parts = [part async for part in run]
    check_stream(parts)
    (source,) = [part for part in parts if isinstance(part, Source)]
    assert (source.file_id, source.title, source.evidence.state) == ("f1", "oslo.md", "quoted")
    assert "[cite:N]" in model.requests[0].tools[0].description
    later = await chat.send("When?")
    assert later.output == "It has 709,037 inhabitants, not 1999."
    assert [(source.file_id, source.evidence.state) for source in later.sources] == [
        ("f1", "quoted"),
        ("f2", "not-found"),
    ]
    shown = str(later.cited_text())
    assert shown.startswith("It has 709,037 inhabitants[1], not 1999[2].")
    assert shown.splitlines()[-1].endswith("(not found in the source)")
    assert [entry.evidence.state for entry in later.cited_text().sources] == ["quoted", "not-found"]
