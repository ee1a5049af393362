"""How answers of generateContent end: reasons, usage, errors, and streams that break off."""

from typing import Any

import pytest

from providers.google.gemini_wire import both, decode, decode_whole, kept
from requirements import requirement
from sidestream.parts import (
    Custom,
    Error,
    Finish,
    Raw,
    ResponseMetadata,
    StepFinish,
    StepOutcome,
    TextEnd,
    ToolCall,
    ToolInputEnd,
    ToolResult,
)
from sidestream.providers.google.decode.outcome import REASONS
from sidestream.testing.gemini_script import GeminiScript
from support.streams import messages, of, one, streamed_text


@requirement("R65", "R7")
@pytest.mark.parametrize(("raw", "reason"), REASONS.items())
def test_finish_reasons_are_mapped_without_errors(raw: str, reason: str):
    for parts in both(GeminiScript().text("So far").finish(raw, "why")):
        finish = one(parts, Finish)
        assert (finish.reason, finish.raw_reason) == (reason, raw)
        assert finish.metadata["finish_message"] == "why"
        assert of(parts, Error) == []


@requirement("R65", "F05")
@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "JAILBREAK", "NEW_REASON"])
def test_blocked_prompt_is_content_filter_with_reason(reason: str):
    for parts in both(GeminiScript().blocked(reason)):
        finish = one(parts, Finish)
        assert (finish.reason, finish.raw_reason) == ("content-filter", reason)
        assert finish.metadata["prompt_feedback"] == {"blockReason": reason}
        assert finish.usage.input.total == 12
        assert of(parts, Error) == []


@requirement("R65", "F05")
@pytest.mark.parametrize("reason", ["SAFETY", "MODEL_ARMOR", "PROHIBITED_CONTENT", "RECITATION", "BLOCKLIST", "SPII"])
def test_filtered_answer_is_content_filter_with_reason(reason: str):
    for parts in both(GeminiScript().text("So far").finish(reason)):
        finish = one(parts, Finish)
        assert (finish.reason, finish.raw_reason) == ("content-filter", reason)
        assert of(parts, Error) == []


@requirement("R65")
@pytest.mark.parametrize(
    ("number", "name"), [(1, "STOP"), (2, "MAX_TOKENS"), (3, "SAFETY"), (5, "OTHER"), (13, "TOO_MANY_TOOL_CALLS")]
)
def test_finish_reason_may_be_enum_number(number: int, name: str):
    chunks = GeminiScript().text(["So ", "far"]).finish(name).chunks()
    for chunk in chunks:
        for candidate in chunk.get("candidates", ()):
            candidate["finishReason"] = number if "finishReason" in candidate else 0
    finish = one(decode(chunks), Finish)
    assert (finish.reason, finish.raw_reason) == (REASONS[name], name)
    assert one(decode(chunks[:-1]), Finish).reason == "error"


def test_block_reason_and_code_enums_may_be_numbers():
    blocked = one(decode(GeminiScript().blocked(4).chunks()), Finish)  # pyright: ignore[reportArgumentType]
    assert (blocked.reason, blocked.raw_reason) == ("content-filter", "PROHIBITED_CONTENT")
    parts = decode(
        GeminiScript()
        .part({"executableCode": {"language": 1, "code": "1/0"}})
        .part({"codeExecutionResult": {"outcome": 2, "output": "ZeroDivisionError"}})
        .chunks()
    )
    assert one(parts, ToolCall).input == {"language": "PYTHON", "code": "1/0"}
    result = one(parts, ToolResult)
    assert (result.is_error, result.result) == (True, {"outcome": "OUTCOME_FAILED", "output": "ZeroDivisionError"})


@requirement("R65")
def test_unknown_finish_reason_is_other():
    assert one(decode(GeminiScript().text("x").finish("BRAND_NEW").chunks()), Finish).reason == "other"


@requirement("R65", "F05")
def test_candidate_without_content_is_empty_message():
    for content in ({}, {"content": None}, {"content": {}}, {"content": {"role": "model"}}, {"content": {"parts": []}}):
        parts = decode([{"candidates": [{"finishReason": "SAFETY", **content}]}])
        assert one(parts, Finish).reason == "content-filter"
        assert [part for message in messages(parts) for part in message.parts] == []


@requirement("R65")
def test_missing_candidates_finish_as_other():
    assert one(decode_whole({"candidates": [], "usageMetadata": {}}), Finish).reason == "other"
    assert one(decode_whole({"usageMetadata": {"promptTokenCount": 3}}), Finish).reason == "other"


def test_chunks_without_candidates_add_metadata_and_usage():
    chunks = [
        {"responseId": "r", "modelVersion": "m", "createTime": "2026-01-01T00:00:00Z"},
        *GeminiScript(response_id="r", model="m").text("Hi").chunks(),
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7, "thoughtsTokenCount": 1}},
    ]
    parts = decode(chunks)
    assert one(parts, ResponseMetadata) == ResponseMetadata("r", "m", 1767225600.0, "google")
    assert one(parts, Finish).usage.output.total == 8


