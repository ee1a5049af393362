"""Who waits for rows of which conversation, within one process."""

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress


class Signals:
    """Wakes coroutines of any event loop, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listening(self, conversation: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the conversation has news, as long as the block lasts."""
        event = asyncio.Event()
        with self._lock:
            self._waiting.setdefault(conversation, {})[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._waiting[conversation][event]
                if not self._waiting[conversation]:
                    del self._waiting[conversation]

    def wake(self, conversations: Iterable[str] | None = None) -> None:
        """Wakes those who wait for one of these conversations, or all."""
        with self._lock:
            names = list(self._waiting) if conversations is None else conversations
            events = [item for name in names for item in self._waiting.get(name, {}).items()]
        for event, loop in events:
            with suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(event.set)
