"""Streams through servers: ours, by two of its APIs, and a bare relay; and the SDK on the same work, without one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bench import relaying
from bench.relaying import Relay, chat_body, completion_body
from bench.worker import Clock

COMPLETIONS = "/v1/chat/completions"
_KINDS: dict[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "completions": ("ours", COMPLETIONS, completion_body),
    "chat": ("ours", "/api/chat", chat_body),
    "bare": ("bare", COMPLETIONS, completion_body),
}
_relays: dict[tuple[str, str], Relay] = {}


def _relay(task: dict[str, Any]) -> Relay:
    """The server of this kind in front of this URL; the first call starts it."""
    key = (task["relay"], task["url"])
    if key not in _relays:
        kind, path, body = _KINDS[task["relay"]]
        _relays[key] = relaying.own(kind, task["url"], path, body)
    return _relays[key]


async def _sdk(task: dict[str, Any]) -> dict[str, Any]:
    """The same streams, read by `agent.stream` in this process."""
    from bench.ways.ours import stream

    play = stream("chat")
    seen: list[int] = []

    async def read() -> None:
        pieces: list[str] = []
        await play(task["url"], pieces.append)
        seen.append(sum(map(len, pieces)))

    clock = Clock()
    await asyncio.gather(*(read() for _ in range(task["streams"])))
    return {**clock.stop(), "events": task["events"] * task["streams"], "chars": min(seen)}


def _through(
    measure: Callable[[Relay, dict[str, Any]], Awaitable[dict[str, Any]]],
) -> Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def run(url: str, task: dict[str, Any]) -> dict[str, Any]:
        return await (_sdk(task) if task["relay"] == "sdk" else measure(_relay(task), task))

    return run


PROGRAMS = {
    "relay": _through(relaying.throughput),
    "relay-lag": _through(relaying.lag),
    "relay-idle": _through(relaying.idle),
}


async def close() -> None:
    """Ends the servers."""
    for relay in _relays.values():
        relay.close()
