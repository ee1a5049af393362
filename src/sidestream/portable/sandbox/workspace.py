"""A folder of the user's in a container: as whom commands work on it, and what in it is more than a file."""

import os
import re
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sidestream.logs import get_logger
from sidestream.portable.sandbox.port import SandboxError

UNPRIVILEGED = 65534
"""The user and group inside a container, and outside for one without a workspace that root starts."""

_KERNEL_FILE_SYSTEMS = frozenset({
    "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "mqueue", "nfsd", "nsfs", "proc", "pstore", "resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
_log = get_logger(__name__)


class RootWorkspaceWarning(UserWarning):
    """Commands of a model run as root on a folder of this machine."""


class User(NamedTuple):
    """Whom a process runs as."""

    uid: int
    gid: int


def container_user(workspace: str | None, *, allow_root: bool = False, drops_user: bool = True) -> User | None:
    """Return whom the processes of a container run as; None means whoever runs this program.

    Root hands a container to the owner of its workspace, or to nobody. Raises SandboxError if the owner is root, or the
    sandbox cannot drop the user, unless `allow_root` is set.
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
    """Say that commands run as root on the folder, in the log and as a warning."""
    text = f"allow_root=True: commands of a model run as root on {workspace}, and may change every file of root's in it"
    _log.warning(text)
    warnings.warn(text, RootWorkspaceWarning, stacklevel=2)


def _primary_group(uid: int) -> int:
    """A group that is not root's, for a folder with root's group."""
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
    """Return the sockets in the folder on which a process of this machine listens, relative to it.

    No namespace separates a container from them. One that was bound with a relative path is not found.
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
