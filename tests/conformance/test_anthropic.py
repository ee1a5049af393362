"""What Anthropic really sent decodes to legal streams that lose nothing.

Facts are read from the recordings' JSON without our code, then looked for in the parts.
"""

import json
from functools import cached_property
from typing import Any

from hypothesis import given, strategies as st

from conformance.recorded import RecordedAnswer, each, recorded
from providers.anthropic.messages_wire import decode, decode_whole, session
from requirements import requirement
from sidestream.messages.message import DataPart, LinkPart, TextPart, ThinkingPart
from sidestream.parts import (
    Custom,
    File,
    Finish,
    Raw,
    ReasoningEnd,
    Source,
    StreamPart,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolEvent,
    ToolResult,
)
from sidestream.providers.anthropic import PROVIDER
from sidestream.providers.protocol import ModelRequest, Settings
from sidestream.stream.grammar import check
from support.streams import input_text, messages, of

Json = dict[str, Any]


class Case(RecordedAnswer):
    """One recorded answer."""

    @cached_property
    def parts(self) -> list[StreamPart]:
        return decode(self.events) if self.exchange.is_stream else decode_whole(self.final)

    @cached_property
    def final(self) -> Json:
        """The whole message; of a stream, put together from its events."""
        return assembled(self.sent) if self.exchange.is_stream else self.exchange.response.body

    def blocks(self, *kinds: str) -> list[Json]:
        return [block for block in self.final["content"] if block["type"] in kinds]

    @property
    def own_results(self) -> list[Json]:
        """The results of calls of this answer."""
        ids = {block["id"] for block in self.blocks("server_tool_use", "mcp_tool_use")}
        return [block for block in self.final["content"] if block.get("tool_use_id") in ids]


def assembled(events: list[Json]) -> Json:
    """The message that a stream means, by the letter of the API's documentation."""
    message: Json = {}
    texts: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start" if not message:
                message = {**event["message"], "content": [*event["message"]["content"]]}
            case "content_block_start":
                message["content"].append(dict(event["content_block"]))
                texts[event["index"]] = ""
            case "content_block_delta":
                grow(message["content"][event["index"]], event["delta"], texts, event["index"])
            case "content_block_stop":
                block, text = message["content"][event["index"]], texts[event["index"]]
                if "input" in block and text:
                    block["input"] = json.loads(text)
            case "message_delta":
                message |= {key: value for key, value in event["delta"].items() if value is not None}
                message["usage"] = {**message["usage"], **event["usage"]}
                message |= {key: event[key] for key in ("context_management",) if key in event}
            case _:
                pass
    return message


