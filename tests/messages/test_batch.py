"""Changes to the parts of a batch."""

import pytest

from sidestream.messages.fold import Batch
from sidestream.parts import Source, StreamPart, TextDelta, TextEnd, TextStart

SOURCES = frozenset({Source})


def batch(*, deltas: int) -> Batch:
    made = Batch([TextStart("t")])
    made.grow(TextDelta, "t", ["a"] * deltas)
    made.parts += [Source("1", "url"), TextEnd("t"), Source("2", "url")]
    return made


@pytest.mark.parametrize("deltas", [0, 1, 5])
def test_change_gets_one_list_of_parts_before(deltas: int) -> None:
    lists: list[list[StreamPart]] = []
    lengths: list[int] = []

    def change(part: Source, before: list[StreamPart]) -> StreamPart | None:
        lists.append(before)
        lengths.append(len(before))
        return part

    batch(deltas=deltas).changed(SOURCES, change)
    assert lists[0] is lists[1]
    assert lengths == [1 + min(deltas, 1), 3 + min(deltas, 1)], "the deltas of a block are joined"


@pytest.mark.parametrize("deltas", [0, 1, 5])
def test_change_can_remove_parts(deltas: int) -> None:
    given = batch(deltas=deltas)
    left = given.changed(SOURCES, lambda part, before: None)
    assert left.parts == [part for part in given.parts if type(part) is not Source]
    assert [type(part) for part in left.joined(has_inputs=True)] == [TextStart, *[TextDelta] * min(deltas, 1), TextEnd]
