"""Claude on clouds, one row and one entry point each.

All hosts speak the Messages API. They differ in URL and credentials, and some in the path and in fields of the body.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, UnsupportedError
from sidestream.providers import protocol
from sidestream.providers.anthropic.context import PROVIDER_NAME, MessagesContext
from sidestream.providers.anthropic.encode.tools import SERVER_SIDE_TOOLS
from sidestream.providers.anthropic.options import AnthropicTool, Browser, TextEditor
from sidestream.providers.anthropic.provider import (
    PROVIDER,
    MessagesModel,
    MessagesOnlyModel,
    normal_base_url,
)
from sidestream.providers.anthropic.versions import API_VERSION
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.shared import endpoints
from sidestream.providers.shared.encoding import EncodedRequest
from sidestream.providers.shared.hosting import require_hosted
from sidestream.tools.server_side import ComputerUse, LocalShell, Memory, ServerSideTool
from sidestream.transport.base_urls import base_url_in, checked_base_url, is_loopback
from sidestream.transport.calls import FRAMES, Auth, HttpCall, OpensHttp, Transport

MessagesRequest = EncodedRequest[MessagesContext]
Rewrite = Callable[[str, MessagesRequest], tuple[str, MessagesRequest]]
"""Model and request → the path, and the request as the host expects it."""

CLIENT_TOOLS: frozenset[type[ServerSideTool]] = frozenset(
    {Memory, LocalShell, TextEditor, ComputerUse, Browser, AnthropicTool}
)
"""Tools that the client carries out, so that they need no host, and those that a program names by their type."""

_BETA_HEADER = "anthropic-beta"
_PROFILE_HEADER = "anthropic-user-profile-id"
_AWS, _GOOGLE = "AWS credentials", "Google Cloud credentials"
_BEDROCK_KEYS = "https://console.aws.amazon.com/bedrock/home#/api-keys"
_REGION = "{AWS_REGION|AWS_DEFAULT_REGION}"
_VERTEX_REGION = "{CLOUD_ML_REGION|=global}"


def _plain(model: str, made: MessagesRequest) -> tuple[str, MessagesRequest]:
    return "messages", made


def _mantle(model: str, made: MessagesRequest) -> tuple[str, MessagesRequest]:
    """Move the user's profile into the body."""
    headers = dict(made.headers)
    profile = headers.pop(_PROFILE_HEADER, None)
    body = made.body if profile is None else {"user_profile_id": profile, **made.body}
    return "messages", replace(made, headers=headers, body=body)


def _vertex(model: str, made: MessagesRequest) -> tuple[str, MessagesRequest]:
    """Move the model into the path, and the API's version into the body."""
    body = {"anthropic_version": API_VERSION, **made.body}
    body.pop("model")
    verb = "streamRawPredict" if body.get("stream") else "rawPredict"
    return f"models/{endpoints.as_segment(model)}:{verb}", replace(made, body=body)


def _bedrock(model: str, made: MessagesRequest) -> tuple[str, MessagesRequest]:
    """Move model and streaming into the path, and version and betas into the body."""
    body, headers = {"anthropic_version": API_VERSION, **made.body}, dict(made.headers)
    body.pop("model")
    if betas := headers.pop(_BETA_HEADER, ""):
        body.setdefault("anthropic_beta", betas.split(","))
    verb = "invoke"
    if body.pop("stream", False):
        verb, headers["Accept"] = "invoke-with-response-stream", FRAMES
    # Model ids contain a colon, and ARNs also slashes.
    segment = quote(model, safe=":") if model.strip(".") else endpoints.as_segment(model)
    return f"model/{segment}/{verb}", replace(made, body=body, headers=headers)


