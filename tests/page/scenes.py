"""What the tests of the page show: recorded answers that stop where a test looks, and agents that play scripts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidestream import Agent
from sidestream.cli.commands import demo
from sidestream.parts import TextDelta, TextEnd, TextStart
from sidestream.replay.recording import Recording
from sidestream.testing import Reply, ScriptedModel, recorded, sse
from sidestream.testing.scripted import ModelReply, Respond

DEMO = Path(demo.__file__).parent
_END = b"\n\n"


def scripted(script: list[ModelReply | Respond] | Respond, **settings: Any) -> Agent[Any]:
    """An agent whose model answers from a script."""
    return Agent(ScriptedModel(script), **settings)


def stopped(name: str, *stops: Callable[[bytes], bool]) -> tuple[list[Reply], list[asyncio.Event]]:
    """The replies of a recording. Its stream waits before the first event that a stop holds for, then at the next."""
    recording = Recording.load(DEMO / f"{name}.json")
    events = [event + _END for event in recording.exchanges[0].body_bytes().split(_END) if event.strip()]
    items: list[Any] = []
    gates: list[asyncio.Event] = []
    for event in events:
        if len(gates) < len(stops) and stops[len(gates)](event):
            gates.append(asyncio.Event())
            items.append(gates[-1])
        items.append(event)
    assert len(gates) == len(stops)
    return [sse(items), *recorded(recording)[1:]], gates


def has(text: str) -> Callable[[bytes], bool]:
    """Holds for an event with this text in it."""
    return lambda event: text.encode() in event


def slow(text: str, *gates: asyncio.Event) -> list[Any]:
    """A reply of one text that stops at each gate, in pieces of equal length."""
    size = -(-len(text) // (len(gates) + 1))
    items: list[Any] = [TextStart("t1")]
    for index, start in enumerate(range(0, len(text), size)):
        items += [*gates[index - 1 : index], TextDelta("t1", text[start : start + size])]
    return [*items, TextEnd("t1")]
