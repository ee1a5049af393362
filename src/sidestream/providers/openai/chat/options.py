"""Options of Chat Completions."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from sidestream.errors import ConfigurationError
from sidestream.providers.openai.account import Moderation
from sidestream.tools.configs import Config
from sidestream.tools.server_side import Effort

Texts = dict[str, str]


class AudioOutput(Config, frozen=True, kw_only=True):
    """Spoken output. OpenAI streams the format `pcm16` only."""

    voice: str | Texts
    """A voice's name, or `{"id": …}` for one of your own."""
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"] = "pcm16"


class ChatPromptCache(Config, frozen=True, kw_only=True):
    """How the beginning of a prompt is cached."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class OpenAIChatOptions(Config, frozen=True, kw_only=True):
    """Options of a request. What is not set is not sent, except where a field says otherwise."""

    secrets = frozenset({"extra_headers"})

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, int] | None = None
    """Token id → bias."""
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Sent as `max_tokens` to servers that support only that."""
    stop: str | Sequence[str] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Implies `logprobs`."""
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    """Also the API's own object, e.g. `{"type": "function", "function": {"name": "get_weather"}}`."""
    json_object: bool = False
    """The answer is any JSON object; the messages must contain the word JSON."""
    modalities: Sequence[str] = ()
    """`text`, `audio`, or what another server offers. Set by `audio` if empty."""
    audio: AudioOutput | None = None
    prediction: str | None = None
    """Text that most of the answer will repeat, e.g. a file that is edited."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    metadata: Annotated[Texts, Meta(max_length=16, description="at most 16 pairs of text")] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: ChatPromptCache | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    moderation: Moderation | None = None
    include_usage: bool = True
    """Requests usage in streams. False for servers that do not support `stream_options`."""
    include_obfuscation: bool | None = None
    """False: no padding of deltas against traffic analysis, which costs bytes."""
    image_detail: Literal["auto", "low", "high"] | None = None
    """How closely the model looks at input images."""
    instructions_role: Literal["system", "developer"] = "system"
    """The role of system messages; most compatible servers support `system` only."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Merged into the body last: for parameters that are newer than this class, or of another server."""
    extra_headers: Texts = field(default_factory=Texts)
    organization: str | None = None
    project: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extra_body.get("n", 1) not in (None, 1):
            raise ConfigurationError(
                "only one choice per answer is supported, so n must be 1; send the request again instead"
            )
