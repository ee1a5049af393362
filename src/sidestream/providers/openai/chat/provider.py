"""The Chat Completions model and provider, with retries without refused parameters."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, RunError
from sidestream.jsontext import as_object, objects, text_in
from sidestream.parts import Custom, Finish
from sidestream.prices.price import Bill
from sidestream.providers import protocol
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.openai import billing
from sidestream.providers.openai.chat.encode import hosted_tools
from sidestream.providers.openai.chat.encode.request import encode_request, server_tools_among
from sidestream.providers.openai.chat.options import WIRE, CompletionsContext, Dialect, OpenAIChatOptions, settings_of
from sidestream.providers.openai.files import OpenAIModel
from sidestream.providers.shared.endpoints import (
    BYTES,
    Endpoint,
    as_segment,
    from_environment,
    open_endpoint,
    url_from_variables,
)
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.base_urls import base_url_in, checked_base_url
from sidestream.transport.calls import HttpCall, OpensHttp, Transport

DROPPED = "sidestream.parameter-dropped"
"""Kind of the custom part that reports a dropped parameter."""


def _refusal(parameter: str, pattern: str, consequence: str) -> protocol.Refusal:
    message = f"The server refused {parameter}, so {consequence}."
    notice = Custom(DROPPED, {"parameter": parameter, "reason": "refused", "message": message})
    return protocol.Refusal(f"(?i){pattern}", protocol.Recovery(parameter, notice))


REFUSALS = (
    _refusal("stream_options", r"stream_options|include_usage", "the usage of this stream may be unknown"),
    _refusal("max_tokens", r"max_tokens\W.*max_completion_tokens", "max_completion_tokens was sent instead"),
    _refusal("max_completion_tokens", r"max_completion_tokens", "max_tokens was sent instead"),
    _refusal("parallel_tool_calls", r"parallel_tool_calls", "the model may call one tool or several at once"),
    _refusal("response_format", r"response_format|json_schema", "the schema was put into the instructions"),
    _refusal("strict", r"\bstrict\b", "tool input and answers may not follow their schemas"),
)
"""Refusals of parameters, matched against the error message. The first match is used."""

_UNSUPPORTED = (
    r"(?i)not (be )?(supported|permitted|allowed|available|recogni[sz]ed|implemented)|does not support|unsupported|"
    r"unavailable|unknown|unrecogni[sz]ed|unexpected|extra[_ ](inputs|fields|forbidden)|invalid (parameter|argument)"
)
"""Matches messages about an unsupported parameter, as opposed to an invalid value."""

_REFUSED = frozenset({400, 404, 422, 501, None})  # errors in a stream have no status


def recovery_of(error: RunError) -> protocol.Recovery | None:
    """Return what to leave out of a retry, or None if the error is not about an unsupported parameter."""
    if error.status not in _REFUSED or not re.search(_UNSUPPORTED, f"{error.code or ''} {error.message}"):
        return None
    return next((refusal.recovery for refusal in REFUSALS if re.search(refusal.pattern, error.message)), None)


_AS_IT_IS = "it is sent in OpenAI's format, which the server may refuse"
WIRE_CAPS = Capabilities(
    streaming=True,
    client_tools=True,
    parallel_tool_calls=True,
    typed_output="native",
    typed_output_with_tools="native",
    images_in=True,
    thinking=True,
    list_models=True,
    instead={"documents_in": _AS_IT_IS, "audio_in": _AS_IT_IS},
)
"""Capabilities of compatible servers. Unlike some of them, OpenAI itself does not show thinking."""


class CompletionsProvider(Struct, frozen=True, kw_only=True):
    """A server with the Chat Completions API, described as data."""

    name: str
    display_name: str
    short_name: str = ""
    """Name of the vendor, if it has other APIs too."""
    base_url: str
    """Default base URL, with environment variables as in `url_from_variables`."""
    key_variable: str | None = None
    """Environment variable of the key. None means a server on this machine, which rarely requires a key."""
    keys_at: str | None = None
    """URL at which keys are created."""
    base_url_variable: str | None = None
    header_variables: Mapping[str, str] = {}
    """Environment variables with the values of headers, by header."""
    aliases: tuple[str, ...] = ()
    default_models: Mapping[str, str] = {}
    hosting: hosted_tools.Hosting = ()
    """Server-side tools that the server runs, by model."""
    caps: Capabilities = WIRE_CAPS
    dialect: Dialect = Dialect()
    price_list: str | None = None
    """Name of the server's list in the price table, if any."""
    reads_recordings: bool = False
    """Whether recordings are replayed under this name, since they do not identify their server."""
    telemetry_name: str | None = None
    """Name in OpenTelemetry, if it differs from `name`."""

    @property
    def server_side_tools(self) -> frozenset[type[ServerSideTool]]:
        """The server-side tools that the server runs for at least one model."""
        return hosted_tools.hosted_kinds(self.hosting)

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that may hold the key."""
        return (self.key_variable,) if self.key_variable else ()

    @property
    def base_urls(self) -> Mapping[str, str]:
        """The default base URL, by the environment variable that overrides it."""
        return {self.base_url_variable: self.base_url} if self.base_url_variable else {}

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Return a model.

        Raises MissingKeyError if there is no key, unless the settings provide auth or the server is on this machine.
        """
        given = settings.base_url or base_url_in(self.base_url_variable)
        base_url = checked_base_url(given or url_from_variables(self.base_url, who=self.display_name))
        endpoint = open_endpoint(
            settings,
            base_url,
            self.key_variables,
            who=self.display_name,
            keys_at=self.keys_at,
            headers=from_environment(self.header_variables),
        )
        return CompletionsModel(self, name, endpoint)

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return None, for plain HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return a decoder if the exchange created a chat completion. Listing stored ones is not a model call."""
        if not self.reads_recordings or method.upper() != "POST" or not _MODEL_CALL.search(path.partition("?")[0]):
            return None
        request = as_object(body)
        audio, tools = as_object(request.get("audio")), objects(request.get("tools"))
        return _decoder(
            CompletionsContext(audio_format=text_in(audio, "format"), server_tools=server_tools_among(tools))
        )


_MODEL_CALL = re.compile(r"/chat/completions/?$")


class CompletionsModel(OpenAIModel):
    """A model behind the Chat Completions API."""

    options_type = OpenAIChatOptions

    def __init__(self, server: CompletionsProvider, name: str, endpoint: Endpoint) -> None:
        super().__init__(name, endpoint)
        self.provider = server.name
        self.telemetry_name = server.telemetry_name or server.name
        self._server = server
        self.price_list = server.price_list
        self.portable_settings = frozenset(settings_of(server.dialect))
        self.hosted_tools = hosted_tools.hosted_kinds(server.hosting, name)

    def storage_options(self, options: Any, *, is_stored: bool, has_reasoning: bool) -> OpenAIChatOptions | None:
        """Return options for the storage of an answer. Other servers with this API may not know the parameter."""
        return OpenAIChatOptions(store=False) if not is_stored and self._server.name == WIRE else None

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request. Raises ConfigurationError if the model has no name, or for unsupported features."""
        if not self.name:
            raise ConfigurationError(
                f"{self._server.display_name} needs a model name: write {self._server.name}:MODEL; "
                "list the models with Agent.list_models"
            )
        made = encode_request(
            request,
            self.name,
            provider=self._server.name,
            display_name=self._server.display_name,
            dialect=self._server.dialect,
            hosting=self._server.hosting,
        )
        return self._encoded("chat/completions", request, made, _decoder)

    def bill(self, finish: Finish) -> Bill:
        """Return the billable items of a response. Search models search on every request without reporting it."""
        made = billing.bill(self.name, finish)
        return replace(made, calls={"web_search": 1}) if "-search-" in self.name else made

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return a retry without the parameter that the server does not support, or None for other errors."""
        return recovery_of(error)

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Return the request that downloads an uploaded file. Responses contain no files to download."""
        return self._endpoint.call(f"files/{as_segment(ref.id)}/content", method="GET", accept=BYTES)


def _decoder(context: CompletionsContext) -> protocol.Decoder:
    from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder

    return CompletionsDecoder(context)
