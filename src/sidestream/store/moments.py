"""When the writers of an event loop write what has come: at the same moments, with one timer for all."""

import asyncio
from typing import Protocol
from weakref import WeakKeyDictionary


class Due(Protocol):
    """What is called at the next moment."""

    def write_due(self) -> None:
        """The moment has come."""
        ...


class Moments:
    """The multiples of an interval, by the clock of an event loop.

    Writers that write at the same moments can be stored together. A timer is set only while one of them waits.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._has_timer = False
        self._waiting: set[Due] = set()

    def add(self, writer: Due) -> None:
        """Calls the writer at the next moment, once."""
        self._waiting.add(writer)
        if not self._has_timer:
            loop = asyncio.get_running_loop()
            now_s, interval_s = loop.time(), self._interval_s
            at_s = (now_s // interval_s + 1) * interval_s if interval_s > 0 else now_s
            loop.call_at(at_s, self._call, loop)
            self._has_timer = True

    def discard(self, writer: Due) -> None:
        """Does not call the writer."""
        self._waiting.discard(writer)

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting, self._has_timer = self._waiting, set(), False
        for writer in waiting:
            loop.call_soon(writer.write_due)  # So that one that fails does not affect the others.


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
