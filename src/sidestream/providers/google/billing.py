"""What Google bills for a response of either API. Pure."""

from sidestream.jsontext import JsonObject, objects, text_in
from sidestream.prices.price import Bill, Charge
from sidestream.providers.shared.decoding import count_in
from sidestream.stream.parts import Finish

PRICE_LIST = "google"

_TIERS: dict[str, str | None] = {
    "unspecified": None,
    "standard": None,
    "traffic_type_unspecified": None,
    "on_demand": None,
    "on_demand_flex": "flex",
    "on_demand_priority": "priority",
}
"""The API's word for a service tier → that of the price table, where it is another."""
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
    """The tokens of a response by modality, at its service tier, and the fees of searches. Thoughts are output."""
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
