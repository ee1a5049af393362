"""User folders in a container: the user that works on them, special files, and staging for root."""

import ctypes
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sidestream.logs import get_logger
from sidestream.portable.sandbox.port import SandboxError

UNPRIVILEGED = 65534
"""User and group inside a container, and outside for a container without a workspace that root starts."""

_KERNEL_FILE_SYSTEMS = frozenset({
    "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "mqueue", "nfsd", "nsfs", "proc", "pstore", "resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
_log = get_logger(__name__)


class RootWorkspaceWarning(UserWarning):
    """A model's commands run as root in a folder of this machine."""


class User(NamedTuple):
    """User and group of a process."""

    uid: int
    gid: int


def container_user(workspace: str | None, *, allow_root: bool = False, drops_user: bool = True) -> User | None:
    """Return the user for a container's processes. None means the user who runs this program.

    Root runs a container as the owner of its workspace, or as an unprivileged user. Raises SandboxError if the owner is
    root, or if the sandbox cannot drop the user, unless `allow_root` is set.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    if workspace is None:
        return User(UNPRIVILEGED, UNPRIVILEGED) if drops_user else None
    try:
        owner = os.stat(workspace)
    except OSError as error:
        raise SandboxError(f"the workspace {workspace!r} cannot be used: {error.strerror}") from error
    if owner.st_uid != 0 and drops_user:
        return User(owner.st_uid, owner.st_gid or _primary_group(owner.st_uid))
    if not allow_root:
        why, fix = (
            (f"the workspace {workspace!r} belongs to root", "give the folder to one (chown -R USER)")
            if drops_user
            else ('sandbox="none" keeps the user', 'use the sandbox "bubblewrap"')
        )
        raise SandboxError(
            f"commands must not run as root: {why}, and root runs this program. Run it as another user, or {fix}; "
            "Shell(workspace=…, allow_root=True) runs them as root all the same"
        )
    return None


def warn_of_root(workspace: str) -> None:
    """Warn that commands run as root in the folder, in the log and as a warning."""
    text = f"allow_root=True: commands of a model run as root on {workspace}, and may change every file of root's in it"
    _log.warning(text)
    warnings.warn(text, RootWorkspaceWarning, stacklevel=2)


def _primary_group(uid: int) -> int:
    """Return a group other than root's, for a folder with root's group."""
    import pwd

    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_gid or UNPRIVILEGED
    return UNPRIVILEGED


def check_mounts(workspace: str) -> None:
    """Raise SandboxError if the folder is part of a kernel file system or contains one, e.g. the /proc of a chroot."""
    covering, kind = "", ""
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        point, type_ = _unescaped(before.split(" ")[4]), after.split(" ")[0]
        if _is_below(point, workspace) and type_ in _KERNEL_FILE_SYSTEMS:
            raise SandboxError(
                f"the workspace {workspace!r} contains {point}, a {type_} file system: use another folder"
            )
        if _is_below(workspace, point) and len(point) >= len(covering):
            covering, kind = point, type_
    if kind in _KERNEL_FILE_SYSTEMS:
        raise SandboxError(
            f"the workspace {workspace!r} is part of {covering}, a {kind} file system: use another folder"
        )


def sockets_in(workspace: str) -> list[str]:
    """Return the sockets in the folder on which a host process listens, relative to it.

    No namespace separates a container from them. A socket bound with a relative path is not found.
    """
    found: set[str] = set()
    for line in _lines("/proc/net/unix"):
        path = (line.split(maxsplit=7) + [""] * 8)[7]
        if path.startswith(f"{workspace}/") and os.path.realpath(path) == path:
            with suppress(OSError):
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    found.add(os.path.relpath(path, workspace))
    return sorted(found)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text("utf-8", "surrogateescape").splitlines()
    return []


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


_PUBLIC_FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm")
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2


def is_reachable(path: str, user: User | None = None) -> bool:
    """Return whether the user, or any user, may read the path.

    Each folder above it must be enterable, and the path itself readable.
    """
    place = os.path.realpath(path)
    try:
        status = os.stat(place)
        needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
        above = [_rights(os.stat(folder), user) for folder in Path(place).parents]
    except OSError:
        return False
    return _rights(status, user) & needed == needed and all(rights & stat.S_IXOTH for rights in above)


def _rights(status: os.stat_result, user: User | None) -> int:
    """Return the mode bits that apply to the user, shifted to the position of those for others."""
    if user is not None and user.uid == status.st_uid:
        return status.st_mode >> 6 & 0o7
    if user is not None and user.gid == status.st_gid:
        return status.st_mode >> 3 & 0o7
    return status.st_mode & 0o7


def reachable_folder() -> str:
    """Return a folder for temporary files that any user may enter, since `TMPDIR` may be private."""
    return next(filter(is_reachable, (tempfile.gettempdir(), *_PUBLIC_FOLDERS)), tempfile.gettempdir())


class Stage:
    """A mount namespace of one thread, in which unprivileged processes reach private files.

    Only that thread may call its methods.
    """

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
        """Return a path at which an unprivileged process of this thread finds the file or folder."""
        if path not in self._views:
            self._views[path] = path if is_reachable(path) else self.views((path,))[0]
        return self._views[path]

    def views(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return such paths for files that must stay beside each other."""
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
        """Yield a path at which such a process finds an open folder, during the block."""
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
        """Remove the folder. The mounts in it end with the thread."""
        self._libc.umount2(os.fsencode(self._folder), _MNT_DETACH)
        os.rmdir(self._folder)

    def _mount(self, source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
        self._call(f"mount {os.fsdecode(source)}", self._libc.mount(source, target, kind, flags, None))

    def _call(self, name: str, result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
