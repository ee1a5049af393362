"""The grammar of part streams: each rule accepts what keeps it and rejects what breaks it."""

import pytest

from requirements import requirement
from sidestream.errors import GrammarError
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    Steer,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.stream.grammar import BLOCKS, TRANSITIONS, Checker, check

START = StreamStart(())
STEP = StepStart(0)
STEPPED = StepFinish(0, "stop", Usage())
FINISH = Finish("stop", Usage())
CALL = ToolCall("c", "f", "f", False, {})
RESULT = ToolResult("c", "f", "f", 1, False, False)
PREVIEW = ToolResult("c", "f", "f", 0, False, False, preliminary=True)
FAILED = Finish("error", Usage())

FULL: list[StreamPart] = [
    START,
    STEP,
    ResponseMetadata("r"),
    ReasoningStart("t"),
    ReasoningDelta("t", "hm"),
    TextStart("t"),
    ReasoningEnd("t"),
    TextDelta("t", "Hi"),
    Source("s", "url", url="https://example.com", text_id="t"),
    TextEnd("t"),
    ToolInputStart("c", "f", False),
    ToolInputDelta("c", "{}"),
    ToolInputEnd("c"),
    ToolEvent("f", "added", {}),
    CALL,
    PREVIEW,
    ToolApprovalRequest("a", "c", "f", {}),
    File("i", "image/png", data=b"x"),
    Custom("k", {}),
    Raw("p", {}),
    Steer("m", "accepted", "And?"),
    StepFinish(0, "tool-calls", Usage()),
    ToolEvent("f", "progress", {}),
    RESULT,
    Steer("m", "applied", "And?"),
    StepStart(1),
    TextStart("t"),
    TextEnd("t"),
    StepFinish(1, "stop", Usage()),
    FINISH,
]


def in_step(*parts: StreamPart) -> list[StreamPart]:
    return [START, STEP, *parts, STEPPED, FINISH]


def is_legal(parts: list[StreamPart]) -> bool:
    try:
        check(parts)
    except GrammarError:
        return False
    return True


@requirement("R5", "R1")
def test_stream_with_every_kind_of_part_is_valid():
    check(FULL)
    assert {part.type for part in FULL} == {name for names in TRANSITIONS.values() for name in names} - {"error"}


@requirement("R5")
@pytest.mark.parametrize("place", range(len(FULL)))
def test_omitting_required_part_is_invalid(place: int):
    optional = (ResponseMetadata, ReasoningDelta, TextDelta, Source, ToolInputDelta, ToolEvent, File, Custom, Raw)
    optional += (ToolApprovalRequest, ToolResult)
    is_optional = isinstance(FULL[place], optional) or FULL[place] == Steer("m", "applied", "And?")
    assert is_legal([*FULL[:place], *FULL[place + 1 :]]) is is_optional


@requirement("R5", "R4")
@pytest.mark.parametrize("place", range(1, len(FULL)))
def test_stream_without_finish_is_invalid(place: int):
    assert not is_legal(FULL[:place])


@requirement("R4", "R5")
@pytest.mark.parametrize("part", [FINISH, START, STEP, Raw("p", {}), TextStart("x")])
def test_no_part_can_follow_finish(part: StreamPart):
    with pytest.raises(GrammarError):
        check([*FULL, part])


@requirement("R5")
@pytest.mark.parametrize(
    "part", [part for part in FULL if not isinstance(part, StreamStart)], ids=lambda part: part.type
)
def test_no_part_can_precede_start(part: StreamPart):
    with pytest.raises(GrammarError):
        Checker().feed(part)


@requirement("R5")
@pytest.mark.parametrize(
    "part",
    [
        ResponseMetadata("r"),
        TextStart("x"),
        ReasoningStart("x"),
        ToolInputStart("x", "f", False),
        CALL,
        Raw("p", {}),
        START,
        STEPPED,
    ],
    ids=lambda part: part.type,
)
def test_model_parts_are_valid_only_inside_step(part: StreamPart):
    assert not is_legal([START, part, FINISH])


