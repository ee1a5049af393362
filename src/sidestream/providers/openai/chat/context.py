"""Values that the encoder and the decoder share: the API's name, server dialects, and the decoding context."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from sidestream.providers.openai.model_families import EFFORTS
from sidestream.providers.shared import decoding

WIRE = "openai"
"""Key in the `provider_metadata` of parts, for all servers with this API."""

MAX_CALL_ID = 64


class Dialect(Struct, frozen=True, kw_only=True):
    """The differences between a server's API and OpenAI's."""

    lacks: frozenset[str] = frozenset()
    """Unsupported parameters, by their names in `provider.REFUSALS`."""
    id_length: int | None = None
    """Required length of call ids, which must be letters and digits. None means any string of up to 64 characters."""
    seed: str = "seed"
    """Name of the seed parameter."""
    thinking: Literal["openai", "effort", "reasoning", "template", "none"] = "openai"
    """Form of the portable setting `thinking` (a key of `options.THINKING`)."""
    efforts: Mapping[str, str] = field(default_factory=lambda: EFFORTS)
    """Efforts, by thinking level. Other levels are refused."""
    cache: Literal["prompt_cache_options", "cache_prompt"] | None = "prompt_cache_options"
    """Parameter that controls prompt caching. None means that there is no such parameter."""


class CompletionsContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Request data for the decoder of a chat completion."""

    provider: str = WIRE
    audio_format: str | None = None
    server_tools: tuple[str, ...] = ()
    """Names of the hosted tools in the request, as the server knows them."""
