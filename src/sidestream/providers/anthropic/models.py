"""The chat model and the provider: key, base URL, headers, files, and how to go on after a refusal."""

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from sidestream import jsontext
from sidestream.base_urls import checked_base_url, is_loopback
from sidestream.calls import HttpCall, Transport
from sidestream.caps import Capabilities
from sidestream.errors import MissingKeyError, ProtocolError, RunError
from sidestream.jsonvalues import Json, is_object, objects
from sidestream.models import (
    ChatModel,
    Decoder,
    Encoded,
    FileRef,
    MediaPlan,
    ModelInfo,
    ModelRequest,
    Recovery,
    Settings,
)
from sidestream.parts import Custom
from sidestream.providers.anthropic import files, media
from sidestream.providers.anthropic.context import PROVIDER_NAME, RESULT_TOOL, DecodeContext
from sidestream.providers.anthropic.encode import encode_request, options_of
from sidestream.providers.anthropic.encode_hosted import HOSTED
from sidestream.providers.anthropic.encode_replay import SERVER_CALLS
from sidestream.providers.anthropic.versions import API_VERSION
from sidestream.server_tools import CodeInterpreter, ServerTool

KEY_VARIABLE = "ANTHROPIC_API_KEY"
TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"
DEFAULT_BASE_URL = "https://api.anthropic.com"

FALLBACK = "sidestream.session-fallback"
CONTAINER_REPLACED = "sidestream.container-replaced"


class Refusal(Struct, frozen=True):
    """An error after which one more try makes sense, without what was refused."""

    pattern: re.Pattern[str]
    recovery: Recovery


def _recovery(drop: str, kind: str, message: str) -> Recovery:
    return Recovery(drop, Custom(kind, {"reason": "refused", "message": message}))


REFUSALS = (
    Refusal(
        re.compile(r"container\b.*\b(expired|not found|does not exist|no longer)", re.IGNORECASE | re.DOTALL),
        _recovery(
            "container",
            CONTAINER_REPLACED,
            "The container of the earlier turns is gone; the tool goes on in a new one, without its files.",
        ),
    ),
    Refusal(
        re.compile(r"signature|thinking.{0,40}(cannot be modified|invalid)", re.IGNORECASE | re.DOTALL),
        _recovery(
            "thinking", FALLBACK, "The server refused earlier thinking, so the conversation was sent without it."
        ),
    ),
    Refusal(
        re.compile(r"encrypted_(content|index)|server_tool_use|mcp_tool_use|\w+_tool_result", re.IGNORECASE),
        _recovery(
            "session",
            FALLBACK,
            "The server refused what its tools did earlier, so the conversation was sent without it.",
        ),
    ),
)
"""What code or message of a refusal say → how to go on. The first that matches counts."""

_REFUSED = frozenset({400, 404, 410, None})  # None: the error came in the stream


class MessagesModel:
    """One model behind the Messages API."""

    def __init__(self, name: str, base_url: str, settings: Settings, api_key: str | None) -> None:
        self._name = name
        self._base_url = base_url
        self._settings = settings
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"MessagesModel({self._name!r}, base_url={self._base_url!r})"

    @property
    def provider(self) -> str:
        """The provider's name."""
        return PROVIDER_NAME

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def base_url(self) -> str:
        """Where it is called."""
        return self._base_url

    def encode(self, request: ModelRequest) -> Encoded:
        """The request on the wire, and the decoder for its answer."""
        encoded = encode_request(request, self._name, self._base_url)
        options = options_of(request)
        headers = self._headers("text/event-stream" if request.stream else "application/json")
        headers["Content-Type"] = "application/json"
        chosen = {
            "anthropic-beta": ",".join(encoded.betas),
            "anthropic-user-profile-id": options.user_profile_id,
            "anthropic-workspace-id": options.workspace_id,
        }
        headers |= {name: value for name, value in chosen.items() if value}
        call = HttpCall(
            url=f"{self._base_url}/messages",
            headers=headers | options.extra_headers,
            body=jsontext.dumps(encoded.body),
            stream=request.stream,
            key_variable=self._key_variable,
        )
        return Encoded(call=call, decoder=partial(_decoder, encoded.context), warnings=encoded.warnings)

    def recover(self, error: RunError) -> Recovery | None:
        """A container or signatures that the server does not take any more can be done without."""
        if error.status not in _REFUSED:
            return None
        said = f"{error.code or ''} {error.message}"
        return next((refusal.recovery for refusal in REFUSALS if refusal.pattern.search(said)), None)

    def download(self, ref: FileRef) -> HttpCall:
        """The content of a file that code made."""
        return self._get(f"files/{_quoted(ref.id)}/content", "application/binary")

    def media_plan(self, mime_types: tuple[str, ...]) -> MediaPlan:
        """All files are made by code; where none came, what it printed becomes a PDF."""
        return MediaPlan(
            way="code_execution",
            server_tools=(CodeInterpreter(),),
            instruction=f"{media.INSTRUCTION} The file must be of the type {' or '.join(mime_types)}.",
            fallback=media.fallback_file if "application/pdf" in mime_types else None,
        )

    def describe(self, ref: FileRef) -> HttpCall:
        """What the provider knows of a file: `files.read_file` reads the answer, with its name."""
        return self._get(f"files/{_quoted(ref.id)}", "application/json")

    def read_name(self, body: bytes) -> str | None:
        """The name of the file that `describe` asked about."""
        return files.read_file(body).name

    def upload(self, name: str, data: bytes, media_type: str, expires_in_s: int | None = None) -> HttpCall:
        """Stores a file; `files.read_file` reads the answer."""
        body, content_type = files.upload_form(name, data, media_type, expires_in_s)
        headers = self._headers("application/json") | {"Content-Type": content_type}
        return HttpCall(url=f"{self._base_url}/files", headers=headers, body=body, key_variable=self._key_variable)

    def delete(self, ref: FileRef) -> HttpCall:
        """Removes a stored file."""
        url = f"{self._base_url}/files/{_quoted(ref.id)}"
        headers = self._headers("application/json")
        return HttpCall(method="DELETE", url=url, headers=headers, key_variable=self._key_variable)

    def list_models(self, after: str | None = None) -> HttpCall:
        """One page of the models; `read_models` reads the answer."""
        query = urlencode({"limit": 1000, **({"after_id": after} if after else {})})
        return self._get(f"models?{query}", "application/json")

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """The models of a page, and after which the next one begins."""
        return files.read_models(body)

    def _get(self, path: str, accept: str) -> HttpCall:
        headers = self._headers(accept)
        return HttpCall(method="GET", url=f"{self._base_url}/{path}", headers=headers, key_variable=self._key_variable)

    @property
    def _key_variable(self) -> str | None:
        return KEY_VARIABLE if self._settings.auth is None else None

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "anthropic-version": API_VERSION}
        if self._settings.auth is not None:
            headers |= self._settings.auth()
        elif self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers | self._settings.headers


