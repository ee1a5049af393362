"""The Responses model and provider, with background responses, downloads and recovery from refusals."""

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, RunError
from sidestream.jsontext import is_object, objects
from sidestream.messages.message import ChatMessage
from sidestream.parts import Finish
from sidestream.prices.price import Bill
from sidestream.providers import protocol
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.openai import billing
from sidestream.providers.openai.files import CatalogModel, OpenAIModel
from sidestream.providers.openai.responses.encode.request import encode_request
from sidestream.providers.openai.responses.options import (
    ENCRYPTED,
    OpenAIResponsesOptions,
    ResponsesContext,
    ResponsesDialect,
)
from sidestream.providers.shared.continuation import CONTAINER_REFUSED, SESSION_REFUSED, UPLOADS_REFUSED
from sidestream.providers.shared.endpoints import (
    BYTES,
    Endpoint,
    as_segment,
    from_environment,
    open_endpoint,
    url_from_variables,
)
from sidestream.tools.server_side import CodeInterpreter, ImageGeneration, ServerSideTool
from sidestream.transport.base_urls import base_url_in, checked_base_url
from sidestream.transport.calls import HttpCall, OpensHttp, SocketCodec, Transport

_IMAGE_FORMATS: dict[str, Literal["png", "jpeg", "webp", "gif", "svg"]] = {
    "image/*": "png",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/svg+xml": "svg",
}


REFUSALS = (
    protocol.Refusal(r"(?i)previous[ _]response|\bresponse\b.{0,80}\bnot found", SESSION_REFUSED),
    protocol.Refusal(
        r"(?is)expected container_id|container\b.*\b(expired|not found|does not exist)",
        CONTAINER_REFUSED,
    ),
    protocol.Refusal(r"(?is)\bfile\b.*\b(expired|not found|does not exist)", UPLOADS_REFUSED),
)
"""Refusals, matched against the error's code and message. The first match is used."""

UNFINISHED = frozenset({"queued", "in_progress"})
"""Statuses of a pending response."""


