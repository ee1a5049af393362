"""What each block of a message becomes."""

import base64
import json
from typing import Any

import pytest

from providers.anthropic.messages_wire import (
    CHAR_CITATION,
    EVERY_BLOCK,
    FOUND,
    URL,
    WEB_CITATION,
    decode,
    decode_whole,
    session,
)
from requirements import requirement
from sidestream.messages.message import DataPart, LinkPart
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StepFinish,
    StepOutcome,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode.decoder import MessagesDecoder
from sidestream.providers.protocol import FileRef
from sidestream.testing.messages_script import MessagesScript
from support.streams import PNG, inside, messages, of, one, streamed_text, wire, without_events

PDF = b"%PDF-1.7\n%%EOF"


def message(**fields: Any) -> MessagesScript:
    return MessagesScript(id="msg_1", **fields)


def test_text_and_thinking_stream_with_signature():
    parts = inside(decode(message().thinking(["Let ", "me"], signature="EqQB").text(["Hi ", "you"]).events()))
    assert parts == [
        ReasoningStart("msg_1:0"),
        ReasoningDelta("msg_1:0", "Let "),
        ReasoningDelta("msg_1:0", "me"),
        ReasoningEnd("msg_1:0", signature="EqQB"),
        TextStart("msg_1:1"),
        TextDelta("msg_1:1", "Hi "),
        TextDelta("msg_1:1", "you"),
        TextEnd("msg_1:1"),
    ]


@requirement("R54")
def test_redacted_thinking_is_kept():
    parts = decode(message().redacted_thinking("EmwK").text("So.").events())
    assert one(parts, ReasoningEnd).encrypted_content == "EmwK"
    assert session(parts)["blocks"][0] == {"type": "redacted_thinking", "data": "EmwK"}


@requirement("R54")
def test_interleaved_thinking_keeps_position_between_calls():
    built = message().thinking("A", signature="s1").tool_use("f", {}, "toolu_1").thinking("B", signature="s2")
    parts = decode(built.tool_use("g", {}, "toolu_2").events())
    assert [block["type"] for block in session(parts)["blocks"]] == ["thinking", "tool_use"] * 2
    assert [end.signature for end in of(parts, ReasoningEnd)] == ["s1", "s2"]


def test_client_call_streams_input_and_finishes_as_tool_calls():
    parts = decode(message().tool_use("get_weather", ['{"city":', ' "Rome"}'], "toolu_1").events())
    assert inside(parts) == [
        ToolInputStart("toolu_1", "get_weather", False),
        ToolInputDelta("toolu_1", '{"city":'),
        ToolInputDelta("toolu_1", ' "Rome"}'),
        ToolInputEnd("toolu_1"),
        ToolCall("toolu_1", "get_weather", "get_weather", False, {"city": "Rome"}),
    ]
    finish = one(parts, Finish)
    assert (finish.reason, finish.raw_reason) == ("tool-calls", "tool_use")


@pytest.mark.parametrize("text", ["", "{}", "null", "  "])
def test_call_without_arguments_has_empty_object(text: str):
    assert one(decode(message().tool_use("f", [text]).events()), ToolCall).input == {}


@requirement("F13")
def test_broken_arguments_are_emitted_as_text_without_input():
    call = one(decode(message().tool_use("f", ['{"city": "Ro', "me"]).events()), ToolCall)
    assert (call.input, call.input_text) == (None, '{"city": "Rome')
    assert call.input_error


@requirement("F04")
@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
def test_call_truncated_by_limit_has_no_input(reason: str):
    built = message().tool_use("f", {"a": 1}, "toolu_1").tool_use("rm", {"path": "/"}, "toolu_2").stop(reason)
    for parts in (decode(built.events()), decode_whole(built.response())):
        first, last = of(parts, ToolCall)
        assert first.input == {"a": 1}
        assert last.input is None
        assert last.input_text is not None
        assert json.loads(last.input_text) == {"path": "/"}
        assert one(parts, Finish).reason == "length"


