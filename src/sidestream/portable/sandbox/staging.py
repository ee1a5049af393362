"""For root: makes files that only root can reach visible to a process that has dropped its user.

A thread can have a mount namespace of its own. In it the files are bound below a folder that anyone may enter. What the
thread starts inherits the view; nobody else sees it, and it is gone with the thread.
"""

import ctypes
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sidestream.portable.sandbox.port import SandboxError
from sidestream.portable.sandbox.workspace import User

_PUBLIC_FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm")
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2


def is_reachable(path: str, user: User | None = None) -> bool:
    """True if the user, or any user, may read the path: each folder above it can be entered, and it can be read."""
    place = os.path.realpath(path)
    try:
        status = os.stat(place)
        needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
        above = [_rights(os.stat(folder), user) for folder in Path(place).parents]
    except OSError:
        return False
    return _rights(status, user) & needed == needed and all(rights & stat.S_IXOTH for rights in above)


def _rights(status: os.stat_result, user: User | None) -> int:
    """The mode bits that count for the user, where those for others are."""
    if user is not None and user.uid == status.st_uid:
        return status.st_mode >> 6 & 0o7
    if user is not None and user.gid == status.st_gid:
        return status.st_mode >> 3 & 0o7
    return status.st_mode & 0o7


def reachable_folder() -> str:
    """A folder for temporary files that any user may enter: `TMPDIR` may be a private one."""
    return next(filter(is_reachable, (tempfile.gettempdir(), *_PUBLIC_FOLDERS)), tempfile.gettempdir())


class Stage:
    """The view of one thread. Every method is called by that thread."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folder = tempfile.mkdtemp(prefix="sidestream-stage-", dir=reachable_folder())
        self._staged: dict[str, str] = {}
        self._views: dict[str, str] = {}
        try:
            self._call("unshare", self._libc.unshare(_CLONE_NEWNS))
            self._mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
            self._mount(b"tmpfs", os.fsencode(self._folder), b"tmpfs", _MS_NOSUID | _MS_NODEV)
            os.chmod(self._folder, 0o755)
        except OSError as error:
            os.rmdir(self._folder)
            raise SandboxError(
                "this process is root but may not create a mount namespace, and no other user can read its interpreter "
                f"({error}). Run as another user, install Python where every user can read it, or allow CAP_SYS_ADMIN"
            ) from error

    def view(self, path: str) -> str:
        """Where an unprivileged process that this thread starts finds the file or folder."""
        if path not in self._views:
            self._views[path] = path if is_reachable(path) else self.views((path,))[0]
        return self._views[path]

    def views(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """The same for files that must stay beside each other."""
        key = "\0".join(paths)
        if key not in self._staged:
            place = os.path.join(self._folder, str(len(self._staged)))
            os.mkdir(place, 0o755)
            for path in paths:
                target = os.path.join(place, os.path.basename(path))
                if os.path.isdir(path):
                    os.mkdir(target, 0o755)
                else:
                    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
                self._mount(os.fsencode(path), os.fsencode(target), None, _MS_BIND | _MS_REC)
            self._staged[key] = place
        return tuple(os.path.join(self._staged[key], os.path.basename(path)) for path in paths)

    @contextmanager
    def lent(self, folder: int) -> Generator[str]:
        """Where such a process finds an open folder, until the end of the context."""
        place = tempfile.mkdtemp(dir=self._folder)
        try:
            self._mount(f"/proc/self/fd/{folder}".encode(), os.fsencode(place), None, _MS_BIND | _MS_REC)
            try:
                yield place
            finally:
                self._libc.umount2(os.fsencode(place), _MNT_DETACH)
        finally:
            os.rmdir(place)

    def close(self) -> None:
        """Removes the folder; the mounts in it end with the thread."""
        self._libc.umount2(os.fsencode(self._folder), _MNT_DETACH)
        os.rmdir(self._folder)

    def _mount(self, source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
        self._call(f"mount {os.fsdecode(source)}", self._libc.mount(source, target, kind, flags, None))

    def _call(self, name: str, result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
