"""A check that a stream of parts is legal."""

from collections.abc import Iterable

from sidestream.stream import grammar
from sidestream.stream.parts import StreamPart


def check_stream(parts: Iterable[StreamPart], *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
    """Raises GrammarError unless the parts form one legal, complete stream.

    For the stream of a resumed run, pass its first step and the ids of the calls made before it.
    """
    grammar.check(parts, first_step=first_step, known_calls=known_calls)
