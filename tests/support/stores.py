"""Shared by the tests of stores: rows, digests, and reading a tail with a timeout."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256

from sidestream.store import Store
from sidestream.store.records import Row

Opens = Callable[[], Store]
BOUND_S = 30.0
"""The timeout of everything that a test waits for."""


def row(
    seq: int, kind: str = "text", *, run: str = "run-1", body: bytes | None = None, blobs: Sequence[str] = ()
) -> Row:
    """A row; its time is its number."""
    body = segment(seq, kind) if body is None else body
    return Row(seq=seq, time=float(seq), run=run, kind=kind, body=body, blobs=tuple(blobs))


def segment(data: object, kind: str = "text") -> bytes:
    """The body of a record that holds this value."""
    part = {"type": "custom", "kind": "test", "data": data}
    return json.dumps({"type": "segment", "kind": kind, "parts": [part]}).encode()


def rows(first: int, last: int, run: str = "run-1") -> list[Row]:
    """Rows with these numbers."""
    return [row(seq, run=run) for seq in range(first, last + 1)]


def message(seq: int, text: object, role: str = "user") -> Row:
    """The row of a message."""
    body = {"type": "message", "message": {"role": role, "parts": [{"type": "text", "text": text}]}}
    return row(seq, "message", body=json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


async def next_of(found: AsyncIterator[Row], count: int) -> list[Row]:
    """The next rows of a tail. Raises TimeoutError if they do not arrive."""
    async with asyncio.timeout(BOUND_S):
        return [await anext(found) for _ in range(count)]
