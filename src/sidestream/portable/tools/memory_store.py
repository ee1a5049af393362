"""Where memories are kept: in the chat's store, as a log of changes of its own, or in this process."""

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from sidestream.errors import ConflictError
from sidestream.jsontext import JsonObject, as_list, as_object
from sidestream.portable.tools.memory_files import Files
from sidestream.store.database import MAX_ID, RESERVED
from sidestream.store.protocol import Store
from sidestream.store.records import Row, Segment, pack, unpack
from sidestream.stream.parts import Custom

CHANGED = "sidestream.memory-changed"
"""The kind of the custom part that a memory's log consists of."""
MAX_ATTEMPTS = 10
"""How often a change is tried again when another process changes the same memory."""

Edit = Callable[[Files], tuple[Files, str]]
"""The files → the files after a change, and what to say of it. Raises ToolError."""


class Kept(Struct, frozen=True):
    """What a memory holds."""

    files: Files
    untrusted: frozenset[str] = frozenset()
    """Files that were written after an untrusted source had been read. One stays untrusted until it is deleted."""

    def changed(self, files: Files, *, is_untrusted: bool) -> "Kept":
        """Return the memory after a change. A file that replaces an untrusted one, as by a new name, is untrusted."""
        written = {path for path, text in files.items() if self.files.get(path) != text}
        replaces = any(path in self.untrusted for path in self.files.keys() - files.keys())
        found = self.untrusted | (written if is_untrusted or replaces else set[str]())
        return Kept(files, found & files.keys())


class KeepsMemory(Protocol):
    """Files of one memory."""

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change to the files as they are now; return them, and what to say of it.

        `is_untrusted`: whoever makes the change has read an untrusted source.
        """
        ...


class ProcessMemory:
    """A memory that lives as long as this object."""

    def __init__(self) -> None:
        self._kept = Kept({})

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change."""
        files, said = change(self._kept.files)
        self._kept = self._kept.changed(files, is_untrusted=is_untrusted)
        return self._kept, said


class StoredMemory:
    """A memory in a store, shared by all processes that use the store."""

    def __init__(self, store: Store, owner: str, name: str) -> None:
        self._store = store
        self._id = memory_id(owner, name)

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change; if another process was faster, to what that has made of the files."""
        for attempt in range(MAX_ATTEMPTS):
            kept, head = await self._load()
            files, said = change(kept.files)
            difference = _difference(kept.files, files)
            if difference is None:
                return kept, said
            try:
                await self._append(head, difference | {"untrusted": is_untrusted})
            except ConflictError:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                continue
            return kept.changed(files, is_untrusted=is_untrusted), said
        raise AssertionError

    async def _load(self) -> tuple[Kept, int]:
        kept = Kept({})
        rows = await self._store.read(self._id)
        for row in rows:
            change = await self._change(row)
            # An older version did not say: what is unknown is untrusted.
            kept = kept.changed(_applied(kept.files, change), is_untrusted=change.get("untrusted") is not False)
        return kept, rows[-1].seq if rows else 0

    async def _change(self, row: Row) -> JsonObject:
        blobs = {digest: await self._store.blob(digest) for digest in row.blobs}
        body = unpack(row, blobs.__getitem__).body
        parts = body.parts if isinstance(body, Segment) else ()
        return as_object(next((part.data for part in parts if isinstance(part, Custom)), None))

    async def _append(self, head: int, change: JsonObject) -> None:
        body, blobs = pack(Segment("custom", (Custom(CHANGED, change),)))
        row = Row(seq=head + 1, time=time.time(), run="", kind="custom", body=body, blobs=tuple(blobs))
        await self._store.append(self._id, head, [row], blobs)


def memory_id(owner: str, name: str) -> str:
    """The conversation that holds a memory's log. Lists of conversations leave it out."""
    wanted = f"{RESERVED}{owner}/{name}"
    if len(wanted) <= MAX_ID and wanted.isprintable():
        return wanted
    return f"{RESERVED}{blake2b(wanted.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


def _difference(before: Files, after: Files) -> JsonObject | None:
    written = {path: text for path, text in after.items() if before.get(path) != text}
    removed = sorted(before.keys() - after.keys())
    return {"written": written, "removed": removed} if written or removed else None


def _applied(files: Files, change: JsonObject) -> Files:
    removed = set(as_list(change.get("removed")))
    kept = {path: text for path, text in files.items() if path not in removed}
    return kept | {path: text for path, text in as_object(change.get("written")).items() if isinstance(text, str)}
