"""Billing of OpenAI responses. Pure."""

from sidestream.jsontext import as_list, as_object, text_in
from sidestream.parts import Finish
from sidestream.prices.price import Bill, Charge
from sidestream.providers.shared.decoding import count_in

PRICE_LIST = "openai"

_STANDARD = frozenset({"auto", "default", "standard"})
_SAME_TIER = {"fast": "priority"}
_BILLED_CALLS = ("web_search", "file_search", "image_generation")
"""Tools with a fee besides their tokens. Images are billed as tokens of a model that responses do not name, so their
price is unknown unless the user sets a fee per call."""


def bill(model: str, finish: Finish) -> Bill:
    """Return the billable tokens of a response, at its service tier, and its tool fees. Reasoning counts as output."""
    usage, metadata = finish.usage, finish.metadata
    raw = usage.raw or {}
    details = as_object(raw.get("prompt_tokens_details"))
    audio_in = count_in(details, "audio_tokens")
    audio_out = count_in(raw.get("completion_tokens_details"), "audio_tokens")
    written = as_object(raw.get("input_tokens_details")).get("cache_write_tokens_details")
    long_written = count_in(written, "ttl_12h_tokens")
    tier = text_in(metadata, "service_tier")
    served = text_in(metadata, "model")
    charge = Charge(
        model=model,
        also=(served,) if served else (),
        tokens={
            "input": max(usage.input.no_cache - audio_in, 0),
            "input_audio": audio_in,
            "cache_read": usage.input.cache_read,
            "cache_write": usage.input.cache_write,
            "output": max(usage.output.total - audio_out, 0),
            "output_audio": audio_out,
        },
        tier=None if tier is None or tier in _STANDARD else _SAME_TIER.get(tier, tier),
    )
    return Bill(
        charges=(charge,),
        calls=_calls(finish),
        containers=_containers(finish),
        unknown=(f"{model}: input cached for 12 hours",) if long_written else (),
    )


def _calls(finish: Finish) -> dict[str, int]:
    """Count calls by tool. For searches, the provider's own billing count is preferred."""
    calls = {tool: finish.usage.server_tool_use.get(tool, 0) for tool in _BILLED_CALLS}
    billed = as_object(finish.metadata.get("tool_usage"))
    if "num_requests" in as_object(billed.get("web_search")):
        calls["web_search"] = count_in(billed["web_search"], "num_requests")
    return calls


def _containers(finish: Finish) -> frozenset[str]:
    """Return the ids of the containers in which code ran."""
    if finish.outcome is None:
        return frozenset()
    runs = as_list(finish.outcome.summaries.get("code_interpreter"))
    ids = (text_in(as_object(run), "container_id") for run in runs)
    return frozenset(found for found in ids if found)
