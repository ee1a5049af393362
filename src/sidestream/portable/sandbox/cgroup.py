"""Memory and processes of a container as a whole, where this process may create a cgroup. Elsewhere the limits of each
process hold."""

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

from sidestream.limits import SandboxLimits

_ROOT = Path("/sys/fs/cgroup")


class Group:
    """The folders of a container's cgroup: one, or with the older version one for each kind."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Moves a process into it, with what it will start."""
        for folder in self._folders:
            with suppress(OSError):
                (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Removes it; if the kernel has not forgotten its processes yet, with the next one."""
        _leftover.update(self._folders)
        for folder in list(_leftover):
            with suppress(OSError):
                folder.rmdir()
                _leftover.discard(folder)


_leftover: set[Path] = set()


def create(limits: SandboxLimits) -> Group | None:
    """A new group with these limits; None where none may be had."""
    name = f"sidestream-{os.getpid()}-{secrets.token_hex(4)}"
    parents = _parents()
    folders: list[Path] = []
    for parent, settings in parents:
        folder = parent / name
        try:
            folder.mkdir()
            folders.append(folder)
            for file, value in settings.items():
                (folder / file).write_text(value.format(memory=limits.memory_bytes, processes=limits.processes))
        except OSError:
            Group(folders).remove()
            return None
    return Group(folders) if folders else None


@cache
def _parents() -> tuple[tuple[Path, dict[str, str]], ...]:
    """The folders in which groups can be created, and what is written into a group."""
    own = _own_groups()
    if (_ROOT / "cgroup.controllers").exists():
        settings = {"memory.max": "{memory}", "memory.swap.max": "0", "pids.max": "{processes}"}
        here = _ROOT / own.get("", "/").lstrip("/")
        for parent in (here.parent, here, _ROOT):
            with suppress(OSError):
                controllers = (parent / "cgroup.subtree_control").read_text().split()
                if {"memory", "pids"} <= set(controllers) and os.access(parent, os.W_OK):
                    return ((parent, settings),)
        return ()
    older = {"memory": {"memory.limit_in_bytes": "{memory}"}, "pids": {"pids.max": "{processes}"}}
    folders = [(_ROOT / kind / own.get(kind, "/").lstrip("/"), settings) for kind, settings in older.items()]
    return tuple(folders) if all(os.access(folder, os.W_OK) for folder, _ in folders) else ()


def _own_groups() -> dict[str, str]:
    """Controller → the group of this process; version 2 has the empty name."""
    groups: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            groups |= dict.fromkeys(names.split(","), path)
    return groups
