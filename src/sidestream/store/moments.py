"""When the writers of an event loop write what has come: at the same moments, with one timer for all."""

import asyncio
from contextvars import Context
from typing import Final, Protocol
from weakref import WeakKeyDictionary

_CONTEXT: Final = Context()


class Due(Protocol):
    """What is called at the next moment."""

    def write_due(self) -> None:
        """The moment has come."""
        ...


class Moments:
    """The multiples of an interval, by the clock of an event loop.

    Writers that write at the same moments can be stored together. A timer is set only while somebody waits. Those who
    read may do so in phases, moments of their own within the interval: a thousand streams that are read at once delay
    each other.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._timers: set[float] = set()
        """The phases for which a timer is set."""
        self._waiting: set[Due] = set()
        self._readers: dict[float, list[asyncio.Future[None]]] = {}
        self._reading = 0
        """More than 0 while those who have waited read what will be written at this moment."""
        self._at_once: set[Due] = set()
        """Writers of what was read."""

    async def wait(self, phase: float = 0.0) -> None:
        """Until the next moment, or so much of the interval after one.

        A writer that is added then, before the caller waits again, is called at once.
        """
        loop = asyncio.get_running_loop()
        reader = loop.create_future()
        readers = self._readers.setdefault(phase, [])
        readers.append(reader)
        self._set_timer(phase)
        try:
            await reader
        except asyncio.CancelledError:
            if reader in readers:
                readers.remove(reader)
            raise

    def add(self, writer: Due) -> None:
        """Calls the writer at the next moment, once."""
        if self._reading:
            self._at_once.add(writer)
        else:
            self._waiting.add(writer)
            self._set_timer(0.0)

    def discard(self, writer: Due) -> None:
        """Does not call the writer."""
        self._waiting.discard(writer)
        self._at_once.discard(writer)

    def _set_timer(self, phase: float) -> None:
        if phase not in self._timers:
            loop = asyncio.get_running_loop()
            now_s, interval_s = loop.time(), self._interval_s
            after_s = phase * interval_s
            at_s = ((now_s - after_s) // interval_s + 1) * interval_s + after_s if interval_s > 0 else now_s
            loop.call_at(at_s, self._begin, loop, phase, context=_CONTEXT)
            self._timers.add(phase)

    def _begin(self, loop: asyncio.AbstractEventLoop, phase: float) -> None:
        self._timers.discard(phase)
        readers = self._readers.pop(phase, [])
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
        if not phase:
            self._at_once |= self._waiting
            self._waiting.clear()
        self._reading += 1
        # What is ready runs in order, so after the readers.
        loop.call_soon(self._call, loop, context=_CONTEXT)

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        writers, self._at_once = self._at_once, set()
        self._reading -= 1
        for writer in writers:
            loop.call_soon(writer.write_due, context=_CONTEXT)  # One that fails does not affect the others.


_moments: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, Moments]] = WeakKeyDictionary()


def moments(interval_s: float) -> Moments:
    """Those that the writers of this event loop share."""
    loop = asyncio.get_running_loop()
    known = _moments.get(loop)
    if known is None:
        known = _moments[loop] = {}
    if interval_s not in known:
        known[interval_s] = Moments(interval_s)
    return known[interval_s]
