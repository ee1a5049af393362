"""Folders for nobody else, and what a disk refuses, in plain words."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sidestream.errors import StoreError

FULL = "the disk is full; free some space and try again"
_FORBIDDEN = "this user may not write there; change the permissions or choose another place"

_WORDS = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EFBIG: "the file may not grow any further; raise the limit on file sizes or free some space",
    errno.EROFS: "the file system is read-only; mount it for writing or choose another place",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ENOENT: "the folder is not there; was it moved or deleted?",
    errno.ENOTDIR: "something in this path is a file and not a folder; choose another place",
    errno.EIO: "the disk reports an error; check the hardware and keep a copy of what can still be read",
}


def disk_error(error: OSError, path: Path) -> StoreError:
    """The error of a disk, in words and with what to do."""
    place = error.filename if isinstance(error.filename, str) else str(path)
    words = _WORDS.get(error.errno or 0, f"{error.strerror or type(error).__name__}; see what holds the place")
    return StoreError(f"{place}: {words}")


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Around work on files: errors of the disk come out as StoreError."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for their owner only."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
