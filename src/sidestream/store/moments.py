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
        self._waiting: set[Due] = set()
        self._readers: list[asyncio.Future[None]] = []
        self._is_reading = False
        """True while those who have waited read what will be written at this moment."""

    async def wait(self) -> None:
        """Until the next moment. A writer that is added then, before the caller waits again, is called at once."""
        loop = asyncio.get_running_loop()
        reader = loop.create_future()
        self._readers.append(reader)
        self._set_timer()
        try:
            await reader
        except asyncio.CancelledError:
            if reader in self._readers:
                self._readers.remove(reader)
            raise

    def add(self, writer: Due) -> None:
        """Calls the writer at the next moment, once."""
        self._waiting.add(writer)
        if not self._is_reading:
            self._set_timer()

    def discard(self, writer: Due) -> None:
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
        readers, self._readers, self._has_timer = self._readers, [], False
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
        self._is_reading = bool(readers)
        if readers:
            loop.call_soon(self._call, loop, context=_CONTEXT)  # What is ready runs in order, so after the readers.
        else:
            self._call(loop)

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
