"""The public check of part streams."""

import pytest

from sidestream import StreamPart, ToolResult, Usage
from sidestream.errors import GrammarError
from sidestream.parts import Finish, StepFinish, StepStart, StreamStart
from sidestream.testing import check_stream

LEGAL: list[StreamPart] = [StreamStart(()), StepStart(0), StepFinish(0, "stop", Usage()), Finish("stop", Usage())]


def test_valid_stream_passes():
    check_stream(LEGAL)


@pytest.mark.parametrize("parts", [[], LEGAL[:-1], LEGAL[1:], [*LEGAL, LEGAL[0]]])
def test_invalid_or_incomplete_stream_raises(parts: list[StreamPart]):
    with pytest.raises(GrammarError):
        check_stream(parts)


def test_resumed_stream_starts_later_and_answers_earlier_call():
    result = ToolResult("call_1", "f", "f", 1, is_error=False, provider_executed=False)
    parts: list[StreamPart] = [LEGAL[0], result, StepStart(2), StepFinish(2, "stop", Usage()), LEGAL[-1]]
    with pytest.raises(GrammarError):
        check_stream(parts)
    check_stream(parts, first_step=2, known_calls=["call_1"])