@requirement("R52")
def test_server_call_emits_events_then_call_then_result():
    built = message().web_search("news", FOUND)
    parts = inside(decode(built.events()))
    call_id = built.response()["content"][0]["id"]
    assert [part.provider_stage for part in of(parts, ToolEvent)] == [
        "start",
        "delta",
        "delta",
        "stop",
        "result",
        "stop",
    ]
    assert [part.event for part in of(parts, ToolEvent)] == built.events()[1:-2]
    assert {part.call_id for part in of(parts, ToolEvent)} == {call_id}
    assert without_events(parts)[:5] == [
        ToolInputStart(call_id, "web_search", True),
        ToolInputDelta(call_id, '{"query":"news"}'),
        ToolInputEnd(call_id),
        ToolCall(call_id, "web_search", "web_search", True, {"query": "news"}, provider_tool="web_search"),
        ToolResult(call_id, "web_search", "web_search", FOUND, False, True),
    ]


@requirement("R3", "R14", "R52")
@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("web_search_tool_result", "web_search"),
        ("web_fetch_tool_result", "web_fetch"),
        ("code_execution_tool_result", "code_execution"),
        ("bash_code_execution_tool_result", "bash_code_execution"),
        ("text_editor_code_execution_tool_result", "text_editor_code_execution"),
        ("tool_search_tool_result", "tool_search"),
        ("mcp_tool_result", "mcp"),
        ("mcp_tool_listing", "mcp"),
        ("advisor_tool_result", "advisor"),
    ],
)
def test_tool_events_are_emitted_once_before_derived_parts(kind: str, tool: str):
    sent = EVERY_BLOCK[kind].events()
    hosted = {
        e["index"]
        for e in sent
        if e["type"] == "content_block_start" and e["content_block"]["type"] not in ("text", "tool_use")
    }
    parts = decode(sent)
    assert [part.event for part in of(parts, ToolEvent)] == [e for e in sent if e.get("index") in hosted]
    assert {part.provider_tool for part in of(parts, ToolEvent)} == {tool}
    results = [n for n, part in enumerate(parts) if isinstance(part, ToolResult)]
    assert all(isinstance(parts[n - 1], ToolEvent) for n in results)


@requirement("R9")
@pytest.mark.parametrize("kind", sorted(EVERY_BLOCK))
def test_non_streaming_message_matches_its_stream(kind: str):
    built = EVERY_BLOCK[kind]
    streamed, whole = decode(built.events()), decode_whole(built.response())
    for kind_of_part in (ToolCall, ToolResult, File, Source, TextEnd, ReasoningEnd, Custom):
        assert of(streamed, kind_of_part) == of(whole, kind_of_part)
    assert [(m.parts, m.metadata) for m in messages(streamed)] == [(m.parts, m.metadata) for m in messages(whole)]
    assert streamed_text(streamed) == streamed_text(whole)


@requirement("R52")
@pytest.mark.parametrize(
    "built",
    [
        message().web_search("x", "max_uses_exceeded"),
        message().web_fetch(URL, None, error="url_not_accessible"),
        message()
        .server_tool_use("bash_code_execution", {})
        .result(
            "bash_code_execution_tool_result",
            {"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"},
        ),
        message().mcp("wiki", "ask", {}, "no such page", is_error=True),
    ],
)
def test_failed_tool_is_error_result_without_files(built: MessagesScript):
    parts = decode(built.events())
    assert one(parts, ToolResult).is_error
    assert of(parts, File) == []


@requirement("R52")
def test_mcp_call_streams_arguments_and_names_server():
    parts = decode(message().mcp("wiki", "ask", ['{"q":', '"why"}'], [{"type": "text", "text": "42"}]).events())
    call = one(parts, ToolCall)
    assert (call.name, call.tool, call.input) == ("ask", "mcp", {"q": "why"})
    assert call.provider_metadata == {"anthropic": {"server_name": "wiki"}}
    assert [part.delta for part in of(parts, ToolInputDelta)] == ['{"q":', '"why"}']
    assert one(parts, ToolResult).result == [{"type": "text", "text": "42"}]


