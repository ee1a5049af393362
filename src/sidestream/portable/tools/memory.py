"""Memory for every model: files kept between conversations, with the commands of Anthropic's tool."""

import re
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConflictError
from sidestream.jsontext import JsonObject, as_list, as_object
from sidestream.limits import MAX_MEMORY_BYTES, MAX_MEMORY_FILES
from sidestream.parts import Custom
from sidestream.portable.services import Services
from sidestream.portable.tools.functions import Functions
from sidestream.store.ids import MAX_ID, RESERVED, owner_in
from sidestream.store.protocol import Store
from sidestream.store.records import Row, Segment, pack, unpack
from sidestream.tools.server_side import Memory
from sidestream.tools.tool import Tool, ToolContext, ToolError, ToolOutcome
from sidestream.tools.toolset import Toolset

ROOT = "/memories"
_SEGMENT = re.compile(r"[^/\\\x00-\x1f]{1,200}")

Files = dict[str, str]
"""Path, including the root → text."""


def safe_path(path: str) -> str:
    """Return the path without a trailing slash.

    Raises ToolError unless it lies under the root, without `..` and the like.
    """
    parts = path.rstrip("/").split("/")
    is_inside = parts[:2] == ["", ROOT[1:]]
    if not is_inside or any(part in (".", "..") or not _SEGMENT.fullmatch(part) for part in parts[2:]):
        raise ToolError(f"{path!r} is no path in the memory: use {ROOT}/NAME, without '..'")
    return "/".join(parts)


def view(files: Files, path: str, lines: tuple[int, int] | None = None) -> str:
    """Return a file with numbered lines, or a folder's listing."""
    path = safe_path(path)
    text = files.get(path)
    if text is not None:
        return _numbered(path, text, lines)
    inside = sorted(name for name in files if name.startswith(f"{path}/"))
    if not inside and path != ROOT:
        raise ToolError(f"The path {path} does not exist. {_listed(files)}")
    rows = [f"{len(files[name].encode())} bytes\t{name}" for name in inside]
    return "\n".join([f"Files in {path}:", *(rows or ["(none yet)"])])


def create(files: Files, path: str, text: str) -> tuple[Files, str]:
    """Write a file, overwriting an existing one."""
    path = safe_path(path)
    if path == ROOT or any(name.startswith(f"{path}/") for name in files):
        raise ToolError(f"{path} is a folder; choose another name")
    if (parent := next((name for name in files if path.startswith(f"{name}/")), None)) is not None:
        raise ToolError(f"{parent} is a file, so nothing can be created in it")
    verb = "overwritten" if path in files else "created"
    return _checked({**files, path: text}), f"File {verb}: {path}"


def str_replace(files: Files, path: str, old: str, new: str) -> tuple[Files, str]:
    """Replace a string that occurs exactly once."""
    path, text = _file(files, path)
    count = text.count(old) if old else 0
    if count != 1:
        raise ToolError(f"old_str occurs {count} times in {path}; it must occur exactly once. Nothing was changed")
    return _checked({**files, path: text.replace(old, new)}), f"File edited: {path}"


def insert(files: Files, path: str, line: int, added: str) -> tuple[Files, str]:
    """Insert lines after a line. 0 means the beginning."""
    path, text = _file(files, path)
    lines = text.splitlines(keepends=True)
    if not 0 <= line <= len(lines):
        raise ToolError(f"insert_line must be from 0 to {len(lines)}, the number of lines of {path}")
    if line and not lines[line - 1].endswith("\n"):
        lines[line - 1] += "\n"
    lines.insert(line, added if added.endswith("\n") or line == len(lines) else f"{added}\n")
    return _checked({**files, path: "".join(lines)}), f"File edited: {path}"


def delete(files: Files, path: str) -> tuple[Files, str]:
    """Delete a file, or a folder with everything in it."""
    path = safe_path(path)
    if path == ROOT:
        raise ToolError(f"{ROOT} itself cannot be deleted")
    left = {name: text for name, text in files.items() if name != path and not name.startswith(f"{path}/")}
    if len(left) == len(files):
        raise ToolError(f"The path {path} does not exist. {_listed(files)}")
    return left, f"Deleted: {path}"


