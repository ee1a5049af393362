"""Saves what a run makes: safe names, inside the folder, and never over another file."""

import os
import re
import unicodedata
from contextlib import suppress
from pathlib import Path

from sidestream import deliverables
from sidestream.errors import ConfigurationError
from sidestream.stream.parts import File

MAX_NAME_BYTES = 180
"""Below the 255 of usual file systems, with room for a number and for other encodings."""
MAX_ENDING_CHARS = 16
MAX_TRIES = 10_000
FALLBACK = "file"

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_FORBIDDEN = re.compile(r'[<>:"|?*]')
_DRIVE = re.compile(r"^[A-Za-z]:")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|(?:com|lpt)[0-9¹²³])", re.IGNORECASE)
"""Names that are devices on Windows, whatever their ending."""


def safe_name(name: str | None, mime_type: str) -> str:
    """A file name that is only a name: no folder, no device, nothing hidden, nothing that reads like an option.

    A name without an ending gets the one of its media type.
    """
    base = re.split(r"[/\\]", name or "")[-1]
    base = "".join(c for c in unicodedata.normalize("NFC", base) if unicodedata.category(c) not in _INVISIBLE)
    base = _FORBIDDEN.sub("_", _DRIVE.sub("", base))
    base = " ".join(base.split()).lstrip(".-~ ").rstrip(". ")
    stem, ending = _taken_apart(base or FALLBACK)
    if _RESERVED.fullmatch(stem.split(".")[0].rstrip()):
        stem = f"{FALLBACK}-{stem}"
    ending = ending or "." + deliverables.extension(mime_type)
    room = MAX_NAME_BYTES - len(ending.encode())
    return (_cut(stem, room).rstrip(". ") or FALLBACK) + ending


def _taken_apart(name: str) -> tuple[str, str]:
    stem, dot, ending = name.rpartition(".")
    if not dot or not stem or not ending.strip() or len(ending) > MAX_ENDING_CHARS:
        return name, ""
    return stem, dot + ending


def _cut(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode("utf-8", "ignore")


class OutputFolder:
    """Where files are saved."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._names: set[str] = set()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot save files to {self.path}: {error.strerror}") from error

    def save(self, file: File) -> Path | None:
        """Writes the file under a name that is free, and returns its path; None where only its address is known.

        Raises OSError where it cannot be written; nothing is left behind then.
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
        stem, ending = _taken_apart(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        for number in range(MAX_TRIES):
            candidate = f"{stem}-{number}{ending}" if number else name
            # Two names that differ in case only are one name elsewhere.
            if candidate.casefold() in self._names:
                continue
            path = self.path / candidate
            try:
                handle = os.open(path, flags, 0o666)
            except FileExistsError:
                continue
            self._names.add(candidate.casefold())
            return path, handle
        raise FileExistsError(f"{MAX_TRIES} files are called {name}")
