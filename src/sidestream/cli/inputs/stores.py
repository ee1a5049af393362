"""Opens the store for one command."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream.store.protocol import Store


def with_store(location: str | None, work: "Callable[[Store], Coroutine[Any, Any, int]]") -> int:
    """Opens the store, runs the work with it, and closes it."""
    from sidestream.cli.interrupts import run_async
    from sidestream.store.opening import open_store

    async def opened() -> int:
        store = open_store(location)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return run_async(opened())
