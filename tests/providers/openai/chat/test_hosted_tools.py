"""Tools that a server runs itself: Groq's `executed_tools`, OpenRouter's counters, Perplexity's searches."""

import base64
import json
import re
import tracemalloc
from typing import Any

import pytest

from providers.openai.chat.chat_wire import chunk, decode, decode_whole, stream, whole
from requirements import requirement
from sidestream.messages.fold import Batch
from sidestream.parts import (
    Error,
    File,
    Finish,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    Source,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.providers.openai.chat.decode.decoder import CompletionsDecoder
from sidestream.providers.openai.chat.options import CompletionsContext
from sidestream.results.citations import Citations
from sidestream.results.tool_runs import ToolRun, tool_runs
from sidestream.results.typed_results import CodeInterpreterResult, WebFetchResult, WebSearchResult
from sidestream.testing import pixel_png
from support.streams import of, one, streamed_text, wire

MARK = re.compile(r"\[\d\]")
HIT = {"title": "Oslo", "url": "https://oslo.example/", "content": "It rains.", "score": 0.9}
NO_HITS: dict[str, Any] = {"results": []}


def executed(**fields: Any) -> dict[str, Any]:
    return {"executed_tools": [{"index": 0, "search_results": NO_HITS, **fields}]}


def search(**fields: Any) -> dict[str, Any]:
    return executed(type="search", arguments='{"query": "Oslo"}', **fields)


def only_run(parts: Any) -> ToolRun:
    (run,) = tool_runs(parts)
    return run


@requirement("R183")
def test_executed_search_becomes_call_with_stages() -> None:
    parts = decode(
        stream(search(), search(output="Title: Oslo", search_results={"results": [HIT]}), {"content": "Rain."})
    )
    run = only_run(parts)
    assert (run.tool, run.provider_tool, run.status, run.queries) == ("web_search", "search", "completed", ("Oslo",))
    assert [stage.stage for stage in run.stages] == ["started", "running", "completed"]
    typed = run.typed
    assert isinstance(typed, WebSearchResult)
    assert [(hit.title, hit.url, hit.snippet) for hit in typed.results] == [("Oslo", HIT["url"], "It rains.")]
    assert [(source.url, source.title) for source in of(parts, Source)] == [(HIT["url"], "Oslo")]
    assert one(parts, Finish).usage.server_tool_use == {"web_search": 1}
    assert of(parts, Raw) == []


@requirement("R183")
def test_executed_tools_of_whole_response_match_stream() -> None:
    entry = search(output="Title: Oslo", search_results={"results": [HIT]})
    streamed = only_run(decode(stream(search(), entry, {"content": "Rain."})))
    found = only_run(decode_whole(whole({"content": "Rain.", **entry})))
    assert found == streamed


@requirement("R183")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"code": "print(1)"}', "print(1)"),
        ('{"code": "print(1)\nprint(2)"}', "print(1)\nprint(2)"),
        ("print(1)\nprint(2)", "print(1)\nprint(2)"),
        ("42", "42"),
        ('{"a": 1}', '{"a": 1}'),
        ("", ""),
    ],
)
def test_executed_code_is_read_from_arguments(arguments: str, code: str) -> None:
    start = {"type": "function", "name": "python", "arguments": arguments}
    run = only_run(decode(stream(executed(**start), executed(**start, output="1\n"))))
    assert isinstance(run.typed, CodeInterpreterResult)
    assert (run.tool, run.provider_tool, run.code or "", run.typed.logs) == ("code_interpreter", "python", code, "1")


@requirement("R183")
@pytest.mark.parametrize(
    ("entry", "tool", "provider_tool"),
    [
        ({"type": "visit_website"}, "web_fetch", "visit_website"),
        ({"type": "function", "name": "browser.open"}, "web_fetch", "browser.open"),
        ({"type": "function", "name": "browser.search"}, "web_search", "browser.search"),
        ({"type": "wolfram_alpha"}, "wolfram_alpha", "wolfram_alpha"),
        ({}, "unknown_tool", "unknown_tool"),
    ],
    ids=str,
)
def test_executed_tools_have_portable_names(entry: dict[str, Any], tool: str, provider_tool: str) -> None:
    call = one(decode(stream(executed(**entry, arguments="{}", output="x"))), ToolCall)
    assert (call.tool, call.provider_tool, call.provider_executed) == (tool, provider_tool, True)


