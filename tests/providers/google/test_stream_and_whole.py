"""Whatever an answer is made of, its streamed and its whole form fold to the same."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, strategies as st

from providers.google.gemini_wire import both, both_interactions, kept
from requirements import requirement
from sidestream.messages.message import ChatMessage
from sidestream.parts import Custom, Finish, Source, StreamPart, ToolCall, ToolResult
from sidestream.testing.gemini_script import GeminiScript, InteractionScript
from support.streams import PNG, messages, of, one

TEXTS = st.text(st.sampled_from("aé🌍 \n\"'"), min_size=1, max_size=12)
SIGNATURES = st.none() | st.sampled_from(["s1", "s2"])
VALUES = st.dictionaries(st.sampled_from("abc"), TEXTS | st.integers() | st.booleans(), max_size=3)

Step = Callable[[Any], Any]
GEMINI: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda text, sign: lambda s: s.text(text, signature=sign), TEXTS, SIGNATURES),
    st.builds(lambda text, sign: lambda s: s.thought(text, signature=sign), TEXTS, SIGNATURES),
    st.builds(lambda args, sign: lambda s: s.function_call("f", args, signature=sign), VALUES, SIGNATURES),
    st.builds(
        lambda args: lambda s: s.streamed_call("g", *((f"$.{key}", value) for key, value in args.items())), VALUES
    ),
    st.builds(lambda text: lambda s: s.code(text, text), TEXTS),
    st.just(lambda s: s.inline_data(PNG)),
)
INTERACTION: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda text: lambda s: s.text(text), TEXTS),
    st.builds(lambda text, sign: lambda s: s.thought(text, signature=sign), TEXTS, SIGNATURES),
    st.builds(lambda args, number: lambda s: s.function_call("f", args, call_id=f"f{number}"), VALUES, st.integers()),
    st.builds(
        lambda args, number: lambda s: s.hosted("google_search", args, [], call_id=f"t{number}"), VALUES, st.integers()
    ),
    st.just(lambda s: s.file(PNG)),
)


def fold(parts: list[StreamPart]) -> dict[str, Any]:
    """What is left when the stream is over, without what only a layout of slices depends on."""
    (message,) = messages(parts) or [ChatMessage("model")]
    finish = one(parts, Finish)
    return {
        "parts": message.parts,
        "calls": of(parts, ToolCall),
        "results": of(parts, ToolResult),
        "sources": of(parts, Source),
        "custom": of(parts, Custom),
        "finish": (finish.reason, finish.raw_reason, finish.usage.server_tool_use),
    }


@requirement("R9")
@given(st.lists(GEMINI, max_size=6))
def test_generate_content_stream_matches_non_streaming_answer(steps: list[Step]):
    script = GeminiScript()
    for step in steps:
        step(script)
    streamed, whole = both(script)
    assert fold(streamed) == fold(whole)


@requirement("R9")
@given(st.lists(INTERACTION, max_size=6))
def test_interaction_stream_matches_non_streaming_answer(steps: list[Step]):
    script = InteractionScript()
    for step in steps:
        step(script)
    streamed, whole = both_interactions(script)
    assert fold(streamed) == fold(whole)
    assert msgspec.json.encode(kept(streamed)) == msgspec.json.encode(kept(whole))
