"""Blobs, which are bytes named by their SHA-256 digest, in private folders.

A blob is complete or absent, durable before a record refers to it, and verified when it is read. A blob location
belongs to one store, since only that store knows which blobs it refers to. Disk errors become StoreError.
"""

import errno
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from sidestream.errors import BlobError, ConfigurationError, StoreError

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
    """Convert a disk error to StoreError, with advice."""
    place = error.filename if isinstance(error.filename, str) else str(path)
    fallback = f"{error.strerror or type(error).__name__}; check the file and its folder"
    return StoreError(f"{place}: {_MESSAGES.get(error.errno or 0, fallback)}")


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Convert OSErrors in the block to StoreError."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible by their owner only."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


GRACE_S = 3600.0
"""Minimum age, in seconds, of files to collect. The append of younger ones may still be in progress."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".tmp"


class BlobStore(ABC):
    """The blob storage of a store. Its methods block, so call them in a thread."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        """Minimum age of blobs to collect, in seconds."""

    def put_all(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs, except existing ones. They are durable when this returns."""
        for digest, data in blobs.items():
            if sha256(data).hexdigest() != digest:
                raise ConfigurationError(f"the blob {digest!r} must be named by the SHA-256 digest of its bytes")
            self.put(digest, data)

    def ensure(self, digests: Iterable[str], blobs: Mapping[str, bytes]) -> None:
        """Raise BlobError unless every blob exists. Missing ones that were passed are stored again."""
        for digest in digests:
            data = blobs.get(digest)
            if self.touch(digest, None if data is None else len(data)):
                continue
            if data is None:
                raise BlobError(
                    f"the blob {digest} is referred to, but was never stored; pass its bytes", digest=digest
                )
            self.put_all({digest: data})

    def read(self, digest: str) -> bytes:
        """Return the bytes after verifying them. Raises BlobError if they are missing or damaged."""
        data = self.load(digest)
        if sha256(data).hexdigest() != digest:
            message = f"the blob {digest} in {self.place} is damaged: its content does not match its digest"
            raise BlobError(f"{message}; restore it from a backup", digest=digest)
        return data

    def missing(self, digest: str) -> BlobError:
        """Return the error for a missing blob."""
        return BlobError(f"the blob {digest} is missing from {self.place}; restore it from a backup", digest=digest)

    @property
    @abstractmethod
    def place(self) -> str:
        """Location, without secrets."""

    @abstractmethod
    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes, which have this digest. They are durable when this returns."""

    @abstractmethod
    def touch(self, digest: str, size: int | None = None) -> bool:
        """Return whether the blob exists, with this size if one is given."""

    @abstractmethod
    def load(self, digest: str) -> bytes:
        """Return the bytes unverified. Raises BlobError if they are missing."""

    @abstractmethod
    def remove(self, digests: Iterable[str]) -> None:
        """Delete those of the blobs that exist."""

    @abstractmethod
    def shards(self) -> list[str]:
        """Return the distinct first two characters of the stored digests, or more."""

    @abstractmethod
    def old(self, shard: str) -> list[str]:
        """Return the digests in one shard that are older than the grace period."""

    def sweep(self) -> int:
        """Delete the remains of interrupted writes, and return how many."""
        return 0

    def close(self) -> None:
        """Close connections after the work in progress. The next use opens them again."""
        return


class BlobFolder(BlobStore):
    """A folder of blobs, created with the first one.

    A file is written under another name, flushed to the disk and then renamed.
    """

    def __init__(self, path: str | os.PathLike[str], *, grace_s: float = GRACE_S) -> None:
        super().__init__(grace_s=grace_s)
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"BlobFolder({str(self.path)!r})"

    @property
    def place(self) -> str:
        """Path of the folder."""
        return str(self.path)

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes, unless the file exists already. They are durable when this returns."""
        file = self._file(digest)
        with disk_errors(self.path):
            if not self.touch(digest, len(data)):
                self._make_folders(file.parent)
                _write(file, data)
            # Another process may have written the same file without having flushed its folder yet.
            _flush_folder(file.parent)

    def touch(self, digest: str, size: int | None = None) -> bool:
        """Return whether the file exists, with this size if one is given, and restart its grace period."""
        file = self._file(digest)
        with disk_errors(self.path):
            try:
                if size is not None and file.stat().st_size != size:
                    return False
                os.utime(file)
            except FileNotFoundError:
                return False
        return True

    def load(self, digest: str) -> bytes:
        """Return the bytes of the file."""
        file = self._file(digest)
        try:
            return file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise self.missing(digest) from None
        except OSError as error:
            raise BlobError(str(disk_error(error, file)), digest=digest) from error

    def shards(self) -> list[str]:
        """Return the subfolders, which are named by the first byte of the digests in them."""
        with self._reading():
            return sorted(entry.name for entry in os.scandir(self.path) if re.fullmatch("[0-9a-f]{2}", entry.name))
        return []

    def old(self, shard: str) -> list[str]:
        """Return the digests in one shard that are older than the grace period."""
        names = (shard + file.name for file in self._old_files(shard, self.grace_s))
        return sorted(name for name in names if is_digest(name))

    def remove(self, digests: Iterable[str]) -> None:
        """Delete those of the files that exist."""
        with disk_errors(self.path):
            for digest in digests:
                self._file(digest).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Delete the remains of interrupted writes, and return how many files."""
        files = [file for shard in self.shards() for file in self._old_files(shard, GRACE_S)]
        left = [file for file in files if file.name.endswith(_TEMPORARY)]
        with disk_errors(self.path):
            for file in left:
                file.unlink(missing_ok=True)
        return len(left)

    def _file(self, digest: str) -> Path:
        # A digest may come from untrusted data, and must not lead out of the folder.
        return self.path / checked(digest)[:2] / digest[2:]

    def _old_files(self, shard: str, grace_s: float) -> list[Path]:
        limit = time.time() - grace_s
        old: list[Path] = []
        with self._reading():
            for entry in os.scandir(self.path / shard):
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime <= limit:
                        old.append(Path(entry.path))
        return old

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Treat a missing folder as empty."""
        with disk_errors(self.path), suppress(FileNotFoundError):
            yield

    def _make_folders(self, shard: Path) -> None:
        if not shard.is_dir():
            make_private(shard)
            _flush_folder(self.path.parent)
            _flush_folder(self.path)


def is_digest(text: str) -> bool:
    """Return whether the string is a SHA-256 digest in hex."""
    return _DIGEST.fullmatch(text) is not None


def checked(digest: str) -> str:
    """Return the digest. Raises BlobError if it is not valid."""
    if not is_digest(digest):
        raise BlobError(f"{digest!r} is not a SHA-256 digest in hex", digest=digest)
    return digest


def _write(file: Path, data: bytes) -> None:
    temporary = file.with_name(f"{file.name[:8]}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _flush_folder(folder: Path) -> None:
    """Make the names of new files durable. Windows cannot flush folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