@requirement("R53")
def test_search_results_become_links_once_each():
    parts = decode(message().web_search("a", FOUND).web_search("b", [*FOUND, {**FOUND[0], "url": URL + "2"}]).events())
    (stored,) = messages(parts)
    links = [part for part in stored.parts if isinstance(part, LinkPart)]
    assert [(link.url, link.name) for link in links] == [(URL, "A"), ("https://example.com/b", "B"), (URL + "2", "A")]


@requirement("R53")
def test_links_delivered_earlier_in_turn_are_not_repeated():
    parts = decode(message().web_search("a", FOUND).events(), delivered=frozenset({URL}))
    assert [file.url for file in of(parts, File)] == ["https://example.com/b"]


@requirement("R53")
def test_fetched_pages_become_text_or_pdf_files_once_each():
    pdf = base64.b64encode(PDF).decode()
    built = message().web_fetch(URL, "The page", title="A page").web_fetch(URL, "The page", title="A page")
    parts = decode(built.web_fetch("https://x.example/paper.pdf", pdf, mime_type="application/pdf").events())
    (stored,) = messages(parts)
    assert [part for part in stored.parts if isinstance(part, DataPart)] == [
        DataPart(b"The page", "text/plain", "A page.txt"),
        DataPart(PDF, "application/pdf", "paper.pdf"),
    ]


@requirement("R53")
def test_fetched_document_is_not_duplicated_in_session():
    parts = decode(message().web_fetch(URL, "The page", title="A page").events())
    source = session(parts)["blocks"][1]["content"]["content"]["source"]
    assert source == {"type": "text", "media_type": "text/plain", "file": "A page.txt"}


@requirement("R53")
def test_sandbox_files_are_fetched_once_each_in_order():
    built = message().bash("plot", files=["file_b", "file_a"]).code_execution("x", files=["file_a", "file_c"])
    decoder = MessagesDecoder(MessagesContext(delivered=frozenset({"file_c"})))
    for event in built.events():
        decoder.feed(wire(event))
    call_id = built.response()["content"][0]["id"]
    assert decoder.downloads == (
        FileRef(id="file_b", tool="code_interpreter", call_id=call_id),
        FileRef(id="file_a", tool="code_interpreter", call_id=call_id),
    )


