"""Settings of a model call that mean the same at every provider."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from sidestream.tools.configs import Config

ThinkingLevel = Literal["off", "on", "low", "medium", "high"]
Thinking = ThinkingLevel | bool | Annotated[int, Meta(ge=1)]
"""How much a model reasons before it answers: a level, True for `on`, or a budget in tokens."""

Stop = str | Sequence[str]

BUDGETS: Mapping[str, int] = {"low": 1024, "medium": 8192, "high": 24576}
"""Level of thinking → tokens, for models that have a budget instead of levels."""


class ModelSettings(Config, frozen=True, kw_only=True):
    """Settings that each provider maps to its own parameters. None is the provider's default."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of one answer."""
    stop: Stop | None = None
    seed: int | None = None
    thinking: Thinking | None = None
    cache: bool | None = None
    """Prompt caching, where the provider has a switch for it."""
    tool_choice: Annotated[str, Meta(min_length=1)] | None = None
    """`auto`, `required`, or the name of the function that the model must call. It holds for the first request of a
    run: what the tools return is answered freely."""
    unsupported: Literal["raise", "warn"] = "raise"
    """What to do with a setting that the provider does not have."""
