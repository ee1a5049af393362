"""Blobs: files by the SHA-256 of what is in them, beside the log that refers to them.

A file is complete or not there: it is written under another name, flushed to the disk and then renamed. What is read
is compared with its address. A folder belongs to one store, since only that store knows what is still referred to.
"""

import os
import re
import secrets
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from sidestream.errors import BlobError, ConfigurationError
from sidestream.store.disk import disk_error, disk_errors, make_private

GRACE_S = 3600.0
"""Younger files are not collected: their append may still be under way."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = ".tmp"


class BlobFolder:
    """A folder of blobs; it is made when the first is put there."""

    def __init__(self, path: str | os.PathLike[str], *, grace_s: float = GRACE_S) -> None:
        self.path = Path(path)
        self.grace_s = grace_s

    def __repr__(self) -> str:
        return f"BlobFolder({str(self.path)!r})"

    def put(self, digest: str, data: bytes) -> None:
        """Keeps the bytes, safe on the disk when this returns; a file that is there already is not written again."""
        if sha256(data).hexdigest() != digest:
            raise ConfigurationError(f"the blob {digest!r} is not named by its SHA-256 digest")
        file = self._file(digest)
        with disk_errors(self.path):
            if not self.touch(digest, len(data)):
                self._make_folders(file.parent)
                _write(file, data)
            # An equal file may have been put a moment ago by another process that has not come this far.
            _flush_folder(file.parent)

    def put_all(self, blobs: Mapping[str, bytes]) -> None:
        """Keeps several."""
        for digest, data in blobs.items():
            self.put(digest, data)

    def touch(self, digest: str, size: int | None = None) -> bool:
        """True where the file is there, of that size, if one is given; it then counts as new for the grace time."""
        file = self._file(digest)
        with disk_errors(self.path):
            try:
                if size is not None and file.stat().st_size != size:
                    return False
                os.utime(file)
            except FileNotFoundError:
                return False
        return True

    def ensure(self, digests: Iterable[str], blobs: Mapping[str, bytes]) -> None:
        """Raises BlobError unless every digest is there; what vanished and is at hand is put again."""
        for digest in digests:
            data = blobs.get(digest)
            if self.touch(digest, None if data is None else len(data)):
                continue
            if data is None:
                raise BlobError(f"the blob {digest} is referred to, but it was never stored; pass it", digest=digest)
            self.put(digest, data)

    def read(self, digest: str) -> bytes:
        """The bytes, verified. Raises BlobError where they are missing or not what they were."""
        file = self._file(digest)
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            words = f"the file behind {digest} is missing from {self.path}; put it back from a backup, if there is one"
            raise BlobError(words, digest=digest) from None
        except OSError as error:
            raise BlobError(str(disk_error(error, file)), digest=digest) from error
        if sha256(data).hexdigest() != digest:
            words = f"{file} is damaged: it is not what was stored; put it back from a backup, if there is one"
            raise BlobError(words, digest=digest)
        return data

    def shelves(self) -> list[str]:
        """The names of the folders that hold the files."""
        with self._reading():
            return sorted(entry.name for entry in os.scandir(self.path) if re.fullmatch("[0-9a-f]{2}", entry.name))
        return []

    def old(self, shelf: str) -> list[str]:
        """The digests in one folder that are older than the grace time."""
        names = (shelf + file.name for file in self._old_files(shelf, self.grace_s))
        return sorted(name for name in names if _DIGEST.fullmatch(name))

    def remove(self, digest: str) -> None:
        """Deletes a file; it may be gone."""
        with disk_errors(self.path):
            self._file(digest).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Deletes what broken writes left; returns how many files."""
        files = [file for shelf in self.shelves() for file in self._old_files(shelf, GRACE_S)]
        left = [file for file in files if file.name.endswith(_TEMPORARY)]
        with disk_errors(self.path):
            for file in left:
                file.unlink(missing_ok=True)
        return len(left)

    def _file(self, digest: str) -> Path:
        # A digest can come from anywhere, and must not lead out of the folder.
        if not _DIGEST.fullmatch(digest):
            raise BlobError(f"{digest!r} is no SHA-256 digest in hex", digest=digest)
        return self.path / digest[:2] / digest[2:]

    def _old_files(self, shelf: str, grace_s: float) -> list[Path]:
        limit = time.time() - grace_s
        old: list[Path] = []
        with self._reading():
            for entry in os.scandir(self.path / shelf):
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime <= limit:
                        old.append(Path(entry.path))
        return old

    @contextmanager
    def _reading(self) -> Generator[None]:
        """A folder that is not there holds nothing."""
        with disk_errors(self.path), suppress(FileNotFoundError):
            yield

    def _make_folders(self, shelf: Path) -> None:
        if not shelf.is_dir():
            make_private(shelf)
            _flush_folder(self.path.parent)
            _flush_folder(self.path)


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
    """A new name is safe once its folder is on the disk. Windows knows no such thing."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
