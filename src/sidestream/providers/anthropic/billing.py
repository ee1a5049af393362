"""What Anthropic bills for a response. Pure."""

from sidestream.jsontext import JsonObject, as_list, as_object, text_in
from sidestream.prices.price import Bill, Charge
from sidestream.providers.shared.decoding import count_in
from sidestream.stream.parts import Finish

PRICE_LIST = "anthropic"

_STANDARD = frozenset({"standard", "not_available", "global"})


def bill(model: str, finish: Finish) -> Bill:
    """The tokens of a response, and its searches.

    A response that took several calls lists them: those of a compaction, an advisor or a model that declined are not in
    its totals, but billed.
    """
    raw = finish.usage.raw or {}
    calls = [as_object(call) for call in as_list(raw.get("iterations"))]
    searches = as_object(raw.get("server_tool_use"))
    searched = count_in(searches, "web_search_requests")
    return Bill(
        charges=tuple(_charge(model, call, finish, raw) for call in calls or [raw]),
        calls={"web_search": searched if searches else finish.usage.server_tool_use.get("web_search", 0)},
        unknown=(f"{model}: the credit for a fallback",) if raw.get("fallback_credit") else (),
    )


def _charge(model: str, call: JsonObject, finish: Finish, raw: JsonObject) -> Charge:
    other, served, tier = text_in(call, "model"), text_in(finish.metadata, "model"), text_in(raw, "service_tier")
    hour = count_in(call.get("cache_creation"), "ephemeral_1h_input_tokens")
    modes = [text_in(raw, "inference_geo"), text_in(raw, "speed")]
    return Charge(
        model=other or model,
        also=() if other or not served else (served,),
        tokens={
            "input": count_in(call, "input_tokens"),
            "cache_read": count_in(call, "cache_read_input_tokens"),
            "cache_write": max(count_in(call, "cache_creation_input_tokens") - hour, 0),
            "cache_write_1h": hour,
            "output": count_in(call, "output_tokens"),
        },
        tier=None if tier is None or tier in _STANDARD else tier,
        factors=tuple(mode for mode in modes if mode is not None and mode not in _STANDARD),
    )
