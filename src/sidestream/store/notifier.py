"""Notifications for coroutines of this process that wait for new rows of a conversation."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress


class Follower(asyncio.Event):
    """An event that is set whenever there may be new rows."""

    after = 0
    """Sequence number of the last row that the subscriber has."""


class Notifier:
    """Sets the events of subscribers in any event loop, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, dict[Follower, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def subscribed(self, conversation: str) -> Generator[Follower]:
        """Return an event that is set whenever rows of the conversation were written, until the block ends."""
        follower = Follower()
        with self._lock:
            self._followers.setdefault(conversation, {})[follower] = asyncio.get_running_loop()
        try:
            yield follower
        finally:
            with self._lock:
                del self._followers[conversation][follower]
                if not self._followers[conversation]:
                    del self._followers[conversation]

    @property
    def names(self) -> list[str]:
        """Names with at least one subscriber."""
        with self._lock:
            return list(self._followers)

    def notify(self, conversations: Iterable[str] | None = None) -> None:
        """Notify the subscribers of these conversations, or of all."""
        self._set(conversations, lambda name, follower: True)

    def notify_of(self, heads: Mapping[str, int]) -> bool:
        """Notify subscribers that lack the last row of their conversation, and return whether there are any."""
        return self._set(heads, lambda name, follower: follower.after < heads[name])

    def _set(self, names: Iterable[str] | None, is_meant: Callable[[str, Follower], bool]) -> bool:
        if not self._followers:  # The usual case, without the lock.
            return False
        by_loop: dict[asyncio.AbstractEventLoop, list[Follower]] = {}
        with self._lock:
            for name in list(self._followers) if names is None else names:
                for follower, loop in self._followers.get(name, {}).items():
                    if is_meant(name, follower):
                        by_loop.setdefault(loop, []).append(follower)
        for loop, followers in by_loop.items():
            with suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(_set_all, followers)
        return bool(by_loop)


def _set_all(followers: list[Follower]) -> None:
    for follower in followers:
        follower.set()