@requirement("R183")
def test_visited_pages_are_results_and_sources() -> None:
    page = {
        "title": "Oslo",
        "url": "https://oslo.example/",
        "content": "It rains.",
        "live_view_url": "https://l.example",
    }
    entry = executed(type="visit_website", arguments='{"url": "https://oslo.example/"}', browser_results=[page])
    parts = decode(stream(entry))
    typed = only_run(parts).typed
    assert isinstance(typed, WebFetchResult)
    assert [hit.url for hit in typed.results] == [page["url"]] == [source.url for source in of(parts, Source)]


@requirement("R183")
def test_images_of_executed_code_are_files() -> None:
    png = pixel_png()
    results = [{"text": "<Figure>", "png": base64.b64encode(png).decode()}]
    entry = executed(type="python", arguments='{"code": "plot()"}', output="", code_results=results)
    parts = decode(stream(entry))
    file = one(parts, File)
    assert (file.data, file.mime_type, file.name, file.tool) == (png, "image/png", "image_0.png", "code_interpreter")
    assert only_run(parts).files == (file,)
    assert one(parts, ToolResult).result == {"output": "", "code_results": [{"text": "<Figure>"}]}


@requirement("R183")
def test_tool_text_stays_reasoning() -> None:
    parts = decode(
        stream(
            {"reasoning": "<tool>search(Oslo)"},
            search(),
            search(output="x"),
            {"reasoning": "</tool>\n<output>x</output>"},
            {"content": "Rain."},
        )
    )
    thoughts = "".join(part.delta for part in of(parts, ReasoningDelta))
    assert thoughts == "<tool>search(Oslo)</tool>\n<output>x</output>"
    assert streamed_text(parts) == "Rain."


@requirement("R183")
def test_calls_without_index_are_paired_in_order() -> None:
    def entry(query: str, **fields: Any) -> dict[str, Any]:
        return {"executed_tools": [{"type": "search", "arguments": json.dumps({"query": query}), **fields}]}

    parts = decode(stream(entry("a"), entry("a", output="A"), entry("b"), entry("b", output="B")))
    runs = tool_runs(parts)
    assert [(run.queries, run.result["output"]) for run in runs] == [(("a",), "A"), (("b",), "B")]


@requirement("R183")
def test_call_without_output_ends_with_response() -> None:
    assert only_run(decode(stream(search(), {"content": "Rain."}))).status == "completed"
    broken = decode([chunk(search()), {"error": {"message": "no"}}])
    assert [run.status for run in tool_runs(broken)] == ["unfinished"]


@requirement("R183")
def test_error_in_stream_carries_failed_generation() -> None:
    error = {"message": "Tool call validation failed", "code": "tool_use_failed", "status_code": 400}
    parts = decode([chunk({"reasoning": "Hm"}), {"error": {**error, "failed_generation": "{}"}}])
    part = one(parts, Error)
    assert (part.code, part.status, part.provider_metadata) == (
        "tool_use_failed",
        400,
        {"openai": {"failed_generation": "{}"}},
    )


def counted(details: dict[str, int], *deltas: Any, server_tools: tuple[str, ...] = ()) -> list[Any]:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.25, "server_tool_use_details": details}
    events = [*stream(*deltas, {"content": "Rain."}), chunk({"content": ""}, "stop", usage=usage)]
    return decode(events, server_tools=server_tools)


@requirement("R183")
def test_counted_search_is_one_record_that_says_so() -> None:
    parts = counted({"web_search_requests": 2, "tool_calls_requested": 2, "tool_calls_executed": 2})
    run = only_run(parts)
    assert (run.tool, run.status, run.result["count"]) == ("web_search", "completed", 2)
    assert "only the number" in run.snippet
    usage = one(parts, Finish).usage
    assert (usage.server_tool_use, usage.cost) == ({"web_search": 2}, 0.25)