def _quoted(part: str) -> str:
    if not part.strip("."):
        raise ProtocolError(f"the provider names a file {part!r}, which can be no id")
    return quote(part, safe="")


def _decoder(context: DecodeContext) -> Decoder:
    from sidestream.providers.anthropic.decode import MessagesDecoder

    return MessagesDecoder(context)


class AnthropicProvider:
    """Anthropic, by its Messages API."""

    name = PROVIDER_NAME
    display_name = "Anthropic"
    aliases = ("claude",)
    key_variables = (KEY_VARIABLE, TOKEN_VARIABLE)
    default_models: Mapping[str, str] = {"chat": "claude-sonnet-5-5", "media": "claude-sonnet-5-5"}
    server_tools: frozenset[type[ServerTool]] = frozenset(HOSTED)
    caps = Capabilities(
        streaming=True,
        client_tools=True,
        parallel_tool_calls=True,
        typed_output="native",
        typed_output_with_tools="native",
        images_in=True,
        documents_in=True,
        thinking=True,
        media=True,
        list_models=True,
        instead={"audio_in": "the model is told the file's name"},
    )

    def chat_model(self, name: str, settings: Settings) -> ChatModel:
        """Raises MissingKeyError, unless the settings bring their own auth or the server is on this machine."""
        base_url = normal_base_url(settings.base_url or os.environ.get("ANTHROPIC_BASE_URL") or DEFAULT_BASE_URL)
        candidates = (settings.api_key, os.environ.get(KEY_VARIABLE), os.environ.get(TOKEN_VARIABLE))
        key = next((found for given in candidates if (found := (given or "").strip())), None)
        if key is not None:
            from sidestream.redaction import register_secret

            register_secret(key)
        elif settings.auth is None and not is_loopback(base_url):
            raise MissingKeyError(
                f"Anthropic needs a key: set {KEY_VARIABLE} or {TOKEN_VARIABLE} (keys are made at "
                "https://platform.claude.com/settings/keys), or pass api_key= or auth= to Agent"
            )
        return MessagesModel(name, base_url, settings, key)

    def transport(self, model: str) -> Transport | None:
        """HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> Decoder | None:
        """Creating a message is a model call; counting tokens, batches and files are not."""
        if method.upper() != "POST" or not re.search(r"/messages/?$", path.partition("?")[0]):
            return None
        asked: Json = body if is_object(body) else {}
        model = asked.get("model")
        names = {tool.get("name") for tool in objects(asked.get("tools"))}
        return _decoder(
            DecodeContext(
                model=model if isinstance(model, str) else None,
                has_result_tool=RESULT_TOOL in names,
                waiting=_waiting(asked.get("messages")),
                is_compaction="compaction" in asked,
            )
        )


def _waiting(messages: Any) -> dict[str, Json]:
    """The server-side calls of a recorded request whose results were still to come."""
    blocks = [block for message in objects(messages) for block in objects(message.get("content"))]
    answered = {block.get("tool_use_id") for block in blocks}
    calls = [block for block in blocks if block.get("type") in SERVER_CALLS and isinstance(block.get("id"), str)]
    return {block["id"]: block for block in calls if block["id"] not in answered}


def normal_base_url(url: str) -> str:
    """The URL up to and with the API's `/v1`. Raises ConfigurationError where it is none that can be called."""
    given = checked_base_url(url)
    return given if given.endswith("/v1") else f"{given}/v1"


PROVIDER = AnthropicProvider()
