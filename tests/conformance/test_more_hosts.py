"""Answers of other hosts and servers, on the wires that exist: they decode to what they say, and say it once."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hostile.corpus import MORE_RECORDINGS, decoder_for, events_of, with_events
from hostile.judge import Judged, judge
from hostile.lies import said
from requirements import requirement
from sidestream.parts import (
    Custom,
    Error,
    Finish,
    Raw,
    ReasoningDelta,
    Source,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.replay.recording import Exchange, Recording
from sidestream.results.tool_runs import tool_runs

NOT_HERE = {
    "p-bedrock-nova-code-interpreter-converse-stream": "Converse",
    "r-bedrock-nova-grounding-converse-stream": "Converse",
}
"""Recordings of wires that do not exist here."""
FAILED = {"p-groq-tool-use-failed-stream": "tool_use_failed", "p-openrouter-stream-error": "400"}
"""Recordings that end in an error → its code."""


def exchanges() -> Iterator[tuple[str, Exchange]]:
    for path in sorted(MORE_RECORDINGS.glob("*/*.json")):
        if path.stem not in NOT_HERE:
            for number, exchange in enumerate(Recording.load(path).exchanges):
                yield f"{path.stem}#{number}", exchange


CASES = dict(exchanges())
needs_more = pytest.mark.skipif(not CASES, reason=f"no recordings: {MORE_RECORDINGS} is not there")
each = pytest.mark.parametrize("name", sorted(CASES) or ["none"])


async def judged(name: str) -> Judged:
    return await judge(CASES[name])


def values(exchange: Exchange) -> list[dict[str, Any]]:
    return [json.loads(data) for data in events_of(exchange)]


def answer(exchange: Exchange) -> dict[str, Any]:
    """The whole response of the Responses API: as it came, or as its last event has it."""
    return next((v["response"] for v in reversed(values(exchange)) if "response" in v), values(exchange)[-1])


def text_in(exchange: Exchange) -> str:
    """The text that an answer says, by an own reading of its wire."""
    if exchange.request.path.endswith("/responses"):
        messages = [item for item in answer(exchange).get("output", ()) if item["type"] == "message"]
        return "".join(part["text"] for item in messages for part in item["content"])
    if exchange.request.path.endswith(("/messages", "/invoke-with-response-stream")):
        return "".join(v["delta"].get("text", "") for v in values(exchange) if v["type"] == "content_block_delta")
    contents = [
        (choice.get("delta") if exchange.is_stream else choice["message"]).get("content")
        for value in values(exchange)
        for choice in value.get("choices", ())
    ]
    return "".join(map(content_text, contents))


def content_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(entry.get("text", "") for entry in content)
    return json.dumps(content, separators=(",", ":")) if isinstance(content, dict) else content or ""


@requirement("R183")
@needs_more
@each
async def test_text_matches_recording_once(name: str) -> None:
    found = await judged(name)
    first = said(found.parts)
    # A client's call is answered here, and the run goes on with a plain text.
    assert first.removesuffix("The end.") == text_in(CASES[name])
    assert [part.event for part in found.parts if isinstance(part, Raw)] == []


@requirement("R183")
@needs_more
@each
async def test_answer_ends_as_recorded(name: str) -> None:
    found = await judged(name)
    code = FAILED.get(name.partition("#")[0])
    assert [error.code for error in found.errors] == ([] if code is None else [code])
    assert [part.reason for part in found.parts if isinstance(part, Finish)] == ["stop" if code is None else "error"]
    assert not any(isinstance(part, Custom) and part.kind.startswith("sidestream.") for part in found.parts)


RESPONSES = [name for name, exchange in CASES.items() if exchange.request.path.endswith("/responses")]


@requirement("R183")
@needs_more
@pytest.mark.parametrize("name", RESPONSES or ["none"])
async def test_calls_match_recording(name: str) -> None:
    exchange = CASES[name]
    items = [item for item in answer(exchange)["output"] if item["type"].endswith("_call")]
    parts = (await judged(name)).parts
    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert len(calls) == len(items)
    hosted = {call.id for call in calls if call.provider_executed}
    functions = [item for item in items if item["type"] == "function_call"]
    assert len(hosted) == len(items) - len(functions)
    assert {part.id for part in parts if isinstance(part, ToolResult) and part.provider_executed} == hosted


@requirement("R183")
@needs_more
async def test_code_of_older_xai_answers_is_decoded() -> None:
    parts = (await judged("v-xai-code-execution-tool.1-whole#0")).parts
    (call,) = [part for part in parts if isinstance(part, ToolCall)]
    assert call.input["code"].startswith("def fibonacci")


@requirement("R183")
@needs_more
async def test_query_of_older_xai_search_is_decoded() -> None:
    parts = (await judged("v-xai-web-search-tool.1-stream#0")).parts
    (call,) = [part for part in parts if isinstance(part, ToolCall)]
    assert call.input == {"query": "what is xAI", "num_results": 5}


@requirement("R183")
@needs_more
async def test_search_of_x_has_stages_and_input() -> None:
    parts = (await judged("v-xai-x-search-tool-stream#0")).parts
    calls = [part for part in parts if isinstance(part, ToolCall) and part.tool == "x_search"]
    assert [call.name for call in calls] == ["x_keyword_search", "view_x_video"]
    assert calls[0].input == {"query": "from:xai filter:media", "limit": 20, "mode": "Latest"}
    for call in calls:
        stages = [part.stage for part in parts if isinstance(part, ToolEvent) and part.call_id == call.id]
        assert stages == ["started", "running", "completed"]
    ended = [part.id for part in parts if isinstance(part, ToolResult)]
    assert ended[0] == calls[0].id
    assert ended[-1] == calls[1].id  # Four web searches begin and end within the second call.


@requirement("R183")
@needs_more
async def test_xai_citations_have_span_of_link_or_none() -> None:
    cited = [part for part in (await judged("r-xai-web-search-replay#0")).parts if isinstance(part, Source)]
    assert [(source.marker_start, source.marker_end, source.title) for source in cited] == [
        (44, 90, None),
        (317, 363, None),
        (437, 481, None),
    ]
    listed = [part for part in (await judged("v-xai-web-search-parallel-stream#0")).parts if isinstance(part, Source)]
    assert len(listed) == 9
    assert {(source.start, source.end, source.title) for source in listed} == {(None, None, None)}


@requirement("R183")
@needs_more
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("r-xai-web-search-replay#1", 0.00524105),
        ("v-xai-image-generation-tool.1-stream#0", 0.0000123456),
        ("b-openrouter-responses-function-stream#0", 0.0000054),
    ],
)
async def test_reported_cost_is_in_dollars(name: str, cost: float) -> None:
    decoder = decoder_for(CASES[name].request)
    assert decoder is not None
    fed = [part for data in events_of(CASES[name]) for part in decoder.feed(data)] if CASES[name].is_stream else []
    parts = fed or decoder.whole(CASES[name].body_bytes())
    (finish,) = [part for part in parts if isinstance(part, Finish)]
    assert finish.usage.cost == pytest.approx(cost)


@requirement("R183")
@needs_more
async def test_deepseek_actions_have_no_call_ids() -> None:
    parts = (await judged("r-deepseek-web-search-whole#0")).parts
    inputs = [part.input for part in parts if isinstance(part, ToolCall)]
    assert inputs[0]["queries"] == ["latest stable Ruby version 2024", "Ruby latest release version official"]
    assert inputs[1]["url"] == "https://www.ruby-lang.org/en/downloads/releases/"
    assert "ws_call_id" not in str(inputs)


@requirement("R183")
@needs_more
async def test_azure_search_completes_without_event() -> None:
    parts = (await judged("v-azure-web-search-preview-tool.1-stream#0")).parts
    stages = [part.stage for part in parts if isinstance(part, ToolEvent)]
    assert stages == ["started", "started", "running", "completed"]


@requirement("R183")
@needs_more
async def test_token_channel_is_reported_once() -> None:
    parts = (await judged("p-groq-tool-use-failed-stream#0")).parts
    ends = [part.provider_metadata for part in parts if part.type == "reasoning-end"]
    assert ends == [{"openai": {"channel": "analysis"}}]
    assert len([part for part in parts if isinstance(part, ReasoningDelta)]) > 50


@requirement("R183")
@needs_more
@pytest.mark.parametrize("number", [0, 1])
async def test_code_executed_by_groq_is_call(number: int) -> None:
    (run,) = tool_runs((await judged(f"l-groq-compound-python#{number}")).parts)
    assert (run.tool, run.provider_tool, run.status) == ("code_interpreter", "python", "completed")
    assert run.code is not None
    assert run.code.startswith("import math;")
    assert run.logs == ("10.04987562112089" if number == 0 else "10.099504938362077")


@requirement("R183")
@needs_more
async def test_search_executed_by_groq_is_call() -> None:
    parts = (await judged("p-groq-compound-search-stream#0")).parts
    (run,) = tool_runs(parts)
    assert (run.tool, run.provider_tool, run.status) == ("web_search", "search", "completed")
    assert run.queries == ("What is the weather in San Francisco today?",)
    assert run.result_count == len(run.results) == len([part for part in parts if isinstance(part, Source)]) == 16
    assert run.results[0].title == "Weather in San Francisco"
    (finish,) = [part for part in parts if isinstance(part, Finish)]
    assert (finish.usage.input.total, finish.usage.server_tool_use) == (5003, {"web_search": 1})


@requirement("R183")
@needs_more
@pytest.mark.parametrize(
    ("name", "tool", "hits", "cost"),
    [
        ("p-openrouter-web-search-annotations-stream", "web_search", 5, 0.0076509169),
        ("p-openrouter-web-search-usage-stream", "web_search", 0, 0.0133176),
        ("p-openrouter-advisor-stream", "advisor", 0, 0.0145476),
    ],
)
async def test_openrouter_tool_is_one_record(name: str, tool: str, hits: int, cost: float) -> None:
    parts = (await judged(f"{name}#0")).parts
    (run,) = tool_runs(parts)
    assert (run.tool, run.status, len(run.results)) == (tool, "completed", hits)
    (finish,) = [part for part in parts if isinstance(part, Finish)]
    assert finish.usage.server_tool_use == {tool: 1}
    assert finish.usage.cost == pytest.approx(cost)


@requirement("R183")
@needs_more
async def test_failed_generation_of_groq_is_in_error() -> None:
    (error,) = [part for part in (await judged("p-groq-tool-use-failed-stream#0")).parts if isinstance(part, Error)]
    assert error.status == 400
    assert "invalid_param" in (error.provider_metadata or {})["openai"]["failed_generation"]


@requirement("R183")
@needs_more
@pytest.mark.parametrize(
    ("name", "found", "marks", "cost"),
    [("r-perplexity-sonar-stream", 8, 0, 0.005), ("r-perplexity-sonar-citations-whole", 6, 10, 0.005)],
)
async def test_perplexity_search_and_citations(name: str, found: int, marks: int, cost: float) -> None:
    parts = (await judged(f"{name}#0")).parts
    (run,) = tool_runs(parts)
    sources = [part for part in parts if isinstance(part, Source)]
    assert (run.tool, run.status, len(run.results)) == ("web_search", "completed", found)
    assert len({source.url for source in sources}) == found
    text = text_in(CASES[f"{name}#0"])
    spans = [text[source.start : source.end] for source in sources if source.text_id is not None]
    assert spans == re.findall(r"\[\d+\]", text)
    assert len(spans) == marks
    (finish,) = [part for part in parts if isinstance(part, Finish)]
    assert finish.usage.cost == pytest.approx(cost, rel=0.2)


@requirement("R183")
@needs_more
@each
async def test_answer_is_independent_of_chunking(name: str) -> None:
    exchange = CASES[name]
    whole = (await judge(exchange, None)).parts
    assert (await judge(with_events(exchange, events_of(exchange)) if exchange.is_stream else exchange)).parts == whole


@needs_more
def test_every_other_recording_has_decoder() -> None:
    assert [name for name, exchange in CASES.items() if decoder_for(exchange.request) is None] == []
