"""Servers with the Responses API, one row and one entry point each, and the tools that differ from OpenAI's.

For other servers, use `openai-responses` with a base URL.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from sidestream.errors import UnsupportedError
from sidestream.jsontext import JsonObject
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.openai.account import HEADER_VARIABLES
from sidestream.providers.openai.billing import PRICE_LIST
from sidestream.providers.openai.responses.encode.request import OPENAI
from sidestream.providers.openai.responses.encode.server_side import SERVER_SIDE_TOOLS
from sidestream.providers.openai.responses.options import SETTINGS, ResponsesDialect, ToolEncoding
from sidestream.providers.openai.responses.provider import ResponsesProvider
from sidestream.providers.shared.encoding import given
from sidestream.providers.shared.hosting import allowed_names, refuse, refuse_approval, refuse_others
from sidestream.tools import server_side

_CAPS = Capabilities(
    streaming=True,
    client_tools=True,
    parallel_tool_calls=True,
    typed_output="native",
    typed_output_with_tools="native",
    images_in=True,
    documents_in=True,
    thinking=True,
    server_sessions=True,
    background=True,
    embeddings=True,
    media=True,
    list_models=True,
    settings=frozenset(SETTINGS),
    instead={"audio_in": "it is attached as a file, which a model may refuse"},
)

PROVIDER = ResponsesProvider(
    dialect=OPENAI,
    short_name="OpenAI",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    keys_at="https://platform.openai.com/api-keys",
    base_url_variable="OPENAI_BASE_URL",
    header_variables=HEADER_VARIABLES,
    aliases=("responses",),
    default_models={"chat": "gpt-5.6", "embeddings": "text-embedding-3-small", "media": "gpt-image-2"},
    caps=_CAPS,
    is_openai=True,
    price_list=PRICE_LIST,
    telemetry_name="openai",
    reads_recordings=True,
)
"""OpenAI's Responses API."""

_OPENAI_ONLY = frozenset(
    {
        "access_programs",
        "background",
        "context_management",
        "conversation",
        "image",
        "include_obfuscation",
        "moderation",
        "namespaces",
        "prompt",
        "prompt_cache_options",
        "prompt_cache_retention",
        "stream_options",
    }
)
"""Options and fields that only OpenAI's own service has."""
_PLAIN_SETTINGS = {name: row for name, row in SETTINGS.items() if name != "cache"}
_AS_IT_IS = "it is sent in OpenAI's format, which the server may refuse"
_PLAIN_CAPS = replace(
    _CAPS,
    documents_in=False,
    background=False,
    embeddings=False,
    media=False,
    settings=frozenset(_PLAIN_SETTINGS),
    instead={"documents_in": _AS_IT_IS, "audio_in": _AS_IT_IS, "background": "the option raises an UnsupportedError"},
)


def _at_most(tool: server_side.ServerSideTool, limit: int, *lists: str) -> None:
    """Check lists of which xAI accepts one, up to a limit. Raises UnsupportedError for more."""
    given_lists: list[Sequence[str]] = [found for name in lists if (found := getattr(tool, name))]
    if len(given_lists) > 1:
        raise UnsupportedError(f"xAI does not support {type(tool).__name__} with both {' and '.join(lists)}; set one")
    if any(len(found) > limit for found in given_lists):
        raise UnsupportedError(f"xAI supports at most {limit} entries in {' or '.join(lists)}")


def _xai_web_search(tool: server_side.WebSearch, container: str | None) -> JsonObject:
    refuse(tool, "xAI", external_web_access="it always searches the web", max_uses="", content_types="", version="")
    _at_most(tool, 5, "allowed_domains", "blocked_domains")
    names = {"allowed_domains": "allowed_domains", "blocked_domains": "excluded_domains"}
    return {"type": "web_search", **given(tool, names)}


def _x_search(tool: server_side.XSearch, container: str | None) -> JsonObject:
    _at_most(tool, 10, "allowed_handles", "blocked_handles")
    names = {
        "allowed_handles": "allowed_x_handles",
        "blocked_handles": "excluded_x_handles",
        "from_date": "from_date",
        "to_date": "to_date",
        "image_understanding": "enable_image_understanding",
        "video_understanding": "enable_video_understanding",
    }
    return {"type": "x_search", **given(tool, names)}


_NO_CONTAINER = ("container_id", "reuse_container", "memory_limit")


def _xai_code_interpreter(tool: server_side.CodeInterpreter, container: str | None) -> JsonObject:
    refuse_others(tool, "xAI", *_NO_CONTAINER, file_ids="its code has no container that takes files")
    return {"type": "code_interpreter"}


def _xai_file_search(tool: server_side.FileSearch, container: str | None) -> JsonObject:
    refuse_others(tool, "xAI", "stores", "max_results")
    _at_most(tool, 10, "stores")
    return {
        "type": "file_search",
        "vector_store_ids": list(tool.stores),
        **given(tool, {"max_results": "max_num_results"}),
    }


def _xai_image_generation(tool: server_side.ImageGeneration, container: str | None) -> JsonObject:
    refuse_others(tool, "xAI", "action")
    return {"type": "image_generation", **given(tool, {"action": "action"})}


