"""When the writers of an event loop write what has come: at the same moments, with one timer for all."""

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import Final, Protocol
from weakref import WeakKeyDictionary

_CONTEXT: Final = Context()


class Scheduled(Protocol):
    """What is called at the next moment."""

    def write_due(self) -> None:
        """The moment has come."""
        ...


class Polled(Protocol):
    """What is read at moments only."""

    def pause(self) -> None:
        """Leaves what arrives to the system."""
        ...

    def resume(self) -> None:
        """Reads what has arrived, in the next turn of the event loop."""
        ...


PHASES = 2
"""Groups of conversations, each with moments of its own. Nobody sees what was read before all of its group is written,
so smaller groups are seen sooner; larger ones take fewer transactions."""


class Moments:
    """The multiples of an interval after an offset, by the clock of an event loop.

    Writers that write at the same moments can be stored together. A timer is set only while somebody waits.
    """

    def __init__(self, interval_s: float, offset_s: float = 0.0) -> None:
        self._interval_s = interval_s
        self._offset_s = offset_s
        self._has_timer = False
        self._waiting: set[Scheduled] = set()
        self._readers: dict[asyncio.Future[None], Polled] = {}
        self._is_reading = False
        """True while those who have waited read what will be written at this moment."""

    async def wait(self, source: Polled) -> None:
        """Until the next moment, and until what has arrived by then can be read; the source is paused meanwhile.

        A writer that is added then, before the caller waits again, is called at once.
        """
        reader = asyncio.get_running_loop().create_future()
        self._readers[reader] = source
        self._set_timer()
        source.pause()
        try:
            await reader
        except asyncio.CancelledError:
            if self._readers.pop(reader, None) is not None:
                source.resume()
            raise

    def add(self, writer: Scheduled) -> None:
        """Calls the writer at the next moment, once."""
        self._waiting.add(writer)
        if not self._is_reading:
            self._set_timer()

    def discard(self, writer: Scheduled) -> None:
        """Does not call the writer."""
        self._waiting.discard(writer)

    def _set_timer(self) -> None:
        if not self._has_timer:
            loop = asyncio.get_running_loop()
            now_s, interval_s, offset_s = loop.time(), self._interval_s, self._offset_s
            at_s = ((now_s - offset_s) // interval_s + 1) * interval_s + offset_s if interval_s > 0 else now_s
            loop.call_at(at_s, self._begin, loop, context=_CONTEXT)
            self._has_timer = True

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        readers, self._readers, self._has_timer = self._readers, {}, False
        self._is_reading = bool(readers)
        if not readers:
            self._call(loop)
            return
        for source in readers.values():
            source.resume()
        # The loop sees in its next turn what has arrived, and reads it after what is ready by then: two turns later.
        loop.call_soon(loop.call_soon, self._wake, loop, readers, context=_CONTEXT)

    def _wake(self, loop: asyncio.AbstractEventLoop, readers: Iterable[asyncio.Future[None]]) -> None:
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
        loop.call_soon(self._call, loop, context=_CONTEXT)  # What is ready runs in order, so after the readers.

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting, self._is_reading = self._waiting, set(), False
        for writer in waiting:
            loop.call_soon(writer.write_due, context=_CONTEXT)  # One that fails does not affect the others.


_moments: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[float, int], Moments]] = WeakKeyDictionary()


def moments(interval_s: float, conversation: str) -> Moments:
    """Those that the writers of this event loop share, as far as their conversations are in the same group."""
    loop = asyncio.get_running_loop()
    known = _moments.get(loop)
    if known is None:
        known = _moments[loop] = {}
    key = interval_s, hash(conversation) % PHASES
    if (found := known.get(key)) is None:
        found = known[key] = Moments(interval_s, interval_s * key[1] / PHASES)
    return found