@requirement("R183")
def test_counted_call_has_name_of_only_requested_tool() -> None:
    details = {"tool_calls_requested": 1, "tool_calls_executed": 1}
    assert only_run(counted(details, server_tools=("openrouter:advisor",))).tool == "advisor"
    both = ("openrouter:advisor", "openrouter:web_search")
    assert only_run(counted(details, server_tools=both)).tool == "server_tool"
    with_search = {"web_search_requests": 1, "tool_calls_executed": 2}
    assert [run.tool for run in tool_runs(counted(with_search, server_tools=both))] == ["web_search", "advisor"]


@requirement("R183")
def test_annotations_before_text_are_results_of_one_search() -> None:
    citations = [{"url": f"https://{name}.example", "title": name, "start_index": 0, "end_index": 0} for name in "ab"]
    deltas = [{"content": "", "annotations": [{"type": "url_citation", "url_citation": each}]} for each in citations]
    parts = counted({"web_search_requests": 1}, *deltas)
    run = only_run(parts)
    assert [hit.title for hit in run.results] == ["a", "b"]
    assert [(source.title, source.start, source.text_id) for source in of(parts, Source)] == [
        ("a", None, None),
        ("b", None, None),
    ]
    assert parts.index(one(parts, ToolResult)) < parts.index(of(parts, TextDelta)[0])


@requirement("R183")
def test_generated_images_are_files() -> None:
    url = f"data:image/png;base64,{base64.b64encode(pixel_png()).decode()}"
    entries = [{"type": "image_url", "image_url": {"url": link}} for link in (url, url, "https://i.example/a.png")]
    files = of(decode(stream({"content": "See.", "images": entries})), File)
    assert [(file.data, file.url, file.mime_type) for file in files] == [
        (pixel_png(), None, "image/png"),
        (None, "https://i.example/a.png", "image/png"),
    ]


@requirement("R183")
def test_server_tool_call_in_reasoning_details_is_recorded() -> None:
    detail = {
        "type": "reasoning.server_tool_call",
        "tool_name": "openrouter:web_search",
        "arguments": '{"query": "Oslo"}',
        "result": {"results": [HIT]},
    }
    parts = counted({"web_search_requests": 1}, {"reasoning_details": [detail]})
    run = only_run(parts)
    assert (run.tool, run.queries, len(run.results)) == ("web_search", ("Oslo",), 1)
    assert of(parts, ReasoningEnd)[0].provider_metadata == {"openai": {"reasoning_details": [detail]}}


@requirement("R183")
def test_server_tool_call_repeated_under_one_id_is_one_run() -> None:
    call = {"type": "reasoning.server_tool_call", "id": "call_1", "tool_name": "openrouter:web_search"}
    begun = {**call, "arguments": '{"query": "Oslo"}', "result": None}
    ended = {**begun, "result": {"results": [HIT]}}
    run = only_run(counted({"web_search_requests": 1}, {"reasoning_details": [begun]}, {"reasoning_details": [ended]}))
    assert (run.queries, len(run.results), run.status) == (("Oslo",), 1, "completed")