@requirement("R5")
@pytest.mark.parametrize(
    "part",
    [
        ToolEvent("f", "progress", {}),
        File("i", "a/b", url="u"),
        Source("s", "url", url="u"),
        Custom("k", {}),
        Error("tool", "m"),
    ],
)
def test_client_tool_parts_are_valid_between_steps(part: StreamPart):
    check([START, STEP, STEPPED, part, FINISH])


MADE = ToolCall("c/1", "g", "g", False, {}, provider_metadata={"sidestream": {"caller": {"caller_id": "c"}}})
GIVEN = ToolResult("c/1", "g", "g", 2, False, False, provider_metadata=MADE.provider_metadata)


@requirement("R5", "R122")
def test_program_calls_between_steps_while_it_runs():
    called = [START, STEP, CALL, StepFinish(0, "tool-calls", Usage())]
    assert is_legal([*called, MADE, GIVEN, RESULT, FINISH])
    assert not is_legal([*called, RESULT, MADE, GIVEN, FINISH])
    assert not is_legal([START, STEP, CALL, MADE, StepFinish(0, "tool-calls", Usage()), FINISH])
    assert not is_legal([START, STEP, STEPPED, MADE, FINISH])


@requirement("R4", "R5")
@pytest.mark.parametrize("part", [START, STEP, FINISH], ids=lambda part: part.type)
def test_step_cannot_be_broken_off(part: StreamPart):
    assert not is_legal([START, STEP, part, STEPPED, FINISH])


BLOCK_PARTS: dict[str, tuple[StreamPart, StreamPart, StreamPart]] = {
    "text": (TextStart("x"), TextDelta("x", "d"), TextEnd("x")),
    "reasoning": (ReasoningStart("x"), ReasoningDelta("x", "d"), ReasoningEnd("x")),
    "tool-input": (ToolInputStart("x", "f", False), ToolInputDelta("x", "d"), ToolInputEnd("x")),
}


@requirement("R5")
@pytest.mark.parametrize("family", sorted(BLOCK_PARTS))
def test_block_opens_once_grows_while_open_and_closes_once(family: str):
    start, delta, end = BLOCK_PARTS[family]
    assert is_legal(in_step(start, delta, delta, end))
    assert is_legal(in_step(start, end))
    assert not is_legal(in_step(delta))
    assert not is_legal(in_step(end))
    assert not is_legal(in_step(start, start, end))
    assert not is_legal(in_step(start, end, start, end))
    assert not is_legal(in_step(start, end, end))
    assert not is_legal(in_step(start, end, delta))
    assert not is_legal(in_step(start))


def test_every_block_family_is_tested():
    assert {family for family, _ in BLOCKS.values()} == BLOCK_PARTS.keys()


@requirement("R5")
def test_block_ids_can_be_shared_across_families_and_steps():
    check(in_step(TextStart("x"), ReasoningStart("x"), TextEnd("x"), ReasoningEnd("x")))
    again = [StepStart(1), TextStart("x"), TextEnd("x"), StepFinish(1, "stop", Usage())]
    check([START, STEP, TextStart("x"), TextEnd("x"), STEPPED, *again, FINISH])


@requirement("R5")
def test_steps_count_from_zero_without_gaps():
    def steps(*numbers: tuple[int, int]) -> list[StreamPart]:
        pairs = [(StepStart(begun), StepFinish(ended, "stop", Usage())) for begun, ended in numbers]
        return [START, *[part for pair in pairs for part in pair], FINISH]

    assert is_legal(steps((0, 0), (1, 1), (2, 2)))
    assert not is_legal(steps((1, 1)))
    assert not is_legal(steps((0, 0), (2, 2)))
    assert not is_legal(steps((0, 0), (0, 0)))
    assert not is_legal(steps((0, 1)))


@requirement("R5")
def test_call_comes_once_per_step_after_its_input_closed():
    start, _, end = ToolInputStart("c", "f", False), None, ToolInputEnd("c")
    assert is_legal(in_step(CALL))
    assert is_legal(in_step(start, end, CALL))
    assert not is_legal(in_step(start, CALL, end))
    assert not is_legal(in_step(CALL, CALL))


