"""What responses cost: the usage of recordings and of hand-made responses, against sums made by hand."""

from pathlib import Path
from typing import Any

import pytest

from sidestream import Agent, ConfigurationError, Price, Usage
from sidestream.agent.models import pricing_for
from sidestream.parts import Finish, InputUsage, OutputUsage, StepFinish, StepOutcome, StreamPart
from sidestream.prices import PriceTable, price_table
from sidestream.prices.pricing import UNREPORTED
from sidestream.replay.provider import decoder_of
from sidestream.replay.recording import Recording
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, json_reply, responses_text, sse
from sidestream.wire.sse import Splitter

MILLION = 1_000_000


def finish_in(path: Path, exchange: int = 0) -> Finish:
    """The end of a recorded response."""
    recorded = Recording.load(path).exchanges[exchange]
    found = decoder_of(recorded)
    assert found is not None
    decoder, body = found[1], recorded.body_bytes()
    parts: list[StreamPart] = []
    if "event-stream" in (recorded.response.content_type or ""):
        splitter = Splitter(MILLION * 100)
        for event in splitter.feed(body) + splitter.flush():
            parts += decoder.feed(event)
    else:
        parts += decoder.whole(body)
    parts += decoder.close()
    return next(part for part in parts if isinstance(part, Finish))


def priced(model: str, finish: Finish, prices: dict[str, Price] | None = None) -> Usage:
    return pricing_for(Agent(model, api_key="k").model, prices or {}).priced(finish)


@pytest.mark.parametrize(
    ("file", "exchange", "model", "dollars"),
    [
        # Sonnet 4.6 at 3/15, and the advisor's own call, which is not in the totals: Opus 4.7 at 5/25.
        (
            "anthropic/v-anthropic-advisor-20250301.1-stream.json",
            0,
            "anthropic:claude-sonnet-4-6",
            (4727 * 3 + 3391 * 15 + 2728 * 5 + 3880 * 25) / MILLION,
        ),
        # Opus 4.6 at 5/25; the call that compacted is not in the totals either.
        (
            "anthropic/v-anthropic-compaction.1-stream.json",
            0,
            "anthropic:claude-opus-4-6",
            ((612 + 60385) * 5 + (2819 + 522) * 25) / MILLION,
        ),
        # The model that declined (Fable 5 at 10/50) and the one that answered (Opus 4.8 at 5/25).
        (
            "anthropic/v-anthropic-fallback-whole.json",
            0,
            "anthropic:claude-fable-5",
            (408 * 10 + 412 * 5 + 264 * 25) / MILLION,
        ),
        # Ten searches at 0.01 each beside Sonnet 4.5 at 3/15.
        (
            "anthropic/p-test_pause_turn_web_search_vcr.json",
            0,
            "anthropic:claude-sonnet-4-5",
            (401468 * 3 + 792 * 15) / MILLION + 10 * 0.01,
        ),
        # GPT-5 at 1.25/10 and 0.125 cached; cached tokens are among the input tokens. One search at 0.01.
        (
            "openai-responses/p-test_openai_responses_model_web_search_tool.json",
            0,
            "openai-responses:gpt-5",
            ((9299 - 8448) * 1.25 + 8448 * 0.125 + 577 * 10) / MILLION + 0.01,
        ),
        # Three code runs in one container: 0.03 once. GPT-5 nano at 0.05/0.4, 0.005 cached.
        (
            "openai-responses/v-openai-code-interpreter-tool.1-stream.json",
            0,
            "openai-responses:gpt-5-nano",
            ((6047 - 2944) * 0.05 + 2944 * 0.005 + 1623 * 0.4) / MILLION + 0.03,
        ),
        # A file search at 0.0025.
        (
            "openai-responses/v-openai-file-search-tool.1-stream.json",
            0,
            "openai-responses:gpt-5-mini",
            ((3737 - 2304) * 0.25 + 2304 * 0.025 + 621 * 2) / MILLION + 0.0025,
        ),
        # A search model of Chat Completions: 0.025 for each request, which reports no search.
        (
            "openai-chat/p-test_openai_web_search_tool.json",
            0,
            "openai:gpt-4o-search-preview",
            (11 * 2.5 + 17 * 10) / MILLION + 0.025,
        ),
        # Gemini 2.5 Pro at 1.25/10: what tools read is input, thoughts are output. One grounded prompt at 0.035.
        (
            "google/p-test_google_model_web_search_tool.json",
            0,
            "google:gemini-2.5-pro",
            (136 * 1.25 + 414 * 10) / MILLION + 0.035,
        ),
        # 1,290 tokens of a picture at 30, not at the 2.5 of text.
        (
            "google/p-test_google_vertexai_image_generation_with_output_format.json",
            0,
            "google:gemini-2.5-flash-image",
            (9 * 0.3 + 1290 * 30) / MILLION,
        ),
        # The Interactions API: Gemini 2.5 Flash at 0.3/2.5.
        (
            "google-interactions/v-google-search-stream.json",
            0,
            "google:interactions/gemini-2.5-flash",
            (220 * 0.3 + 1763 * 2.5) / MILLION + 0.035,
        ),
    ],
)
def test_cost_of_recorded_response_matches_billing(
    recordings: Path, file: str, exchange: int, model: str, dollars: float
) -> None:
    usage = priced(model, finish_in(recordings / file, exchange))
    assert usage.unpriced == ()
    assert usage.cost == pytest.approx(dollars, rel=1e-12)


