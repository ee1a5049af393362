"""Claims of an answer: their spans and those of their markers, the same way for every provider."""

from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ChatResult
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript

CLAIM = "Oslo has 717,000 people."
LINK = "([a.example](https://a.example/))"


async def answered(provider: str, script: Any) -> ChatResult[str]:
    async with FakeProvider([script.reply()]) as fake:
        return await Agent(provider, base_url=fake.base_url, api_key="k").send("hi")


def linked() -> Any:
    text = f"Hello. {CLAIM} {LINK} Bye."
    start = text.index(LINK)
    note = {"type": "url_citation", "url": "https://a.example/", "title": "A", "start_index": start}
    return ResponsesScript().text(text, annotations=[{**note, "end_index": start + len(LINK)}])


def completed() -> Any:
    text = f"Hello. {CLAIM} {LINK} Bye."
    start = text.index(LINK)
    note = {"url": "https://a.example/", "title": "A", "start_index": start, "end_index": start + len(LINK)}
    return ChatScript().text(text, annotations=[{"type": "url_citation", "url_citation": note}])


def numbered() -> Any:
    """An answer whose text has numbers for the entries of its list of citations, as Perplexity's."""
    return ChatScript(citations=["https://a.example/"]).text(f"Hello. {CLAIM}[1] Bye.")


def pointed() -> Any:
    text = f"Hello. {CLAIM} Bye."
    at = text.index(" Bye")
    note = {"type": "file_citation", "file_id": "f", "filename": "a.md", "index": at}
    return ResponsesScript().text(text, annotations=[note])


def cited_block() -> Any:
    citation = {
        "type": "web_search_result_location",
        "url": "https://a.example/",
        "title": "A",
        "cited_text": "Oslo has 717,000 people",
        "encrypted_index": "x",
    }
    return MessagesScript().text("Hello. ").text(f"- {CLAIM} ", citations=[citation]).text("Bye.")


def grounded() -> Any:
    text = f"Hello. {CLAIM} Bye."
    start = text.index(CLAIM)
    chunk = {"web": {"uri": "https://a.example/", "title": "a.example"}}
    support = (start, start + len(CLAIM), CLAIM, [0])
    return GeminiScript().text(text).grounding(chunk, supports=[support])


@requirement("R230")
@pytest.mark.parametrize(
    ("provider", "script", "marker"),
    [
        ("openai-responses:m", linked(), LINK),
        ("openai-responses:m", pointed(), None),
        ("openai:m", completed(), LINK),
        ("openai:m", numbered(), "[1]"),
        ("anthropic:m", cited_block(), None),
        ("google:m", grounded(), None),
    ],
    ids=["link", "position", "chat-link", "chat-number", "block", "segment"],
)
async def test_claim_and_marker_have_separate_spans(provider: str, script: Any, marker: str | None):
    result = await answered(provider, script)
    (claim,) = result.claims()
    assert (claim.text, claim.source.evidence.state) == (CLAIM, "unchecked")
    block = next(
        part.text for message in result.messages for part in message.parts if CLAIM in getattr(part, "text", "")
    )
    assert block[claim.start : claim.end] == CLAIM
    assert (block[slice(*claim.marker)] if claim.marker else None) == marker


async def test_answer_without_sources_has_no_claims():
    assert (await answered("anthropic:m", MessagesScript().text(CLAIM))).claims() == ()
