"""Whatever a provider reports as usage, a cost is a sensible number or unknown, and nothing raises."""

import math
from typing import Any

from hypothesis import given, strategies as st

from sidestream import Agent, Price, Usage
from sidestream.agent.models import pricing_for
from sidestream.parts import Finish, InputUsage, OutputUsage, StepOutcome

MODELS = {
    name: Agent(name, api_key="k").model
    for name in (
        "anthropic:claude-opus-5",
        "openai-responses:gpt-5.4",
        "openai:gpt-audio",
        "google:gemini-2.5-flash",
        "google:interactions/gemini-2.5-flash",
        "groq:llama-4",
    )
}
PRICES = {"groq:llama-4": Price(input=1, output=2)}

NAMES = [
    *("iterations", "cache_creation", "ephemeral_1h_input_tokens", "cache_creation_input_tokens", "input_tokens"),
    *("server_tool_use", "web_search_requests", "inference_geo", "speed", "service_tier", "model", "fallback_credit"),
    *("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens", "prompt_tokens_details", "audio_tokens"),
    *("completion_tokens_details", "promptTokensDetails", "cacheTokensDetails", "candidatesTokensDetails", "modality"),
    *("tokenCount", "tokens", "trafficType", "serviceTier", "tool_usage", "web_search", "num_requests"),
    *("code_interpreter", "container_id"),
]
COUNTS = st.one_of(st.integers(0, 10**6), st.integers(), st.sampled_from([10**400, -(10**400), 2**63]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), COUNTS, st.floats(), st.sampled_from(["AUDIO", "IMAGE", "us", "flex", ""])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)
USAGES = st.builds(
    Usage,
    input=st.builds(InputUsage, COUNTS, COUNTS, COUNTS, COUNTS),
    output=st.builds(OutputUsage, COUNTS, COUNTS, COUNTS),
    server_tool_use=st.dictionaries(st.sampled_from(["web_search", "google_search", "image_generation"]), COUNTS),
    raw=st.none() | OBJECTS,
)


@given(usage=USAGES, metadata=OBJECTS, runs=st.lists(OBJECTS, max_size=2))
def test_cost_is_finite_or_unknown(usage: Usage, metadata: dict[str, Any], runs: list[Any]) -> None:
    outcome = StepOutcome(summaries={"code_interpreter": runs})
    for name, model in MODELS.items():
        found = pricing_for(model, PRICES).priced(Finish("stop", usage, None, metadata, outcome=outcome))
        assert (found.cost is None) == bool(found.unpriced), name
        assert found.cost is None or (math.isfinite(found.cost) and found.cost >= 0), name
        both = found + found
        assert both.cost is None or math.isfinite(both.cost), name
        assert (found.input, found.output, found.raw) == (usage.input, usage.output, usage.raw), name
