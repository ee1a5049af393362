"""Parts as a server's log keeps them."""

from collections.abc import Iterable

from sidestream.parts import StreamPart
from sidestream.store.log.segments import SegmentFold
from sidestream.store.records import Record, Row, Segment, kind_of, pack, unpack


def stored(parts: Iterable[StreamPart], every: int) -> list[Record]:
    """The parts as records of a server's log, which writes what is open after so many parts."""
    folding = SegmentFold(previews=True, inputs=True)
    segments: list[Segment] = []
    for number, part in enumerate(parts, 1):
        segments += folding.feed([part])
        if number % every == 0:
            segments += folding.increments()
    segments += folding.end()
    records: list[Record] = []
    for seq, body in enumerate(segments, 1):
        data, blobs = pack(body)
        row = Row(seq=seq, time=float(seq), run="r", kind=kind_of(body), body=data, blobs=tuple(blobs))
        records.append(unpack(row, blobs.__getitem__))
    return records
