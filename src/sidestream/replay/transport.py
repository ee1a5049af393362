"""A transport that replays a recording, without a network."""

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from sidestream.errors import ProviderError
from sidestream.limits import Limits
from sidestream.replay.recording import Exchange, Recording, essence, splitter_for
from sidestream.transport.calls import FRAMES, HttpCall, HttpResponse
from sidestream.wire.aws_frames import frames_of

ChunkSizes = int | Sequence[int] | None
"""Sizes of the pieces that bytes are cut into: one size, or several in rotation. None means not to cut them."""


def pieces(data: bytes, sizes: ChunkSizes) -> Iterator[bytes]:
    """Cut the bytes into pieces."""
    cycle = itertools.cycle([sizes] if isinstance(sizes, int) else sizes or [len(data)])
    at = 0
    while at < len(data):
        yield data[at : (at := at + max(next(cycle), 1))]


class ReplayTransport:
    """A transport that answers calls from a recording, without a network.

    A call gets the first unplayed response whose method and path match. Paths match by their end, so that a recording
    works with any base URL. The query and the model in `models/NAME:verb` are ignored. `chunk_size` cuts streams as a
    network may; `pace_s` is the pause between batches of events, in seconds.
    """

    def __init__(self, recording: Recording, chunk_size: ChunkSizes = None, pace_s: float = 0.0) -> None:
        self.recording = recording
        self._chunk_size: ChunkSizes = chunk_size
        self._pace_s = pace_s
        self._unplayed = list(recording.exchanges)

    @property
    def remaining(self) -> int:
        """The number of exchanges not played yet."""
        return len(self._unplayed)

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Play the next matching response. Raises ProviderError(code="not-recorded") if none is left."""
        exchange = self._next(call)
        if exchange is None:
            raise self._not_recorded(call)
        _raise_for_status(exchange, call)
        return _ReplayedResponse(exchange, limits, self._chunk_size, self._pace_s)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Return the recorded bytes of this path, which can be downloaded repeatedly."""
        exchange = self._next(call) or _first_match(self.recording.exchanges, call)
        if exchange is None:
            raise self._not_recorded(call)
        _raise_for_status(exchange, call)
        return exchange.body_bytes()

    def _next(self, call: HttpCall) -> Exchange | None:
        exchange = _first_match(self._unplayed, call)
        if exchange is not None:
            self._unplayed.remove(exchange)
        return exchange

    def _not_recorded(self, call: HttpCall) -> ProviderError:
        left = ", ".join(f"{e.request.method} {e.request.path}" for e in self._unplayed[:5]) or "nothing"
        message = f"the recording has no response left for {call.method} {urlsplit(call.url).path}; it has: {left}"
        return ProviderError(message, status=404, code="not-recorded")


class _ReplayedResponse:
    """A recorded response that is being read."""

    def __init__(self, exchange: Exchange, limits: Limits, sizes: ChunkSizes, pace_s: float) -> None:
        self.status = exchange.response.status
        self.is_stream = exchange.is_stream
        self._exchange = exchange
        self._splitter = splitter_for(exchange.response.content_type, limits.max_event_bytes)
        data = exchange.body_bytes()
        frames = frames_of if essence(exchange.response.content_type) == FRAMES else _frames
        self._pieces = frames(data) if sizes is None and pace_s > 0 else pieces(data, sizes)
        self._pace_s = pace_s
        self._at_start = True
        self._at_end = not exchange.is_stream

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": self._exchange.response.content_type}

    async def events(self) -> list[bytes]:
        # Without a pace, this only yields to other tasks, as reading from a socket would.
        await asyncio.sleep(0 if self._at_start else self._pace_s)
        self._at_start = False
        while not self._at_end:
            piece = next(self._pieces, None)
            self._at_end = piece is None
            if batch := self._splitter.flush() if piece is None else self._splitter.feed(piece):
                return batch
        return []

    def ignored(self) -> None:
        """Do nothing, because there is no idle timeout."""

    async def body(self) -> bytes:
        return self._exchange.body_bytes()

    async def aclose(self) -> None:
        self._at_end = True

    complete = aclose


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield one event at a time, so that a paced replay of an uncut stream is gradual."""
    at = 0
    for end in re.finditer(rb"(?:\r\n|\n|\r(?!\n)){2}", data):
        yield data[at : end.end()]
        at = end.end()
    if at < len(data):
        yield data[at:]


def _first_match(exchanges: Sequence[Exchange], call: HttpCall) -> Exchange | None:
    matches = (e for e in exchanges if e.request.method == call.method and _paths_match(e.request.path, call.url))
    return next(matches, None)


def _paths_match(recorded: str, called: str) -> bool:
    """Return whether both paths have the same end. Anything before a version (`/openai/v1/`) is ignored."""
    paths = sorted((_segments(recorded), _segments(called)), key=lambda path: len(path[0]))
    (short, short_is_whole), (long, long_is_whole) = paths
    if short_is_whole and long_is_whole and len(short) == 1 < len(long):
        return False  # /v1/files is not /v1/vector_stores/x/files.
    return all(map(_segments_match, reversed(short), reversed(long)))


def _segments(url: str) -> tuple[list[str], bool]:
    """Return the segments after the version and True, or all segments and False if there is no version."""
    segments = [unquote(segment) for segment in urlsplit(url).path.split("/") if segment]
    version = next((i for i, segment in enumerate(segments) if re.fullmatch(r"v\d+\w*", segment)), None)
    return (segments, False) if version is None else (segments[version + 1 :], True)


def _segments_match(a: str, b: str) -> bool:
    if ":" not in a or ":" not in b:
        return a == b
    # `NAME:streamGenerateContent` and `OTHER:generateContent` are the same call, with and without streaming.
    short, long = sorted((a.rpartition(":")[2].lower(), b.rpartition(":")[2].lower()), key=len)
    return long.endswith(short)


def _raise_for_status(exchange: Exchange, call: HttpCall) -> None:
    if exchange.response.status >= 400:
        # The same error as for live traffic. Its module imports aiohttp, which a replay needs only here.
        from sidestream.wire.failures import status_error

        raise status_error(call, exchange.response.status, {}, exchange.body_bytes())
