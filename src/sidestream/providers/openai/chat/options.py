"""Chat Completions options, and the mapping of portable settings to them for each server dialect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from sidestream.errors import ConfigurationError
from sidestream.providers.openai.account import Moderation
from sidestream.providers.openai.model_families import EFFORTS, cache_mode, effort_of
from sidestream.providers.shared import decoding
from sidestream.providers.shared.settings_mapping import TOOL_CHOICES, Row, Target, as_option, thinking_of
from sidestream.tools.configs import Config, Effort

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
    changes_ids: bool = False
    """Whether the chunks of a response have several ids, so that another id does not mean another response."""


class CompletionsContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Request data for the decoder of a chat completion."""

    provider: str = WIRE
    audio_format: str | None = None
    server_tools: tuple[str, ...] = ()
    """Names of the hosted tools in the request, as the server knows them."""
    changes_ids: bool = False
    """Whether the chunks of a response have several ids."""


Texts = dict[str, str]


class AudioOutput(Config, frozen=True, kw_only=True):
    """Settings of spoken output. OpenAI streams only the format `pcm16`."""

    voice: str | Texts
    """Name of a voice, or `{"id": …}` for a custom voice."""
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"] = "pcm16"


class ChatPromptCache(Config, frozen=True, kw_only=True):
    """Settings of prompt caching."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class OpenAIChatOptions(Config, frozen=True, kw_only=True):
    """Options of a request. Unset fields are not sent, unless noted otherwise."""

    secrets = frozenset({"extra_headers"})

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Sampling temperature. Higher values give more varied answers."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Probability mass of the tokens to sample from."""
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    """Penalty for tokens by how often they have occurred."""
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    """Penalty for tokens that have occurred."""
    logit_bias: dict[str, int] | None = None
    """Biases, by token id."""
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum output tokens. Sent as `max_tokens` to servers that support only that."""
    stop: str | Sequence[str] | None = None
    """Strings at which the answer ends, at most four."""
    seed: int | None = None
    """Seed for sampling, for answers that are more alike."""
    logprobs: bool | None = None
    """Whether to return the log probabilities of output tokens."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Number of alternatives per token. Implies `logprobs`."""
    reasoning_effort: Effort | None = None
    """Reasoning effort."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Length of answers."""
    parallel_tool_calls: bool | None = None
    """Whether the model may call several tools at once."""
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    """A mode, or the API's own object, e.g. `{"type": "function", "function": {"name": "get_weather"}}`."""
    json_object: bool = False
    """Whether the answer must be a JSON object. The messages must contain the word JSON."""
    modalities: Sequence[str] = ()
    """Output modalities: `text`, `audio`, or another server's own. If empty, derived from `audio`."""
    audio: AudioOutput | None = None
    """Voice and format of generated audio."""
    prediction: str | None = None
    """Text that most of the answer will repeat, e.g. a file being edited."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    """Processing tier, which decides speed and price."""
    store: bool | None = None
    """Whether the provider stores the response."""
    metadata: Annotated[Texts, Meta(max_length=16, description="at most 16 pairs of strings")] | None = None
    """Strings to attach to the response, by name."""
    prompt_cache_key: str | None = None
    """Key that routes similar requests to the same cache."""
    prompt_cache_options: ChatPromptCache | None = None
    """Settings of prompt caching."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    """Time for which cached prompts are kept."""
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    """Stable id of your user, e.g. a hash, to detect misuse."""
    user: str | None = None
    """Id of your user. `safety_identifier` and `prompt_cache_key` replace it."""
    moderation: Moderation | None = None
    """Moderation of input and output."""
    include_usage: bool = True
    """Whether to request usage in streams. Set it to False for servers without `stream_options`."""
    include_obfuscation: bool | None = None
    """Whether deltas are padded against traffic analysis, which costs bytes. None means the server's default."""
    image_detail: Literal["auto", "low", "high"] | None = None
    """Level of detail at which the model sees input images."""
    instructions_role: Literal["system", "developer"] = "system"
    """Role of system messages. Most compatible servers support only `system`."""
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields merged into the body last, for parameters that are newer than this class or specific to a server."""
    extra_headers: Texts = field(default_factory=Texts)
    """HTTP headers to add to requests."""
    organization: str | None = None
    """Organisation to bill. None means the key's."""
    project: str | None = None
    """Project to bill. None means the key's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extra_body.get("n", 1) not in (None, 1):
            raise ConfigurationError(
                "n must be 1: only one choice per response is supported; send several requests instead"
            )


Fields = Mapping[str, Any]


def settings_of(dialect: Dialect) -> dict[str, Row]:
    """Return the mapping of portable settings for a dialect."""
    rows: dict[str, Row] = {
        "temperature": as_option("temperature"),
        "top_p": as_option("top_p"),
        "max_tokens": as_option("max_completion_tokens"),
        "stop": as_option("stop"),
        "seed": lambda value, target: {"seed": value} if dialect.seed == "seed" else _extra({dialect.seed: value}),
        "thinking": lambda value, target: THINKING[dialect.thinking](value, target, dialect),
        "tool_choice": _tool_choice,
    }
    if dialect.cache is not None:
        rows["cache"] = CACHES[dialect.cache]
    return rows


def _tool_choice(value: str, target: Target) -> Fields:
    return {"tool_choice": value if value in TOOL_CHOICES else {"type": "function", "function": {"name": value}}}


def _extra(fields: Fields) -> Fields:
    return {"extra_body": fields}


def _family_effort(value: Any, target: Target, dialect: Dialect) -> Fields:
    """Map thinking for OpenAI's own models, by their family."""
    effort = effort_of(value, target)
    return {} if effort is None else {"reasoning_effort": effort}


