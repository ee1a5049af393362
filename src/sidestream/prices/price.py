"""What a model costs, and what a response is billed for: plain data."""

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
"""Tokens that may have a rate of their own; each is a field of `Price`."""

_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)
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
"""Kind → the kind at whose rate it is billed if a model has no rate for it. Audio and images that a model generates
always have a rate of their own, so without one their price is unknown."""


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a model costs, in US dollars per million tokens. A rate that is None is not known, or no rate apart.

    ```python
    price = Price(input=1.25, output=10, cache_read=0.125)
    agent = Agent("openai:my-model", prices={"openai:my-model": price})
    ```
    """

    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    """Input read from the cache; None: as `input`."""
    cache_write: float | None = None
    """Input written to the cache; None: as `input`."""
    cache_write_1h: float | None = None
    """The same for an hour, where that is another rate."""
    reasoning: float | None = None
    """None: as `output`."""
    input_audio: float | None = None
    input_image: float | None = None
    input_video: float | None = None
    cache_read_audio: float | None = None
    output_audio: float | None = None
    output_image: float | None = None
    tools: dict[str, float] = {}
    """Server-side tool → US dollars per call; of `container`, per container."""
    once_per_request: frozenset[str] = frozenset()
    """Tools whose fee is due once per request, however often they were called in it."""
    factors: dict[str, float] = {}
    """Mode → what it multiplies the rates of tokens by, e.g. `fast`."""
    long_from: int | None = None
    """Requests with more input tokens than this cost what `long` says."""
    long: "Price | None" = None
    tiers: dict[str, "Price"] = {}
    """Service tier → its rates, in place of the standard ones."""

    def __post_init__(self) -> None:
        rates = [getattr(self, kind) for kind in _KINDS]
        if min(filter(None, (*rates, *self.tools.values())), default=0) < 0:
            raise ConfigurationError("a price cannot be negative")

    def rate(self, kind: TokenKind) -> float | None:
        """US dollars per million tokens of this kind; None if it is unknown."""
        rate: float | None = getattr(self, kind)
        while rate is None and kind in _PLAIN:
            kind = _PLAIN[kind]
            rate = getattr(self, kind)
        return rate


class Charge(Struct, frozen=True, kw_only=True):
    """Tokens of one model call, each counted once, under the kind that it is billed as."""

    model: str
    tokens: Mapping[TokenKind, int]
    also: tuple[str, ...] = ()
    """Other names of the model, in case the first has no price."""
    tier: str | None = None
    """The service tier; None: the standard one."""
    factors: tuple[str, ...] = ()
    """Modes that multiply the rates."""

    @property
    def prompt(self) -> int:
        """All tokens that went in."""
        return sum(count for kind, count in self.tokens.items() if not kind.startswith(("output", "reasoning")))


class Bill(Struct, frozen=True, kw_only=True):
    """What a provider bills for one response."""

    charges: tuple[Charge, ...] = ()
    calls: Mapping[str, int] = {}
    """Calls of tools that have a fee, at the price of the first charge's model."""
    containers: frozenset[str] = frozenset()
    """Ids of the containers that tools ran in. Each has a fee, once."""
    unknown: tuple[str, ...] = ()
    """What is billed, but not in terms that have a price."""
