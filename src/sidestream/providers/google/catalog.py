"""The models that the API offers. Pure."""

from urllib.parse import quote

from sidestream.jsontext import JsonObject, is_array, objects
from sidestream.providers.google.values import some_text
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.decoding import count_in
from sidestream.providers.shared.endpoints import Endpoint
from sidestream.providers.shared.modalities import abilities
from sidestream.transport.calls import HttpCall, response_object

PAGE = 1000

_KINDS = {
    "generateContent": "chat",
    "embedContent": "embeddings",
    "batchEmbedContents": "embeddings",
    "predict": "media",
    "predictLongRunning": "media",
}
"""Supported method → kind of model."""
_OWN_FIELDS = ("name", "displayName", "description", "inputTokenLimit", "outputTokenLimit")


def list_models_call(endpoint: Endpoint, after: str | None = None) -> HttpCall:
    """Requests a page; `after` is the token from the previous page."""
    token = f"&pageToken={quote(after, safe='', errors='replace')}" if after else ""
    return endpoint.call(f"models?pageSize={PAGE}{token}", method="GET")


def decode_models(body: bytes) -> tuple[list[ModelInfo], str | None]:
    """The models of a page, and the token of the next one. Raises ProtocolError."""
    answer = response_object(body)
    entries = [*objects(answer.get("models")), *objects(answer.get("publisherModels"))]
    return [_info(entry) for entry in entries if some_text(entry, "name")], some_text(answer, "nextPageToken")


def _info(entry: JsonObject) -> ModelInfo:
    name = str(entry["name"]).rpartition("models/")[2]
    methods = entry.get("supportedGenerationMethods") or entry.get("supportedActions")
    kinds = [_KINDS[str(method)] for method in methods if str(method) in _KINDS] if is_array(methods) else ["chat"]
    if "chat" in kinds and "image" in name:
        kinds.append("media")
    return ModelInfo(
        name=name,
        kinds=tuple(dict.fromkeys(kinds)),
        display_name=some_text(entry, "displayName"),
        description=some_text(entry, "description"),
        max_input_tokens=count_in(entry, "inputTokenLimit") or None,
        max_output_tokens=count_in(entry, "outputTokenLimit") or None,
        **abilities(entry),
        capabilities={key: value for key, value in entry.items() if key not in _OWN_FIELDS},
    )
