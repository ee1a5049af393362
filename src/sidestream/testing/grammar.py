"""A check that a stream of parts is legal."""

from collections.abc import Iterable

from sidestream.stream import grammar
from sidestream.stream.parts import StreamPart


def check_stream(parts: Iterable[StreamPart], *, first_step: int = 0, known_calls: Iterable[str] = ()) -> None:
    """Raises GrammarError unless the parts form one legal, complete stream.

    ```python
    check_stream([part async for part in agent.stream("Hello")])
    ```

    For the stream of a resumed run, `first_step` is its first step, `known_calls` the ids of the calls made before it.
    """
    grammar.check(parts, first_step=first_step, known_calls=known_calls)