class ResponsesModel(CatalogModel):
    """A model behind the Responses API."""

    options_type = OpenAIResponsesOptions

    def __init__(self, server: "ResponsesProvider", name: str, endpoint: Endpoint) -> None:
        super().__init__(name, endpoint)
        self.provider = server.name
        self.telemetry_name = server.telemetry_name
        self.price_list = server.price_list
        self.portable_settings = frozenset(server.dialect.settings)
        self.hosted_tools = server.server_side_tools
        self._dialect = server.dialect

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request. Raises ConfigurationError if the model has no name, or for unsupported features."""
        if not self.name:
            raise ConfigurationError(
                f"{self._dialect.display_name} needs a model name: write {self.provider}:MODEL; "
                "list the models with Agent.list_models"
            )
        made = encode_request(request, self.name, self.base_url, self._dialect)
        return self._encoded("responses", request, made, _decoder)

    def storage_options(self, options: Any, *, is_stored: bool, has_reasoning: bool) -> OpenAIResponsesOptions | None:
        """Return options for the storage of an answer and for its encrypted reasoning."""
        fields: dict[str, Any] = {} if is_stored else {"store": False}
        if has_reasoning and ENCRYPTED not in self._dialect.lacks:
            given = options.include if isinstance(options, OpenAIResponsesOptions) else ()
            fields["include"] = tuple(dict.fromkeys((*given, ENCRYPTED)))
        return OpenAIResponsesOptions(**fields) if fields else None

    def bill(self, finish: Finish) -> Bill:
        """Return the billable items of a response."""
        return billing.bill(self.name, finish)

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return a retry without a session or container that the server no longer has, or None for other errors."""
        return protocol.Refusal.recovery_of(error, REFUSALS)

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Return the request that downloads a container file, or an uploaded or generated one."""
        container = f"containers/{as_segment(ref.container_id)}/" if ref.container_id else ""
        return self._endpoint.call(f"{container}files/{as_segment(ref.id)}/content", method="GET", accept=BYTES)


class OpenAIResponsesModel(ResponsesModel, OpenAIModel):
    """A model behind the Responses API of a server that also has OpenAI's other APIs.

    These are files, containers, embeddings, background responses, compaction and WebSockets.
    """

    compacts_history = True
    fills_containers = True

    @property
    def socket_codec(self) -> SocketCodec:
        """The codec of the API's WebSocket mode."""
        from sidestream.providers.openai.responses.websocket import RESPONSES_WEBSOCKET

        return RESPONSES_WEBSOCKET

    def resume_call(self, encoded: protocol.Encoded, decoder: protocol.Decoder) -> HttpCall | None:
        """Return the request for the rest of a background response's stream, or None if it cannot be resumed."""
        from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder

        point = decoder.resume_point if isinstance(decoder, ResponsesDecoder) else None
        if point is None or not encoded.in_background:
            return None
        return self._retrieve(encoded, point[0], {"stream": "true", "starting_after": str(point[1])})

    def steer_event(self, decoder: protocol.Decoder, message: ChatMessage, options: Any) -> tuple[str, bytes] | None:
        """Encode a `response.steer` event. Returns None while the response's id is unknown."""
        from sidestream.providers.openai.responses.encode.request import steer_event

        response_id = _response_id(decoder)
        return None if response_id is None else (response_id, steer_event(response_id, message, options))

    def continues(self, call: HttpCall, decoder: protocol.Decoder) -> bool:
        """Return whether the request names the response as its previous one."""
        response_id = _response_id(decoder)
        body = jsontext.as_object(jsontext.loads(call.body or b"{}"))
        return response_id is not None and body.get("previous_response_id") == response_id

    def under_way(self, body: bytes) -> protocol.UnderWay | None:
        """Return the state of a response that is queued or in progress, or None."""
        return protocol.under_way(body, UNFINISHED)

    def fetch_call(self, encoded: protocol.Encoded, answer_id: str, *, stream: bool) -> HttpCall:
        """Return the request for a response's current state, or for its stream if it was created with one."""
        return self._retrieve(encoded, answer_id, {"stream": "true"} if stream else {})

    def cancel_call(self, encoded: protocol.Encoded, answer_id: str) -> HttpCall:
        """Return the request that cancels a background response. Others end with their connection."""
        url = f"{self.base_url}/responses/{as_segment(answer_id)}/cancel"
        return encoded.follow_up("POST", url, self._endpoint.settings.auth, body=b"{}")

    def _retrieve(self, encoded: protocol.Encoded, response_id: str, query: dict[str, str]) -> HttpCall:
        """Return the request that retrieves a response, with the original `include`, which must be repeated."""
        original = jsontext.as_object(jsontext.loads(encoded.call.body or b"{}"))
        if "stream" in query and jsontext.as_object(original.get("stream_options")).get("include_obfuscation") is False:
            query = {**query, "include_obfuscation": "false"}
        pairs = [*query.items(), *(("include[]", str(name)) for name in jsontext.as_list(original.get("include")))]
        url = f"{self.base_url}/responses/{as_segment(response_id)}" + (f"?{urlencode(pairs)}" if pairs else "")
        return encoded.follow_up("GET", url, self._endpoint.settings.auth, stream="stream" in query)

    def media_plan(self, mime_types: tuple[str, ...]) -> protocol.MediaPlan:
        """Plan image generation for images, and code for everything else."""
        for kind in mime_types:
            if kind in _IMAGE_FORMATS:
                tool = ImageGeneration(output_format=_IMAGE_FORMATS[kind])
                return protocol.MediaPlan(way="image_generation", server_side_tools=(tool,))
        instruction = f"Make what the user asks for as a file of the type {' or '.join(mime_types)}, by running code. "
        return protocol.MediaPlan(
            way="code_interpreter",
            server_side_tools=(CodeInterpreter(),),
            instruction=instruction + "Save it under /mnt/data and link to it in your answer.",
        )


def _response_id(decoder: protocol.Decoder) -> str | None:
    from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder

    return decoder.response_id if isinstance(decoder, ResponsesDecoder) else None


