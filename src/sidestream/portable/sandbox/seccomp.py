"""The system call filter of a sandbox: a deny-list as classic BPF, without a library.

Namespaces hide the host; this removes the parts of the kernel that code in a sandbox has no use for and that most
exploits go through. A denied call fails with EPERM, as it would without the privilege.
"""

import errno
import platform
import struct

from msgspec import Struct

_LOAD, _EQUAL, _AND_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
"""Load a word of the call's data; jump if equal; jump if a bit is set; return a verdict."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
"""Set in the numbers of the x32 ABI, which would bypass the list."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; NEWTIME is none of clone."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Terminal requests that type or paste into the terminal of whoever started us."""


class Architecture(Struct, frozen=True):
    """The audit number of a machine, and its numbers for the calls that are denied."""

    audit: int
    denied: dict[str, int]
    clone: int
    clone3: int
    ioctl: int
    has_x32: bool = False


_X86_64 = Architecture(
    audit=0xC000003E,
    denied={
        "ptrace": 101, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "mount_setattr": 442,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "open_tree_attr": 467, "bpf": 321, "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "perf_event_open": 298,
        "unshare": 272, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135, "pidfd_getfd": 438, "kcmp": 312,
        "syslog": 103, "acct": 163, "swapon": 167, "swapoff": 168, "reboot": 169, "settimeofday": 164,
        "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305, "quotactl": 179, "quotactl_fd": 443,
        "lookup_dcookie": 212, "move_pages": 279, "migrate_pages": 256, "mbind": 237, "set_mempolicy": 238,
        "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134, "vhangup": 153, "fanotify_init": 300,
    },
    clone=56,
    clone3=435,
    ioctl=16,
    has_x32=True,
)  # fmt: skip

_AARCH64 = Architecture(
    audit=0xC00000B7,
    denied={
        "ptrace": 117, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "mount_setattr": 442,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "open_tree_attr": 467, "bpf": 280, "add_key": 217, "request_key": 218, "keyctl": 219, "userfaultfd": 282,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "perf_event_open": 241,
        "unshare": 97, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "process_madvise": 440,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "personality": 92, "pidfd_getfd": 438, "kcmp": 272,
        "syslog": 116, "acct": 89, "swapon": 224, "swapoff": 225, "reboot": 142, "settimeofday": 170,
        "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "quotactl": 60, "quotactl_fd": 443,
        "lookup_dcookie": 18, "move_pages": 239, "migrate_pages": 238, "mbind": 235, "set_mempolicy": 237,
        "vhangup": 58, "fanotify_init": 262,
    },
    clone=220,
    clone3=435,
    ioctl=29,
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter for this machine, as `bwrap --seccomp` reads it; None for a machine whose numbers are unknown."""
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return None
    deny = _ERRNO | errno.EPERM
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        *_verdict_unless(architecture.audit, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    if architecture.has_x32:
        program += [_jump(_AND_SET, _X32, 0, 1), _statement(_RETURN, deny)]
    # glibc and musl fall back to clone, whose flags a filter can read.
    program += _verdict_if(architecture.clone3, _ERRNO | errno.ENOSYS)
    for number in architecture.denied.values():
        program += _verdict_if(number, deny)
    program += [
        _jump(_EQUAL, architecture.clone, 0, 4),
        _statement(_LOAD, _ARGUMENTS),
        _jump(_AND_SET, _NEW_NAMESPACES, 0, 1),
        _statement(_RETURN, deny),
        _statement(_RETURN, _ALLOW),
        _jump(_EQUAL, architecture.ioctl, 0, 5),
        _statement(_LOAD, _ARGUMENTS + 8),
        *_verdict_if(_TIOCSTI, deny),
        *_verdict_if(_TIOCLINUX, deny),
        _statement(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _verdict_if(value: int, verdict: int) -> list[bytes]:
    return [_jump(_EQUAL, value, 0, 1), _statement(_RETURN, verdict)]


def _verdict_unless(value: int, verdict: int) -> list[bytes]:
    return [_jump(_EQUAL, value, 1, 0), _statement(_RETURN, verdict)]


def _statement(code: int, operand: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, operand)


def _jump(code: int, operand: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)
