"""Saving files under safe names, without overwriting others."""

import os
import re
import unicodedata
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from sidestream.files import media_types

MAX_NAME_BYTES = 180
"""Below the usual limit of 255, leaving room for a number and for other encodings."""
MAX_EXTENSION_CHARS = 16
MAX_ATTEMPTS = 10_000
FALLBACK = "file"

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_FORBIDDEN = re.compile(r'[<>:"|?*]')
_DRIVE = re.compile(r"^[A-Za-z]:")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|(?:com|lpt)[0-9¹²³])", re.IGNORECASE)
"""Names of Windows devices, which are reserved with any extension."""


def safe_name(name: str | None, mime_type: str | None) -> str:
    """Return a safe file name: no path, device name or invisible characters, not hidden, no leading dash.

    A name without an extension gets the one of its MIME type; without a MIME type it stays as it is.
    """
    base = re.split(r"[/\\]", name or "")[-1]
    base = "".join(c for c in unicodedata.normalize("NFC", base) if unicodedata.category(c) not in _INVISIBLE)
    base = _FORBIDDEN.sub("_", _DRIVE.sub("", base))
    base = " ".join(base.split()).lstrip(".-~ ").rstrip(". ")
    stem, extension = _split_extension(base or FALLBACK)
    if _RESERVED.fullmatch(stem.split(".")[0].rstrip()):
        stem = f"{FALLBACK}-{stem}"
    extension = extension or ("." + media_types.extension(mime_type) if mime_type else "")
    max_bytes = MAX_NAME_BYTES - len(extension.encode())
    return (_truncated(stem, max_bytes).rstrip(". ") or FALLBACK) + extension


def _split_extension(name: str) -> tuple[str, str]:
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem or not extension.strip() or len(extension) > MAX_EXTENSION_CHARS:
        return name, ""
    return stem, dot + extension


def _truncated(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode("utf-8", "ignore")


def save(data: bytes, path: str | Path, name: str | None, mime_type: str, *, overwrite: bool = False) -> Path:
    """Write the bytes to a file, or into a folder under a safe and unused name, and return the file's path.

    The path is a folder if it exists as one or ends in a slash. Raises FileExistsError if it is an existing file,
    unless `overwrite` is set.
    """
    if str(path).endswith(("/", os.sep)) or os.path.isdir(path):
        return save_to(data, path, name, mime_type, overwrite=overwrite)
    path = Path(path)
    try:
        with path.open("wb" if overwrite else "xb") as opened:
            opened.write(data)
    except FileExistsError:
        advice = "pass overwrite=True to replace it, or use save_to(folder)"
        raise FileExistsError(f"{path} already exists: {advice}") from None
    return path


def save_to(data: bytes, folder: str | Path, name: str | None, mime_type: str, *, overwrite: bool = False) -> Path:
    """Write the bytes into a folder, which is created if missing, and return the file's path.

    Its name is safe, and numbered if it is used already, unless `overwrite` is set.
    """
    folder, name = Path(folder), safe_name(name, mime_type)
    folder.mkdir(parents=True, exist_ok=True)
    if not overwrite:
        return save_in(folder, data, name)
    (folder / name).write_bytes(data)
    return folder / name


def save_in(folder: Path, data: bytes, name: str, taken: Collection[str] = ()) -> Path:
    """Write the bytes under this name, numbered if it exists or is in `taken` (casefolded).

    Leaves no partial file behind. Raises OSError if the bytes cannot be written.
    """
    path, handle = _create(folder, name, taken)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def _create(folder: Path, name: str, taken: Collection[str]) -> tuple[Path, int]:
    stem, extension = _split_extension(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for number in range(MAX_ATTEMPTS):
        candidate = f"{stem}-{number}{extension}" if number else name
        if candidate.casefold() in taken:
            continue
        path = folder / candidate
        try:
            return path, os.open(path, flags, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(f"{MAX_ATTEMPTS} files named {name} already exist")
