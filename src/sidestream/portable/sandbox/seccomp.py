"""System call filter of a sandbox: a deny-list as classic BPF, without a library.

Namespaces hide the host. The filter removes the parts of the kernel that sandboxed code does not need and that most
exploits use, memory that no limit counts, and modes and device files that would outlive the container in a workspace. A
denied call fails with EPERM, as it would without the privilege. A call that programs can do without fails with ENOSYS,
as in an older kernel, so that they use their fallback.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

_LOAD, _EQUAL, _AND_SET, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
"""Load a word of the call's data; jump if equal; jump if a bit is set; mask the word; return an action."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_DENY, _ABSENT, _NO_FAMILY = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ERRNO | errno.EAFNOSUPPORT
_X32 = 0x40000000
"""Bit in the numbers of the x32 ABI, which would bypass the list."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. NEWTIME is not a flag of clone."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Terminal requests that type or paste into the terminal of the parent program."""
_SET_ID_BITS = 0o6000
"""S_ISUID and S_ISGID. A program with one of them always runs as its owner or group."""
_FILE_TYPE, _DEVICES = 0o170000, (0o020000, 0o060000)
"""S_IFMT, and S_IFCHR and S_IFBLK."""
_O_CREAT = 0o100
_CREATES = _O_CREAT | 0o20000000
"""O_CREAT and the bit of O_TMPFILE. Without them `open` has no mode."""
_PROFILE_NAMES = {0xC000003E: "SCMP_ARCH_X86_64", 0xC00000B7: "SCMP_ARCH_AARCH64"}
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6. AF_VSOCK reaches the hypervisor from any network namespace. Python looks up names and
addresses without AF_NETLINK."""


class Mode(Struct, frozen=True):
    """A call that takes a file mode: its number, and the positions of the mode and the flags."""

    number: int
    mode: int
    flags: int | None = None


class Architecture(Struct, frozen=True):
    """A machine's audit number, and its numbers of the calls that are denied or checked."""

    audit: int
    denied: dict[str, int]
    absent: dict[str, int]
    """Calls that fail as unknown. openat2 has its mode, and clone3 its flags, in memory that a filter cannot read. A
    memfd_create file belongs to no size-limited folder and counts for no process."""
    modes: dict[str, Mode]
    nodes: dict[str, Mode]
    """Calls that create device files."""
    sockets: dict[str, int]
    clone: int
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
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "statmount": 457, "listmount": 458,
    },
    absent={"clone3": 435, "openat2": 437, "memfd_create": 319, "memfd_secret": 447},
    modes={
        "open": Mode(2, 2, 1), "openat": Mode(257, 3, 2), "creat": Mode(85, 1), "mkdir": Mode(83, 1),
        "mkdirat": Mode(258, 2), "chmod": Mode(90, 1), "fchmod": Mode(91, 1), "fchmodat": Mode(268, 2),
        "fchmodat2": Mode(452, 2),
    },
    nodes={"mknod": Mode(133, 1), "mknodat": Mode(259, 2)},
    sockets={"socket": 41, "socketpair": 53},
    clone=56,
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
        "vhangup": 58, "fanotify_init": 262, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
        "statmount": 457, "listmount": 458,
    },
    absent={"clone3": 435, "openat2": 437, "memfd_create": 279, "memfd_secret": 447},
    modes={
        "openat": Mode(56, 3, 2), "mkdirat": Mode(34, 2), "fchmod": Mode(52, 1), "fchmodat": Mode(53, 2),
        "fchmodat2": Mode(452, 2),
    },
    nodes={"mknodat": Mode(33, 2)},
    sockets={"socket": 198, "socketpair": 199},
    clone=220,
    ioctl=29,
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}


