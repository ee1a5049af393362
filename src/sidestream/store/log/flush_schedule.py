"""The flush schedule of an event loop's writers, which share one timer so that their writes can be batched."""

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import Final, Protocol
from weakref import WeakKeyDictionary

_CONTEXT: Final = Context()


class Scheduled(Protocol):
    """A writer that is called at the next flush."""

    def write_due(self) -> None:
        """Handle a due flush."""
        ...


class Polled(Protocol):
    """A source that is read only at flushes."""

    def pause(self) -> None:
        """Stop reading, and leave arriving data in the system's buffers."""
        ...

    def resume(self) -> None:
        """Read the data that has arrived, in the next turn of the event loop."""
        ...


PHASES = 2
"""Groups of conversations with separate flush times. Data becomes visible once its whole group is written, so smaller
groups show it sooner and larger ones need fewer transactions."""


class Moments:
    """The flush times of one group, which are multiples of an interval after an offset, by the loop's clock.

    Writers that flush at the same time can be stored together. A timer is set only while a writer or source waits.
    """

    def __init__(self, interval_s: float, offset_s: float = 0.0) -> None:
        self._interval_s = interval_s
        self._offset_s = offset_s
        self._has_timer = False
        self._waiting: set[Scheduled] = set()
        self._readers: dict[asyncio.Future[None], Polled] = {}
        self._is_reading = False
        """Whether the sources that waited are now reading what this flush will write."""

    async def wait(self, source: Polled) -> None:
        """Wait for the next flush, and until data that has arrived by then can be read.

        The source is paused meanwhile. A writer that is added afterwards, before the caller waits again, is called in
        the same flush.
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
        """Call the writer at the next flush, once."""
        self._waiting.add(writer)
        if not self._is_reading:
            self._set_timer()

    def discard(self, writer: Scheduled) -> None:
        """Cancel the call of a writer."""
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
        # The loop notices arrived data in its next turn and reads it after the callbacks that are ready by then, so two
        # turns later.
        loop.call_soon(loop.call_soon, self._wake, loop, readers, context=_CONTEXT)

    def _wake(self, loop: asyncio.AbstractEventLoop, readers: Iterable[asyncio.Future[None]]) -> None:
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
        loop.call_soon(self._call, loop, context=_CONTEXT)  # After the readers, since callbacks run in order.

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting, self._is_reading = self._waiting, set(), False
        for writer in waiting:
            loop.call_soon(writer.write_due, context=_CONTEXT)  # A failed writer must not affect the others.


_moments: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[float, int], Moments]] = WeakKeyDictionary()


def moments(interval_s: float, conversation: str) -> Moments:
    """Return the flush schedule that this event loop's writers of the conversation's group share."""
    loop = asyncio.get_running_loop()
    known = _moments.get(loop)
    if known is None:
        known = _moments[loop] = {}
    key = interval_s, hash(conversation) % PHASES
    if (found := known.get(key)) is None:
        found = known[key] = Moments(interval_s, interval_s * key[1] / PHASES)
    return found
