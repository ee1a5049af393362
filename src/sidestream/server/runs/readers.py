"""Counts of open streams, by tenant and by conversation."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from sidestream.server.errors import RequestError

RETRY_S = 5


class Readers:
    """Counts the open streams of a server."""

    def __init__(self, max_open: int | None) -> None:
        self._max_open = max_open
        self._by_owner: Counter[str] = Counter()
        self._by_conversation: Counter[str] = Counter()

    def admit(self, owner: str) -> None:
        """Raise RequestError(429) if the tenant has reached its limit of open streams."""
        if self._max_open is not None and self._by_owner[owner] >= self._max_open:
            raise RequestError(
                429,
                f"too many open streams: the maximum is {self._max_open}",
                type="rate_limit_error",
                code="too_many_streams",
                headers={"Retry-After": str(RETRY_S)},
            )

    @contextmanager
    def counted(self, owner: str, conversation: str) -> Generator[None]:
        """Count one open stream while the block runs."""
        self._by_owner[owner] += 1
        self._by_conversation[conversation] += 1
        try:
            yield
        finally:
            _decrease(self._by_owner, owner)
            _decrease(self._by_conversation, conversation)

    def count(self, conversation: str) -> int:
        """Return the number of open streams of a conversation."""
        return self._by_conversation[conversation]


def _decrease(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