def filter_program(machine: str | None = None) -> bytes | None:
    """Return the filter for this machine in the kernel's format, or None if its call numbers are unknown."""
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return None
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        *_verdict_unless(architecture.audit, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    if architecture.has_x32:
        program += [_jump(_AND_SET, _X32, 0, 1), _statement(_RETURN, _DENY)]
    # glibc and musl fall back to clone, whose flags a filter can read.
    for number in architecture.absent.values():
        program += _verdict_if(number, _ABSENT)
    for number in architecture.denied.values():
        program += _verdict_if(number, _DENY)
    program += _checked(architecture.clone, [_argument(0), *_verdict_if_any(_NEW_NAMESPACES)])
    requests = [word for request in (_TIOCSTI, _TIOCLINUX) for word in _verdict_if(request, _DENY)]
    program += _checked(architecture.ioctl, [_argument(1), *requests])
    for call in architecture.modes.values():
        program += _checked(call.number, _mode_check(call))
    for call in architecture.nodes.values():
        types = [word for kind in _DEVICES for word in _verdict_if(kind, _DENY)]
        program += _checked(call.number, [*_mode_check(call), _statement(_AND, _FILE_TYPE), *types])
    for number in architecture.sockets.values():
        allowed = [word for family in _FAMILIES for word in _verdict_if(family, _ALLOW)]
        program += _checked(number, [_argument(0), *allowed, _statement(_RETURN, _NO_FAMILY)])
    return b"".join([*program, _statement(_RETURN, _ALLOW)])


def filter_profile(machine: str | None = None) -> dict[str, Any]:
    """Return gVisor's filter in the Open Container Initiative format, empty for an unknown machine.

    Sockets and terminals are those of gVisor's own kernel. clone3 is left out, since gVisor would deny it with EPERM,
    and glibc starts threads with it.
    """
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return {}
    absent = [name for name in architecture.absent if name != "clone3"]
    rules = [_rule(architecture.denied, errno.EPERM), _rule(absent, errno.ENOSYS)]
    rules += [
        _rule(["clone"], errno.EPERM, _condition(0, 1 << bit, 1 << bit))
        for bit in range(32)
        if _NEW_NAMESPACES & 1 << bit
    ]
    for call, mode in (architecture.modes | architecture.nodes).items():
        for bit in (0o4000, 0o2000):
            flags = [_condition(mode.flags, _O_CREAT, _O_CREAT)] if mode.flags is not None else []
            rules.append(_rule([call], errno.EPERM, *flags, _condition(mode.mode, bit, bit)))
    for call, mode in architecture.nodes.items():
        rules += [_rule([call], errno.EPERM, _condition(mode.mode, _FILE_TYPE, kind)) for kind in _DEVICES]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_PROFILE_NAMES[architecture.audit]],
        "syscalls": rules,
    }


def _rule(names: Iterable[str], error: int, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": [*names], "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": [*conditions]}


def _condition(argument: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _checked(number: int, check: Sequence[bytes]) -> list[bytes]:
    """Apply an argument check to one call, which is allowed if no instruction of the check returns."""
    return [_jump(_EQUAL, number, 0, len(check) + 1), *check, _statement(_RETURN, _ALLOW)]


def _mode_check(call: Mode) -> list[bytes]:
    """Deny set-uid and set-gid modes. The mode stays loaded."""
    check = [_argument(call.mode), *_verdict_if_any(_SET_ID_BITS)]
    if call.flags is None:
        return check
    return [_argument(call.flags), _jump(_AND_SET, _CREATES, 1, 0), _statement(_RETURN, _ALLOW), *check]


def _argument(index: int) -> bytes:
    """Load the low half of an argument, which is all that the kernel reads of an int or a mode."""
    return _statement(_LOAD, _ARGUMENTS + 8 * index)


def _verdict_if_any(bits: int) -> list[bytes]:
    return [_jump(_AND_SET, bits, 0, 1), _statement(_RETURN, _DENY)]


def _verdict_if(value: int, verdict: int) -> list[bytes]:
    return [_jump(_EQUAL, value, 0, 1), _statement(_RETURN, verdict)]


def _verdict_unless(value: int, verdict: int) -> list[bytes]:
    return [_jump(_EQUAL, value, 1, 0), _statement(_RETURN, verdict)]


def _statement(code: int, operand: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, operand)


def _jump(code: int, operand: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)
