"""The first program in a bubblewrap container. It drops every privilege, then becomes the kernel.

    enter.pyc {may-hide | must-hide} FILTER EMPTY FOLDER:BYTES:FILES … -- KERNEL ARGUMENT …

A script that imports nothing of ours. bubblewrap leaves it three capabilities over its own namespaces. With them it
covers what the host's kernel shows in /proc, mounts the folders in memory with a number of files, and moves into a
copy of the mounts that no namespace lists: /proc/PID/mountinfo would name the host's folders. Where a security module
takes the capabilities away, that is left out, unless it must be done. The filter of system calls is set last. No code
of a model has run by then, and none runs if a step fails.
"""

import ctypes
import marshal
import os
import sys

KEPT = frozenset({
    "cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "sys", "thread-self", "uptime",
    "version", "vmstat",
})  # fmt: skip
"""Entries of /proc that stay besides processes. Programs measure memory, time and processors with them."""

_CLONE_NEWNS = 0x00020000
_NOSUID, _NODEV, _NOEXEC, _READ_ONLY, _BIND = 2, 4, 8, 1, 0x1000
_OPEN_TREE, _CLONED = 428, 0x80000 | 0x8000 | 1
"""System call number on every machine, and O_CLOEXEC, AT_RECURSIVE and OPEN_TREE_CLONE."""
_CAPBSET_DROP, _CAP_AMBIENT, _CLEAR_ALL, _SET_SECCOMP, _MODE_FILTER = 24, 47, 4, 22, 2
_CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(name: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: "str | None", flags: int, data: "str | None" = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind, data)]
    check(f"mount {target}", libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]))


def hide(empty: str, folders: "list[str]") -> None:
    """Cover and limit what is mounted, and hide the mounts.

    Raises OSError where the process may not do that.
    """
    check("unshare", libc.unshare(_CLONE_NEWNS))
    for name in os.listdir("/proc"):
        path = f"/proc/{name}"
        if name.isdigit() or name in KEPT or os.path.islink(path):
            continue
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV | _NOEXEC | _READ_ONLY, "size=4096,nr_inodes=1")
        else:
            mount(empty, path, None, _BIND)  # read-only, like the mount of the empty file
    for folder in folders:
        path, size, files = folder.rsplit(":", 2)
        mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"size={size},nr_inodes={files},mode=755")
    # The copy has no name in this namespace, so mountinfo, which lists reachable mounts, lists nothing.
    tree = libc.syscall(ctypes.c_long(_OPEN_TREE), ctypes.c_int(-100), b"/", ctypes.c_uint(_CLONED))
    if tree >= 0:  # kernels before 5.2 lack this call
        os.fchdir(tree)
        os.chroot(".")
        os.close(tree)


def close(filter_path: str, *, is_hidden: bool) -> None:
    """Drop the capabilities permanently and set the filter.

    Exits unless the kernel confirms both.
    """
    number = ctypes.c_ulong
    libc.prctl(_CAP_AMBIENT, number(_CLEAR_ALL), number(0), number(0), number(0))
    for capability in range(64):
        if libc.prctl(_CAPBSET_DROP, number(capability), number(0), number(0), number(0)) < 0:
            break
    check("capset", libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()))
    with open(filter_path, "rb") as file:
        code = file.read()

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    program = Program(len(code) // 8, code)
    check("seccomp", libc.prctl(_SET_SECCOMP, number(_MODE_FILTER), ctypes.byref(program), number(0), number(0)))
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    # Without CAP_SETPCAP the bounding set keeps the three; nothing can gain them.
    sets = ("CapInh", "CapPrm", "CapEff", "CapAmb", *(("CapBnd",) if is_hidden else ()))
    wrong = [name for name in sets if int(status[name], 16)]
    wrong += [name for name, value in {"NoNewPrivs": "1", "Seccomp": "2"}.items() if status[name] != value]
    if wrong:
        raise SystemExit(f"the container could not be closed: {', '.join(wrong)}")


def enter() -> str:
    """Close the container, and return the path of the kernel.

    `sys.argv` then holds the kernel's arguments.
    """
    how, filter_path, empty, *rest = sys.argv[1:]
    folders, (kernel, *arguments) = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    here = os.getcwd()
    is_hidden = True
    try:
        hide(empty, folders)
    except OSError:
        is_hidden = False
        if how == "must-hide":
            raise
    os.chdir(here)
    close(filter_path, is_hidden=is_hidden)
    sys.argv[:] = [kernel, *arguments]
    return kernel


try:
    path = enter()
except OSError as failure:
    raise SystemExit(f"the container could not be closed: {failure.strerror}") from None
with open(path, "rb") as file:
    code = marshal.loads(file.read()[16:])
exec(code, {"__name__": "__main__", "__file__": path, "__builtins__": __builtins__})