def _effort(value: Any, target: Target, dialect: Dialect) -> Fields:
    return {"reasoning_effort": _level(value, target, dialect)}


def _reasoning(value: Any, target: Target, dialect: Dialect) -> Fields:
    """Map thinking to a `reasoning` object, which supports levels and budgets."""
    level = thinking_of(value)
    if isinstance(level, int):
        return _extra({"reasoning": {"max_tokens": level}})
    return _extra({"reasoning": {"enabled": True} if level == "on" else {"effort": _level(value, target, dialect)}})


def _template(value: Any, target: Target, dialect: Dialect) -> Fields:
    """Map thinking to a switch of the model's chat template. Some templates also support levels."""
    level = _level(value, target, dialect)
    fields = {"enable_thinking": level != "none"}
    has_level = thinking_of(value) not in ("on", "off")
    extra = _extra({"chat_template_kwargs": fields | ({"reasoning_effort": level} if has_level else {})})
    return {**extra, "reasoning_effort": level} if has_level else extra


def _none(value: Any, target: Target, dialect: Dialect) -> Fields:
    if thinking_of(value) != "off":
        target.refuse("does not reason; remove thinking")
    return {}


def _level(value: Any, target: Target, dialect: Dialect) -> str:
    level = thinking_of(value)
    if isinstance(level, int):
        target.refuse(f"supports thinking levels, not a budget; use {', '.join(dialect.efforts)}")
    if level not in dialect.efforts:
        target.refuse(f"does not support thinking={level!r}; use {', '.join(dialect.efforts)}")
    return dialect.efforts[level]


THINKING: Mapping[str, Callable[[Any, Target, Dialect], Fields]] = {
    "openai": _family_effort,
    "effort": _effort,
    "reasoning": _reasoning,
    "template": _template,
    "none": _none,
}
"""Mappings of the setting `thinking`, by `Dialect.thinking`."""


def _cache_mode(value: bool, target: Target) -> Fields:
    mode: Any = cache_mode(value, target)
    return {"prompt_cache_options": ChatPromptCache(mode=mode)}


CACHES: Mapping[str, Row] = {
    "prompt_cache_options": _cache_mode,
    "cache_prompt": lambda value, target: _extra({"cache_prompt": value}),
}
"""Mappings of the setting `cache`, by `Dialect.cache`."""