def test_image_of_unnamed_model_is_unpriced_without_user_fee(recordings: Path) -> None:
    finish = finish_in(recordings / "openai-responses" / "v-openai-image-generation-tool.1-stream.json")
    usage = priced("openai-responses:gpt-5", finish)
    assert (usage.cost, usage.unpriced) == (None, ("openai-responses:gpt-5: image_generation",))

    own = {"openai-responses:gpt-5": Price(input=1, output=2, tools={"image_generation": 0.04})}
    assert priced("openai-responses:gpt-5", finish, own).cost == pytest.approx(
        (2941 * 1 + 1249 * 2) / MILLION + 0.04, rel=1e-12
    )


def anthropic(model: str = "claude-opus-5", **usage: Any) -> Usage:
    raw = {"input_tokens": 100, "output_tokens": 10, **usage}
    return priced(f"anthropic:{model}", Finish("stop", Usage(InputUsage(100, 100), OutputUsage(10, 10), {}, raw)))


def test_anthropic_hour_cache_costs_more_than_five_minutes() -> None:
    usage = anthropic(
        cache_creation_input_tokens=3000,
        cache_read_input_tokens=500,
        cache_creation={"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
    )
    assert usage.cost == pytest.approx((100 * 5 + 10 * 25 + 500 * 0.5 + 1000 * 6.25 + 2000 * 10) / MILLION, rel=1e-12)
    # Without a breakdown, all of it is for five minutes, the default.
    assert anthropic(cache_creation_input_tokens=3000).cost == pytest.approx(
        (100 * 5 + 10 * 25 + 3000 * 6.25) / MILLION, rel=1e-12
    )


@pytest.mark.parametrize(
    ("mode", "factor"),
    [
        ({"service_tier": "standard", "inference_geo": "global", "speed": "standard"}, 1.0),
        ({"inference_geo": "not_available"}, 1.0),
        ({"inference_geo": "us"}, 1.1),
        ({"speed": "fast"}, 2.0),
        ({"inference_geo": "us", "speed": "fast"}, 2.2),
    ],
)
def test_anthropic_modes_multiply_rates(mode: dict[str, str], factor: float) -> None:
    assert anthropic(**mode).cost == pytest.approx((100 * 5 + 10 * 25) * factor / MILLION, rel=1e-12)


@pytest.mark.parametrize(
    ("usage", "unpriced"),
    [
        ({"service_tier": "priority"}, "anthropic:claude-opus-5 at the service tier priority"),
        ({"inference_geo": "eu"}, "anthropic:claude-opus-5 in the mode eu"),
        ({"fallback_credit": {"type": "applied"}}, "claude-opus-5: the credit for a fallback"),
        ({"iterations": [{"type": "advisor_message", "model": "claude-unheard-of"}]}, "anthropic:claude-unheard-of"),
    ],
)
def test_unpriced_usage_is_named_and_cost_unknown(usage: dict[str, Any], unpriced: str) -> None:
    found = anthropic(**usage)
    assert (found.cost, found.unpriced) == (None, (unpriced,))


def test_searches_not_counted_by_anthropic_are_not_billed() -> None:
    raw = {"input_tokens": 100, "output_tokens": 10, "server_tool_use": {"web_search_requests": 0}}
    usage = Usage(InputUsage(100, 100), OutputUsage(10, 10), {"web_search": 1}, raw)
    assert priced("anthropic:claude-opus-5", Finish("stop", usage)).cost == pytest.approx(0.00075, rel=1e-12)


def openai(model: str, finish: dict[str, Any] | None = None, **usage: Any) -> Usage:
    raw = usage.pop("raw", {"input_tokens": 1})
    return priced(f"openai-responses:{model}", Finish("stop", Usage(raw=raw, **usage), None, **(finish or {})))


def test_openai_service_tiers_have_their_own_rates() -> None:
    tokens = {"input": InputUsage(1000, 600, 400), "output": OutputUsage(100, 40, 60)}
    costs = {
        tier: openai("gpt-5.4", {"metadata": {"service_tier": tier}}, **tokens).cost
        for tier in ("default", "auto", "flex", "priority", "fast")
    }
    standard = (600 * 2.5 + 400 * 0.25 + 100 * 15) / MILLION
    assert costs["default"] == costs["auto"] == pytest.approx(standard, rel=1e-12)
    assert costs["flex"] == pytest.approx((600 * 1.25 + 400 * 0.13 + 100 * 7.5) / MILLION, rel=1e-12)
    assert costs["priority"] == costs["fast"] == pytest.approx((600 * 5 + 400 * 0.5 + 100 * 30) / MILLION, rel=1e-12)
    scale = openai("gpt-5.4", {"metadata": {"service_tier": "scale"}}, **tokens)
    assert (scale.cost, len(scale.unpriced)) == (None, 1)


def test_long_request_uses_long_rates_for_all_tokens() -> None:
    at_limit = openai("gpt-5.4", input=InputUsage(272_000, 272_000), output=OutputUsage(10, 10))
    assert at_limit.cost == pytest.approx((272_000 * 2.5 + 10 * 15) / MILLION, rel=1e-12)
    above = openai("gpt-5.4", input=InputUsage(272_001, 72_001, 200_000), output=OutputUsage(10, 10))
    assert above.cost == pytest.approx((72_001 * 5 + 200_000 * 0.5 + 10 * 22.5) / MILLION, rel=1e-12)


def test_provider_count_of_billable_searches_takes_precedence() -> None:
    facts = {"metadata": {"tool_usage": {"web_search": {"num_requests": 1}}}}
    tokens: dict[str, Any] = {"input": InputUsage(1, 1), "server_tool_use": {"web_search": 3}}
    assert openai("gpt-5", facts, **tokens).cost == pytest.approx(1.25 / MILLION + 0.01, rel=1e-12)
    assert openai("gpt-5", **tokens).cost == pytest.approx(1.25 / MILLION + 0.03, rel=1e-12)


def test_openai_12_hour_cache_input_is_unpriced() -> None:
    raw = {"input_tokens_details": {"cache_write_tokens_details": {"ttl_12h_tokens": 5, "ttl_30m_tokens": 0}}}
    usage = openai("gpt-5.6", raw=raw, input=InputUsage(10, 5, 0, 5))
    assert usage.cost is None
    assert usage.unpriced == ("gpt-5.6: input cached for 12 hours",)


def test_container_is_billed_once_for_all_steps() -> None:
    pricing = pricing_for(Agent("openai-responses:gpt-5", api_key="k").model, {})

    def cost(*containers: str) -> float:
        runs = [{"container_id": name} for name in containers]
        outcome = StepOutcome(summaries={"code_interpreter": runs})
        usage = pricing.priced(Finish("stop", Usage(raw={"input_tokens": 0}), outcome=outcome))
        assert usage.cost is not None
        return usage.cost

    assert [cost("a"), cost("a", "b"), cost("a"), cost()] == [0.03, 0.03, 0.0, 0.0]


def test_chat_completions_audio_has_its_own_rates() -> None:
    raw = {
        "prompt_tokens": 100,
        "prompt_tokens_details": {"audio_tokens": 60},
        "completion_tokens": 50,
        "completion_tokens_details": {"audio_tokens": 40},
    }
    usage = Usage(InputUsage(100, 100), OutputUsage(50, 50), {}, raw)
    table = price_table().find("openai", "gpt-audio")
    assert table is not None
    expected = 40 * 2.5 + 60 * (table.input_audio or 0) + 10 * 10 + 40 * (table.output_audio or 0)
    assert table.input_audio
    assert table.input_audio > 2.5
    assert priced("openai:gpt-audio", Finish("stop", usage)).cost == pytest.approx(expected / MILLION, rel=1e-12)


def gemini(model: str, usage: Usage, **raw: Any) -> Usage:
    return priced(f"google:{model}", Finish("stop", Usage(usage.input, usage.output, usage.server_tool_use, raw)))


def test_gemini_bills_audio_separately_even_when_cached() -> None:
    usage = gemini(
        "gemini-2.5-flash",
        Usage(InputUsage(1000, 700, 300), OutputUsage(50, 20, 30)),
        promptTokensDetails=[{"modality": "TEXT", "tokenCount": 600}, {"modality": "AUDIO", "tokenCount": 400}],
        cacheTokensDetails=[{"modality": "TEXT", "tokenCount": 200}, {"modality": "AUDIO", "tokenCount": 100}],
    )
    expected = 400 * 0.3 + 300 * 1 + 200 * 0.03 + 100 * 0.1 + 50 * 2.5
    assert usage.cost == pytest.approx(expected / MILLION, rel=1e-12)


@pytest.mark.parametrize(
    ("raw", "rate"),
    [
        ({}, 0.3),
        ({"serviceTier": "standard"}, 0.3),
        ({"trafficType": "ON_DEMAND"}, 0.3),
        ({"serviceTier": "flex"}, 0.15),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, 0.54),
        ({"trafficType": "PROVISIONED_THROUGHPUT"}, None),
    ],
)
def test_gemini_service_tiers_have_their_own_rates(raw: dict[str, str], rate: float | None) -> None:
    usage = gemini("gemini-2.5-flash", Usage(InputUsage(1000, 1000)), promptTokenCount=1000, **raw)
    assert usage.cost == (None if rate is None else pytest.approx(rate / 1000, rel=1e-12))


