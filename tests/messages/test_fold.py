"""What folding a stream costs in memory."""

import tracemalloc

from requirements import requirement
from sidestream.messages.fold import MessageFold
from sidestream.parts import TextDelta, TextStart


@requirement("F14")
def test_long_text_in_large_pieces_is_never_copied() -> None:
    fold = MessageFold()
    fold.feed(TextStart("t"))
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for _ in range(200):
            tracemalloc.reset_peak()
            fold.feed_all([TextDelta("t", "a" * 100_000)])
            kept, peak = tracemalloc.get_traced_memory()
            peaks.append(peak - kept)
    finally:
        tracemalloc.stop()
    assert len(fold.text_of("t")) == 20_000_000
    assert max(peaks[100:]) < 3_000_000