@requirement("R5")
@pytest.mark.parametrize(
    ("call", "legal"),
    [
        (ToolCall("c", "f", "f", False, {}), True),
        (ToolCall("c", "f", "f", False, ""), True),
        (ToolCall("c", "f", "f", False, input_error="broken", input_text="{"), True),
        (ToolCall("c", "f", "f", False), False),
        (ToolCall("c", "f", "f", False, {}, input_error="broken"), False),
    ],
)
def test_call_has_input_or_error(call: ToolCall, legal: bool):
    assert is_legal(in_step(call)) is legal


@requirement("R5")
def test_only_previews_come_between_call_and_final_result():
    assert is_legal(in_step(CALL, PREVIEW, PREVIEW, RESULT))
    assert not is_legal(in_step(RESULT))
    assert not is_legal(in_step(RESULT, CALL))
    assert not is_legal(in_step(CALL, RESULT, RESULT))
    assert not is_legal(in_step(CALL, RESULT, PREVIEW))


@requirement("R5")
def test_call_id_can_be_reused_in_later_step():
    again = [StepStart(1), CALL, RESULT, StepFinish(1, "stop", Usage())]
    check([START, STEP, CALL, RESULT, STEPPED, *again, FINISH])


@requirement("R5")
def test_approval_request_needs_its_call():
    request = ToolApprovalRequest("a", "c", "f", {})
    assert is_legal(in_step(CALL, request))
    assert not is_legal(in_step(request))


@requirement("R5")
def test_source_needs_its_open_or_closed_text_block():
    source = Source("s", "url", url="u", text_id="x")
    assert is_legal(in_step(TextStart("x"), TextEnd("x"), source))
    assert is_legal(in_step(Source("s", "url", url="u")))
    assert not is_legal(in_step(source))
    assert not is_legal(in_step(ReasoningStart("x"), source, ReasoningEnd("x")))


@requirement("R5")
@pytest.mark.parametrize(
    ("file", "legal"),
    [
        (File("i", "a/b", data=b"x"), True),
        (File("i", "a/b", url="u"), True),
        (File("i", "a/b"), False),
        (File("i", "a/b", data=b"x", url="u"), False),
    ],
)
def test_file_has_either_bytes_or_url(file: File, legal: bool):
    assert is_legal(in_step(file)) is legal


@requirement("R4", "R5")
@pytest.mark.parametrize("kind", ["provider", "truncated", "protocol", "timeout", "rate-limit", "limit"])
def test_only_error_ends_in_finish_error(kind: str):
    error = Error(kind, "m")  # pyright: ignore[reportArgumentType]
    assert is_legal([START, error, FAILED])
    assert is_legal([START, STEP, error, STEPPED, FAILED])
    assert not is_legal([START, error, FINISH])
    assert not is_legal([START, FAILED])


@requirement("R5")
def test_tool_error_does_not_end_run():
    assert is_legal(in_step(Error("tool", "m")))
    assert not is_legal([START, Error("tool", "m"), FAILED])


@requirement("R5")
def test_checker_names_first_invalid_part():
    checker = Checker()
    checker.feed(START)
    checker.feed(STEP)
    with pytest.raises(GrammarError):
        checker.feed(TextDelta("x", "d"))
    with pytest.raises(GrammarError):
        checker.close()


@requirement("R5", "R115")
@pytest.mark.parametrize(
    "parts",
    [
        [Steer("m", "applied", "And?")],
        [Steer("m", "failed", "And?")],
        [Steer("m", "accepted", "And?"), Steer("m", "accepted", "And?")],
        [Steer("m", "accepted", "And?"), Steer("m", "applied", "And?"), Steer("m", "applied", "And?")],
    ],
)
def test_message_is_accepted_once_then_applied_or_failed_once(parts: list[StreamPart]):
    assert not is_legal([START, *parts, STEP, STEPPED, FINISH])
    assert is_legal([START, Steer("m", "accepted", "And?"), STEP, STEPPED, Steer("m", "failed", "And?"), FINISH])


@requirement("R5", "R115")
def test_message_is_never_applied_inside_step():
    assert not is_legal(in_step(Steer("m", "accepted", "And?"), Steer("m", "applied", "And?")))
