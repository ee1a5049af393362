"""Conversations that are deleted once their client has what it wanted: those that a dead server left, too."""

import time

from sidestream.durable.engines.embedded import EmbeddedEngine
from sidestream.durable.engines.protocol import Task, TaskHeldError
from sidestream.durable.log.open_runs import open_run
from sidestream.server.runs.published_store import PublishedStore

UNSTORED = "unstored_"
"""How the ids of conversations begin, after their owner, that are not stored."""
LEFT_AFTER_S = 3600.0
"""One that has ended, and has not changed for so long, has no client any more."""

_SELECT = "SELECT id, updated FROM {conversations} WHERE id LIKE :pattern ESCAPE '!'"
_PATTERN = f"%/{UNSTORED.replace('_', '!_')}%"


def is_unstored(conversation: str) -> bool:
    """Whether a conversation is deleted once its client has what it wanted."""
    return f"/{UNSTORED}" in conversation


async def delete_left(store: PublishedStore, engine: EmbeddedEngine | None) -> None:
    """Deletes those that no process drives any more, as the engine says, or that ended long ago. Raises StoreError."""
    for id, updated in await store.execute(_SELECT, {"pattern": _PATTERN}):
        rows = await store.read(id)
        if open_run(rows) is not None:
            if engine is None:
                continue
            try:
                claim = await engine.claim(Task(conversation=id, position=rows[-1].seq))
            except TaskHeldError:
                continue  # Another server's, whose client waits for it.
            await store.delete(id)
            engine.forget(claim)
        elif updated < time.time() - LEFT_AFTER_S:
            await store.delete(id)
