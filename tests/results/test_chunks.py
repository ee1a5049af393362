"""Chunks do not depend on how many parts arrive together, although runs of deltas take a fast path."""

from collections import deque

from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    ReasoningDelta,
    ReasoningStart,
    StreamPart,
    TextDelta,
    TextStart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
)
from sidestream.results.chunks import ChunkFold
from sidestream.results.results import ChatResult
from sidestream.results.tool_code import CodeExtractor

CALLS = ["a", "b", "c"]
PIECES = [
    '{"command": "',
    '{"command": "ls',
    "x",
    "",
    "\\n",
    "\\",
    'n"',
    "\\u00",
    "e9",
    '"',
    '"}',
    "é",
    "\n",
    "\\\\",
    '\\"',
    '","',
]


def event(call: str | None, tool: str, stage: str) -> ToolEvent:
    made: ToolEvent = ToolEvent(tool, "delta", {"of": call}, call, 0, None, stage)
    return made


EVENTS = st.builds(event, st.sampled_from([*CALLS, None]), st.sampled_from(["shell", "mcp"]), st.just("delta"))
PARTS = st.one_of(
    st.builds(TextDelta, st.sampled_from(["t", "u"]), st.sampled_from(["", "a", "\n"])),
    st.builds(ReasoningDelta, st.sampled_from(["r", "s"]), st.sampled_from(["", "hm"])),
    st.sampled_from([TextStart("t"), ReasoningStart("r"), ToolInputEnd("a")]),
    EVENTS,
    st.builds(ToolInputDelta, st.sampled_from(CALLS), st.sampled_from(PIECES)),
    st.just(ToolCall("a", "shell", "shell", True, input={"command": "ls x"})),
)
RUNS = st.one_of(
    st.lists(PARTS, max_size=3),
    st.builds(
        lambda call, word, pieces: [
            part
            for piece in pieces
            for part in (event(call, "shell" if call == "a" else "mcp", word), ToolInputDelta(call, piece))
        ],
        st.sampled_from(CALLS),
        st.sampled_from(["delta", "logs", "done"]),
        st.lists(st.sampled_from(PIECES), max_size=6),
    ),
)


def folding() -> ChunkFold:
    """Return a fold that gets messages from a turn, as in a run."""

    def completed(part: StreamPart) -> list[ChatMessage]:
        return []

    fold = ChunkFold(completed_by=completed)
    for start in (ToolInputStart("a", "shell", True), ToolInputStart("b", "mcp", True)):
        fold.feed(start)
    return fold


def one_by_one(parts: list[StreamPart]) -> list[ChatResult[str]]:
    fold, chunks, left = folding(), list[ChatResult[str]](), deque(parts)
    while left:
        first = left.popleft()
        has_delta = isinstance(first, ToolEvent) and left and isinstance(left[0], ToolInputDelta)
        chunks += fold.feed_all(deque([first, left.popleft()] if has_delta else [first]))
    return chunks


@requirement("R101")
@given(st.lists(RUNS, max_size=6))
def test_chunks_do_not_depend_on_parts_that_come_together(runs: list[list[StreamPart]]) -> None:
    parts = [part for run in runs for part in run]
    assert folding().feed_all(deque(parts)) == one_by_one(parts)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6), max_size=4))
def test_code_does_not_depend_on_pieces_that_come_together(batches: list[list[str]]) -> None:
    together, single = CodeExtractor(), CodeExtractor()
    for deltas in ([PIECES[0]], *batches):
        assert together.feed_all(deltas) == [single.feed(delta) for delta in deltas]
    assert together.extracted == single.extracted