def grow(block: Json, delta: Json, texts: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            texts[index] += delta["partial_json"]
        case "compaction_delta":
            block["content"] = delta["content"]
        case other:
            raise AssertionError(other)


CASES = recorded(Case, ["anthropic"], r"/v1/messages$")
STREAMS = [case for case in CASES if case.exchange.is_stream]


def test_recordings_cover_enough_exchanges():
    assert len(STREAMS) >= 30
    assert len(CASES) - len(STREAMS) >= 50
    assert all(case.exchange.response.status == 200 for case in CASES)


@requirement("R2", "R5")
@each(CASES)
def test_every_answer_is_legal_without_raw_parts(case: Case):
    check(case.parts)
    assert of(case.parts, Raw) == []


@requirement("R9")
@each(STREAMS)
def test_stream_folds_like_its_final_message(case: Case):
    assert fold(case.parts) == fold(decode_whole(case.final))


def fold(parts: list[StreamPart]) -> Json:
    """What is left when the stream is over."""
    (finish,) = of(parts, Finish)
    return {
        "messages": [(m.role, m.parts, m.metadata) for m in messages(parts)],
        "sources": of(parts, Source),
        "ends": of(parts, TextEnd) + of(parts, ReasoningEnd),
        "calls": of(parts, ToolCall),
        "results": of(parts, ToolResult),
        "files": of(parts, File),
        "custom": of(parts, Custom),
        "finish": finish,
    }


@each(CASES)
def test_text_thinking_and_citations_are_complete(case: Case):
    stored = [part for m in messages(case.parts) for part in m.parts]
    texts = [block["text"] for block in case.blocks("text")]
    assert [part.text for part in stored if isinstance(part, TextPart)] == [text for text in texts if text]
    thoughts = [block["thinking"] for block in case.blocks("thinking")]
    assert [part.text for part in stored if isinstance(part, ThinkingPart)] == [text for text in thoughts if text]
    signatures = [block["signature"] for block in case.blocks("thinking")]
    assert [end.signature for end in of(case.parts, ReasoningEnd)] == signatures
    citations = [citation for block in case.blocks("text") for citation in block.get("citations") or []]
    assert [annotation for end in of(case.parts, TextEnd) for annotation in end.annotations] == citations
    assert [(source.url, source.cited_text) for source in of(case.parts, Source)] == [
        (citation.get("url"), citation["cited_text"]) for citation in citations
    ]


@each(STREAMS)
def test_text_deltas_are_streamed_unchanged(case: Case):
    deltas = [event["delta"] for event in case.sent if event["type"] == "content_block_delta"]
    sent = [delta["text"] for delta in deltas if delta["type"] == "text_delta" and delta["text"]]
    assert [part.delta for part in of(case.parts, TextDelta)] == sent


@requirement("R52")
@each(CASES)
def test_calls_and_results_are_complete(case: Case):
    calls = case.blocks("tool_use", "server_tool_use", "mcp_tool_use")
    assert [(call.id, call.name, call.input, call.provider_executed) for call in of(case.parts, ToolCall)] == [
        (block["id"], block["name"], block["input"], block["type"] != "tool_use") for block in calls
    ]
    for block in calls:
        assert json.loads(input_text(case.parts, block["id"])) == block["input"]
    assert [(r.id, r.result, r.is_error) for r in of(case.parts, ToolResult)] == [
        (block["tool_use_id"], block["content"], block.get("is_error", False) or failed(block["content"]))
        for block in case.own_results
    ]


def failed(content: Any) -> bool:
    return isinstance(content, dict) and content["type"].endswith("_error")


UNPAIRED = {
    "p-test_in_flight_mcp_call_history_is_accepted-0",
    "p-test_pause_turn_web_search_vcr-1",
    "v-anthropic-programmatic-tool-calling.1-stream-14",
    "v-anthropic-tool-search-deferred-bm25.2-whole-0",
    "v-anthropic-tool-search-deferred-regex-stream-1",
    "v-anthropic-tool-search-deferred-regex.2-whole-0",
}
"""Answers that begin with the result of a call of the answer before."""


@each(CASES)
def test_result_of_unknown_call_is_custom_part(case: Case):
    strange = [b for b in case.final["content"] if "tool_use_id" in b and b not in case.own_results]
    assert [part.data for part in of(case.parts, Custom) if part.kind.endswith("_tool_result")] == strange
    assert bool(strange) == (case.name in UNPAIRED)


@requirement("R52")
@each([case for case in CASES if case.name in UNPAIRED and case.exchange.request.body])
def test_result_follows_call_found_in_request(case: Case):
    request = case.exchange.request
    decoder = PROVIDER.recorded_decoder(request.method, request.path, request.body)
    assert decoder is not None
    parts = decoder.whole(case.exchange.body_bytes())
    first = case.final["content"][0]
    call, result = of(parts, ToolCall)[0], of(parts, ToolResult)[0]
    assert call.id == result.id == first["tool_use_id"]
    assert result.result == first["content"]


@requirement("R53")
@each(CASES)
def test_found_links_and_fetched_documents_are_delivered_once(case: Case):
    stored = [part for m in messages(case.parts) for part in m.parts]
    found = [
        entry["url"]
        for block in case.blocks("web_search_tool_result")
        if isinstance(block["content"], list)
        for entry in block["content"]
    ]
    assert [part.url for part in stored if isinstance(part, LinkPart)] == list(dict.fromkeys(found))
    fetched = [block["content"] for block in case.blocks("web_fetch_tool_result")]
    documents = [result["content"]["source"]["data"].encode() for result in fetched if "content" in result]
    assert [part.data for part in stored if isinstance(part, DataPart)] == documents


@requirement("R7", "R8")
@each(CASES)
def test_usage_and_finish_reason_match_message(case: Case):
    (finish,) = of(case.parts, Finish)
    usage = {key: value for key, value in case.final["usage"].items() if value is not None}
    read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
    assert finish.usage.raw == usage
    assert (finish.usage.input.cache_read, finish.usage.input.cache_write) == (read, written)
    assert finish.usage.input.no_cache == usage["input_tokens"]
    assert finish.usage.input.total == usage["input_tokens"] + read + written
    assert finish.usage.output.total == usage["output_tokens"]
    searches = (usage.get("server_tool_use") or {}).get("web_search_requests", 0)
    assert finish.usage.server_tool_use.get("web_search", 0) == searches
    expected = {"end_turn": "stop", "tool_use": "tool-calls", "refusal": "content-filter", "pause_turn": "other"}
    assert finish.raw_reason == case.final["stop_reason"]
    assert finish.reason == expected[case.final["stop_reason"]]


@requirement("R3", "R14")
@each(STREAMS)
def test_tool_events_are_unchanged_and_in_order(case: Case):
    kinds = {e["index"]: e["content_block"]["type"] for e in case.sent if e["type"] == "content_block_start"}
    of_tools = {index for index, kind in kinds.items() if kind.startswith(("server_", "mcp_")) or "_result" in kind}
    expected = [event for event in case.sent if event.get("index") in of_tools]
    assert [part.event for part in of(case.parts, ToolEvent)] == expected
    assert {part.key for part in of(case.parts, ToolEvent)} <= KEYS


KEYS = {
    "code_execution",
    "text_editor_code_execution",
    "bash_code_execution",
    "web_search",
    "web_fetch",
    "mcp",
    "tool_search",
    "advisor",
}


@requirement("F08")
@each(STREAMS)
def test_single_bytes_give_same_parts_as_whole_body(case: Case):
    assert decode(case.events_of(1)) == case.parts


@given(st.data())
def test_arbitrary_chunks_give_same_parts(data: st.DataObject):
    case = data.draw(st.sampled_from(STREAMS))
    sizes = data.draw(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
    assert decode(case.events_of(sizes)) == case.parts


@requirement("F01")
@given(st.data())
def test_stream_cut_anywhere_is_truncated(data: st.DataObject):
    case = data.draw(st.sampled_from(STREAMS))
    end = data.draw(st.integers(0, len(case.events) - 1))
    (finish,) = of(decode(case.events[:end]), Finish)
    assert (finish.reason, finish.raw_reason) == ("error", "truncated")


@requirement("R54")
@each([case for case in CASES if case.final["content"]])
def test_resent_message_has_original_blocks(case: Case):
    """Every answer, made a message and encoded again, gives its own blocks in their order."""
    (answer,) = messages(case.parts)
    model = PROVIDER.chat_model(case.final["model"], Settings(api_key="k"))
    call = model.encode(ModelRequest(messages=(answer,))).call
    sent = json.loads(call.body or b"")["messages"]
    assert sent[0]["role"] == "assistant"
    expected = [plain(with_known_caller(case, block)) for block in case.final["content"] if is_replayed(case, block)]
    assert [plain(block) for block in sent[0]["content"]] == expected


def is_replayed(case: Case, block: Json) -> bool:
    """Blank text is refused by the API; a result without its call has nothing to follow."""
    if block["type"] == "text":
        return bool(block["text"].strip())
    return "tool_use_id" not in block or block in case.own_results


def with_known_caller(case: Case, block: Json) -> Json:
    """The block without its caller, if that is a call of an earlier answer: this message is the whole history."""
    caller = (block.get("caller") or {}).get("tool_id")
    known = {other.get("id") for other in case.final["content"]}
    return block if caller is None or caller in known else {**block, "caller": None}


def plain(block: Json) -> Json:
    """A block without nulls and without empty lists of citations."""
    return {key: without_nulls(value) for key, value in block.items() if value is not None and value != []}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(content) for key, content in value.items() if content is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


@requirement("R55")
@each([case for case in CASES if (case.final.get("container") or {}).get("id")])
def test_container_id_is_in_session(case: Case):
    assert session(case.parts)["container_id"] == case.final["container"]["id"]