@requirement("R53", "R57")
def test_image_in_code_result_becomes_file_once():
    data = base64.b64encode(PNG).decode()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    content = [picture, {"type": "image", "media_type": "image/png", "data": data}, {"type": "image", "data": "%"}]
    ran = {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": content}
    built = message().server_tool_use("code_execution", {"code": "plot()"}, "srvtoolu_1")
    parts = decode(built.result("code_execution_tool_result", ran).events())
    file = one(parts, File)
    assert (file.data, file.mime_type, file.tool, file.call_id) == (PNG, "image/png", "code_interpreter", "srvtoolu_1")
    (stored,) = messages(parts)
    assert [part.data for part in stored.parts if isinstance(part, DataPart)] == [PNG]


@requirement("R53")
def test_image_viewed_by_editor_becomes_file():
    file = one(decode(EVERY_BLOCK["text_editor_code_execution_tool_result"].events()), File)
    assert (file.data, file.mime_type) == (PNG, "image/png")


PAGE_CITATION = {"type": "page_location", "cited_text": "p", "document_index": 1, "document_title": "Paper"}
BLOCK_CITATION = {"type": "content_block_location", "cited_text": "b", "document_index": 0, "document_title": None}
SEARCH_CITATION = {"type": "search_result_location", "cited_text": "s", "source": "https://kb.example/1", "title": "KB"}


@requirement("R53")
@pytest.mark.parametrize(
    ("citation", "kind", "url", "title"),
    [
        (WEB_CITATION, "url", URL, "A"),
        (CHAR_CITATION, "document", None, "Nature"),
        (PAGE_CITATION, "document", None, "Paper"),
        (BLOCK_CITATION, "document", None, None),
        (SEARCH_CITATION, "url", "https://kb.example/1", "KB"),
        ({**SEARCH_CITATION, "source": "kb-1", "title": None}, "document", None, "kb-1"),
    ],
)
def test_citations_of_every_kind_become_sources(citation: Any, kind: str, url: Any, title: Any):
    parts = decode(message().text("So it is.", citations=[citation]).events())
    source = one(parts, Source)
    assert (source.kind, source.url, source.title, source.text_id) == (kind, url, title, "msg_1:0")
    assert source.cited_text == citation["cited_text"]
    assert source.provider_metadata == {"anthropic": citation}
    assert one(parts, TextEnd).annotations == (citation,)


def test_compaction_and_fallback_are_emitted_as_custom_parts():
    for kind in ("compaction", "fallback"):
        custom = one(decode(EVERY_BLOCK[kind].events()), Custom)
        assert custom.kind == f"anthropic.{kind}"
        assert custom.data == EVERY_BLOCK[kind].response()["content"][0]


def test_client_tools_use_client_names():
    parts = decode(
        message().tool_use("computer", {"action": "screenshot"}).events(), client_names={"computer": "computer_use"}
    )
    call = one(parts, ToolCall)
    assert (call.name, call.provider_executed) == ("computer_use", False)
    assert of(parts, ToolEvent) == []


def test_programmatic_call_names_its_caller():
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    parts = decode(message().tool_use("f", {}, caller=caller, toolset_name="t").events())
    assert one(parts, ToolCall).provider_metadata == {"anthropic": {"caller": caller, "toolset_name": "t"}}


# How a message ends


@requirement("R7", "R55")
@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content-filter"),
        ("pause_turn", "other"),
        ("compaction", "other"),
        ("something_new", "other"),
    ],
)
def test_stop_reasons_map_to_finish_reasons(stop: str, reason: str):
    finish = one(decode(message().text("Hi").stop(stop).events()), Finish)
    assert (finish.reason, finish.raw_reason) == (reason, stop)


@requirement("R55")
@pytest.mark.parametrize(("stop", "is_continued"), [("pause_turn", True), ("compaction", True), ("end_turn", None)])
def test_paused_response_is_continued(stop: str, is_continued: bool | None):
    step = one(decode(message().text("Hi").stop(stop).events()), StepFinish)
    assert (step.outcome or StepOutcome()).is_paused is bool(is_continued)


def test_requested_summary_is_kept_and_not_continued():
    parts = decode(message().compaction("All.").stop("compaction").events(), is_compaction=True)
    assert not (one(parts, StepFinish).outcome or StepOutcome()).is_paused
    (kept,) = messages(parts)
    assert kept.parts == ()
    assert session(parts)["blocks"] == [{"type": "compaction", "content": "All."}]


@requirement("R55", "F05")
def test_refusal_is_content_filter_with_empty_message():
    parts = decode(message().refusal("cyber").events())
    finish = one(parts, Finish)
    assert finish.reason == "content-filter"
    assert finish.metadata["stop_details"]["category"] == "cyber"
    assert messages(parts) == []


@requirement("R55", "F03")
@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("overloaded_error", "provider", True),
        ("api_error", "provider", True),
        ("rate_limit_error", "rate-limit", True),
        ("invalid_request_error", "provider", False),
    ],
)
def test_mid_stream_error_keeps_code_and_retryable_flag(code: str, kind: str, retryable: bool):
    parts = decode(message().text("Half").error(code, "boom").events())
    error, finish = parts[-2:]
    assert error == Error(kind, "boom", code=code, retryable=retryable)  # type: ignore[arg-type]
    assert one(parts, Finish) is finish
    assert [m.text for m in messages(parts)] == ["Half"]
    assert messages(parts)[0].metadata == {}


