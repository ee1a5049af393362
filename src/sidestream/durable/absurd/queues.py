"""Names of queues: ours, of agents, and those of Absurd, of which its tables are named."""

import re
from hashlib import sha256

MAX_BYTES = 57
"""Of a name in Absurd: the names of tables and indexes are made of it."""
_PLAIN = re.compile(r"[\w.@-]+", re.ASCII)
_DIGITS = 12


def absurd_queue(namespace: str, queue: str) -> str:
    """The name in Absurd. Different for each queue, and the queue's own name if that is short and plain.

    The namespace, which has no dot, separates the stores that share a database.
    """
    name = prefix(namespace) + queue
    if _PLAIN.fullmatch(queue) and len(name) <= MAX_BYTES:
        return name
    # `#` is in no plain name, so that none is equal to this one.
    ending = "#" + sha256(queue.encode()).hexdigest()[:_DIGITS]
    readable = prefix(namespace) + re.sub(r"[^\w.@-]+", "-", queue, flags=re.ASCII)
    return readable[: MAX_BYTES - len(ending)] + ending


def prefix(namespace: str) -> str:
    """How the names of all queues of a namespace begin."""
    return f"{namespace}."
