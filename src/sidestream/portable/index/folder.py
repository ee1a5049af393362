"""Files of a folder: selecting the ones to index, and reading one while others write it.

Another process may write to the folder while it is read. A file is therefore opened once, from the folder downwards and
without following links. The opened descriptor is then checked and read.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct

from sidestream.errors import ConfigurationError, DocumentError
from sidestream.portable.documents import is_readable, mime_type_of

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target"})
"""Generated or third-party folders. Hidden folders are skipped too."""
SKIPPED_NAMES = frozenset({"package-lock.json", "yarn.lock", "pnpm-lock.yaml", "uv.lock", "poetry.lock", "Cargo.lock"})
MAX_READS = 3
"""Maximum attempts to read a file that changes while it is read."""
MAX_DEPTH = 100
"""Maximum nesting of folders. Deeper ones are reported. Real trees have some twenty levels."""

_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether folders can be opened as descriptors. On Windows, names are checked before and after a file is opened
instead."""
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening must not block on a pipe or acquire a controlling terminal.
_FILE_FLAGS = ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
_FILE = os.O_RDONLY | sum(getattr(os, name, 0) for name in _FILE_FLAGS)


class Stamp(Struct, frozen=True):
    """Size and modification time, which show without reading a file that it has probably not changed."""

    size: int
    modified_ns: int


UNREAD = Stamp(-1, 0)
"""Stamp of a skipped entry."""


class Contents(Struct, frozen=True):
    """The bytes of a file, their digest, and its stamp before they were read."""

    data: bytes
    digest: str
    stamp: Stamp


class FolderEntry(Struct, frozen=True, kw_only=True):
    """A file of a folder, or an entry that is skipped."""

    path: str
    """Absolute path, as the index stores it. Bytes of a name that are not UTF-8 are escaped."""
    parts: tuple[str, ...] = ()
    """Names that lead from the root to the file, without links."""
    stamp: Stamp = UNREAD
    problem: str | None = None
    """Reason for which it is skipped."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, as the index stores it."""
    return os.path.abspath(os.path.expanduser(path))


