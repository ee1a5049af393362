"""What reaches a terminal steers nothing, however it is cut."""

import io
import itertools
import re

import pytest
from hypothesis import example, given, strategies as st

from requirements import requirement
from sidestream import jsontext
from sidestream.cli.display.screen import MAX_SEQUENCE, ControlStripper, Screen, one_line, strip_controls
from sidestream.results.tool_code import CodeExtractor

HOSTILE = st.text(st.sampled_from("\x1b\x9b\x9d\x9c\x90[]()P\\;?08m\x07\r\n\tab\x00\x7f✓"), max_size=60)


def fed(pieces: list[str]) -> str:
    stripper = ControlStripper()
    return "".join([*map(stripper.feed, pieces), stripper.flush()])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain ✓ text\n\tindented", "plain ✓ text\n\tindented"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]52;c;Zm9v\x07x", "x"),
        ("\x9d0;title\x9cx", "x"),
        ("\x1bP1$r0m\x1b\\x", "x"),
        ("\x1b(0x\x1b7y\x1bcz", "xyz"),
        ("a\r\nb\rc\x08\x07\x00\x7f", "a\nbc"),
        ("\x1b]0;no end\nnext line", "]0;no end\nnext line"),
        ("\x1b\x1b[31m[31mx", "[31mx"),
    ],
)
def test_control_sequences_are_stripped(text: str, left: str):
    assert strip_controls(text) == left
    assert fed([text]) == left
    assert fed(list(text)) == left


@given(st.lists(HOSTILE, max_size=8))
@example(["\x1b", "[", "3", "1m"])
@example(["\r", "\n"])
def test_no_control_character_is_left_regardless_of_chunking(pieces: list[str]):
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", fed(pieces)) is None
    assert fed(list("".join(pieces))) == fed(["".join(pieces)])


def test_unterminated_sequence_does_not_hide_text_indefinitely():
    shown = fed(["\x1b]52;c;", *["x" * 100] * (MAX_SEQUENCE // 100 + 1), "y"])
    assert shown.endswith("xy")


def test_title_is_one_line_in_writing_order():
    assert one_line("a\nb\u202ecba\x1b[31m  d") == "a bcba d"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"


def test_text_and_progress_in_one_place_are_separated():
    place = io.StringIO()
    screen = Screen(place, place)
    screen.line("first")
    screen.text("answer")
    screen.block("code\nmo")
    screen.block("re")
    screen.line("last")
    assert place.getvalue() == "first\n\nanswer\n\n  │ code\n  │ more\nlast\n"


def test_text_and_progress_in_two_places_do_not_mix():
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.line("first")
    screen.text("answer")
    screen.line("last")
    screen.end_text()
    assert (out.getvalue(), err.getvalue()) == ("answer\n", "first\nlast\n")


@given(st.text(), st.data())
@example('a\\n"\n\U0001f600\x00', None)
def test_code_is_read_from_json_regardless_of_chunking(code: str, data: st.DataObject | None):
    text = '{"container_id": "c", "code": "' + jsontext.escape(code) + '", "more": "x"}'
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text))))) if data else range(len(text))
    edges = [0, *cuts, len(text)]
    reader = CodeExtractor()
    shown = "".join(reader.feed(text[a:b]) for a, b in itertools.pairwise(edges))
    assert shown + reader.remainder(code) == code


@pytest.mark.parametrize("text", ['{"code":"a\nb"}', '{"code":"\\x"}', '{"code":"\\ud83d"}', '{"code":5}', "nonsense"])
def test_broken_json_is_read_as_far_as_possible(text: str):
    assert CodeExtractor().feed(text) in ("", "a")


@requirement("F45")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("begun", ["\x98a", "\x1b]a", "\x90", "\x9b1;", "\x1b[1", "\x1b", "\x1b[ ", "\r"])
def test_unterminated_sequences_are_stripped_in_linear_time(begun: str) -> None:
    """Each beginning used to be searched for its end up to the end of the text: minutes for this much."""
    hostile = begun * 200_000
    stripper = ControlStripper()
    shown = strip_controls(hostile) + stripper.feed(hostile) + stripper.flush() + one_line(hostile)
    assert not set(shown) & set("\x1b\x90\x98\x9b")


@requirement("F45")
def test_direction_overrides_are_stripped_and_marks_kept() -> None:
    stripper = ControlStripper()
    text = "rm \u202etxt.exe\u202c \u2066x\u2069 שלום\u200f!"
    assert stripper.feed(text) + stripper.flush() == "rm txt.exe x שלום\u200f!"