def test_gemini_3_bills_queries_and_gemini_2_grounded_prompts() -> None:
    usage = Usage(InputUsage(), OutputUsage(), {"google_search": 3})
    assert gemini("gemini-2.5-flash", usage).cost == pytest.approx(0.035)
    assert gemini("gemini-3.5-flash", usage).cost == pytest.approx(3 * 0.014)


def test_dated_model_name_falls_back_to_undated_price() -> None:
    table = price_table()
    assert table.find("openai", "gpt-6-sol-2026-10-01") == table.find("openai", "gpt-6-sol")
    own, plain = table.find("openai", "gpt-4o-2024-05-13"), table.find("openai", "gpt-4o")
    assert own is not None
    assert plain is not None
    assert own.input != plain.input
    assert table.find("openai", "gpt-4o-20") is None


def test_user_prices_override_table_for_any_provider() -> None:
    usage = Usage(InputUsage(1000, 1000), OutputUsage(100, 100), raw={"prompt_tokens": 1000})
    own = {"openai:gpt-5": Price(input=1, output=1), "groq:llama-4": Price(input=2, output=3)}
    assert priced("openai:gpt-5", Finish("stop", usage), own).cost == 0.0011
    assert priced("groq:llama-4", Finish("stop", usage), own).cost == 0.0023
    assert priced("groq:gpt-5", Finish("stop", usage)).unpriced == ("groq:gpt-5",)


