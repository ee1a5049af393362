"""Sandbox with gVisor, a kernel in user space, for users who prefer a separate kernel to bubblewrap's speed."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from pathlib import Path
from typing import Any

from sidestream.limits import MIB
from sidestream.portable.sandbox.launch import kernel_arguments, kernel_files, launch, new_id
from sidestream.portable.sandbox.port import FOLDER, Container, ContainerSpec, SandboxError
from sidestream.portable.sandbox.process import ProcessContainer
from sidestream.portable.sandbox.runtime import KERNEL, Mount, package_names, runtime
from sidestream.portable.sandbox.seccomp import filter_profile
from sidestream.portable.sandbox.worker import owned

_CAPABILITIES = ("bounding", "effective", "inheritable", "permitted", "ambient")
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_SHARED_MEMORY_BYTES = 16 * MIB
_DEVICES_BYTES = 64 * 1024


class Runsc:
    """The sandbox of `CodeInterpreter(sandbox="runsc")`."""

    name = "runsc"

    async def start(self, spec: ContainerSpec) -> Container:
        if sys.platform != "linux" or shutil.which("runsc") is None:
            raise SandboxError("runsc is not installed: apt install runsc, or see gVisor's documentation")
        if spec.workspace is not None:
            raise SandboxError('a workspace folder needs the sandbox "bubblewrap"')
        return await owned(lambda: _start(spec))


async def _start(spec: ContainerSpec) -> ProcessContainer:
    identity = new_id()
    place = Path(tempfile.mkdtemp(prefix="sidestream-runsc-"))
    program = [shutil.which("runsc") or "runsc", "--root", str(place / "state")]
    program += ["--network=none", "--ignore-cgroups", "--oci-seccomp"]
    program += ["--rootless"] if os.geteuid() else []
    container: ProcessContainer | None = None
    try:
        (place / "rootfs").mkdir()
        (place / "kernel").mkdir()
        for name, data in kernel_files().items():
            (place / "kernel" / name).write_bytes(data)
        (place / "config.json").write_text(json.dumps(_bundle(spec, place)))
        with launch() as starting:
            # The program finds helpers by PATH; the environment is not passed on.
            command = [*program, "run", "--bundle", str(place), identity]
            started = await starting.start(command, env={"PATH": os.defpath})
        container = ProcessContainer(identity, started, spec.limits)
        container.stop = lambda: _delete([*program, "delete", "--force", identity])
        container.pause = lambda is_paused: _pause([*program, "pause" if is_paused else "resume", identity])
        container.on_end.append(lambda: shutil.rmtree(place, ignore_errors=True))
        await container.ready()
    except BaseException:
        if container is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return container


async def _delete(command: list[str]) -> None:
    """Run `runsc delete` or another command, and wait for it.

    The sandbox's processes do not end with the one that started them.
    """
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env={})
    await process.wait()


async def _pause(command: list[str]) -> bool:
    """Pause or resume the sandbox, whose processes are not individually visible to the host."""
    await _delete(command)
    return True


def _bundle(spec: ContainerSpec, place: Path) -> dict[str, Any]:
    seen = runtime(package_names(spec.packages))
    targets = {path: Mount(os.path.realpath(path), path) for _, path in seen.links}
    kernel = Mount(str(place / "kernel"), KERNEL)
    mounts = [_bind(mount) for mount in (*seen.mounts, *targets.values(), kernel)]
    size = spec.limits.disk_bytes
    mounts += [_memory(folder, 4096) for folder in seen.hidden]
    sizes = {"/dev": _DEVICES_BYTES, "/dev/shm": _SHARED_MEMORY_BYTES, "/tmp": size, FOLDER: size}
    mounts += [_memory(folder, bound) for folder, bound in sizes.items()]
    mounts += [_memory("/sys", 4096, "ro")]  # otherwise gVisor mounts its own
    # Uid 0 in the sandbox is unprivileged outside; with another one, rootless gVisor cannot write its own folders.
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["ro"]}, *mounts],
        "linux": {"namespaces": [{"type": kind} for kind in _NAMESPACES], "seccomp": filter_profile()},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": FOLDER,
            "noNewPrivileges": True,
            "capabilities": {kind: [] for kind in _CAPABILITIES},
            "env": [f"{name}={value}" for name, value in seen.environment.items()],
            "args": [
                *(seen.python, "-I", "-S", "-B", "-X", "utf8", f"{KERNEL}/kernel.pyc"),
                *kernel_arguments(spec.limits),
            ],
        },
    }


def _bind(mount: Mount) -> dict[str, Any]:
    return {"destination": mount.target, "type": "bind", "source": mount.source, "options": ["ro", "rbind"]}


def _memory(folder: str, size: int, *more: str) -> dict[str, Any]:
    options = [f"size={size}", "nosuid", "nodev", *more]
    return {"destination": folder, "type": "tmpfs", "source": "tmpfs", "options": options}
