"""Answers with thousands of one thing: the work grows with the bytes, not with their square, and there is a limit."""

import gc
import time
from collections.abc import Callable, Generator, Sequence

import pytest

from hostile.streams import HOSTILE, Hostile, calls_in, read, wire
from requirements import requirement
from sidestream import limits
from sidestream.parts import Error, Finish
from sidestream.providers.google.decode import state
from sidestream.stream.grammar import check

COUNTED_SIZE = 75
COUNTED_TIMES = 4
TIMED_SIZE = 300
TIMED_TIMES = 4
ATTEMPTS = 12
REPEATS = 2
LINEAR = 7.0
"""Four times the input takes about four times as long; were it the square, sixteen times."""


def each(names: Sequence[str]):
    return pytest.mark.parametrize("case", [HOSTILE[name] for name in names], ids=names)


def sent(case: Hostile, n: int) -> list[bytes]:
    return [wire(event) for event in case.events(n)]


def seconds_in(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


@pytest.fixture
def uncollected() -> Generator[None]:
    """Keeps the garbage collector out of the times. It grows with all objects of the process, not with the input."""
    gc.disable()
    yield
    gc.enable()


@requirement("F09", "F15")
@each(list(HOSTILE))
def test_decoder_calls_grow_linearly_with_input(case: Hostile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1_000_000)
    monkeypatch.setattr(state, "MAX_SEARCHED", 10_000)
    few, many = sent(case, COUNTED_SIZE), sent(case, COUNTED_SIZE * COUNTED_TIMES)
    read(case.decoder(), few)  # Imports count once.
    ratio = calls_in(lambda: read(case.decoder(), many)) / calls_in(lambda: read(case.decoder(), few))
    assert ratio < 1.4 * COUNTED_TIMES


@requirement("F15")
@each(list(HOSTILE))
@pytest.mark.usefixtures("uncollected")
def test_decoding_time_grows_linearly_with_input(case: Hostile, monkeypatch: pytest.MonkeyPatch):
    """Comparisons and copies inside C are no calls. The shortest of several times counts, so a busy machine is none."""
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1_000_000)
    monkeypatch.setattr(state, "MAX_SEARCHED", 10_000)
    few, many = sent(case, TIMED_SIZE), sent(case, TIMED_SIZE * TIMED_TIMES)
    short = long = float("inf")
    for _ in range(ATTEMPTS):
        short = min(short, *(seconds_in(lambda: read(case.decoder(), few)) for _ in range(REPEATS)))
        long = min(long, seconds_in(lambda: read(case.decoder(), many)))
        if long < LINEAR * short:
            return
    pytest.fail(f"{TIMED_TIMES} times the input took {long / short:.1f} times as long")


COUNTED = [name for name, case in HOSTILE.items() if case.is_counted]
ENDLESS = [name for name, case in HOSTILE.items() if not case.is_counted]


@requirement("F15", "R4")
@each(COUNTED)
def test_answer_with_too_many_entries_ends_with_error(case: Hostile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_ENTRIES", 50)
    parts, result = read(case.decoder(), sent(case, 60))
    check(parts)
    *_, error, finish = parts
    assert isinstance(error, Error)
    assert (error.kind, error.retryable) == ("limit", False)
    assert isinstance(finish, Finish)
    assert finish.reason == result.finish_reason == "error"
    opened = sum(part.type in ("text-start", "reasoning-start", "tool-input-start", "source", "file") for part in parts)
    assert opened <= 2 * 50


@requirement("F15")
@each(COUNTED)
def test_answer_within_entry_limit_is_complete(case: Hostile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1000)
    parts, result = read(case.decoder(), sent(case, 60))
    check(parts)
    assert result.finish_reason in ("stop", "tool-calls", "approval")


@requirement("F15")
@each(ENDLESS)
def test_item_in_many_pieces_is_one_entry(case: Hostile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_ENTRIES", 5)
    parts, result = read(case.decoder(), sent(case, 60))
    check(parts)
    assert result.finish_reason in ("stop", "tool-calls")
