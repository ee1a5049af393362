"""Model listing and billing for Google's APIs. Pure."""

from urllib.parse import quote

from sidestream.jsontext import JsonObject, is_array, objects, text_in
from sidestream.parts import Finish
from sidestream.prices.price import Bill, Charge
from sidestream.providers.google.context import some_text
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.decoding import count_in
from sidestream.providers.shared.endpoints import Endpoint
from sidestream.providers.shared.modalities import abilities
from sidestream.transport.calls import HttpCall, response_object

PRICE_LIST = "google"

_TIERS: dict[str, str | None] = {
    "unspecified": None,
    "standard": None,
    "traffic_type_unspecified": None,
    "on_demand": None,
    "on_demand_flex": "flex",
    "on_demand_priority": "priority",
}
"""Service tier of the API → tier of the price table, where they differ. None means the standard tier."""
_INPUTS = (
    "promptTokensDetails",
    "toolUsePromptTokensDetails",
    "input_tokens_by_modality",
    "tool_use_tokens_by_modality",
)
_CACHED = ("cacheTokensDetails", "cached_tokens_by_modality")
_OUTPUTS = ("candidatesTokensDetails", "output_tokens_by_modality")
_MEDIA = ("audio", "image", "video")
_BILLED_CALLS = ("google_search", "google_maps")


def bill(model: str, finish: Finish) -> Bill:
    """Return the tokens of a response by modality, its service tier, and the search fees. Thoughts count as output."""
    usage, raw = finish.usage, finish.usage.raw or {}
    fresh = {kind: max(_tokens(raw, _INPUTS, kind) - _tokens(raw, _CACHED, kind), 0) for kind in _MEDIA}
    audio_cached = _tokens(raw, _CACHED, "audio")
    images_out, audio_out = _tokens(raw, _OUTPUTS, "image"), _tokens(raw, _OUTPUTS, "audio")
    served = text_in(finish.metadata, "model")
    charge = Charge(
        model=model,
        also=(served.removeprefix("models/"),) if served else (),
        tokens={
            "input": max(usage.input.no_cache - sum(fresh.values()), 0),
            "input_audio": fresh["audio"],
            "input_image": fresh["image"],
            "input_video": fresh["video"],
            "cache_read": max(usage.input.cache_read - audio_cached, 0),
            "cache_read_audio": audio_cached,
            "output": max(usage.output.text - images_out - audio_out, 0),
            "output_image": images_out,
            "output_audio": audio_out,
            "reasoning": usage.output.reasoning,
        },
        tier=_tier(finish, raw),
    )
    return Bill(charges=(charge,), calls={tool: usage.server_tool_use.get(tool, 0) for tool in _BILLED_CALLS})


def _tier(finish: Finish, raw: JsonObject) -> str | None:
    tier = text_in(raw, "serviceTier") or text_in(finish.metadata, "service_tier") or text_in(raw, "trafficType")
    return None if tier is None else _TIERS.get(tier.lower(), tier.lower())


def _tokens(raw: JsonObject, fields: tuple[str, ...], modality: str) -> int:
    entries = [entry for field in fields for entry in objects(raw.get(field))]
    found = [entry for entry in entries if str(entry.get("modality")).lower() == modality]
    return sum(count_in(entry, "tokenCount") + count_in(entry, "tokens") for entry in found)


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
    """Create the call for a page of models. `after` is the token from the previous page."""
    token = f"&pageToken={quote(after, safe='', errors='replace')}" if after else ""
    return endpoint.call(f"models?pageSize={PAGE}{token}", method="GET")


def decode_models(body: bytes) -> tuple[list[ModelInfo], str | None]:
    """Return the models of a page, and the token of the next one. Raises ProtocolError if the body is not an object."""
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
