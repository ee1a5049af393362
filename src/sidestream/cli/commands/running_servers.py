"""The user's running servers. Each keeps its URL and owner token in a separate file.

Only the user can read the files. A server holds a lock on its file, so a file without a lock belongs to a killed
server.
"""

import hmac
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote

import msgspec

from sidestream.files.folders import NO_FOLLOW, data_folder, try_lock, write_private
from sidestream.text.redaction import register_secret


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's entry in its file."""

    url: str
    token: str | None
    """Owner token. None means that the server needs none."""
    pid: int
    machine: str
    folder: str
    """Folder in which the server was started."""

    @property
    def owner_url(self) -> str:
        """The URL that opens the web UI as the owner."""
        return with_token(self.url, self.token)


class ServerFile:
    """The file of the server in this process."""

    def __init__(self, url: str, token: str | None) -> None:
        self._path = _folder() / f"{platform.node()[:64]}-{os.getpid()}-{os.urandom(4).hex()}.json"
        self._descriptor = -1
        server = RunningServer(url=url, token=token, pid=os.getpid(), machine=platform.node(), folder=os.getcwd())
        self._content = msgspec.json.encode(server)

    def create(self) -> None:
        """Write the file, and remove those of killed servers. Raises OSError if the file cannot be written."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name != "nt":
            self._path.parent.chmod(0o700)
        list(running_servers())
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o600)
        try_lock(self._descriptor)  # Lock it before writing: a file with content but no lock belongs to a dead server.
        os.write(self._descriptor, self._content)

    def remove(self) -> None:
        """Remove the file. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with suppress(OSError):
                self._path.unlink()


def running_servers() -> Iterator[RunningServer]:
    """Yield the user's running servers on this machine, and remove the files of killed ones."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for file in sorted(_folder().glob("*.json")):
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                if (found := _read(file)) is not None:
                    yield found


def page_cookie(port: int) -> str:
    """Return the owner's cookie for this port, which survives restarts. Raises OSError if its key cannot be stored."""
    file = _folder() / "pages.key"
    if not _is_private(file):
        write_private(file, secrets.token_urlsafe(32))
    return hmac.new(file.read_bytes(), str(port).encode(), "sha256").hexdigest()


def with_token(url: str, token: str | None) -> str:
    """Return the URL with the token in its fragment, which browsers never send, so no server or proxy logs it."""
    return f"{url}#token={quote(token, safe='')}" if token else url


def _folder() -> Path:
    return data_folder() / "servers"


def _is_private(file: Path) -> bool:
    """Return whether the file exists and only this user can read it."""
    try:
        return _is_own(file.lstat()) and file.stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_own(status: os.stat_result) -> bool:
    return os.name == "nt" or (status.st_uid == os.geteuid() and S_ISREG(status.st_mode) and not status.st_mode & 0o077)


def _read(file: Path) -> RunningServer | None:
    """Return a file's server, or None if it has ended or other users can access the file."""
    descriptor = os.open(file, os.O_RDWR | NO_FOLLOW)
    try:
        if not _is_own(os.fstat(descriptor)):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            found = msgspec.json.decode(opened.read(), type=RunningServer)
        if found.machine != platform.node():
            return None  # Several machines may share a home folder.
        if try_lock(descriptor):
            file.unlink()
            return None
    finally:
        os.close(descriptor)
    if found.token:
        register_secret(found.token)
    return found
