"""The files of a memory, and the commands that a model has for them. Pure."""

import re

from sidestream.limits import MAX_MEMORY_BYTES, MAX_MEMORY_FILES
from sidestream.tools.tool import ToolError

ROOT = "/memories"
_SEGMENT = re.compile(r"[^/\\\x00-\x1f]{1,200}")

Files = dict[str, str]
"""Path, with the root → text."""


def safe_path(path: str) -> str:
    """The path without a trailing slash. Raises ToolError unless it lies under the root, without `..` and the like."""
    parts = path.rstrip("/").split("/")
    is_inside = parts[:2] == ["", ROOT[1:]]
    if not is_inside or any(part in (".", "..") or not _SEGMENT.fullmatch(part) for part in parts[2:]):
        raise ToolError(f"{path!r} is no path in the memory: use {ROOT}/NAME, without '..'")
    return "/".join(parts)


def view(files: Files, path: str, lines: tuple[int, int] | None = None) -> str:
    """A file with numbered lines, or what a folder holds."""
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
    """Writes a file; one that exists is overwritten."""
    path = safe_path(path)
    if path == ROOT or any(name.startswith(f"{path}/") for name in files):
        raise ToolError(f"{path} is a folder; choose another name")
    if (parent := next((name for name in files if path.startswith(f"{name}/")), None)) is not None:
        raise ToolError(f"{parent} is a file, so nothing can be created in it")
    verb = "overwritten" if path in files else "created"
    return _checked({**files, path: text}), f"File {verb}: {path}"


def str_replace(files: Files, path: str, old: str, new: str) -> tuple[Files, str]:
    """Replaces a text that occurs exactly once."""
    path, text = _file(files, path)
    count = text.count(old) if old else 0
    if count != 1:
        raise ToolError(f"old_str occurs {count} times in {path}; it must occur exactly once. Nothing was changed")
    return _checked({**files, path: text.replace(old, new)}), f"File edited: {path}"


def insert(files: Files, path: str, line: int, added: str) -> tuple[Files, str]:
    """Inserts lines after a line; 0 is the beginning."""
    path, text = _file(files, path)
    lines = text.splitlines(keepends=True)
    if not 0 <= line <= len(lines):
        raise ToolError(f"insert_line must be from 0 to {len(lines)}, the number of lines of {path}")
    if line and not lines[line - 1].endswith("\n"):
        lines[line - 1] += "\n"
    lines.insert(line, added if added.endswith("\n") or line == len(lines) else f"{added}\n")
    return _checked({**files, path: "".join(lines)}), f"File edited: {path}"


def delete(files: Files, path: str) -> tuple[Files, str]:
    """Deletes a file, or a folder with all that it holds."""
    path = safe_path(path)
    if path == ROOT:
        raise ToolError(f"{ROOT} itself cannot be deleted")
    left = {name: text for name, text in files.items() if name != path and not name.startswith(f"{path}/")}
    if len(left) == len(files):
        raise ToolError(f"The path {path} does not exist. {_listed(files)}")
    return left, f"Deleted: {path}"


def rename(files: Files, old: str, new: str) -> tuple[Files, str]:
    """Moves a file or a folder. Nothing is overwritten."""
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
    """The files, unless they are too many or too large."""
    if len(files) > MAX_MEMORY_FILES:
        raise ToolError(f"The memory is full: {MAX_MEMORY_FILES} files. Delete some first")
    if sum(len(text.encode()) for text in files.values()) > MAX_MEMORY_BYTES:
        raise ToolError(f"The memory is full: {MAX_MEMORY_BYTES} bytes. Delete or shorten files first")
    return files