def test_response_without_usage_has_unknown_cost() -> None:
    usage = priced("openai:gpt-5", Finish("stop", Usage()))
    assert (usage.cost, usage.unpriced) == (None, (UNREPORTED,))


def test_sum_is_known_only_if_every_cost_is() -> None:
    some, more = Usage(InputUsage(1, 1), cost=0.1), Usage(InputUsage(1, 1), cost=0.2)
    unknown = Usage(InputUsage(1, 1), unpriced=("a:b",))
    assert (some + more).cost == 0.3  # and not 0.30000000000000004
    assert (Usage() + some).cost == (some + Usage()).cost == 0.1
    assert (some + unknown).cost is None
    assert (unknown + unknown + some).unpriced == ("a:b",)
    assert (some + Usage(unpriced=(UNREPORTED,))).cost is None
    assert (some + Usage(InputUsage(5, 5))).cost is None  # of a log that an older version wrote
    assert Usage().cost is None


@pytest.mark.parametrize("prices", [{"gpt-5": Price(input=1)}, {"openai:gpt-5": 1.0}, ["openai:gpt-5"]])
def test_invalid_prices_are_refused(prices: Any) -> None:
    with pytest.raises(ConfigurationError):
        Agent("openai:gpt-5", api_key="k", prices=prices)


