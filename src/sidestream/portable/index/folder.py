"""The files of a folder: which ones are indexed, and reading one while others write it."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from sidestream.errors import ConfigurationError, DocumentError
from sidestream.portable.documents import is_readable, mime_type_of

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target"})
"""Generated or third-party; hidden folders are skipped too."""
SKIPPED_NAMES = frozenset({"package-lock.json", "yarn.lock", "pnpm-lock.yaml", "uv.lock", "poetry.lock", "Cargo.lock"})
MAX_READS = 3
"""How often a file that changes while it is read is read again."""


class Stamp(Struct, frozen=True):
    """What shows, without reading a file, that it has probably not changed."""

    size: int
    modified_ns: int


class Contents(Struct, frozen=True):
    """The bytes of a file, their digest, and its stamp before they were read."""

    data: bytes
    digest: str
    stamp: Stamp


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path, as the index keeps it."""
    return os.path.abspath(os.path.expanduser(path))


def root_of(path: str | os.PathLike[str]) -> Path:
    """The absolute path of what is indexed. Raises ConfigurationError if there is nothing."""
    root = Path(absolute(path))
    if not root.exists():
        raise ConfigurationError(f"{root} does not exist")
    return root


def files_in(root: Path) -> Iterator[Path]:
    """The files to index, sorted. Links to folders are not followed: they may lead anywhere, or in circles."""
    if not root.is_dir():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and name not in SKIPPED_NAMES and _is_inside(path, root):
                mime_type = mime_type_of(name)
                if mime_type is not None and is_readable(mime_type):
                    yield path


def stamp_of(path: Path) -> Stamp:
    """Raises OSError; DocumentError if it is not a regular file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError("it is not a regular file", "format")
    return Stamp(status.st_size, status.st_mtime_ns)


def contents_of(path: Path, max_bytes: int) -> Contents:
    """The file, as it was at one moment as far as can be seen. Raises OSError and DocumentError."""
    stamp = stamp_of(path)
    for attempt in range(MAX_READS):
        if stamp.size > max_bytes:
            raise DocumentError(f"it is larger than {max_bytes} bytes", "too-large")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        after = stamp_of(path)
        if after == stamp or attempt == MAX_READS - 1:
            # The stamp from before: if the file has changed since, the next look sees it.
            return Contents(data, hashlib.sha256(data).hexdigest(), stamp)
        stamp = after
    raise AssertionError


def _is_inside(path: Path, root: Path) -> bool:
    if not path.is_symlink():
        return True
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except OSError:
        return False
