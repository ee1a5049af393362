"""Private folders, and errors of the disk as StoreError."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sidestream.errors import StoreError

FULL = "the disk is full; free some space and try again"
FORBIDDEN = "this user may not write there; change the permissions or choose another place"

_MESSAGES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EFBIG: "the file may not grow any further; raise the limit on file sizes or free some space",
    errno.EROFS: "the file system is read-only; mount it for writing or choose another place",
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.ENOENT: "the folder does not exist; check whether it was moved or deleted",
    errno.ENOTDIR: "part of this path is a file, not a folder; choose another place",
    errno.EIO: "the disk reports an error; check the hardware and back up what can still be read",
}


def disk_error(error: OSError, path: Path) -> StoreError:
    """An error of the disk as StoreError, with what to do about it."""
    place = error.filename if isinstance(error.filename, str) else str(path)
    fallback = f"{error.strerror or type(error).__name__}; check the file and its folder"
    return StoreError(f"{place}: {_MESSAGES.get(error.errno or 0, fallback)}")


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Raises StoreError for the OSErrors of the block."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def make_private(folder: Path) -> None:
    """Creates a folder and its missing parents, accessible by their owner only."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