def rename(files: Files, old: str, new: str) -> tuple[Files, str]:
    """Move a file or a folder, without overwriting anything."""
    old, new = safe_path(old), safe_path(new)
    moved = {name: new + name[len(old) :] for name in files if name == old or name.startswith(f"{old}/")}
    if not moved or old == ROOT:
        raise ToolError(f"The path {old} does not exist, or cannot be renamed. {_listed(files)}")
    rest = {name: text for name, text in files.items() if name not in moved}
    if any(name == new or name.startswith(f"{new}/") or new.startswith(f"{name}/") for name in rest) or new == ROOT:
        raise ToolError(f"{new} exists already")
    if new.startswith(f"{old}/"):
        raise ToolError(f"{old} cannot be moved into itself")
    return rest | {moved[name]: files[name] for name in moved}, f"Renamed: {old} to {new}"


def _file(files: Files, path: str) -> tuple[str, str]:
    path = safe_path(path)
    text = files.get(path)
    if text is None:
        raise ToolError(f"There is no file {path}. {_listed(files)}")
    return path, text


def _listed(files: Files) -> str:
    return f"The files are: {', '.join(sorted(files)[:50]) or 'none'}."


def _numbered(path: str, text: str, lines: tuple[int, int] | None) -> str:
    every = text.splitlines()
    first, last = lines or (1, len(every))
    last = len(every) if last == -1 else min(last, len(every))
    if lines is not None and not 1 <= first <= last:
        raise ToolError(f"view_range must lie within the {len(every)} lines of {path}")
    rows = [f"{number:>6}\t{every[number - 1]}" for number in range(first, last + 1)]
    return "\n".join([f"{path}:", *rows])


def _checked(files: Files) -> Files:
    """Return the files.

    Raises ToolError if there are too many, or if they are too large.
    """
    if len(files) > MAX_MEMORY_FILES:
        raise ToolError(f"The memory is full: {MAX_MEMORY_FILES} files. Delete some first")
    if sum(len(text.encode()) for text in files.values()) > MAX_MEMORY_BYTES:
        raise ToolError(f"The memory is full: {MAX_MEMORY_BYTES} bytes. Delete or shorten files first")
    return files


CHANGED = "sidestream.memory-changed"
"""Kind of the custom parts in a memory's log."""
MAX_ATTEMPTS = 10
"""Maximum attempts at a change while other processes change the same memory."""

Edit = Callable[[Files], tuple[Files, str]]
"""Changes the files, and returns them with a message for the model. Raises ToolError if it cannot."""


class Kept(Struct, frozen=True):
    """The content of a memory."""

    files: Files
    untrusted: frozenset[str] = frozenset()
    """Files written after an untrusted source had been read. A file stays untrusted until it is deleted."""

    def changed(self, files: Files, *, is_untrusted: bool) -> "Kept":
        """Return the memory after a change. A file that replaces an untrusted one, e.g. by renaming, is untrusted."""
        written = {path for path, text in files.items() if self.files.get(path) != text}
        replaces = any(path in self.untrusted for path in self.files.keys() - files.keys())
        found = self.untrusted | (written if is_untrusted or replaces else set[str]())
        return Kept(files, found & files.keys())


class KeepsMemory(Protocol):
    """The files of one memory."""

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change to the current files, and return them with a message for the model.

        `is_untrusted` means that the change was made after reading an untrusted source.
        """
        ...


class ProcessMemory:
    """A memory that lives as long as this object."""

    def __init__(self) -> None:
        self._kept = Kept({})

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change to the files in memory."""
        files, said = change(self._kept.files)
        self._kept = self._kept.changed(files, is_untrusted=is_untrusted)
        return self._kept, said