@requirement("R183")
@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0}, 0.0),
        ({"cost": {"total_cost": 0.006}}, 0.006),
        ({"cost": {"total_cost": 0}}, None),
        ({"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, 0.6),
        ({"cost": 0.1, "is_byok": True}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": "0.1"}, None),
        ({}, None),
    ],
    ids=repr,
)
def test_reported_cost_is_used(usage: dict[str, Any], cost: float | None) -> None:
    parts = decode([*stream({"content": "x"}), chunk({}, usage={"prompt_tokens": 1, **usage})])
    assert one(parts, Finish).usage.cost == cost


URLS = ["https://a.example", "https://b.example", "https://c.example"]
LISTS: dict[str, Any] = {
    "citations": URLS,
    "search_results": [{"title": url[8], "url": url, "snippet": "text", "date": "2026-01-01"} for url in URLS],
}


def sonar(*pieces: str, last: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """A stream that repeats its lists and all text so far in every chunk."""
    events: list[dict[str, Any]] = []
    said = ""
    for number, piece in enumerate(pieces):
        said += piece
        is_last = number == len(pieces) - 1
        made = chunk({"role": "assistant", "content": piece}, "stop" if is_last else None, **LISTS, usage={"cost": {}})
        del made["choices"][0]["logprobs"]
        made["choices"][0]["message"] = {"role": "assistant", "content": said}
        events.append(made | (last or {} if is_last else {}))
    return events


PIECES = ("Rain", " in Oslo[", "2", "]", "[3]. ", "Code: `x[1]", "`, and [9].\n", "```\ny[1]\n", "```", " Done.")


@requirement("R183")
def test_numbered_marks_become_sources_with_spans() -> None:
    parts = decode(sonar(*PIECES, last={"usage": {"cost": {"total_cost": 0.01}, "num_search_queries": 2}}))
    text = "".join(PIECES)
    assert streamed_text(parts) == text
    cited = [source for source in of(parts, Source) if source.text_id is not None]
    assert [(text[source.start : source.end], source.url, source.title) for source in cited] == [
        ("[2]", URLS[1], "b"),
        ("[3]", URLS[2], "c"),
    ]
    assert {text[source.claim_start : source.claim_end] for source in cited} == {"Rain in Oslo"}
    assert [source.url for source in of(parts, Source) if source.text_id is None] == [URLS[0]]
    usage = one(parts, Finish).usage
    assert (usage.cost, usage.server_tool_use) == (0.01, {"web_search": 2})
    assert of(parts, Raw) == []


@requirement("R183")
def test_repeated_lists_are_one_search() -> None:
    parts = decode(sonar(*PIECES))
    run = only_run(parts)
    assert (run.tool, run.status, [hit.url for hit in run.results]) == ("web_search", "completed", URLS)
    assert len(of(parts, ToolEvent)) == len(of(parts, ToolResult)) == 1
    assert parts.index(one(parts, ToolResult)) < parts.index(of(parts, TextDelta)[0])
    assert one(parts, Finish).metadata["citations"] == URLS
    assert "search_results" not in one(parts, Finish).metadata


@requirement("R183")
def test_numbered_marks_are_replaced_where_they_stand() -> None:
    citations = Citations()
    shown = "".join(citations.feed(part) for part in decode(sonar(*PIECES)))
    assert shown.startswith("Rain in Oslo[1][2]. Code: `x[1]`")
    assert shown == citations.text
    assert [source.url for source in citations.sources] == URLS[1:]


@requirement("R183")
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_marks_do_not_depend_on_pieces(size: int) -> None:
    text = "".join(PIECES)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert of(decode(sonar(*pieces)), Source) == of(decode(sonar(text)), Source)


@requirement("R183")
def test_changed_lists_are_used_from_then_on() -> None:
    events = sonar("One", " two", " three[4]", " four", ".")
    for event in events[2:]:
        event["citations"] = [*URLS, "https://d.example"]
    parts = decode(events)
    assert [source.url for source in of(parts, Source) if source.text_id is not None] == ["https://d.example"]
    assert len(tool_runs(parts)) == 1


@requirement("R183")
@pytest.mark.parametrize(
    "first", [{"output": ""}, {"arguments": ""}, {"arguments": None, "output": None}], ids=["output", "text", "null"]
)
def test_executed_search_waits_for_its_input_and_output(first: dict[str, Any]) -> None:
    found = search(output="Title: Oslo", search_results={"results": [HIT]})
    begun = executed(**{"type": "search", "arguments": '{"query": "Oslo"}', **first})
    run = only_run(decode(stream(begun, found, {"content": "Rain."})))
    assert (run.queries, run.result_count, run.status) == (("Oslo",), 1, "completed")


@requirement("R183")
def test_restarted_index_is_another_call() -> None:
    again = executed(type="search", arguments='{"query": "Bergen"}')
    ended = executed(type="search", arguments='{"query": "Bergen"}', output="Rain.")
    events = stream(search(), search(output="Sun."), search(output="Sun."), again, ended, {"content": "Rain."})
    assert [run.queries for run in tool_runs(decode(events))] == [("Oslo",), ("Bergen",)]


@requirement("R183")
def test_failed_stream_closes_input_of_executed_tool() -> None:
    parts = decode([chunk(executed(type="search", arguments="")), chunk({}, x_groq={"error": "over capacity"})])
    assert one(parts, Error).message == "over capacity"
    assert [part.type for part in parts if part.type.startswith("tool-input")] == ["tool-input-start", "tool-input-end"]


@requirement("R183")
def test_role_under_other_id_is_same_answer_when_ids_change() -> None:
    events = stream(*({"role": "assistant", "content": text} for text in ("a", "b", "c")))
    events = [{**event, "id": f"chatcmpl-{number}"} for number, event in enumerate(events)]
    assert streamed_text(decode(events, changes_ids=True)) == "abc"
    assert one(decode(events), Error).code == "second-answer"


@requirement("R183")
@pytest.mark.parametrize("is_whole", [False, True])
def test_error_of_choice_is_reported_with_usage(is_whole: bool) -> None:
    event = chunk({"content": "One"}, "error", usage={"prompt_tokens": 5, "completion_tokens": 2})
    choice = event["choices"][0]
    choice["error"] = {"code": 502, "message": "upstream failed"}
    if is_whole:
        choice["message"] = choice.pop("delta")
    parts = decode_whole(event) if is_whole else decode([event])
    assert (one(parts, Error).message, one(parts, Error).status) == ("upstream failed", 502)
    assert one(parts, Finish).usage.input.total == 5


@requirement("R183")
@pytest.mark.parametrize("field", ["server_tool_use", "server_tool_use_details"])
def test_both_names_of_search_counter_are_read(field: str) -> None:
    usage = {"prompt_tokens": 5, field: {"web_search_requests": 2}}
    parts = decode([*stream({"content": "Rain."}), chunk({}, "stop", usage=usage)])
    assert one(parts, ToolResult).result["count"] == 2
    assert one(parts, Finish).usage.server_tool_use == {"web_search": 2}


@requirement("R183")
def test_flat_url_citation_is_source() -> None:
    flat = {"type": "url_citation", "url": URLS[0], "title": "A", "start_index": 0, "end_index": 4}
    parts = decode(stream({"content": "Rain."}, {"annotations": [flat]}))
    assert [(source.url, source.start, source.end) for source in of(parts, Source)] == [(URLS[0], 0, 4)]
    assert of(parts, Raw) == []


@requirement("R183")
def test_lists_after_text_give_spans_and_one_search() -> None:
    events = sonar(*PIECES)
    for event in events[:-1]:
        del event["citations"], event["search_results"]
    parts = decode(events)
    expected = decode(sonar(*PIECES))
    assert of(parts, Source) == of(expected, Source)
    assert [hit.url for hit in only_run(parts).results] == URLS


LONG = [("Rain in Oslo[2]. " if number % 400 == 0 else "sun ").ljust(1024, ".") for number in range(3000)]
"""Pieces of a text that is too long for the decoder to keep."""


@requirement("R183")
def test_lists_after_very_long_text_give_spans() -> None:
    parts = decode([*stream(*({"content": piece} for piece in LONG), reason=None), chunk({}, "stop", **LISTS)])
    text = "".join(LONG)
    cited = [source for source in of(parts, Source) if source.text_id is not None]
    assert [(source.start, source.url) for source in cited] == [
        (found.start(), URLS[1]) for found in MARK.finditer(text)
    ]
    assert len(cited) == 8


@requirement("R183")
@pytest.mark.parametrize(
    ("final", "expected"),
    [("".join(LONG), None), ("".join([*LONG, "The end."]), None), ("".join(["X", *LONG]), "".join(["X", *LONG]))],
    ids=["equal", "longer", "other"],
)
def test_final_message_corrects_very_long_text(final: str, expected: str | None) -> None:
    last = chunk({}, "stop")
    last["choices"][0]["message"] = {"role": "assistant", "content": final}
    parts = decode([*stream(*({"content": piece} for piece in LONG), reason=None), last])
    assert one(parts, TextEnd).text == expected
    assert streamed_text(parts) == (final if expected is None else "".join(LONG))


@requirement("R183")
def test_decoder_keeps_bounded_end_of_text() -> None:
    decoder = CompletionsDecoder(CompletionsContext())
    for event in stream({"content": "a" * 1024}, reason=None):
        decoder.feed(wire(event))
    event = wire(chunk({"content": "b" * 1024}))
    tracemalloc.start()
    try:
        for _ in range(8):
            decoder.feed_all([event] * 1024, Batch())
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_500_000
    assert peak < 8_000_000


@requirement("R183")
def test_citations_alone_are_one_search() -> None:
    events = sonar(*PIECES)
    for event in events:
        del event["search_results"]
        del event["choices"][0]["delta"]
    parts = decode(events)
    assert streamed_text(parts) == "".join(PIECES)
    assert [hit.url for hit in only_run(parts).results] == URLS


@requirement("R183")
def test_last_chunk_of_sonar_ends_stream_without_reason() -> None:
    events = sonar(*PIECES, last={"object": "chat.completion.done", "usage": {"prompt_tokens": 1}})
    events[-1]["choices"][0]["finish_reason"] = None
    assert one(decode(events), Finish).reason == "stop"


@requirement("R183")
def test_research_steps_become_reasoning_and_calls() -> None:
    steps = [
        {
            "thought": "I search.",
            "type": "web_search",
            "web_search": {"search_keywords": ["rain"], "search_results": LISTS["search_results"]},
        },
        {"thought": "I read.", "fetch_url_content": {"contents": [{"title": "a", "url": URLS[0], "snippet": "s"}]}},
        {"thought": "I count.", "execute_python": {"code": "1+1", "result": "2"}},
    ]
    events = [chunk({"reasoning_steps": steps}), *sonar("Rain[1].")]
    parts = decode(events)
    runs = tool_runs(parts)
    assert [(run.tool, run.status) for run in runs] == [
        ("web_search", "completed"),
        ("web_fetch", "completed"),
        ("code_interpreter", "completed"),
    ]
    assert (runs[0].queries, len(runs[0].results), runs[2].code, runs[2].logs) == (("rain",), 3, "1+1", "2")
    assert "".join(part.delta for part in of(parts, ReasoningDelta)) == "I search.I read.I count."
    assert one(parts, Finish).usage.server_tool_use == {"web_search": 1, "web_fetch": 1, "code_interpreter": 1}


@requirement("R183")
def test_repeating_chunks_decode_like_others() -> None:
    """Chunks in a form that the fast path does not know give the same parts as those in the known form."""
    pieces = ("Ünï", ' "quoted"\n', " \\ back", " 😀", "[1]", " and", " more", "[2].", " End")
    compact = [json.dumps(event, separators=(",", ":")).encode() for event in sonar(*pieces)]
    spaced = [json.dumps(event, ensure_ascii=False).encode() for event in sonar(*pieces)]
    reordered = [json.dumps(dict(reversed(event.items()))).encode() for event in sonar(*pieces)]
    expected = decode(compact)
    assert decode(spaced) == decode(reordered) == expected
    assert streamed_text(expected) == "".join(pieces)


@requirement("R183")
def test_usage_of_interrupted_repeating_stream_is_kept() -> None:
    events = sonar("One", " two", " three", " four")[:-1]
    for number, event in enumerate(events):
        event["usage"] = {"prompt_tokens": 8, "completion_tokens": number, "cost": {"total_cost": 0}}
    finish = one(decode(events), Finish)
    assert (finish.reason, finish.usage.output.total, finish.usage.cost) == ("error", 2, None)
