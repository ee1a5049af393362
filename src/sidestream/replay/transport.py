"""Transports that replay recordings, and make them."""

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import unquote, urlsplit

from sidestream.errors import ProviderError, RunError
from sidestream.jsontext import dumps, loads
from sidestream.limits import Limits
from sidestream.providers.calls import HttpCall, HttpResponse, Transport
from sidestream.redaction import REDACTED, is_secret_header, redact, register_secret
from sidestream.replay.recording import (
    EVENT_STREAM,
    Exchange,
    RecordedRequest,
    RecordedResponse,
    Recording,
    essence,
    to_value,
)
from sidestream.stream.parts import Json
from sidestream.wire.sse import Splitter

ChunkSizes = int | Sequence[int] | None
"""How bytes are cut: not at all, into pieces of one size, or into pieces of these sizes, over and over."""


def pieces(data: bytes, sizes: ChunkSizes) -> Iterator[bytes]:
    """The bytes in pieces; together they are the bytes again."""
    cycle = itertools.cycle([sizes] if isinstance(sizes, int) else sizes or [len(data)])
    at = 0
    while at < len(data):
        yield data[at : (at := at + max(next(cycle), 1))]


class ReplayTransport:
    """Carries calls out from a recording, without a network.

    A call gets the first answer not yet played whose method and path fit. Paths fit by their end, so that a
    recording plays behind any base URL; the query does not matter, nor the model in `models/NAME:verb`.
    `chunk_size` cuts streams as a network may; `pace_s` is the wait between two batches of events.
    """

    def __init__(self, recording: Recording, chunk_size: ChunkSizes = None, pace_s: float = 0.0) -> None:
        self.recording = recording
        self._chunk_size: ChunkSizes = chunk_size
        self._pace_s = pace_s
        self._unplayed = list(recording.exchanges)

    @property
    def remaining(self) -> int:
        """How many exchanges were not played yet."""
        return len(self._unplayed)

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Plays the next fitting answer. Raises ProviderError(code="not-recorded") where there is none."""
        exchange = self._next(call)
        if exchange is None:
            raise self._not_recorded(call)
        _raise_for_status(exchange, call)
        return _Played(exchange, limits, self._chunk_size, self._pace_s)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """The recorded bytes of this path; the same path may be asked for again."""
        exchange = self._next(call) or _first_fit(self.recording.exchanges, call)
        if exchange is None:
            raise self._not_recorded(call)
        _raise_for_status(exchange, call)
        return exchange.body_bytes()

    def _next(self, call: HttpCall) -> Exchange | None:
        exchange = _first_fit(self._unplayed, call)
        if exchange is not None:
            self._unplayed.remove(exchange)
        return exchange

    def _not_recorded(self, call: HttpCall) -> ProviderError:
        left = ", ".join(f"{e.request.method} {e.request.path}" for e in self._unplayed[:5]) or "nothing"
        asked = f"{call.method} {urlsplit(call.url).path}"
        message = f"The recording has no answer left for {asked}; left are: {left}."
        return ProviderError(message, status=404, code="not-recorded")


class _Played:
    """An answer of a recording that is being read."""

    def __init__(self, exchange: Exchange, limits: Limits, sizes: ChunkSizes, pace_s: float) -> None:
        self.status = exchange.response.status
        self.is_stream = exchange.is_stream
        self._exchange = exchange
        self._splitter = Splitter(limits.max_event_bytes)
        data = exchange.body_bytes()
        self._pieces = _frames(data) if sizes is None and pace_s > 0 else pieces(data, sizes)
        self._pace_s = pace_s
        self._at_start = True
        self._at_end = not exchange.is_stream

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": self._exchange.response.content_type}

    async def events(self) -> list[bytes]:
        # Without a pace this only lets others run, as reading from a socket would.
        await asyncio.sleep(0 if self._at_start else self._pace_s)
        self._at_start = False
        while not self._at_end:
            piece = next(self._pieces, None)
            self._at_end = piece is None
            if batch := self._splitter.flush() if piece is None else self._splitter.feed(piece):
                return batch
        return []

    async def body(self) -> bytes:
        return self._exchange.body_bytes()

    async def aclose(self) -> None:
        self._at_end = True

    complete = aclose


class RecordingTransport:
    """Passes calls on to another transport and keeps what was said as `recording`.

    Headers are not kept. What looks like a key, and what a call carries as one, is blotted out everywhere.
    """

    def __init__(self, inner: Transport, *, source: str = "", licence: str = "", exercises: str = "") -> None:
        self._inner = inner
        self._about = {"source": source, "licence": licence, "exercises": exercises}
        self._kept: list[_Kept] = []

    @property
    def recording(self) -> Recording:
        """What was said so far; an answer still being read is there as far as it was read."""
        return Recording(tuple(kept.exchange() for kept in self._kept), **self._about)

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """As the inner transport; an answer with an error status is recorded too."""
        try:
            exchange = await self._inner.open(call, limits)
        except RunError as error:
            self._keep_error(call, error)
            raise
        assumed = EVENT_STREAM if exchange.is_stream else "application/json"
        kept = _Kept(call, exchange.status, exchange.headers.get("content-type", assumed))
        self._kept.append(kept)
        return _Tap(exchange, kept)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """As the inner transport."""
        try:
            data = await self._inner.download(call, limits)
        except RunError as error:
            self._keep_error(call, error)
            raise
        self._kept.append(_Kept(call, 200, "application/octet-stream", data))
        return data

    def _keep_error(self, call: HttpCall, error: RunError) -> None:
        if error.status is not None and error.status >= 400:
            # The message says who refused before it says why; a replay will say the former anew.
            message = error.message.partition(": ")[2] or error.message
            body = dumps({"error": {"code": error.code, "message": message}})
            self._kept.append(_Kept(call, error.status, "application/json", body))


class _Kept:
    """One exchange while it is being recorded."""

    def __init__(self, call: HttpCall, status: int, content_type: str, data: bytes = b"") -> None:
        self.call = call
        self.status = status
        self.content_type = content_type
        self.data = data
        self.events: list[bytes] = []
        # What this call carries as keys is known from here on, and blotted out of every exchange.
        _redacted([call.headers, to_value(call.body or b"", is_json=True)])

    def exchange(self) -> Exchange:
        url = urlsplit(self.call.url)
        path = redact(f"{url.path}?{url.query}" if url.query else url.path)
        asked = _redacted(to_value(self.call.body or b"", is_json=True))
        is_json = essence(self.content_type) == "application/json"
        answered = "".join(map(_redacted_frame, self.events)) or _redacted(to_value(self.data, is_json=is_json))
        return Exchange(
            request=RecordedRequest(self.call.method, path, asked),
            response=RecordedResponse(self.status, self.content_type, answered),
        )


class _Tap:
    """An answer that is read and recorded at once."""

    def __init__(self, inner: HttpResponse, kept: _Kept) -> None:
        self._inner = inner
        self._kept = kept

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    @property
    def is_stream(self) -> bool:
        return self._inner.is_stream

    async def events(self) -> list[bytes]:
        batch = await self._inner.events()
        self._kept.events += batch
        return batch

    async def body(self) -> bytes:
        self._kept.data = await self._inner.body()
        return self._kept.data

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def complete(self) -> None:
        await self._inner.complete()


def _redacted(value: Json, name: str = "") -> Json:
    """The same JSON without keys. String by string, so that it stays JSON."""
    if isinstance(value, dict):
        fields = cast("dict[str, Json]", value)
        # Bytes are left as they are: cut into base64, no key can be seen in them.
        return fields if fields.keys() == {"base64"} else {key: _redacted(fields[key], key) for key in fields}
    if isinstance(value, list):
        return [_redacted(inner, name) for inner in cast("list[Json]", value)]
    if isinstance(value, str) and is_secret_header(name.replace("_", "-")):
        register_secret(value.rpartition(" ")[2])  # `Bearer KEY`
        return REDACTED
    return redact(value) if isinstance(value, str) else value


def _redacted_frame(event: bytes) -> str:
    try:
        value = loads(event)
    except ValueError:
        text = redact(event.decode("utf-8", "replace"))
    else:
        clean = _redacted(value)
        text = event.decode("utf-8", "replace") if clean == value else dumps(clean).decode()
    return "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"


def _frames(data: bytes) -> Iterator[bytes]:
    """One event after the other, so that a paced replay of an uncut stream still moves."""
    at = 0
    for end in re.finditer(rb"(?:\r\n|\n|\r(?!\n)){2}", data):
        yield data[at : end.end()]
        at = end.end()
    if at < len(data):
        yield data[at:]


def _first_fit(exchanges: Sequence[Exchange], call: HttpCall) -> Exchange | None:
    fits = (e for e in exchanges if e.request.method == call.method and _paths_fit(e.request.path, call.url))
    return next(fits, None)


def _paths_fit(recorded: str, called: str) -> bool:
    """True where both paths end alike; what stands before a version (`/openai/v1/`) does not matter."""
    paths = sorted((_segments(recorded), _segments(called)), key=lambda path: len(path[0]))
    (short, short_is_whole), (long, long_is_whole) = paths
    if short_is_whole and long_is_whole and len(short) == 1 < len(long):
        return False  # /v1/files is not /v1/vector_stores/x/files.
    return all(map(_segments_fit, reversed(short), reversed(long)))


def _segments(url: str) -> tuple[list[str], bool]:
    """What follows the version, and True; where there is no version, all, and False."""
    segments = [unquote(segment) for segment in urlsplit(url).path.split("/") if segment]
    version = next((i for i, segment in enumerate(segments) if re.fullmatch(r"v\d+\w*", segment)), None)
    return (segments, False) if version is None else (segments[version + 1 :], True)


def _segments_fit(a: str, b: str) -> bool:
    if ":" not in a or ":" not in b:
        return a == b
    # `NAME:streamGenerateContent` and `OTHER:generateContent` ask for the same, in events and whole.
    short, long = sorted((a.rpartition(":")[2].lower(), b.rpartition(":")[2].lower()), key=len)
    return long.endswith(short)


def _raise_for_status(exchange: Exchange, call: HttpCall) -> None:
    if exchange.response.status >= 400:
        # The error of live traffic. Its room brings aiohttp, which a replay needs for nothing else.
        from sidestream.wire.retry import refusal

        raise refusal(call, exchange.response.status, {}, exchange.body_bytes())
