"""Starts relay servers as processes, and measures their CPU and memory from outside. Uses only the standard library."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from bench.lags import lag_figures
from bench.processes import cpu_s

START_S = 90.0
_STAMP = re.compile(rb"\d{16}")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024


class Relay(NamedTuple):
    """A running server, and how to request a stream from it."""

    process: "subprocess.Popen[Any]"
    port: int
    path: str
    body: Callable[[int], dict[str, Any]]
    """Function that returns the body of a request, given its number."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its threads so far."""
        return cpu_s(self.process.pid)

    def memory_kb(self) -> float:
        """Return its resident memory, in kilobytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_KB

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


def completion_body(number: int) -> dict[str, Any]:
    """Return a request of the Chat Completions API."""
    return {"model": "main", "stream": True, "messages": [{"role": "user", "content": f"Say it {number}."}]}


def chat_body(number: int) -> dict[str, Any]:
    """Return a request of the web UI, in a new chat."""
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Say it."}]}
    return {"id": f"c{time.monotonic_ns()}-{number}", "messages": [message]}


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def started(command: list[str], port: int, path: str, body: Callable[[int], dict[str, Any]], **options: Any) -> Relay:
    """Start a server, and return it once it accepts connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Relay(process, port, path, body)
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"{Path(command[0]).name} did not start")


def own(kind: str, url: str, path: str, body: Callable[[int], dict[str, Any]]) -> Relay:
    """Start a server of `bench.relay_server`."""
    port = free_port()
    return started([sys.executable, "-m", "bench.relay_server", kind, str(port), url], port, path, body)


def request_bytes(relay: Relay, number: int) -> bytes:
    """Return the HTTP request for a stream."""
    body = json.dumps(relay.body(number)).encode()
    head = (
        f"POST {relay.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sk-bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class Stream:
    """A streamed response."""

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay = relay
        self._number = number

    async def open(self) -> None:
        """Send the request, and read the head of the response."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._relay.port, limit=1 << 22)
        self.writer.write(request_bytes(self._relay, self._number))
        status = await self.reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await self.reader.read(2000))[-300:]!r}")
        is_chunked = False
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            is_chunked = is_chunked or line.lower().startswith(b"transfer-encoding: chunked")
        if not is_chunked:
            raise RuntimeError("the answer is not sent in chunks")

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the JSON events as they arrive. A chunk may end within an event."""
        rest = b""
        while size := int((await self.reader.readline()).strip() or b"0", 16):
            *lines, rest = (rest + await self.reader.readexactly(size)).split(b"\n")
            await self.reader.readexactly(2)
            for line in lines:
                if line.startswith(b"data: {"):
                    yield line

    async def chars(self) -> int:
        """Read the stream to its end, and return the number of characters of its text."""
        events = [event async for event in self.events()]
        return sum(len(text_in(event)) for event in events)

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class Arrivals(asyncio.Protocol):
    """A response with the arrival time of each piece. It is parsed later, since the client shares the processors."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._times_us: list[int] = []
        self._pieces: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._times_us.append(time.monotonic_ns() // 1000)
        self._pieces.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def lags_us(self) -> list[int]:
        """Return the lag of each time stamp, in microseconds, without the first, which arrives while streams open."""
        lags: list[int] = []
        for at_us, line in self._lines():
            lags += [at_us - int(stamp) for stamp in _STAMP.findall(text_in(line).encode())]
        return lags[1:]

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the JSON events, each with the arrival time of its end. A chunk holds whole events."""
        data, ends = b"".join(self._pieces), list(accumulate(map(len, self._pieces)))
        at = data.find(b"\r\n\r\n") + 4
        if b" 200 " not in data[: data.find(b"\r\n")]:
            raise RuntimeError(data[:300].decode(errors="replace"))
        while size := int(data[at : (start := data.index(b"\r\n", at) + 2)], 16):
            place = start
            for line in data[start : start + size].split(b"\n"):
                place += len(line) + 1
                if line.startswith(b"data: {"):
                    yield self._times_us[bisect_left(ends, place)], line
            at = start + size + 2


def text_in(line: bytes) -> str:
    """Return the text in an event of either API."""
    event = json.loads(line[6:])
    if "choices" in event:
        choices = event["choices"]
        return (choices[0]["delta"].get("content") or "") if choices else ""
    return event.get("delta", "") if event.get("type") == "text-delta" else ""


async def throughput(relay: Relay, task: dict[str, Any]) -> dict[str, Any]:
    """Measure whole streams, several at a time, and the server's CPU time."""
    streams = [Stream(relay, number) for number in range(task["streams"])]
    before_s, begun_s = relay.cpu_s(), time.perf_counter()

    async def read(stream: Stream) -> int:
        await stream.open()
        return await stream.chars()

    chars = await asyncio.gather(*map(read, streams))
    wall_s = time.perf_counter() - begun_s
    events = task["events"] * len(streams)
    return {"cpu_s": relay.cpu_s() - before_s, "wall_s": wall_s, "events": events, "chars": min(chars)}


async def lag(relay: Relay, task: dict[str, Any]) -> dict[str, Any]:
    """Measure the lag of the events of many concurrent streams, each stamped with its time of sending."""
    loop = asyncio.get_running_loop()

    async def read(number: int) -> Arrivals:
        request = request_bytes(relay, number)
        _, arrivals = await loop.create_connection(lambda: Arrivals(request), "127.0.0.1", relay.port)
        await arrivals.ended
        return arrivals

    before_s = relay.cpu_s()
    streams = await asyncio.gather(*map(read, range(task["streams"])))
    cpu_s = relay.cpu_s() - before_s
    return {"cpu_s": cpu_s, **lag_figures([lag for stream in streams for lag in stream.lags_us()])}


async def idle(relay: Relay, task: dict[str, Any]) -> dict[str, Any]:
    """Measure the server's memory for each stream that has started and then waits."""

    async def opened(count: int, first: int) -> list[Stream]:
        streams = [Stream(relay, first + number) for number in range(count)]
        for stream in streams:
            await stream.open()
            async for event in stream.events():
                if text_in(event):
                    break
        return streams

    held = await opened(task["warm"], 0)
    before_kb = relay.memory_kb()
    held += await opened(task["streams"], task["warm"])
    stream_kb = (relay.memory_kb() - before_kb) / task["streams"]
    for stream in held:
        stream.close()
    return {"stream_kb": stream_kb}
