"""From Messages events to the parts of one run, and one script for each kind of content block."""

from collections.abc import Iterable
from typing import Any

from sidestream.parts import Error, Finish, StepFinish, StepOutcome, StepStart, StreamPart, StreamStart
from sidestream.providers.anthropic.context import MessagesContext
from sidestream.providers.anthropic.decode.decoder import MessagesDecoder
from sidestream.stream.grammar import check
from sidestream.testing.messages_script import MessagesScript
from support.streams import PNG_BASE64, Event, wire

MODEL = "claude-sonnet-5-5"


def decode(events: Iterable[Event | bytes], **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this stream; they are legal, or GrammarError is raised."""
    decoder = MessagesDecoder(MessagesContext(**context))
    parts = [part for event in events for part in decoder.feed(wire(event))]
    return _as_run(parts + decoder.close())


def decode_whole(message: Any, **context: Any) -> list[StreamPart]:
    """The parts of one run whose only answer is this object, not streamed; they are legal."""
    decoder = MessagesDecoder(MessagesContext(**context))
    return _as_run(decoder.whole(wire(message)) + decoder.close())


def _as_run(told: list[StreamPart]) -> list[StreamPart]:
    """One step around what a decoder told; an error is told after the step, as a run does."""
    *parts, finish = told
    assert isinstance(finish, Finish)
    errors = [part for part in parts if isinstance(part, Error)]
    inside = [part for part in parts if not isinstance(part, Error)]
    step = StepFinish(0, finish.reason, finish.usage, outcome=finish.outcome)
    end = Finish(finish.reason, finish.usage, finish.raw_reason, finish.metadata)
    run: list[StreamPart] = [StreamStart(()), StepStart(0), *inside, step, *errors, end]
    check(run)
    return run


def session(parts: list[StreamPart]) -> dict[str, Any]:
    """The session that the message keeps."""
    (step,) = [part for part in parts if isinstance(part, StepFinish)]
    return (step.outcome or StepOutcome()).message_metadata["_anthropic_session"]


def script() -> MessagesScript:
    return MessagesScript(model=MODEL)


URL = "https://example.com/a"
FOUND = [
    {"type": "web_search_result", "url": URL, "title": "A", "page_age": None, "encrypted_content": "EqgB"},
    {"type": "web_search_result", "url": "https://example.com/b", "title": "B", "encrypted_content": "EqgC"},
]
WEB_CITATION = {
    "type": "web_search_result_location",
    "url": URL,
    "title": "A",
    "encrypted_index": "Eo8B",
    "cited_text": "cited words",
}
CHAR_CITATION = {
    "type": "char_location",
    "cited_text": "The grass",
    "document_index": 0,
    "document_title": "Nature",
    "file_id": None,
    "start_char_index": 0,
    "end_char_index": 9,
}

EVERY_BLOCK: dict[str, MessagesScript] = {
    "text": script().text(["Hi ", "you"], citations=[WEB_CITATION, CHAR_CITATION]),
    "thinking": script().thinking(["First ", "thought"], signature="EqQB").text("So."),
    "redacted_thinking": script().redacted_thinking("EmwK").text("So."),
    "tool_use": script().tool_use("get_weather", ['{"city":', '"Rome"}']),
    "server_tool_use": script().web_search("news", FOUND),
    "mcp_tool_use": script().mcp("wiki", "ask", {"q": "why"}, "42"),
    "web_search_tool_result": script().web_search("news", FOUND).text("Found.", citations=[WEB_CITATION]),
    "web_fetch_tool_result": script().web_fetch(URL, "The page", title="A page"),
    "code_execution_tool_result": script().code_execution("print(1)", stdout="1\n", files=["file_1"]),
    "bash_code_execution_tool_result": script().bash("ls", stdout="a.txt\n", files=["file_2"]),
    "text_editor_code_execution_tool_result": script().text_editor(
        {"command": "view", "path": "/a.png"},
        {"type": "text_editor_code_execution_view_result", "file_type": "image", "content": PNG_BASE64},
    ),
    "tool_search_tool_result": script()
    .tool_search("weather", ["get_weather"])
    .tool_use("get_weather", {"city": "Rome"}),
    "mcp_tool_result": script().mcp("wiki", "ask", {"q": "why"}, [{"type": "text", "text": "no"}], is_error=True),
    "advisor_tool_result": script().advisor("Think twice."),
    "mcp_tool_listing": script().mcp_listing("wiki", [{"name": "ask", "input_schema": {"type": "object"}}]),
    "container_upload": script().block({"type": "container_upload", "file_id": "file_3"}),
    "compaction": script().compaction(["The story ", "so far"]).text("On we go."),
    "fallback": script().block({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}).text("Hello"),
}
"""Block type → a message with such a block, and with what it needs before it."""