class StoredMemory:
    """A memory in a store, shared by all processes that use the store."""

    def __init__(self, store: Store, owner: str, name: str) -> None:
        self._store = store
        self._id = memory_id(owner, name)

    async def edit(self, change: Edit, *, is_untrusted: bool = False) -> tuple[Kept, str]:
        """Apply a change, and apply it again to the new files if another process was faster."""
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
            # Older versions did not record this: treat unknown as untrusted.
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
    """Return the id of the conversation that holds a memory's log. Lists of conversations leave it out."""
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


Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]


def toolset(config: Memory, services: Services) -> Toolset:
    """Create the tool `memory`."""
    memory = _Memory(config.name or "")
    return Functions(config.key, [Tool.from_function(memory.run, name=config.key, key=config.key)])


class _Memory:
    """The memories of an agent's users."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: dict[str, ProcessMemory] = {}
        """Owner → memory of chats without a store."""

    async def run(
        self,
        context: ToolContext,
        command: Command,
        path: str | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        insert_text: str | None = None,
        view_range: list[int] | None = None,
        old_path: str | None = None,
        new_path: str | None = None,
    ) -> ToolOutcome:
        """Notes that outlive this conversation, as files under /memories. View it before you begin a task.

        Save what you learn about the user and the task; keep the files short, current and well named.

        Args:
            command: What to do.
            path: The file or folder, for all commands but rename.
            file_text: The file's new text, for create.
            old_str: The text to replace, which must occur exactly once, for str_replace.
            new_str: What replaces it.
            insert_line: The line after which to insert; 0 is the beginning.
            insert_text: The text to insert.
            view_range: First and last line, for view; -1 is the end.
            old_path: What to rename.
            new_path: Its new path.
        """  # noqa: D401 (sent to models)
        given = {
            "path": path,
            "file_text": file_text,
            "old_str": old_str,
            "insert_line": insert_line,
            "insert_text": insert_text,
            "old_path": old_path,
            "new_path": new_path,
        }
        missing = [name for name in _NEEDS[command] if given[name] is None]
        if missing:
            raise ToolError(f"{command} needs {', '.join(missing)}")
        edit: Edit
        match command:
            case "view":
                lines = _lines(view_range)
                edit = lambda files: (files, view(files, path or "", lines))  # noqa: E731
            case "create":
                edit = partial(create, path=path or "", text=file_text or "")
            case "str_replace":
                edit = partial(str_replace, path=path or "", old=old_str or "", new=new_str or "")
            case "insert":
                edit = partial(insert, path=path or "", line=insert_line or 0, added=insert_text or "")
            case "delete":
                edit = partial(delete, path=path or "")
            case "rename":
                edit = partial(rename, old=old_path or "", new=new_path or "")
        memory = self._memory(context)
        try:
            kept, said = await memory.edit(edit, is_untrusted=bool(context.sources))
        except ToolError as error:
            # The error message may list the files.
            kept, _ = await memory.edit(lambda files: (files, ""))
            failed = ToolOutcome.failure(type(error).__name__, str(error))
            return replace(failed, source=_source(kept, ROOT))
        return ToolOutcome(said, source=_source(kept, path or "") if command == "view" else None)

    def _memory(self, context: ToolContext) -> KeepsMemory:
        owner = owner_in(context.conversation or "")
        if context.store is not None:
            return StoredMemory(context.store, owner, self._name)
        return self._kept.setdefault(owner, ProcessMemory())


_NEEDS: dict[Command, tuple[str, ...]] = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}
"""Command → required arguments."""


def _source(kept: Kept, path: str) -> str | None:
    """Return the untrusted file that a path shows, or None."""
    shown = (name for name in sorted(kept.untrusted) if f"{name}/".startswith(f"{path.rstrip('/')}/"))
    return next((f"the memory {name}" for name in shown), None)


def _lines(view_range: list[int] | None) -> tuple[int, int] | None:
    if view_range is None:
        return None
    if len(view_range) != 2:
        raise ToolError("view_range needs two numbers: the first and the last line")
    return view_range[0], view_range[1]
