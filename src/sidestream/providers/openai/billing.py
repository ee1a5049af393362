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
    # Chat Completions has these, and Responses does not.
    details, audio_in, audio_out = raw.get("prompt_tokens_details"), 0, 0
    if details is not None or "completion_tokens_details" in raw:
        audio_in = count_in(details, "audio_tokens")
        audio_out = count_in(raw.get("completion_tokens_details"), "audio_tokens")
    written = as_object(raw.get("input_tokens_details")).get("cache_write_tokens_details")
    long_written = 0 if written is None else count_in(written, "ttl_12h_tokens")
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
    made = finish.usage.server_tool_use
    calls = {tool: made.get(tool, 0) for tool in _BILLED_CALLS} if made else {}
    billed = finish.metadata.get("tool_usage")
    searches = None if billed is None else as_object(billed).get("web_search")
    if "num_requests" in as_object(searches):
        calls["web_search"] = count_in(searches, "num_requests")
    return calls


def _containers(finish: Finish) -> frozenset[str]:
    """Return the ids of the containers in which code ran."""
    runs = None if finish.outcome is None else as_list(finish.outcome.summaries.get("code_interpreter"))
    if not runs:
        return frozenset()
    ids = (text_in(as_object(run), "container_id") for run in runs)
    return frozenset(found for found in ids if found)
