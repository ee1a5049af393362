"""Filters and weights of a file search."""

from collections.abc import Sequence
from typing import Literal

from sidestream.tools.configs import Config


class Comparison(Config, frozen=True, kw_only=True, tag="comparison"):
    """A comparison of a file's attribute with a value."""

    attribute: str
    operator: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"] = "eq"
    value: str | int | float | bool | Sequence[str | int | float]


class Combination(Config, frozen=True, kw_only=True, tag="combination"):
    """Several filters, of which all or any must match."""

    operator: Literal["and", "or"] = "and"
    filters: Sequence["Comparison | Combination"]


class HybridSearch(Config, frozen=True, kw_only=True):
    """Weights of semantic and keyword matches."""

    embedding_weight: float
    text_weight: float
