"""Relevance of passages to a query, from the words they share and the similarity of their vectors. Pure."""

import math
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from sidestream.tools.server_side import HybridSearch

MAX_WORDS = 40
"""Maximum words of a query that are used."""
HEADING_BONUS = 0.25
"""Share of a word's weight that it adds once more if a title or heading has it."""
WEIGHTS = HybridSearch(embedding_weight=0.6, text_weight=0.4)
"""Default weights. `python -m bench.retrieval` compares rankings."""
_WORD = re.compile(r"\w+")
_COMMON_WORDS = """
a an and are as at be by can do does for from has have how i in is it its me my of on or our that the their
there this to was we were what when where which who why will with you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that occur in every passage. They are used if a query has no others."""


class WordMatches(Struct, frozen=True):
    """Passages that contain one word of a query."""

    total: int
    """Number of passages in the whole index."""
    passages: frozenset[int]
    """Ids among the candidates."""
    headings: frozenset[int]
    """Ids among the candidates whose title or headings contain it."""


def match_words(query: str) -> list[str]:
    """Return the query's words that distinguish passages. Empty if it has no words."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    telling = [word for word in words if word not in _COMMON] or words
    return telling[:MAX_WORDS]


def match_expression(query: str) -> str:
    """Convert a query to an FTS5 expression that matches any of its words. Empty if it has no words."""
    return " OR ".join(f'"{word}"' for word in match_words(query))


def ranked(
    keyword: Sequence[int],
    similarities: Mapping[int, float] | None,
    matches: Sequence[WordMatches],
    passages: int,
    weights: HybridSearch | None = None,
) -> list[tuple[int, float]]:
    """Return the candidates with their relevance, best first.

    `keyword` is their order by words, and `similarities` the cosine of each vector; None means that there are no
    vectors. The relevance is the mean of the similarity and of the share of the query's words that a passage has, in
    which a rare word counts more. It is near 0 for every passage if none is about the query.
    """
    given = weights or WEIGHTS
    text = given.text_weight
    meaning = given.embedding_weight if similarities else 0.0
    if text + meaning <= 0:
        return []
    shares = _in_order(keyword, _shares(matches, passages))
    nearest = max(similarities.values(), default=0.0) if similarities else 0.0
    order = {number: place for place, number in enumerate(keyword)}
    scores: dict[int, float] = {}
    for number in [*(keyword if text else ()), *((similarities or ()) if meaning else ())]:
        share = shares.get(number, 0.0)
        # A passage that has no vector yet is judged by its words.
        near = (similarities or {}).get(number, share * nearest)
        scores[number] = (text * share + meaning * min(1.0, max(0.0, near))) / (text + meaning)
    return sorted(scores.items(), key=lambda item: (-item[1], order.get(item[0], len(order))))


def _in_order(keyword: Sequence[int], shares: Mapping[int, float]) -> dict[int, float]:
    """Raise each share to those of the passages that rank below it by words.

    The rank also knows how often a word occurs and how long the passage is.
    """
    found, best = dict(shares), 0.0
    for number in reversed(keyword):
        best = found[number] = max(best, found.get(number, 0.0))
    return found


def _shares(matches: Sequence[WordMatches], passages: int) -> dict[int, float]:
    """Return the share of the query's words that each passage has, weighted by their rarity."""
    rarities = [math.log(1 + (passages - match.total + 0.5) / (match.total + 0.5)) for match in matches]
    total = sum(rarities)
    found: dict[int, float] = {}
    for match, rarity in zip(matches, rarities, strict=True):
        for number in match.passages:
            bonus = HEADING_BONUS if number in match.headings else 0.0
            found[number] = found.get(number, 0.0) + rarity * (1 + bonus)
    return {number: min(1.0, share / total) for number, share in found.items()} if total else {}