class ClaudeHost(Struct, frozen=True, kw_only=True):
    """A cloud that serves Claude with the Messages API, described as data."""

    name: str
    display_name: str
    base_url: str
    """Base URL, with environment variables as in `url_from_variables`."""
    base_url_variable: str
    key_variables: tuple[str, ...] = ()
    """Environment variables of the key. Empty if the host has no keys."""
    key_header: str = "Authorization"
    keys_at: str | None = None
    header_variables: Mapping[str, str] = {}
    """Environment variables with the values of headers that the host requires, by header."""
    auth: Callable[[], Auth] | None = None
    """Creates the auth that is used if there is no key. It needs an optional package."""
    credentials: str = ""
    """What `auth` uses, for people."""
    has_all_apis: bool = False
    """Whether Anthropic's other APIs, such as files, are known to be there."""
    lists_models: bool = False
    rewrite: Rewrite = _plain
    path: str = ""
    """Start of all paths, with environment variables, unless the base URL contains it."""
    regions: Mapping[str, str] = {}
    """Starts of base URLs that have another form in some regions."""
    adds_version: bool = True
    """Whether the API's version is a header and a segment of the path."""
    aliases: tuple[str, ...] = ()
    default_models: Mapping[str, str] = {}
    telemetry_name: str = PROVIDER_NAME

    @property
    def server_side_tools(self) -> frozenset[type[ServerSideTool]]:
        """Tools that are known to work."""
        return frozenset(SERVER_SIDE_TOOLS) if self.has_all_apis else CLIENT_TOOLS

    @property
    def caps(self) -> Capabilities:
        """Capabilities of Anthropic's API, less what needs its other APIs."""
        return replace(PROVIDER.caps, media=self.has_all_apis, list_models=self.lists_models)

    @property
    def missing_variables(self) -> tuple[str, ...]:
        """Variables that requests need and that are not set."""
        headers = [f"{{{variable}}}" for variable in self.header_variables.values()]
        if endpoints.has_variable([self.base_url_variable]):
            return endpoints.missing_variables(self.path, *headers)
        return endpoints.missing_variables(self.base_url, self.path, *headers)

    @property
    def base_urls(self) -> Mapping[str, str]:
        """The default base URL, by the environment variable that overrides it."""
        try:
            return {self.base_url_variable: self._default_base_url()}
        except ConfigurationError:
            return {self.base_url_variable: self.base_url}

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Create a chat model.

        Raises ConfigurationError if a variable for the URL is not set, and MissingKeyError if there are no credentials.
        """
        given = settings.base_url or base_url_in(self.base_url_variable) or self._default_base_url()
        url = normal_base_url(given) if self.adds_version else checked_base_url(given)
        headers = endpoints.from_environment(self.header_variables)
        endpoint = endpoints.open_endpoint(
            self._authorised(settings, url),
            url,
            self.key_variables,
            who=self.display_name,
            keys_at=self.keys_at,
            key_header=self.key_header,
            headers={"anthropic-version": API_VERSION, **headers} if self.adds_version else headers,
        )
        return (CloudModel if self.has_all_apis else CloudMessagesModel)(self, name, endpoint)

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return None, which means HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return None, since recordings do not identify their host. Anthropic's provider reads them."""
        return None

    def _default_base_url(self) -> str:
        url = endpoints.url_from_variables(self.base_url, who=self.display_name)
        start = next((start for start in self.regions if url.startswith(start)), "")
        return self.regions.get(start, "") + url.removeprefix(start)

    def _authorised(self, settings: protocol.Settings, url: str) -> protocol.Settings:
        """Return the settings, with the host's own auth if there is no other and its package is installed."""
        has_key = settings.api_key or endpoints.has_variable(self.key_variables)
        if self.auth is None or settings.auth or has_key or is_loopback(url):
            return settings
        try:
            return replace(settings, auth=self.auth())
        except ConfigurationError:
            if not self.key_variables:
                raise
            return settings  # The error for the missing key names its variable.


class CloudMessagesModel(MessagesOnlyModel):
    """A model on a cloud of which only the Messages API is known."""

    compacts_history = False

    def __init__(self, host: ClaudeHost, name: str, endpoint: endpoints.Endpoint) -> None:
        super().__init__(name, endpoint)
        self._host = host
        self.provider = host.name
        self.telemetry_name = host.telemetry_name
        self.hosted_tools = host.server_side_tools

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request.

        Raises ConfigurationError if the model, a required header or a variable of the path is missing, and
        NotHostedError for a tool that is not known to work.
        """
        if not self.name:
            raise ConfigurationError(f"{self._host.display_name} needs a model name: write {self.provider}:MODEL")
        require_hosted(request.server_side_tools, self.hosted_tools, self._host.display_name)
        encoded = super().encode(request)
        sent = {name.lower() for name in encoded.call.headers}
        for name, variable in self._host.header_variables.items():
            if name not in sent:
                raise ConfigurationError(f"{self._host.display_name} needs the header {name}: set {variable}")
        return encoded

    def _rewritten(self, made: MessagesRequest) -> tuple[str, MessagesRequest]:
        host = self._host
        path, made = host.rewrite(self.name, replace(made, context=replace(made.context, provider=host.name)))
        if host.path and "/publishers/" not in self.base_url:
            path = f"{endpoints.url_from_variables(host.path, who=host.display_name)}/{path}"
        return path, made


class CloudModel(CloudMessagesModel, MessagesModel):
    """A model on a cloud that also has Anthropic's other APIs."""

    compacts_history = True

    def list_models(self, after: str | None = None) -> HttpCall:
        """Create the call for a page of models. Raises UnsupportedError if the host does not list them."""
        if not self._host.lists_models:
            raise UnsupportedError(f"{self._host.display_name} does not list its models")
        return super().list_models(after)