def test_negative_price_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Price(input=-1)
    with pytest.raises(ConfigurationError):
        Price(input=1, tools={"web_search": -0.01})


def look(name: str) -> str:
    """Looks something up."""
    return f"{name} is there"


def calls(count: int) -> list[Any]:
    return [ResponsesScript(id=f"r{n}").function_call("look", {"name": "a"}, f"c{n}").reply() for n in range(count)]


async def test_steps_and_runs_report_their_cost_in_every_form() -> None:
    replies = [*calls(1), ResponsesScript(id="r1").text("Done.").reply()]
    async with FakeProvider(replies) as fake:
        agent = Agent(
            "openai-responses:house-model",
            base_url=fake.base_url,
            api_key="k",
            tools=[look],
            prices={"openai-responses:house-model": Price(input=1000, output=2000)},
        )
        result = await agent.send("hi")
    steps = [part.usage for part in result.parts if isinstance(part, StepFinish)]
    assert len(steps) == 2
    for usage in steps:
        assert usage.cost == pytest.approx((usage.input.total * 1000 + usage.output.total * 2000) / MILLION)
    assert result.usage is not None
    assert result.usage.cost is not None
    assert result.usage.cost == pytest.approx(sum(usage.cost or 0 for usage in steps))
    assert f'"cost":{result.usage.cost!r}' in result.parts[-1].to_json()


async def test_model_without_price_has_unknown_cost() -> None:
    result = await Agent(ScriptedModel(["Hello"])).send("hi")
    assert result.usage is not None
    assert result.usage.cost is None
    assert len(result.usage.unpriced) == 1


async def test_broken_off_step_leaves_run_cost_unknown() -> None:
    broken = sse(responses_text("Half an answer"), cut="reset", cut_after_bytes=900)
    async with FakeProvider([*calls(1), broken]) as fake:
        agent = Agent("openai-responses:gpt-5", base_url=fake.base_url, api_key="k", tools=[look])
        async with agent.stream("hi", errors="parts") as run:
            parts = [part async for part in run]
    steps = [part.usage for part in parts if isinstance(part, StepFinish)]
    assert steps[0].cost is not None
    assert (steps[1].cost, steps[1].unpriced) == (None, (UNREPORTED,))
    assert isinstance(parts[-1], Finish)
    assert (parts[-1].reason, parts[-1].usage.cost, parts[-1].usage.unpriced) == ("error", None, (UNREPORTED,))


def test_table_has_date_and_source_of_prices() -> None:
    table = price_table()
    assert isinstance(table, PriceTable)
    assert table.date.startswith("20")
    assert table.source.startswith("litellm ")
    assert {"openai", "anthropic", "google"} <= table.lists.keys()


async def test_embeddings_have_cost() -> None:
    data = [{"index": 0, "embedding": [1.0, 0.0]}]
    reply = json_reply({"data": data, "usage": {"prompt_tokens": 1000, "total_tokens": 1000}})
    async with FakeProvider([reply]) as fake:
        agent = Agent("openai?chat=gpt-5&embeddings=text-embedding-3-large", base_url=fake.base_url, api_key="k")
        result = await agent.embed_query("hi")
    assert result.usage.cost == pytest.approx(1000 * 0.13 / MILLION)
