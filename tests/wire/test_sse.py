"""Server-sent events: the same events come out however the bytes are cut, and never more memory than the cap allows."""

import itertools
import re
import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from requirements import requirement
from sidestream.errors import ProtocolError
from sidestream.wire.sse import Splitter

CAP = 1 << 20


def split(chunks: Iterable[bytes], cap: int = CAP) -> tuple[list[bytes], bool]:
    """All events of the chunks, and whether the cap was hit."""
    splitter = Splitter(cap)
    events: list[bytes] = []
    try:
        for chunk in chunks:
            events += splitter.feed(chunk)
        events += splitter.flush()
    except ProtocolError:
        return events, True
    return events, False


def once(stream: bytes) -> list[bytes]:
    return split([stream])[0]


def cut_at(stream: bytes, cuts: list[int]) -> list[bytes]:
    points = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(points)]


def reference(stream: bytes) -> list[bytes]:
    """The WHATWG rules, read from their text, for a stream that ends with a blank line."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf")):
        if not line:
            text = b"\n".join(data)
            if bare := text.strip():
                events.append(bare if bare == b"[DONE]" else text)
            data = []
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
    return events


LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
TEXT = st.binary(max_size=12).map(lambda raw: re.sub(rb"[\r\n]", b"", raw))
FIELD = st.sampled_from(
    [b"data", b"data:", b"data: ", b"data:  ", b"data: {", b"event: ", b"event:", b"id: ", b"retry: ", b":", b"x"]
)
LINES = st.one_of(
    st.builds(bytes.__add__, FIELD, TEXT),
    st.sampled_from([b"", b"", b"data: [DONE]", b"data:[DONE] ", b'data: {"a": 1}', b"event: ping", b": keep-alive"]),
)
STREAMS = st.builds(
    lambda bom, lines: bom + b"".join(line + end for line, end in lines),
    st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef"]),
    st.lists(st.tuples(LINES, LINE_ENDS), max_size=20),
)
# Long enough for the fast path for many events, mostly regular, with lines that break the pattern in between.
FRAMES = st.sampled_from(
    [
        b'event: delta\ndata: {"n": 1, "text": "' + b"x" * 150 + b'"}\n\n',
        b'event: other\ndata: {"n": 2}\n\n',
        b'data: {"n": 3, "text": "' + b"y" * 150 + b'"}\n\n',
        b'event: delta\r\ndata: {"n": 4}\r\n\r\n',
        b": keep-alive\n\n",
        b"event: x\ndata: 5\ndata: 6\n\n",
        b"data: 7\ndata: {8}\n\n",
        b"\n",
        b"data: [DONE]\n\n",
        b"event: end\ndata: half",
    ]
)
BATCHES = st.builds(
    lambda first, count, frames: first * count + b"".join(frames) + first * count,
    FRAMES,
    st.integers(0, 20),
    st.lists(FRAMES, max_size=4),
)
# Long enough for the fast path for events that begin alike, with some in between that only begin like them.
ALIKE = st.builds(
    lambda event, end, groups: b"".join(
        (event + b'data: {"text": "' + b"z" * 150 + b'"}\n\n') * 30 + event + odd + b"\n\n" for odd in groups
    ).replace(b"\n", end),
    st.sampled_from([b"", b"event: delta\n"]),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(
        st.sampled_from(
            [
                *[b"data: {}"] * 12,
                *[b"data: {6}\ndata: 7"] * 3,
                b"data: ",
                b"data:   ",
                b"data: [DONE]",
                b"data:  5",
                b"data: {6}\ndata: 7",
                b"data: {8}\rid: 9",
                b"data: {}\n\n: keep-alive",
                b"event: other\ndata: {}\n\n" * 12 + b"data: {",
            ]
        ),
        min_size=2,
        max_size=4,
    ),
)


@requirement("F08")
@given(STREAMS)
def test_events_follow_whatwg_rules(stream: bytes):
    assert once(stream + b"\n\n") == reference(stream + b"\n\n")


@requirement("F08")
@given(st.one_of(BATCHES, ALIKE))
def test_batched_events_follow_whatwg_rules(stream: bytes):
    assert once(stream + b"\n\n") == reference(stream + b"\n\n")


@requirement("F08")
@given(st.one_of(STREAMS, BATCHES), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_events_do_not_depend_on_chunking(stream: bytes, cuts: list[int]):
    whole = split([stream])
    assert split([bytes([byte]) for byte in stream]) == whole
    assert split(cut_at(stream, cuts)) == whole


@requirement("F08")
@given(ALIKE, st.lists(st.integers(0, 1 << 16), max_size=3), st.integers(4000, CAP))
def test_alike_events_do_not_depend_on_chunking(stream: bytes, cuts: list[int], cap: int):
    whole = split((stream[at : at + 100] for at in range(0, len(stream), 100)), cap)
    assert split([stream], cap) == whole
    assert split(cut_at(stream, cuts), cap) == whole


@requirement("F14")
@given(st.one_of(STREAMS, BATCHES), st.lists(st.integers(0, 1 << 16), max_size=12), st.integers(0, 200))
def test_cap_does_not_depend_on_chunking(stream: bytes, cuts: list[int], cap: int):
    whole = split([stream], cap)
    assert split([bytes([byte]) for byte in stream], cap) == whole
    assert split(cut_at(stream, cuts), cap) == whole


@requirement("F08")
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_never_raises(chunks: list[bytes]):
    split(chunks)


@requirement("F08")
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\ndata:b\ndata\n\n", [b"a\nb\n"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: \xef\xbb\xbfa\n\n", [b"\xef\xbb\xbfa"]),
        (b": comment\n\n:\n\nevent: ping\n\nid: 7\nretry: 5\n\n", []),
        (b"event: x\nid\ndata: a\nretry: 1\n\n", [b"a"]),
        (b"data\n\ndata:\n\ndata: \n\n", []),
        (b"data: [DONE]\n\ndata:[DONE]\n\ndata:   [DONE]  \n\n", [b"[DONE]"] * 3),
        (b"data: [DONE] not\n\n", [b"[DONE] not"]),
        (b"dataset: a\n\ndat: b\n\n data: c\n\n", []),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", [b"a", b"b", b"c"]),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b'data: {"a": "\xff\xfe\x80"}\n\n', [b'{"a": "\xff\xfe\x80"}']),
        (b"data: a\x00b\n\n", [b"a\x00b"]),
    ],
)
def test_every_line_form_is_parsed(stream: bytes, events: list[bytes]):
    assert once(stream) == events


@requirement("F02")
@pytest.mark.parametrize(
    ("tail", "events"),
    [
        (b'data: {"type": "end"}\n', [b'{"type": "end"}']),
        (b'data: {"type": "end"}\r', [b'{"type": "end"}']),
        (b'event: end\ndata: {"type": "end"}', [b'{"type": "end"}']),
        (b'data: {"type": "end"}\nevent: e', [b'{"type": "end"}']),
        (b'data: {"a": {"b": 1}', []),
        (b'data: {"type": "en', []),
        (b'data: {"type": "\xff"}', [b'{"type": "\xff"}']),
        (b"data: wor", []),
        (b"data: word\n", [b"word"]),
        (b"data: [DONE]", [b"[DONE]"]),
        (b"data: [DON", []),
        (b"event: end", []),
        (b"data: " + b'{"a":' * 200_000, []),
        (b"dat", []),
        (b"", []),
    ],
)
def test_flush_keeps_complete_event_and_drops_partial_line(tail: bytes, events: list[bytes]):
    assert once(b"data: first\n\n" + tail) == [b"first", *events]


def test_flush_clears_buffer():
    splitter = Splitter(CAP)
    splitter.feed(b"data: a\n")
    assert splitter.flush() == [b"a"]
    assert splitter.flush() == []


@requirement("F14")
def test_event_at_cap_passes_and_above_cap_raises():
    event = b"event: x\ndata: " + b"a" * 100
    assert split([event + b"\n\n"], len(event)) == ([b"a" * 100], False)
    assert split([event + b"\n\n"], len(event) - 1) == ([], True)


@requirement("F14")
def test_events_before_oversized_event_are_delivered_first():
    splitter = Splitter(10)
    assert splitter.feed(b"data: a\n\ndata: " + b"b" * 20) == [b"a"]
    for verb in (lambda: splitter.feed(b"data: c\n\n"), lambda: splitter.feed(b""), splitter.flush):
        with pytest.raises(ProtocolError) as caught:
            verb()
        assert caught.value.code == "event-too-large"


@requirement("F14")
@pytest.mark.parametrize("line", [b"A" * 16_000, b"A"], ids=["one line", "many lines"])
def test_huge_event_uses_less_than_three_times_cap(line: bytes):
    """Many short lines are the worst case: an object per line would need a multiple of their bytes."""
    if line == b"A":
        chunks = [b"data:A\n" * 2000] * 20 + [b"\n"]
    else:
        chunks = [b'data: {"b64": "', *[line] * 1300, b'"}\n', b"\n"]
    cap = sum(map(len, chunks))
    splitter = Splitter(cap)
    tracemalloc.start()
    try:
        events = [event for chunk in chunks for event in splitter.feed(chunk)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(events) == 1
    assert peak < 3 * cap


@requirement("F14")
def test_endless_event_is_dropped_at_cap():
    chunk = b"x" * 16_384
    tracemalloc.start()
    try:
        assert split(itertools.repeat(chunk)) == ([], True)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * CAP
    assert now < CAP / 10


@requirement("F14")
@pytest.mark.parametrize("size", [16_384, 1_000], ids=["chunks of 16 KiB", "chunks of 1 kB"])
def test_event_of_20_mb_takes_linear_time(size: int):
    """Joining or scanning again at each chunk would last minutes here."""
    stream = b'data: {"b64": "' + b"A" * 20_000_000 + b'"}\n\n'
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    started = time.process_time()
    events, _ = split(chunks, 1 << 25)
    assert [len(event) for event in events] == [len(stream) - 8]
    assert time.process_time() - started < 30


def test_plain_json_object_without_field_name_is_delivered() -> None:
    """Servers put their error there when a stream breaks."""
    stream = b'data: {"a": 1}\n\n{\n  "error": {\n    "code": 503\n  }\n}\n\n'
    splitter = Splitter(1 << 20)
    assert [*splitter.feed(stream), *splitter.flush()] == [b'{"a": 1}', b'{\n  "error": {\n    "code": 503\n  }\n}']
    assert Splitter(1 << 20).feed(b"{not json}\n\n") == []
