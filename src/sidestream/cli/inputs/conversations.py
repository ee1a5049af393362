"""Opening of the store, and lookup of conversations by id or prefix, or of the latest."""

import difflib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from sidestream.store.protocol import ConversationInfo, Store

if TYPE_CHECKING:
    from sidestream.store.protocol import Store


PAGE = 500
LATEST = ("", "-")


async def latest_conversation(store: Store) -> ConversationInfo:
    """Return the most recently updated conversation. Raises UsageError if there is none."""
    found = await store.conversations(1)
    if not found:
        raise click.UsageError(f"no conversations yet: {how_to_log()}")
    return found[0]


def how_to_log() -> str:
    """Return a hint on how to log conversations."""
    from sidestream.cli import preferences

    if not preferences.load().log:
        return "logging is off; turn it on with sidestream logs on, or log one prompt with --log"
    return "prompts and chats are logged, unless -n is given"


async def get_conversation(store: Store, id: str) -> ConversationInfo | None:
    """Return the conversation with exactly this id, or None."""
    return next((info for info in await all_conversations(store) if info.id == id), None)


async def find_conversation(store: Store, id: str | None, *, default_to_latest: bool = False) -> ConversationInfo:
    """Find the conversation whose id starts with `id`. Raises UsageError with similar ids if none or several match."""
    if default_to_latest and (id or "") in LATEST:
        return await latest_conversation(store)
    prefix = (id or "").strip()
    conversations = await all_conversations(store)
    matches = [info for info in conversations if info.id.startswith((prefix, f"chat_{prefix}"))]
    exact = [info for info in matches if info.id == prefix]
    if exact or len(matches) == 1:
        return (exact or matches)[0]
    if matches and prefix:
        names = ", ".join(info.id for info in matches[:5])
        more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
        raise click.UsageError(f"{prefix!r} matches several conversations: {names}{more}")
    if not conversations:
        raise click.UsageError(f"no conversation {prefix!r}: the store is empty")
    ids = [info.id for info in conversations]
    full = {id.removeprefix("chat_"): id for id in ids} | {id: id for id in ids}
    similar = dict.fromkeys(full[name] for name in difflib.get_close_matches(prefix, full, n=3, cutoff=0.7))
    hint = f"did you mean {', '.join(similar)}?" if similar else "sidestream logs list shows their ids"
    raise click.UsageError(f"no conversation {prefix!r}; {hint}")


async def all_conversations(store: Store) -> list[ConversationInfo]:
    """Return all conversations, most recently updated first."""
    conversations = page = await store.conversations(PAGE)
    while len(page) >= PAGE:
        page = await store.conversations(PAGE, page[-1].updated)
        conversations = conversations + page
    return conversations


def with_store(location: str | None, work: "Callable[[Store], Coroutine[Any, Any, int]]") -> int:
    """Open the store, run the work with it, close it, and return the exit code."""
    from sidestream.cli.interrupts import run_async
    from sidestream.store.opening import open_store

    async def opened() -> int:
        store = open_store(location)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return run_async(opened())