FOUNDRY = ClaudeHost(
    name="anthropic-foundry",
    display_name="Claude on Azure Foundry",
    base_url="https://{ANTHROPIC_FOUNDRY_RESOURCE}.services.ai.azure.com/anthropic",
    base_url_variable="ANTHROPIC_FOUNDRY_BASE_URL",
    key_variables=("ANTHROPIC_FOUNDRY_API_KEY",),
    key_header="x-api-key",
    keys_at="https://ai.azure.com",
    has_all_apis=True,
)
AWS = ClaudeHost(
    name="anthropic-aws",
    display_name="Claude on AWS",
    base_url=f"https://aws-external-anthropic.{_REGION}.api.aws",
    base_url_variable="ANTHROPIC_AWS_BASE_URL",
    key_variables=("ANTHROPIC_AWS_API_KEY",),
    auth=partial(endpoints.aws_sigv4, "aws-external-anthropic"),
    credentials=_AWS,
    header_variables={"anthropic-workspace-id": "ANTHROPIC_AWS_WORKSPACE_ID"},
    has_all_apis=True,
    lists_models=True,
    default_models=PROVIDER.default_models,
)
GOOGLE_CLOUD = ClaudeHost(
    name="anthropic-google-cloud",
    display_name="Claude on Google Cloud",
    base_url=(
        "https://claude.googleapis.com/v1/projects/{ANTHROPIC_GOOGLE_CLOUD_PROJECT|GOOGLE_CLOUD_PROJECT}"
        "/locations/{ANTHROPIC_GOOGLE_CLOUD_LOCATION|=global}"
        "/workspaces/{ANTHROPIC_GOOGLE_CLOUD_WORKSPACE_ID}/invoke"
    ),
    base_url_variable="ANTHROPIC_GOOGLE_CLOUD_BASE_URL",
    auth=endpoints.google_token,
    credentials=_GOOGLE,
    has_all_apis=True,
    lists_models=True,
    default_models=PROVIDER.default_models,
)
MANTLE = ClaudeHost(
    name="anthropic-mantle",
    display_name="Claude on Bedrock Mantle",
    base_url=f"https://bedrock-mantle.{_REGION}.api.aws/anthropic",
    base_url_variable="ANTHROPIC_BEDROCK_MANTLE_BASE_URL",
    keys_at=_BEDROCK_KEYS,
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
    auth=partial(endpoints.aws_sigv4, "bedrock-mantle"),
    credentials=_AWS,
    rewrite=_mantle,
    telemetry_name="aws.bedrock",
)
VERTEX = ClaudeHost(
    name="anthropic-vertex",
    display_name="Claude on Vertex AI",
    base_url=f"https://{_VERTEX_REGION}-aiplatform.googleapis.com/v1",
    base_url_variable="ANTHROPIC_VERTEX_BASE_URL",
    auth=endpoints.google_token,
    credentials=_GOOGLE,
    regions={
        "https://global-aiplatform.": "https://aiplatform.",
        "https://us-aiplatform.": "https://aiplatform.us.rep.",
        "https://eu-aiplatform.": "https://aiplatform.eu.rep.",
    },
    path=(
        f"projects/{{ANTHROPIC_VERTEX_PROJECT_ID|GOOGLE_CLOUD_PROJECT}}/locations/{_VERTEX_REGION}/publishers/anthropic"
    ),
    rewrite=_vertex,
    adds_version=False,
    telemetry_name="gcp.vertex_ai",
)
BEDROCK = ClaudeHost(
    name="anthropic-bedrock",
    display_name="Claude on Amazon Bedrock",
    base_url=f"https://bedrock-runtime.{_REGION}.amazonaws.com",
    base_url_variable="ANTHROPIC_BEDROCK_BASE_URL",
    keys_at=_BEDROCK_KEYS,
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
    auth=partial(endpoints.aws_sigv4, "bedrock"),
    credentials=_AWS,
    rewrite=_bedrock,
    adds_version=False,
    telemetry_name="aws.bedrock",
)

HOSTS: tuple[ClaudeHost, ...] = (FOUNDRY, AWS, GOOGLE_CLOUD, MANTLE, VERTEX, BEDROCK)
"""Clouds that serve Claude."""