def root_of(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file or folder to index.

    Raises ConfigurationError if it does not exist or is not valid UTF-8.
    """
    root = absolute(path)
    if not _is_utf8(root):
        raise ConfigurationError(f"the path {root!a} is not valid UTF-8; rename it")
    if not os.path.exists(root):
        raise ConfigurationError(f"{root} does not exist")
    return root


class Root:
    """A file or folder that is indexed. Links are skipped unless they lead to files inside it.

    `within` lists folders that it must lie in after resolving links. Raises OSError if it cannot be opened, and
    ConfigurationError if it lies outside of them.
    """

    def __init__(self, path: str, within: Sequence[str] = ()) -> None:
        self._path = path
        real = os.path.realpath(path)
        self._name = "" if os.path.isdir(real) else os.path.basename(real)
        self._folder = os.path.dirname(real) if self._name else real
        self._identity: tuple[int, int] | None = None
        with self._opened(()) as folder:
            status = os.stat(folder)
            self._identity = status.st_dev, status.st_ino
            place = _place(folder, self._folder)
            if self._name:
                _lstat(self._name, folder)
        if within and not any(_is_below(os.path.join(place, self._name), allowed) for allowed in within):
            raise ConfigurationError(f"{path} leads out of {', '.join(within)}")

    def entries(self) -> list[FolderEntry]:
        """List the files to index, and skipped entries that look like files, by path.

        Raises OSError or DocumentError if the root itself cannot be read.
        """
        if self._name:
            with self._opened(()) as folder:
                return [FolderEntry(path=self._path, parts=(self._name,), stamp=_stamp_of(_lstat(self._name, folder)))]
        found: list[FolderEntry] = []
        pending: list[tuple[str, ...]] = [()]
        while pending:
            parts = pending.pop()
            path = os.path.join(self._path, *parts)
            try:
                if len(parts) > MAX_DEPTH:
                    raise DocumentError(f"it is nested more than {MAX_DEPTH} folders deep", "nested")
                with self._opened(parts) as folder, os.scandir(folder) as items:
                    for item in items:
                        with suppress(FileNotFoundError):  # Removed meanwhile.
                            found += self._listed(item, folder, parts, pending)
            except (OSError, DocumentError) as error:
                if not parts:
                    raise
                if isinstance(error, FileNotFoundError):
                    continue
                found.append(FolderEntry(path=path, problem=message_of(error)))
        return sorted(found, key=lambda entry: entry.path)

    def contents(self, entry: FolderEntry, max_bytes: int) -> Contents:
        """Read a file, as a consistent snapshot as far as can be detected.

        Raises OSError if it cannot be read, and DocumentError if it is too large or was replaced.
        """
        with self._opened(entry.parts[:-1]) as folder:
            descriptor = _opened_file(entry.parts[-1], folder)
        with open(descriptor, "rb") as file:
            for attempt in range(MAX_READS):
                stamp = _stamp_of(os.fstat(descriptor))
                # The size is unreliable for growing files and for some virtual ones.
                data = b"" if stamp.size > max_bytes else file.read(max_bytes + 1)
                if max(len(data), stamp.size) > max_bytes:
                    raise DocumentError(f"it is larger than {max_bytes} bytes", "too-large")
                if _stamp_of(os.fstat(descriptor)) == stamp or attempt == MAX_READS - 1:
                    # Keep the earlier stamp: if the file has changed since, the next refresh notices.
                    return Contents(data, hashlib.sha256(data).hexdigest(), stamp)
                file.seek(0)
        raise AssertionError

    def _listed(
        self, item: "os.DirEntry[str]", folder: int | str, parts: tuple[str, ...], pending: list[tuple[str, ...]]
    ) -> Iterator[FolderEntry]:
        """Yield the entry of a folder's item, if any. Subfolders to visit are added to `pending`."""
        name = item.name
        if name.startswith(".") or name in SKIPPED_FOLDERS | SKIPPED_NAMES:
            return
        path = os.path.join(self._path, *parts, name)
        kind = mime_type_of(name) or ""
        # The source of a picture is text, but not what the picture says.
        is_file_name = is_readable(kind) and not kind.startswith("image/")
        is_folder = item.is_dir(follow_symlinks=False)
        if not _is_utf8(name):
            if is_folder or is_file_name:
                yield FolderEntry(path=_shown(path), problem="its name is not valid UTF-8; rename it")
        elif item.is_symlink():
            yield from self._linked(path, name, folder, parts, is_file_name=is_file_name)
        elif is_folder:
            pending.append((*parts, name))
        elif is_file_name and item.is_file(follow_symlinks=False):
            yield FolderEntry(path=path, parts=(*parts, name), stamp=_stamp_of(item.stat(follow_symlinks=False)))
        elif is_file_name:
            yield FolderEntry(path=path, problem="it is not a regular file")

    def _linked(
        self, path: str, name: str, folder: int | str, parts: tuple[str, ...], *, is_file_name: bool
    ) -> Iterator[FolderEntry]:
        """Yield the file in this folder that a link leads to, or the reason why the link is skipped."""
        place = os.path.join(self._folder, *parts, name)
        try:
            status = os.stat(name, dir_fd=folder) if isinstance(folder, int) else os.stat(place)
        except OSError as error:
            if is_file_name or error.errno == errno.ELOOP:
                problem = "it is a link that leads to itself" if error.errno == errno.ELOOP else "its target is missing"
                yield FolderEntry(path=path, problem=problem)
            return
        real = os.path.realpath(place)
        if stat.S_ISDIR(status.st_mode):
            yield FolderEntry(path=path, problem="it is a link to a folder, which is not followed")
        elif is_file_name and not _is_below(real, self._folder):
            yield FolderEntry(path=path, problem="it is a link that leads out of the folder")
        elif is_file_name:
            parts = tuple(os.path.relpath(real, self._folder).split(os.sep))
            yield FolderEntry(path=path, parts=parts, stamp=_stamp_of(status))

    @contextmanager
    def _opened(self, parts: Sequence[str]) -> Generator[int | str]:
        """Open a folder below the root and yield its descriptor, or its path where descriptors are not supported."""
        if not _HAS_DESCRIPTORS:
            yield os.path.join(self._folder, *parts)
            return
        here = os.open(self._folder, _FOLDER)
        try:
            status = os.fstat(here)
            if self._identity not in (None, (status.st_dev, status.st_ino)):
                raise DocumentError("its folder was replaced while it was read", "changed")
            for part in parts:
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def message_of(error: OSError | DocumentError) -> str:
    """Describe why a file could not be read."""
    if isinstance(error, DocumentError):
        return str(error)
    is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
    return "it was replaced by a link while it was read" if is_link else error.strerror or str(error)


def _opened_file(name: str, folder: int | str) -> int:
    """Open a regular file for reading.

    Raises DocumentError if it is something else by now.
    """
    _check_regular(_lstat(name, folder))  # Opening a device may have side effects.
    if isinstance(folder, int):
        descriptor = os.open(name, _FILE, dir_fd=folder)
    else:
        descriptor = os.open(os.path.join(folder, name), _FILE)
    try:
        _check_regular(os.fstat(descriptor))
        if isinstance(folder, str) and not os.path.samestat(os.fstat(descriptor), _lstat(name, folder)):
            raise DocumentError("it was replaced while it was read", "changed")
    except DocumentError:
        os.close(descriptor)
        raise
    return descriptor


def _lstat(name: str, folder: int | str) -> os.stat_result:
    if isinstance(folder, str):
        return os.lstat(os.path.join(folder, name))
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError("it is not a regular file", "format")


def _stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns)


def _place(folder: int | str, expected: str) -> str:
    """Return the real path of an open folder, as far as the system tells."""
    try:
        return os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else os.path.realpath(folder)
    except OSError:
        return expected


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