@requirement("R8")
def test_usage_counts_cache_thinking_and_server_tools():
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
        "server_tool_use": {"web_search_requests": 3, "web_fetch_requests": 0},
    }
    built = MessagesScript(usage=usage).web_search("x").bash("ls")
    for parts in (decode(built.events()), decode_whole(built.response())):
        found = one(parts, Finish).usage
        assert (found.input.total, found.input.no_cache) == (130, 10)
        assert (found.input.cache_read, found.input.cache_write) == (100, 20)
        assert (found.output.total, found.output.text, found.output.reasoning) == (9, 5, 4)
        assert found.server_tool_use == {"web_search": 3, "bash_code_execution": 1}
        assert found.raw == usage


@requirement("R55")
def test_container_id_is_in_session_and_result():
    parts = decode(message(container="container_1").bash("ls").text("ok").events())
    assert session(parts)["container_id"] == "container_1"
    assert one(parts, Finish).metadata["container_id"] == "container_1"


# The answer by the reserved tool


@requirement("R56")
def test_reserved_tool_input_becomes_answer_text():
    built = message().tool_use("return_result", ['{"city":', '"Rome"}'])
    for parts in (decode(built.events(), has_result_tool=True), decode_whole(built.response(), has_result_tool=True)):
        assert of(parts, ToolCall) == []
        assert of(parts, ToolInputStart) == []
        assert json.loads(streamed_text(parts)) == {"city": "Rome"}
        assert one(parts, Finish).reason == "stop"
        assert session(parts)["blocks"] == [{"type": "text", "text_id": "msg_1:0"}]


@requirement("R56")
def test_text_before_reserved_tool_is_commentary():
    parts = decode(message().text("Here it is:").tool_use("return_result", {"a": 1}).events(), has_result_tool=True)
    assert streamed_text(parts) == '{"a":1}'
    assert one(parts, Custom) == Custom("anthropic.commentary", {"text": "Here it is:"})


@requirement("R56")
def test_text_before_other_calls_stays_text():
    parts = decode(message().text("I look.").tool_use("look", {}).events(), has_result_tool=True)
    assert streamed_text(parts) == "I look."
    assert one(parts, ToolCall).name == "look"
    assert one(parts, Finish).reason == "tool-calls"


@requirement("R56")
def test_plain_text_answer_is_kept():
    assert streamed_text(decode(message().text("{}").events(), has_result_tool=True)) == "{}"


# Results of calls of an earlier response

WAITING = {"srvtoolu_1": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}}


@requirement("R52", "R55")
def test_result_of_paused_call_does_not_repeat_call():
    sent = message().result("web_search_tool_result", FOUND, "srvtoolu_1").events()
    decoder = MessagesDecoder(MessagesContext(waiting=WAITING))
    decoder.take_up([ToolCall("srvtoolu_1", "web_search", "web_search", True, input={"query": "x"})])
    parts = [part for event in sent for part in decoder.feed(wire(event))]
    assert of(parts, ToolCall) == []
    assert one(parts, ToolResult).id == "srvtoolu_1"
    assert len(of(parts, File)) == 2


@requirement("R52")
def test_result_of_call_from_earlier_run_emits_its_call():
    parts = decode(message().result("web_search_tool_result", [], "srvtoolu_1").events(), waiting=WAITING)
    assert one(parts, ToolCall).input == {"query": "x"}
    assert one(parts, ToolResult).name == "web_search"
    assert one(parts, Finish).usage.server_tool_use == {}


def test_result_of_unknown_call_is_custom_part():
    built = message().result("mcp_tool_result", "42", "mcptoolu_9", is_error=False)
    assert one(decode(built.events()), Custom).data == built.response()["content"][0]
