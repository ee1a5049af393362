"""Servers that relay streams, as processes whose CPU and memory are read from outside. The standard library alone."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench.lags import lag_figures
from bench.processes import cpu_s

START_S = 90.0
_STAMP = re.compile(rb"\d{16}")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024


class Relay(NamedTuple):
    """A server that is up, and how to ask it for a stream."""

    process: "subprocess.Popen[Any]"
    port: int
    path: str
    body: Callable[[int], dict[str, Any]]
    """The number of a request → its body."""

    def cpu_s(self) -> float:
        """The CPU seconds of all its threads so far."""
        return cpu_s(self.process.pid)

    def memory_kb(self) -> float:
        """What it holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_KB

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()


def completion_body(number: int) -> dict[str, Any]:
    """A request of the Chat Completions API."""
    return {"model": "main", "stream": True, "messages": [{"role": "user", "content": f"Say it {number}."}]}


def chat_body(number: int) -> dict[str, Any]:
    """A request of a page, in a chat of its own."""
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Say it."}]}
    return {"id": f"c{time.monotonic_ns()}-{number}", "messages": [message]}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def started(command: list[str], port: int, path: str, body: Callable[[int], dict[str, Any]], **options: Any) -> Relay:
    """A server that was started and accepts connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Relay(process, port, path, body)
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"{Path(command[0]).name} did not start")


def own(kind: str, url: str, path: str, body: Callable[[int], dict[str, Any]]) -> Relay:
    """A server of `bench.relay_server`."""
    port = free_port()
    return started([sys.executable, "-m", "bench.relay_server", kind, str(port), url], port, path, body)


class Stream:
    """One response that is being read."""

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay = relay
        self._number = number

    async def open(self) -> None:
        """Sends the request, and reads the head of the response."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._relay.port, limit=1 << 22)
        body = json.dumps(self._relay.body(self._number)).encode()
        head = (
            f"POST {self._relay.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sk-bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        status = await self.reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await self.reader.read(2000))[-300:]!r}")
        is_chunked = False
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            is_chunked = is_chunked or line.lower().startswith(b"transfer-encoding: chunked")
        if not is_chunked:
            raise RuntimeError("the answer is not sent in chunks")

    async def events(self) -> AsyncGenerator[bytes]:
        """The events that bring JSON, as they come. A chunk may end anywhere within one."""
        rest = b""
        while size := int((await self.reader.readline()).strip() or b"0", 16):
            *lines, rest = (rest + await self.reader.readexactly(size)).split(b"\n")
            await self.reader.readexactly(2)
            for line in lines:
                if line.startswith(b"data: {"):
                    yield line

    async def chars(self) -> int:
        """The characters of the text to its end. They are counted when all has come."""
        events = [event async for event in self.events()]
        return sum(len(text_in(event)) for event in events)

    async def stamps(self, take: Callable[[list[bytes]], object]) -> None:
        """Passes on the stamps in each event, as it comes."""
        async for event in self.events():
            if found := _STAMP.findall(text_in(event).encode()):
                take(found)

    def close(self) -> None:
        """Leaves."""
        self.writer.close()


def text_in(line: bytes) -> str:
    """The text that an event of either API brings."""
    event = json.loads(line[6:])
    if "choices" in event:
        choices = event["choices"]
        return (choices[0]["delta"].get("content") or "") if choices else ""
    return event.get("delta", "") if event.get("type") == "text-delta" else ""


async def throughput(relay: Relay, task: dict[str, Any]) -> dict[str, Any]:
    """Whole streams, several at a time. The CPU is that of the server."""
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
    """Many streams at once, each event with the time at which it was sent: how late is it?"""
    streams = [Stream(relay, number) for number in range(task["streams"])]
    lags: list[int] = []

    def taker() -> Callable[[list[bytes]], None]:
        is_first = True

        def take(stamps: list[bytes]) -> None:
            nonlocal is_first
            now = time.monotonic_ns() // 1000
            # The first delta comes while others are still opened.
            lags.extend(now - int(stamp) for stamp in stamps[is_first:])
            is_first = False

        return take

    async def read(stream: Stream) -> None:
        await stream.open()
        await stream.stamps(taker())

    before_s = relay.cpu_s()
    await asyncio.gather(*map(read, streams))
    return {"cpu_s": relay.cpu_s() - before_s, **lag_figures(lags)}


async def idle(relay: Relay, task: dict[str, Any]) -> dict[str, Any]:
    """Streams that have begun and then wait: what the server holds for each."""

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
