"""What encoder and decoder share: the name of the wire, the dialects of its servers, and facts of the request."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from sidestream.providers.openai.model_families import EFFORTS
from sidestream.providers.shared import decoding

WIRE = "openai"
"""The key of what parts carry in their `provider_metadata`, whatever server sent it."""

MAX_CALL_ID = 64


class Dialect(Struct, frozen=True, kw_only=True):
    """How a server's API differs from OpenAI's."""

    lacks: frozenset[str] = frozenset()
    """Parameters that are not sent to it, by the names of `recovery.REFUSALS`."""
    id_length: int | None = None
    """Ids of calls are letters and digits, so many; None: any text up to 64 characters."""
    seed: str = "seed"
    """The name of the parameter."""
    thinking: Literal["openai", "effort", "reasoning", "template", "none"] = "openai"
    """The form of the portable setting (`settings.THINKING`)."""
    efforts: Mapping[str, str] = field(default_factory=lambda: EFFORTS)
    """Level of thinking → effort; other levels are refused."""
    cache: Literal["prompt_cache_options", "cache_prompt"] | None = "prompt_cache_options"
    """The switch of prompt caching; None: it has none."""


class CompletionsContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Facts of the request for the decoder of a chat completion."""

    provider: str = WIRE
    audio_format: str | None = None