@requirement("R8")
def test_usage_counts_tools_as_input_and_thoughts_as_output():
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "toolUsePromptTokenCount": 20,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 132,
    }
    for parts in both(GeminiScript(usage=usage).text("x")):
        found = one(parts, Finish).usage
        assert (found.input.total, found.input.no_cache, found.input.cache_read) == (120, 80, 40)
        assert (found.output.total, found.output.text, found.output.reasoning) == (12, 7, 5)
        assert found.raw == usage


@requirement("F01", "R4")
def test_stream_cut_after_any_chunk_is_truncated():
    script = GeminiScript().thought("Let me see").code("1", "1").text("It is one")
    script.streamed_call("f", ("$.a", "b"))
    chunks = script.chunks()
    for count in range(len(chunks)):
        parts = decode(chunks[:count])
        assert one(parts, Error).kind == "truncated"
        assert one(parts, Finish).reason == "error"
        assert one(parts, StepFinish).outcome is None
    assert one(decode(chunks), Finish).reason == "tool-calls"


def test_truncated_call_is_never_emitted():
    chunks = GeminiScript().streamed_call("rm", ("$.path", "/tmp/x")).chunks()
    parts = decode(chunks[:3])
    assert of(parts, ToolCall) == []
    assert len(of(parts, ToolInputEnd)) == 1


@requirement("F03")
@pytest.mark.parametrize(
    ("code", "status", "kind", "retryable"),
    [
        (503, "UNAVAILABLE", "provider", True),
        (429, "RESOURCE_EXHAUSTED", "rate-limit", True),
        (400, "INVALID_ARGUMENT", "provider", False),
        (500, "INTERNAL", "provider", True),
    ],
)
def test_stream_error_ends_stream_with_one_error(code: int, status: str, kind: str, retryable: bool):
    chunks = GeminiScript().text("So far").error(code, status, "no more").chunks()
    parts = decode([*chunks, *GeminiScript().text("never").chunks(), chunks[-1]])
    error = one(parts, Error)
    assert (error.kind, error.code, error.status, error.message, error.retryable) == (
        kind,
        status,
        code,
        "no more",
        retryable,
    )
    assert streamed_text(parts) == "So far"
    assert len(of(parts, TextEnd)) == 1


def test_non_streaming_error_object_is_error():
    error = one(decode_whole(GeminiScript().error().response()), Error)
    assert (error.kind, error.status) == ("provider", 503)


@pytest.mark.parametrize("body", [b"not json", b"[]", b"{}", b"null", b'"text"', b'{"hello": 1}'])
def test_invalid_body_is_protocol_error(body: bytes):
    assert one(decode_whole(body), Error).kind == "protocol"


@requirement("F03")
def test_connection_error_is_only_error():
    from providers.google.gemini_wire import as_run
    from sidestream.providers.google.context import GoogleContext
    from sidestream.providers.google.decode.decoder import GenerateContentDecoder

    decoder = GenerateContentDecoder(GoogleContext())
    emitted = decoder.feed(b'{"candidates": [{"content": {"parts": [{"text": "x"}]}}]}')
    parts = as_run(emitted + decoder.close(Error("timeout", "too slow")) + decoder.close())
    assert one(parts, Error).kind == "timeout"


def test_second_candidate_becomes_custom_part():
    def candidates(*texts: str, **fields: Any) -> dict[str, Any]:
        return {
            "candidates": [
                {"index": index, "content": {"parts": [{"text": text}]}, **fields} for index, text in enumerate(texts)
            ]
        }

    parts = decode([candidates("A", "B"), candidates("a", "b", finishReason="STOP")])
    assert streamed_text(parts) == "Aa"
    assert [custom.data["content"]["parts"][0]["text"] for custom in of(parts, Custom)] == ["B", "b"]
    assert {custom.kind for custom in of(parts, Custom)} == {"google.candidate"}


def test_candidate_with_malformed_index_is_kept():
    parts = decode([{"candidates": [{"index": "0", "content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}])
    assert streamed_text(parts) == "Hi"
    assert one(parts, Raw).event == {"index": "0"}


def test_paused_answer_keeps_continuation_token():
    script = GeminiScript().text("Part one").finish("CONTINUATION").candidate(continuationToken="t0ken")
    for parts in both(script):
        assert kept(parts)["_google_session"]["continuation_token"] == "t0ken"
        assert (one(parts, StepFinish).outcome or StepOutcome()).is_paused


def test_metadata_after_finish_reason_is_kept():
    chunks = [
        *GeminiScript().text("Paris.").chunks(),
        {"candidates": [{"groundingMetadata": {"webSearchQueries": ["capital"]}}]},
        {"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2}},
    ]
    finish = one(decode(chunks), Finish)
    assert finish.metadata["grounding_metadata"] == {"webSearchQueries": ["capital"]}
    assert finish.usage.output.total == 2
    assert finish.usage.server_tool_use == {"google_search": 1}
