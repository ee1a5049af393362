"""What was said is found by its words, in every store, and without holding all of it in memory."""

import tracemalloc

import pytest

from requirements import requirement
from sidestream.parts import StepStart, StreamPart, TextDelta, TextEnd, TextStart
from sidestream.store import Store
from sidestream.store.log.search import search
from sidestream.store.records import Row, Segment, pack
from support.stores import message, row

LONG = 100_000


@requirement("R170")
async def test_conversations_are_found_by_all_words_best_first(store: Store):
    await store.append("anna/a", 0, [message(1, "The eclipse of 2027 is the longest totality for decades.")])
    await store.append("anna/b", 0, [message(1, "Nothing here."), message(2, "An ECLIPSE, once; trains and seats.")])
    await store.append("ben/c", 0, [message(1, "An eclipse is an eclipse."), message(2, "Grüße aus Zürich")])

    async def found(query: str, **options: str) -> list[tuple[str, int]]:
        return [(hit.conversation.id, hit.seq) for hit in await search(store, query, **options)]

    assert await found("eclipse") == [("ben/c", 1), ("anna/b", 2), ("anna/a", 1)]
    assert await found("eclipse longest") == [("anna/a", 1)]
    assert await found('"longest totality"') == [("anna/a", 1)]
    assert await found('"totality longest"') == []
    assert await found("ecli*", prefix="anna/") == [("anna/b", 2), ("anna/a", 1)]
    assert await found("zürich") == [("ben/c", 2)]
    assert await found('eclipse OR "') == []
    hits = await search(store, "trains", 1)
    assert (hits[0].role, "**trains**" in hits[0].text) == ("user", True)


def written_slowly(seq: int, *pieces: str, closes: bool = True) -> list[Row]:
    """The rows of a block of which the log had a piece at a time."""
    bodies: list[Segment] = []
    for number, piece in enumerate(pieces):
        parts: list[StreamPart] = [TextStart("msg_1")] if number == 0 else []
        parts.append(TextDelta("msg_1", piece))
        is_last = closes and number == len(pieces) - 1
        parts += [TextEnd("msg_1")] if is_last else []
        bodies.append(Segment("text" if is_last else "text-delta", tuple(parts)))
    return [row(seq + number, body.kind, body=pack(body)[0]) for number, body in enumerate(bodies)]


@requirement("R170", "R215")
async def test_search_finds_words_across_increments(store: Store):
    left = written_slowly(2, "In Lu", "xor ", closes=False)
    step = row(4, "step-start", body=pack(Segment("step-start", (StepStart(0),)))[0])
    again = written_slowly(5, "The longest tot", "ality", " for dec", "ades.")
    await store.append("a", 0, [message(1, "Where?"), *left, step, *again])
    await store.append("b", 0, [message(1, "Nothing."), *written_slowly(2, "Tot", "als for", " long.")])

    async def listed(text: str) -> list[str]:
        return [info.id for info in await store.conversations(search=text)]

    for text in ("longest totality", "LUXOR", "decades", "The longest totality for decades."):
        assert await listed(text) == ["a"], text
    assert await listed("totals for long") == ["b"]
    assert sorted(await listed("tot")) == ["a", "b"]
    for text in ("xor The", "decades.Tot", "totality."):
        assert await listed(text) == [], text
    hits = await search(store, '"longest totality"')
    assert [(hit.conversation.id, hit.text) for hit in hits] == [("a", "The **longest totality** for decades.")]


@pytest.mark.parametrize("query", ["", '"', "*", "-", "()"])
async def test_query_without_words_finds_nothing(store: Store, query: str):
    await store.append("talk", 0, [message(1, "Something.")])
    assert await search(store, query) == []


async def test_search_holds_one_conversation_in_memory(store: Store):
    for number in range(40):
        await store.append(f"talk-{number}", 0, [message(1, f"eclipse {number} " + "word " * (LONG // 5))])
    tracemalloc.start()
    try:
        hits = await search(store, "eclipse", 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(hits) == 5
    assert peak < 12 * LONG  # All texts together have 40 times its bytes.
