"""Platform folders for data and configuration, and files in them that only the user can read.

Does not use platformdirs, which is part of an extra: files must be found whichever extras are installed.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE = 1 << 30


def data_folder() -> Path:
    """Return the folder for data that the program stores."""
    return _folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """Return the folder for the user's configuration."""
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, usual: str) -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "sidestream"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "sidestream"
    # The XDG specification ignores relative paths.
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else home / usual) / "sidestream"


def write_private(file: Path, content: str | bytes) -> None:
    """Replace the file atomically, with mode 0600, and create its folder if missing.

    Raises OSError if the file cannot be written.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as opened:
            opened.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Lock an open file against other processes. Return False if another process holds the lock."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)  # Locked bytes are unreadable on Windows.
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock an open file against other processes. Return False if another process holds the lock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
