"""Files that only the user can read, replaced atomically: a reader sees the old content or the new."""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Replaces the file, with mode 0600, and creates its folder if there is none. Raises OSError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
