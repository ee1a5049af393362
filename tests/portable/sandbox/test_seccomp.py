"""The system call filter of both machines, run on a small interpreter of its instructions."""

import errno
import struct
from typing import Any

import pytest

from requirements import requirement
from sidestream.portable.sandbox.seccomp import filter_program

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# fmt: off
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "read": 0, "open": 2, "openat": 257, "openat2": 437, "creat": 85, "mkdir": 83, "mkdirat": 258, "mknod": 133,
        "mknodat": 259, "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "socket": 41, "socketpair": 53,
        "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
        "clone": 56, "clone3": 435, "unshare": 272, "mount": 165, "umount2": 166, "chroot": 161, "open_tree": 428,
        "ioctl": 16, "ptrace": 101, "statmount": 457, "listmount": 458,
    },
    "aarch64": {
        "read": 63, "openat": 56, "openat2": 437, "mkdirat": 34, "mknodat": 33, "fchmod": 52, "fchmodat": 53,
        "fchmodat2": 452, "socket": 198, "socketpair": 199, "memfd_create": 279, "memfd_secret": 447, "shmget": 194,
        "semget": 190, "msgget": 186, "mq_open": 180, "clone": 220, "clone3": 435, "unshare": 97, "mount": 40,
        "umount2": 39, "chroot": 51, "open_tree": 428, "ioctl": 29, "ptrace": 117, "statmount": 457, "listmount": 458,
    },
}
"""From the kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h."""
CREAT, TMPFILE = 0o100, 0o20200000
MODE_CALLS: dict[str, tuple[Any, ...]] = {
    "open": ("path", CREAT, "mode"), "openat": (-100, "path", CREAT, "mode"), "creat": ("path", "mode"),
    "mkdir": ("path", "mode"), "mkdirat": (-100, "path", "mode"), "mknod": ("path", "mode", 0),
    "mknodat": (-100, "path", "mode", 0), "chmod": ("path", "mode"), "fchmod": (3, "mode"),
    "fchmodat": (-100, "path", "mode"), "fchmodat2": (-100, "path", "mode", 0),
}
# fmt: on


def verdict(machine: str, call: str | int, *arguments: Any, audit: int | None = None) -> int:
    """What the filter returns for a call."""
    number = NUMBERS[machine][call] if isinstance(call, str) else call
    words = [0x7FFF_1234_5678 if word == "path" else word for word in arguments]
    values = [word & (1 << 64) - 1 for word in (*words, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<IIQ6Q", number, audit or AUDIT[machine], 0, *values)
    code = filter_program(machine)
    assert code is not None
    program = list(struct.iter_unpack("HBBI", code))
    at, loaded = 0, 0
    while True:
        kind, if_true, if_false, operand = program[at]
        at += 1
        match kind:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += if_true if loaded == operand else if_false
            case 0x45:
                at += if_true if loaded & operand else if_false
            case 0x54:
                loaded &= operand
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"no instruction {kind:#x}")


machines = pytest.mark.parametrize("machine", AUDIT)


def denied(error: int) -> int:
    return ERRNO | error


@requirement("F47")
@pytest.mark.parametrize(("machine", "call"), [(m, call) for m in AUDIT for call in MODE_CALLS if call in NUMBERS[m]])
def test_filter_denies_set_id_modes(machine: str, call: str) -> None:
    for mode in (0o4755, 0o2755, 0o6000, 0o104755 if "mknod" in call else 0o7777):
        given = [mode if word == "mode" else word for word in MODE_CALLS[call]]
        assert verdict(machine, call, *given) == denied(errno.EPERM), oct(mode)
    for mode in (0o755, 0o1777, 0):
        given = [mode if word == "mode" else word for word in MODE_CALLS[call]]
        assert verdict(machine, call, *given) == ALLOW, oct(mode)


@requirement("F47")
@machines
def test_filter_reads_mode_of_open_only_when_it_creates(machine: str) -> None:
    assert verdict(machine, "openat", -100, "path", 0, 0o4755) == ALLOW
    assert verdict(machine, "openat", -100, "path", TMPFILE, 0o4755) == denied(errno.EPERM)


@requirement("F47")
@machines
@pytest.mark.parametrize(("kind", "is_allowed"), [(0o020000, False), (0o060000, False), (0o010000, True), (0o100000, True), (0o140000, True)])  # fmt: skip
def test_filter_denies_device_files(machine: str, kind: int, is_allowed: bool) -> None:
    expected = ALLOW if is_allowed else denied(errno.EPERM)
    assert verdict(machine, "mknodat", -100, "path", kind | 0o600, 0) == expected
    if "mknod" in NUMBERS[machine]:
        assert verdict(machine, "mknod", "path", kind | 0o600, 0) == expected


@requirement("F52")
@machines
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_filter_allows_three_socket_families(machine: str, call: str) -> None:
    allowed = [family for family in range(64) if verdict(machine, call, family, 1, 0) == ALLOW]
    assert allowed == [1, 2, 10]
    assert verdict(machine, call, 40, 1, 0) == denied(errno.EAFNOSUPPORT)


@requirement("F52")
@machines
def test_filter_denies_calls(machine: str) -> None:
    for call in (
        "shmget",
        "semget",
        "msgget",
        "mq_open",
        "unshare",
        "mount",
        "umount2",
        "chroot",
        "open_tree",
        "ptrace",
    ):
        assert verdict(machine, call) == denied(errno.EPERM), call
    for call in ("openat2", "memfd_create", "memfd_secret", "clone3"):
        assert verdict(machine, call) == denied(errno.ENOSYS), call
    assert verdict(machine, "clone", 0x10000000) == verdict(machine, "ioctl", 0, 0x5412) == denied(errno.EPERM)
    assert verdict(machine, "clone", 17) == verdict(machine, "ioctl", 0, 0x5401) == verdict(machine, "read") == ALLOW


def test_filter_ends_calls_of_another_machine() -> None:
    assert verdict("x86_64", "read", audit=0x40000003) == KILL
    assert verdict("x86_64", 0x40000000 + 90, "path", 0o755) == denied(errno.EPERM)
    assert filter_program("riscv64") is None
