"""Portable model settings, which have the same meaning for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from sidestream.tools.configs import Config

ThinkingLevel = Literal["off", "on", "low", "medium", "high"]
Thinking = ThinkingLevel | bool | Annotated[int, Meta(ge=1)]
"""Amount of reasoning before the answer: a level, True for `on`, or a budget in tokens."""

Stop = str | Sequence[str]

BUDGETS: Mapping[str, int] = {"low": 1024, "medium": 8192, "high": 24576}
"""Budgets in tokens by thinking level, for models that have a budget instead of levels."""


class ModelSettings(Config, frozen=True, kw_only=True):
    """Settings that each provider maps to its own parameters. None means the provider's default."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Sampling temperature. Higher values give more varied answers."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Probability mass of the tokens to sample from."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum output tokens per response."""
    stop: Stop | None = None
    """Strings at which the answer ends."""
    seed: int | None = None
    """Seed for sampling, for answers that are more alike."""
    thinking: Thinking | None = None
    """Reasoning level (`off`, `on`, `low`, `medium`, `high`), or a maximum in tokens."""
    cache: bool | None = None
    """Whether to use prompt caching, if the provider has a switch for it."""
    tool_choice: Annotated[str, Meta(min_length=1)] | None = None
    """`auto`, `required`, or the name of the function that the model must call. Applies only to the first request of a
    run, so that the model is free to answer once it has the tool results."""
    unsupported: Literal["raise", "warn"] = "raise"
    """Whether to raise an error or warn about a setting that the provider does not support."""
