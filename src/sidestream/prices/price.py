"""Prices of models and bills of responses, as plain data."""

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct

from sidestream.errors import ConfigurationError

TokenKind = Literal[
    "input",
    "output",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "reasoning",
    "input_audio",
    "input_image",
    "input_video",
    "cache_read_audio",
    "output_audio",
    "output_image",
]
"""Kinds of tokens that may have their own rate, each a field of `Price`."""

_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)
_GENERATED: tuple[TokenKind, ...] = ("output", "reasoning", "output_audio", "output_image")
_PLAIN: Mapping[TokenKind, TokenKind] = {
    "cache_read": "input",
    "cache_write": "input",
    "cache_write_1h": "cache_write",
    "reasoning": "output",
    "input_audio": "input",
    "input_image": "input",
    "input_video": "input",
    "cache_read_audio": "cache_read",
}
"""Fallback kinds, whose rates apply if a model has no rate for the kind itself.

Generated audio and images have no fallback: without a rate, their price is unknown.
"""


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A model's price, in US dollars per million tokens. None means that the rate is unknown or not separate.

    ```python
    price = Price(input=1.25, output=10, cache_read=0.125)
    agent = Agent("openai:my-model", prices={"openai:my-model": price})
    ```
    """

    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    """Rate of input read from the cache. None means the `input` rate."""
    cache_write: float | None = None
    """Rate of input written to the cache. None means the `input` rate."""
    cache_write_1h: float | None = None
    """Rate of input cached for an hour. None means the `cache_write` rate."""
    reasoning: float | None = None
    """Rate of reasoning tokens. None means the `output` rate."""
    input_audio: float | None = None
    input_image: float | None = None
    input_video: float | None = None
    cache_read_audio: float | None = None
    output_audio: float | None = None
    output_image: float | None = None
    tools: dict[str, float] = {}
    """US dollars per call, by server-side tool. `container` is the price per container."""
    once_per_request: frozenset[str] = frozenset()
    """Tools with one fee per request, however often they are called."""
    factors: dict[str, float] = {}
    """Factors that multiply the token rates, by mode, such as `fast`."""
    long_from: int | None = None
    """Input tokens above which `long` applies."""
    long: "Price | None" = None
    tiers: dict[str, "Price"] = {}
    """Prices that replace the standard one, by service tier."""

    def __post_init__(self) -> None:
        rates = [getattr(self, kind) for kind in _KINDS]
        if min(filter(None, (*rates, *self.tools.values())), default=0) < 0:
            raise ConfigurationError("a price cannot be negative")

    def rate(self, kind: TokenKind) -> float | None:
        """Return the rate in US dollars per million tokens of this kind, or None if it is unknown."""
        rate: float | None = getattr(self, kind)
        while rate is None and kind in _PLAIN:
            kind = _PLAIN[kind]
            rate = getattr(self, kind)
        return rate


class Charge(Struct, frozen=True, kw_only=True):
    """The tokens of one model call, each counted once under the kind it is billed as."""

    model: str
    tokens: Mapping[TokenKind, int]
    also: tuple[str, ...] = ()
    """Other names of the model, tried if the first has no price."""
    tier: str | None = None
    """Service tier. None means the standard tier."""
    factors: tuple[str, ...] = ()
    """Modes whose factors multiply the rates."""

    @property
    def prompt(self) -> int:
        """The number of input tokens."""
        tokens = self.tokens
        return sum(tokens.values()) - sum([tokens[kind] for kind in _GENERATED if kind in tokens])


class Bill(Struct, frozen=True, kw_only=True):
    """A provider's bill for one response."""

    charges: tuple[Charge, ...] = ()
    calls: Mapping[str, int] = {}
    """Calls with a fee, by tool, at the price of the first charge's model."""
    containers: frozenset[str] = frozenset()
    """Ids of the containers that tools ran in. Each is billed once."""
    unknown: tuple[str, ...] = ()
    """Billed items that have no price."""