def _decoder(context: ResponsesContext) -> protocol.Decoder:
    from sidestream.providers.openai.responses.decode.decoder import ResponsesDecoder

    return ResponsesDecoder(context)


class ResponsesProvider(Struct, frozen=True, kw_only=True):
    """A server with the Responses API, described as data."""

    dialect: ResponsesDialect
    short_name: str = ""
    """Name of the vendor, if it has other APIs too."""
    base_url: str
    """Default base URL, in which `{VARIABLE}` is filled from the environment."""
    key_variable: str
    keys_at: str | None = None
    """URL at which keys are created."""
    base_url_variable: str | None = None
    base_path: str = ""
    """Path that is appended to a URL in `base_url_variable` that has none."""
    model_urls: Mapping[str, str] = {}
    """Default base URLs of some models, by the prefix of their names."""
    key_header: str = "Authorization"
    header_variables: Mapping[str, str] = {}
    """Environment variables with the values of headers, by header."""
    aliases: tuple[str, ...] = ()
    default_models: Mapping[str, str] = {}
    caps: Capabilities
    is_openai: bool = False
    """Whether the server also has OpenAI's other APIs, such as files and containers."""
    price_list: str | None = None
    """Name of the server's list in the price table, if any."""
    telemetry_name: str
    reads_recordings: bool = False
    """Whether recordings are replayed under this name, since they do not identify their server."""

    @property
    def name(self) -> str:
        """The provider's name."""
        return self.dialect.name

    @property
    def display_name(self) -> str:
        """The name for users."""
        return self.dialect.display_name

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that may hold the key."""
        return (self.key_variable,)

    @property
    def base_urls(self) -> Mapping[str, str]:
        """The default base URL, by the environment variable that overrides it. Empty if other variables are missing."""
        try:
            return {self.base_url_variable: self._default_url()} if self.base_url_variable else {}
        except ConfigurationError:
            return {}

    @property
    def server_side_tools(self) -> frozenset[type[ServerSideTool]]:
        """The hosted tool types."""
        return frozenset(self.dialect.tools)

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Return a model.

        Raises MissingKeyError if there is no key, unless the settings provide auth or the server is on this machine.
        """
        endpoint = open_endpoint(
            settings,
            checked_base_url(settings.base_url or self._given_url() or self._default_url(name)),
            self.key_variables,
            who=self.display_name,
            keys_at=self.keys_at,
            key_header=self.key_header,
            headers=from_environment(self.header_variables),
        )
        return (OpenAIResponsesModel if self.is_openai else ResponsesModel)(self, name, endpoint)

    def _given_url(self) -> str | None:
        """Return the base URL in the environment, with the API's path."""
        url = base_url_in(self.base_url_variable)
        if not url or not self.base_path:
            return url
        url = checked_base_url(url)
        return f"{url.rstrip('/')}{self.base_path}" if not urlsplit(url).path.strip("/") else url

    def _default_url(self, model: str = "") -> str:
        own = (url for prefix, url in self.model_urls.items() if model.startswith(prefix))
        try:
            return url_from_variables(next(own, self.base_url), who=self.display_name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}, or set {self.base_url_variable}") from None

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return None, for plain HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return a decoder if the exchange created or fetched a response. Other requests are not model calls."""
        pattern = _MODEL_CALLS.get(method.upper()) if self.reads_recordings else None
        if pattern is None or not re.search(pattern, path.partition("?")[0]):
            return None
        request = body if is_object(body) else {}
        model = request.get("model")
        return _decoder(
            ResponsesContext(
                store=request.get("store") is not False,
                model=model if isinstance(model, str) else None,
                hosted_shell=_hosts_shell(request.get("tools")),
            )
        )


_MODEL_CALLS = {"POST": r"/responses/?$", "GET": r"/responses/[^/]+/?$"}
"""Path patterns of model calls, by method."""


def _hosts_shell(tools: Any) -> bool | None:
    shell = next((tool for tool in objects(tools) if tool.get("type") == "shell"), None)
    if shell is None:
        return None
    environment = shell.get("environment")
    return is_object(environment) and str(environment.get("type")).startswith("container")