def _xai_mcp(tool: server_side.RemoteMCP, container: str | None) -> JsonObject:
    refuse(tool, "xAI", connector="set url", tunnel="set url", defer_loading="", allowed_callers="")
    refuse_approval(tool, "xAI")
    names = {
        "label": "server_label",
        "url": "server_url",
        "description": "server_description",
        "headers": "headers",
        "authorization": "authorization",
    }
    allowed = allowed_names(tool, "xAI")
    # An empty list allows no tool, and a missing one allows all.
    return {"type": "mcp", **given(tool, names), **({} if tool.allowed_tools is None else {"allowed_tools": allowed})}


XAI = ResponsesProvider(
    dialect=ResponsesDialect(
        name="xai",
        display_name="xAI",
        tools={
            server_side.WebSearch: ToolEncoding(_xai_web_search, left_out=("location", "context_size")),
            server_side.XSearch: ToolEncoding(_x_search),
            server_side.CodeInterpreter: ToolEncoding(_xai_code_interpreter, left_out=_NO_CONTAINER),
            server_side.FileSearch: ToolEncoding(_xai_file_search, ("file_search_call.results",)),
            server_side.ImageGeneration: ToolEncoding(_xai_image_generation),
            server_side.RemoteMCP: ToolEncoding(_xai_mcp),
        },
        settings=_PLAIN_SETTINGS,
        lacks=_OPENAI_ONLY | {"max_tool_calls", "metadata", "service_tier", "strict", "truncation", "verbosity"},
        keeps_instructions=True,
        has_containers=False,
        resends_raw=True,
        runs_custom_calls=True,
    ),
    base_url="https://api.x.ai/v1",
    key_variable="XAI_API_KEY",
    keys_at="https://console.x.ai",
    base_url_variable="XAI_BASE_URL",
    aliases=("grok",),
    default_models={"chat": "grok-4.3"},
    caps=_PLAIN_CAPS,
    telemetry_name="x_ai",
)


def _deepseek_web_search(tool: server_side.WebSearch, container: str | None) -> JsonObject:
    refuse_others(tool, "DeepSeek", "context_size", "location")
    return {"type": "web_search"}


_STATELESS = _OPENAI_ONLY | {"previous_response_id", "reasoning.encrypted_content"}

DEEPSEEK = ResponsesProvider(
    dialect=ResponsesDialect(
        name="deepseek",
        display_name="DeepSeek",
        tools={server_side.WebSearch: ToolEncoding(_deepseek_web_search, left_out=("context_size", "location"))},
        settings=_PLAIN_SETTINGS,
        lacks=_STATELESS,
        stores=False,
        has_containers=False,
    ),
    base_url="https://api.deepseek.com",
    key_variable="DEEPSEEK_API_KEY",
    keys_at="https://platform.deepseek.com/api_keys",
    base_url_variable="DEEPSEEK_BASE_URL",
    default_models={"chat": "deepseek-v4-flash"},
    caps=replace(_PLAIN_CAPS, server_sessions=False, images_in=False),
    telemetry_name="deepseek",
)

AZURE = ResponsesProvider(
    dialect=ResponsesDialect(
        name="azure",
        display_name="Azure OpenAI",
        tools={kind: row for kind, row in SERVER_SIDE_TOOLS.items() if kind is not server_side.LocalShell},
        settings=SETTINGS,
    ),
    base_url="https://{AZURE_RESOURCE_NAME}.openai.azure.com/openai/v1",
    key_variable="AZURE_OPENAI_API_KEY",
    keys_at="https://ai.azure.com",
    base_url_variable="AZURE_OPENAI_ENDPOINT",
    base_path="/openai/v1",
    key_header="api-key",
    aliases=("azure-openai",),
    caps=replace(
        _CAPS, embeddings=False, instead={**_CAPS.instead, "embeddings": "name a deployment: azure?embeddings=NAME"}
    ),
    is_openai=True,
    price_list=PRICE_LIST,
    telemetry_name="azure.ai.openai",
)

_MANTLE = "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws"
MANTLE = ResponsesProvider(
    dialect=ResponsesDialect(
        name="mantle",
        display_name="Bedrock Mantle",
        tools={},
        settings=_PLAIN_SETTINGS,
        lacks=_OPENAI_ONLY,
        stores=False,
        has_containers=False,
    ),
    base_url=f"{_MANTLE}/openai/v1",
    model_urls={"openai.gpt-oss": f"{_MANTLE}/v1"},
    key_variable="AWS_BEARER_TOKEN_BEDROCK",
    keys_at="https://console.aws.amazon.com/bedrock/home#/api-keys",
    base_url_variable="BEDROCK_MANTLE_BASE_URL",
    aliases=("bedrock-mantle",),
    default_models={"chat": "openai.gpt-oss-20b"},
    caps=replace(_PLAIN_CAPS, server_sessions=False, images_in=False),
    telemetry_name="aws.bedrock",
)

PRESETS: tuple[ResponsesProvider, ...] = (XAI, DEEPSEEK, AZURE, MANTLE)
"""Other servers, each with its base URL, key variable and dialect."""
