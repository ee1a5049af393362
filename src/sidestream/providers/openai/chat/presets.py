"""Servers with a name of their own, one row and one entry point each.

For other compatible servers, use `openai` with a base URL.
"""

from typing import Any

from msgspec.structs import replace

from sidestream.providers.openai.account import HEADER_VARIABLES
from sidestream.providers.openai.billing import PRICE_LIST
from sidestream.providers.openai.chat.encode import hosted_tools
from sidestream.providers.openai.chat.encode.request import DISPLAY_NAME
from sidestream.providers.openai.chat.options import WIRE, Dialect, settings_of
from sidestream.providers.openai.chat.provider import WIRE_CAPS, CompletionsProvider

_COMPATIBLE = Dialect(thinking="effort", cache=None)
_OLD_LIMIT = replace(_COMPATIBLE, lacks=frozenset({"max_completion_tokens"}))
_TEMPLATES = replace(_COMPATIBLE, thinking="template")
_MISTRAL = replace(
    _COMPATIBLE,
    lacks=frozenset({"max_completion_tokens", "stream_options"}),
    id_length=9,
    seed="random_seed",
    efforts={"off": "none", "on": "high", "high": "high"},
)

PROVIDER = CompletionsProvider(
    name=WIRE,
    display_name=DISPLAY_NAME,
    short_name="OpenAI",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    keys_at="https://platform.openai.com/api-keys",
    base_url_variable="OPENAI_BASE_URL",
    header_variables=HEADER_VARIABLES,
    aliases=("openai-chat",),
    default_models={"chat": "gpt-5.6", "embeddings": "text-embedding-3-small"},
    hosting=hosted_tools.OPENAI,
    caps=replace(
        WIRE_CAPS,
        documents_in=True,
        audio_in=True,
        thinking=False,
        embeddings=True,
        settings=frozenset(settings_of(Dialect())),
        instead={},
    ),
    price_list=PRICE_LIST,
    reads_recordings=True,
)


def _row(
    name: str,
    display_name: str,
    base_url: str,
    key: str = "",
    keys_at: str = "",
    *,
    dialect: Dialect = _COMPATIBLE,
    **more: Any,
) -> CompletionsProvider:
    return CompletionsProvider(
        name=name,
        display_name=display_name,
        base_url=base_url,
        key_variable=key or None,
        keys_at=keys_at,
        dialect=dialect,
        caps=replace(WIRE_CAPS, settings=frozenset(settings_of(dialect))),
        **more,
    )


_AUTO = {"chat": "openrouter/auto"}
_LOADED = {"chat": "default"}  # the server ignores the name and uses the model that it was started with
_TOGETHER_KEYS = "https://api.together.ai/settings/api-keys"

OPENROUTER = _row(
    "openrouter",
    "OpenRouter",
    "https://openrouter.ai/api/v1",
    "OPENROUTER_API_KEY",
    "https://openrouter.ai/keys",
    default_models=_AUTO,
    dialect=replace(_COMPATIBLE, thinking="reasoning"),
    hosting=hosted_tools.OPENROUTER,
)
MISTRAL = _row(
    "mistral",
    "Mistral",
    "https://api.mistral.ai/v1",
    "MISTRAL_API_KEY",
    "https://console.mistral.ai/api-keys",
    dialect=_MISTRAL,
    telemetry_name="mistral_ai",
)
GROQ = _row(
    "groq",
    "Groq",
    "https://api.groq.com/openai/v1",
    "GROQ_API_KEY",
    "https://console.groq.com/keys",
    base_url_variable="GROQ_BASE_URL",
    default_models={"chat": "openai/gpt-oss-120b"},
    dialect=replace(_COMPATIBLE, changes_ids=True),
    hosting=hosted_tools.GROQ,
)
PERPLEXITY = _row(
    "perplexity",
    "Perplexity",
    "https://api.perplexity.ai",
    "PERPLEXITY_API_KEY",
    "https://www.perplexity.ai/account/api/keys",
    default_models={"chat": "sonar"},
    dialect=_OLD_LIMIT,
    hosting=hosted_tools.PERPLEXITY,
)
TOGETHER = _row(
    "together", "Together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", _TOGETHER_KEYS, dialect=_OLD_LIMIT
)
MANTLE = _row(
    "mantle-chat",
    "Bedrock Mantle Chat",
    "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws/v1",
    "AWS_BEARER_TOKEN_BEDROCK",
    "https://console.aws.amazon.com/bedrock/home#/api-keys",
    default_models={"chat": "openai.gpt-oss-20b"},
    telemetry_name="aws.bedrock",
)
OLLAMA = _row("ollama", "Ollama", "http://localhost:11434/v1", dialect=_OLD_LIMIT)
LLAMACPP = _row(
    "llamacpp",
    "llama.cpp",
    "http://localhost:8080/v1",
    aliases=("llama.cpp",),
    default_models=_LOADED,
    dialect=replace(_TEMPLATES, cache="cache_prompt"),
)
VLLM = _row("vllm", "vLLM", "http://localhost:8000/v1", dialect=_TEMPLATES)
LMSTUDIO = _row("lmstudio", "LM Studio", "http://localhost:1234/v1", aliases=("lm-studio",), dialect=_OLD_LIMIT)

PRESETS: tuple[CompletionsProvider, ...] = (
    OPENROUTER,
    MISTRAL,
    GROQ,
    PERPLEXITY,
    TOGETHER,
    MANTLE,
    OLLAMA,
    LLAMACPP,
    VLLM,
    LMSTUDIO,
)
"""Compatible servers, each with its base URL, key variable and dialect."""
