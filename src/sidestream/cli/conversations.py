"""Finds a conversation by what a person types: its id, the beginning of it, or nothing for the latest."""

import difflib

import click

from sidestream.store.protocol import ConversationInfo, Store

PAGE = 500
LATEST = ("", "-")


async def latest(store: Store) -> ConversationInfo:
    """The conversation that changed last. Raises UsageError where there is none."""
    found = await store.conversations(1)
    if not found:
        raise click.UsageError("there is no conversation yet: begin one with sidestream chat")
    return found[0]


async def exactly(store: Store, id: str) -> ConversationInfo | None:
    """The conversation with this id, if there is one."""
    return next((info for info in await _all(store) if info.id == id), None)


async def find(store: Store, text: str | None, *, may_be_latest: bool = False) -> ConversationInfo:
    """The conversation that is meant. Raises UsageError, which names those that are near."""
    if may_be_latest and (text or "") in LATEST:
        return await latest(store)
    wanted = (text or "").strip()
    everyone = await _all(store)
    begins = [info for info in everyone if info.id.startswith(wanted) or info.id.startswith(f"chat_{wanted}")]
    exact = [info for info in begins if info.id == wanted]
    if exact or len(begins) == 1:
        return (exact or begins)[0]
    if begins and wanted:
        names = ", ".join(info.id for info in begins[:5])
        more = f" and {len(begins) - 5} more" if len(begins) > 5 else ""
        raise click.UsageError(f"{wanted!r} is the beginning of several conversations: {names}{more}")
    if not everyone:
        raise click.UsageError(f"there is no conversation {wanted!r}, and no other either")
    ids = [info.id for info in everyone]
    near = difflib.get_close_matches(wanted, ids, n=3) or ids[:3]
    raise click.UsageError(f"there is no conversation {wanted!r}; there are, e.g., {', '.join(near)}")


async def _all(store: Store) -> list[ConversationInfo]:
    everyone = page = await store.conversations(PAGE)
    while len(page) >= PAGE:
        page = await store.conversations(PAGE, page[-1].updated)
        everyone = everyone + page
    return everyone
