"""Saves generated files under safe names, inside one folder, without overwriting anything."""

import os
import re
import unicodedata
from contextlib import suppress
from pathlib import Path

from sidestream import deliverables
from sidestream.errors import ConfigurationError
from sidestream.stream.parts import File

MAX_NAME_BYTES = 180
"""Below the usual limit of 255, with space for a number and for other encodings."""
MAX_EXTENSION_CHARS = 16
MAX_ATTEMPTS = 10_000
FALLBACK = "file"

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_FORBIDDEN = re.compile(r'[<>:"|?*]')
_DRIVE = re.compile(r"^[A-Za-z]:")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|(?:com|lpt)[0-9¹²³])", re.IGNORECASE)
"""Names that are devices on Windows, whatever their extension."""


def safe_name(name: str | None, mime_type: str) -> str:
    """A safe file name: no path, no device name, not hidden, no invisible characters, no leading dash.

    A name without an extension gets the one of its MIME type.
    """
    base = re.split(r"[/\\]", name or "")[-1]
    base = "".join(c for c in unicodedata.normalize("NFC", base) if unicodedata.category(c) not in _INVISIBLE)
    base = _FORBIDDEN.sub("_", _DRIVE.sub("", base))
    base = " ".join(base.split()).lstrip(".-~ ").rstrip(". ")
    stem, extension = _split_extension(base or FALLBACK)
    if _RESERVED.fullmatch(stem.split(".")[0].rstrip()):
        stem = f"{FALLBACK}-{stem}"
    extension = extension or "." + deliverables.extension(mime_type)
    max_bytes = MAX_NAME_BYTES - len(extension.encode())
    return (_truncated(stem, max_bytes).rstrip(". ") or FALLBACK) + extension


def _split_extension(name: str) -> tuple[str, str]:
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or not extension.strip() or len(extension) > MAX_EXTENSION_CHARS:
        return name, ""
    return stem, dot + extension


def _truncated(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode("utf-8", "ignore")


class OutputFolder:
    """A folder for generated files. Raises ConfigurationError if it cannot be created."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._names: set[str] = set()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot save files to {self.path}: {error.strerror}") from error

    def save(self, file: File) -> Path | None:
        """Writes the file under an unused name and returns its path; None if the file has a URL but no content.

        Raises OSError if it cannot be written, and leaves no partial file behind.
        """
        if file.data is None:
            return None
        path, handle = self._open(safe_name(file.name or file.id, file.mime_type))
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(file.data)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        return path

    def _open(self, name: str) -> tuple[Path, int]:
        stem, extension = _split_extension(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        for number in range(MAX_ATTEMPTS):
            candidate = f"{stem}-{number}{extension}" if number else name
            # Names that differ only in case are the same file on some systems.
            if candidate.casefold() in self._names:
                continue
            path = self.path / candidate
            try:
                handle = os.open(path, flags, 0o666)
            except FileExistsError:
                continue
            self._names.add(candidate.casefold())
            return path, handle
        raise FileExistsError(f"{MAX_ATTEMPTS} files named {name} already exist")
