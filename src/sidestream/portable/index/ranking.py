"""Queries, filters and the fusion of two rankings. Pure."""

import operator as operators
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidestream.tools.server_side import Combination, Comparison, HybridSearch

RANK_CONSTANT = 60
"""Of reciprocal rank fusion, as its authors chose it: how little the first places differ."""
CANDIDATES = 50
"""How many hits of each ranking are fused, at least."""
MAX_WORDS = 40
"""Words of a query that count."""
_WORD = re.compile(r"\w+")
_COMMON_WORDS = """
a an and are as at be by can do does for from has have how i in is it its me my of on or our that the their
there this to was we were what when where which who why will with you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that are in every passage; alone they still count."""


def match_words(query: str) -> list[str]:
    """The words of a query that tell passages apart. Empty if it has none."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    telling = [word for word in words if word not in _COMMON] or words
    return telling[:MAX_WORDS]


def match_expression(query: str) -> str:
    """The query for FTS5: any of its words. Empty if there are none."""
    return " OR ".join(f'"{word}"' for word in match_words(query))


def fused(keyword: Sequence[int], nearest: Sequence[int], weights: HybridSearch | None) -> list[tuple[int, float]]:
    """Hits of two rankings by reciprocal rank, best first. A score is 1 for what is first in each ranking with hits."""
    text = weights.text_weight if weights else 1.0
    meaning = weights.embedding_weight if weights else 1.0
    rankings = [(ranking, weight) for ranking, weight in ((keyword, text), (nearest, meaning)) if ranking and weight]
    best = sum(weight for _, weight in rankings) / (RANK_CONSTANT + 1)
    scores: dict[int, float] = {}
    for ranking, weight in rankings:
        for rank, found in enumerate(ranking, 1):
            scores[found] = scores.get(found, 0.0) + weight / (RANK_CONSTANT + rank) / best
    return sorted(scores.items(), key=lambda item: -item[1])


def fits(attributes: Mapping[str, Any], condition: Comparison | Combination) -> bool:
    """Whether a file's attributes fulfil a filter. An attribute that is missing is not equal to anything."""
    if isinstance(condition, Combination):
        results = (fits(attributes, part) for part in condition.filters)
        return all(results) if condition.operator == "and" else any(results)
    found = attributes.get(condition.attribute)
    wanted = condition.value
    match condition.operator:
        case "eq":
            return found == wanted
        case "ne":
            return found != wanted
        case "in":
            return found in _values(wanted)
        case "nin":
            return found not in _values(wanted)
        case _:
            return _ordered(found, condition.operator, wanted)


def _values(wanted: Any) -> Sequence[Any]:
    return (wanted,) if isinstance(wanted, str | int | float) else wanted


def _ordered(found: Any, operator: str, wanted: Any) -> bool:
    are_numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    are_texts = isinstance(found, str) and isinstance(wanted, str)
    return (are_numbers or are_texts) and _OPERATORS[operator](found, wanted)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operators.gt,
    "gte": operators.ge,
    "lt": operators.lt,
    "lte": operators.le,
}
