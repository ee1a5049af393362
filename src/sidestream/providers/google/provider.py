"""The Gemini chat model and the Google provider."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from sidestream.errors import RunError
from sidestream.jsontext import is_object
from sidestream.parts import Finish
from sidestream.prices.price import Bill
from sidestream.providers import protocol
from sidestream.providers.capabilities import Capabilities
from sidestream.providers.embedding import EmbeddingCall, EmbeddingsResult
from sidestream.providers.google import catalog
from sidestream.providers.google.context import PROVIDER_NAME, TELEMETRY_NAME, GoogleContext
from sidestream.providers.google.embeddings import decode_embeddings, embedding_calls
from sidestream.providers.google.encode.request import encode_request, family_of
from sidestream.providers.google.encode.server_side import PORTABLE
from sidestream.providers.google.endpoint import (
    BASE_URL_VARIABLE,
    DEFAULT_BASE_URL,
    KEY_VARIABLE,
    OTHER_KEY_VARIABLE,
    endpoint_of,
    model_path,
)
from sidestream.providers.google.files import GoogleModel
from sidestream.providers.google.options import GoogleOptions
from sidestream.providers.google.settings import SETTINGS
from sidestream.tools.server_side import (
    CodeInterpreter,
    FileSearch,
    ImageGeneration,
    ServerSideTool,
    WebFetch,
    WebSearch,
)
from sidestream.transport.calls import HttpCall, OpensHttp, Transport

INTERACTIONS = "interactions/"
"""Prefix of model names that use the Interactions API."""


class GeminiModel(GoogleModel):
    """A model behind generateContent."""

    provider = PROVIDER_NAME
    telemetry_name = TELEMETRY_NAME
    options_type = GoogleOptions
    portable_settings = frozenset(SETTINGS)
    hosted_tools = frozenset(PORTABLE)
    price_list: str | None = catalog.PRICE_LIST

    @property
    def hosted_alone(self) -> frozenset[type[ServerSideTool]]:
        """The tools that Gemini 2 refuses beside functions. Newer models accept all."""
        return (
            frozenset()
            if family_of(self.name).mixes_tools
            else frozenset({WebSearch, WebFetch, CodeInterpreter, FileSearch})
        )

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request, and create the decoder for its response."""
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        made = encode_request(request, self.name, self.base_url)
        return self._encoded(f"{model_path(self.name)}:{verb}", request, made, _decoder)

    def storage_options(self, options: Any, *, is_stored: bool, has_reasoning: bool) -> GoogleOptions | None:
        """Return options for the storage of an answer."""
        return None if is_stored else GoogleOptions(store=False)

    def bill(self, finish: Finish) -> Bill:
        """Return what a response is billed for."""
        return catalog.bill(self.name, finish)

    def embedding_calls(self, texts: Sequence[str], options: Any) -> Sequence[EmbeddingCall]:
        """Return one call per batch of texts."""
        return embedding_calls(self._endpoint, self.name, texts, options)

    def read_embeddings(self, body: bytes, count: int) -> EmbeddingsResult:
        """Return the vectors of a batch, in the order of its texts."""
        return decode_embeddings(body, count, self.name)

    def media_plan(self, mime_types: tuple[str, ...]) -> protocol.MediaPlan:
        """Plan images as the model's own output, and everything else as files written by code."""
        for kind in mime_types:
            if kind in _IMAGE_FORMATS:
                tool = ImageGeneration(output_format=_IMAGE_FORMATS[kind])
                maker = None if "image" in self.name else DEFAULT_MODELS["media"]
                return protocol.MediaPlan(way="image_output", server_side_tools=(tool,), model=maker)
        return protocol.MediaPlan(
            way="code_execution",
            server_side_tools=(CodeInterpreter(),),
            instruction=f"Run code that makes what the user asks for, as a file of the type {' or '.join(mime_types)}.",
        )

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return None, since there is no server state that could be refused."""
        return None

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Create the call that downloads an uploaded or generated file."""
        path = ref.id if ref.id.startswith("files/") else f"files/{ref.id}"
        return self._endpoint.call(f"{model_path(path)}:download?alt=media", method="GET")


DEFAULT_MODELS = {
    "chat": "gemini-3-flash-preview",
    "embeddings": "gemini-embedding-001",
    "media": "gemini-2.5-flash-image",
}
_IMAGE_FORMATS: dict[str, Literal["png", "jpeg"]] = {"image/png": "png", "image/jpeg": "jpeg", "image/*": "png"}


def _decoder(context: GoogleContext) -> protocol.Decoder:
    from sidestream.providers.google.decode.decoder import GenerateContentDecoder

    return GenerateContentDecoder(context)


CAPS = Capabilities(
    streaming=True,
    client_tools=True,
    parallel_tool_calls=True,
    typed_output="native",
    typed_output_with_tools="native",
    images_in=True,
    documents_in=True,
    audio_in=True,
    thinking=True,
    embeddings=True,
    media=True,
    list_models=True,
    settings=frozenset(SETTINGS),
)


class GoogleProvider:
    """Google Gemini through generateContent, or through the Interactions API for models named `interactions/…`."""

    name = PROVIDER_NAME
    display_name = "Google Gemini"
    aliases = ("gemini", "google-gla")
    key_variables = (KEY_VARIABLE, OTHER_KEY_VARIABLE)
    base_urls: Mapping[str, str] = {BASE_URL_VARIABLE: DEFAULT_BASE_URL}
    default_models: Mapping[str, str] = DEFAULT_MODELS
    server_side_tools: frozenset[type[ServerSideTool]] = frozenset(PORTABLE)
    caps = CAPS
    model_caps: Mapping[str, Capabilities] = {
        INTERACTIONS: replace(CAPS, server_sessions=True, background=True, media=False)
    }

    def chat_model(self, name: str, settings: protocol.Settings) -> protocol.ChatModel:
        """Create a chat model.

        Raises MissingKeyError if there is no key, unless the settings provide auth or the server is on this machine.
        """
        endpoint = endpoint_of(settings)
        if name.startswith(INTERACTIONS):
            from sidestream.providers.google.interactions.model import InteractionsModel

            return InteractionsModel(name.removeprefix(INTERACTIONS), endpoint)
        return GeminiModel(name, endpoint)

    def transport(self, model: str, http: OpensHttp) -> Transport | None:
        """Return None, which means HTTP."""
        return None

    def recorded_decoder(self, method: str, path: str, body: Any) -> protocol.Decoder | None:
        """Return a decoder if the recorded request generates content, or creates or fetches an interaction."""
        bare = path.partition("?")[0]
        request = body if is_object(body) else {}
        if method.upper() == "POST" and (found := _GENERATE.search(bare)):
            return _decoder(GoogleContext(model=found[1]))
        pattern = _INTERACTIONS.get(method.upper())
        if pattern is None or not pattern.search(bare):
            return None
        from sidestream.providers.google.interactions.decode import InteractionsDecoder
        from sidestream.providers.google.interactions.options import InteractionContext

        model = request.get("model")
        return InteractionsDecoder(
            InteractionContext(model=model if isinstance(model, str) else None, store=request.get("store") is not False)
        )


_GENERATE = re.compile(r"/([^/:]+):(?:streamG|g)enerateContent$")
_INTERACTIONS = {"POST": re.compile(r"/interactions/?$"), "GET": re.compile(r"/interactions/[^/]+/?$")}

PROVIDER = GoogleProvider()
