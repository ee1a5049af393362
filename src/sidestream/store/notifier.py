"""Wakes the coroutines of this process that wait for new rows of a conversation."""

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress


class Notifier:
    """Sets asyncio events of any event loop, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def subscribed(self, conversation: str) -> Generator[asyncio.Event]:
        """An event that is set whenever rows of the conversation were written, until the block ends."""
        event = asyncio.Event()
        with self._lock:
            self._events.setdefault(conversation, {})[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._events[conversation][event]
                if not self._events[conversation]:
                    del self._events[conversation]

    def notify(self, conversations: Iterable[str] | None = None) -> None:
        """Sets the events of these conversations, or of all."""
        if not self._events:  # Mostly nobody waits.
            return
        with self._lock:
            names = list(self._events) if conversations is None else conversations
            events = [item for name in names for item in self._events.get(name, {}).items()]
        for event, loop in events:
            with suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(event.set)
