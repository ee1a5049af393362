"""The escape battery: what code in a container tries, and what each sandbox is expected to do about it.

The same attempts without a sandbox are the control: a table in which nothing is ever open proves nothing. Run as a
script, it tries them all and prints the outcomes as JSON, or prints the table that the tests hold true:

    python tests/escapes.py BACKEND [container | workspace | "workspace of root"]
    python tests/escapes.py --markdown
"""

import asyncio
import json
import os
import socket
import stat
import sys
import tempfile
import warnings
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from hostile.escape_attempts import ATTEMPTS
from sidestream.limits import MIB, SandboxLimits
from sidestream.portable.sandbox import bubblewrap, choice
from sidestream.portable.sandbox.port import CellOutcome, Container, ContainerSpec, SandboxError

PROJECT = str(Path(__file__).resolve().parents[1])
CANARY = "canary-7f3a91"
LIMITS = SandboxLimits(memory_bytes=512 * MIB, processes=32, disk_bytes=16 * MIB, cell_s=60)
OWNER = 1000
"""Who owns a workspace that is not root's, if root runs the battery."""

KINDS = ("container", "workspace", "workspace of root")
"""Without a workspace; with one that a normal user owns; with one that root owns, and `allow_root`."""

MUST_WORK = frozenset({"subprocess", "numpy", "matplotlib", "loopback inside", "processes and callbacks"})
_IN_WORKSPACE = frozenset({"follow a link in the workspace", "connect to a socket in the workspace"})

OPEN: dict[tuple[str, str], frozenset[str]] = {
    ("bubblewrap", "container"): MUST_WORK,
    # A workspace is a folder of the disk: its space is not bounded.
    ("bubblewrap", "workspace"): MUST_WORK | {"fill the output folder"},
    ("bubblewrap", "workspace of root"): MUST_WORK | {"fill the output folder", "leave a file of root's"},
    # Its kernel is not the host's: what it grants there reaches nothing here. Its folders in memory have no number of
    # files, and its /dev no size. Uid 0 inside is nobody outside.
    ("runsc", "container"): MUST_WORK
    | {
        *("run a set-uid program or open a device", "leave a file of root's", "other socket families", "fill /dev"),
        "20,000 empty files",
    },
    ("monty", "container"): frozenset(),
    # The control, whoever runs it.
    ("none", "container"): MUST_WORK
    | {
        *("read the project", "read a secret of the user", "write outside", "loopback TCP", "loopback UDP"),
        *("abstract unix socket", "processes of the host", "signal a process of the host", "300 MB of disk"),
        *("fill /dev/shm", "fill the output folder", "400 forks", "keyctl", "open_by_handle_at", "process_vm_readv"),
        *("see /sys", "have capabilities", "leave a set-uid or set-gid file", "other socket families", "memfd"),
        *("System V semaphores and messages", "POSIX shared memory", "20,000 empty files"),
        *("write other files of the kernel", "read kernel memory, keys and devices"),
        "see folders of the host in mountinfo",
    },
}
"""Sandbox and kind → the attempts that are open in it; all others are held."""
OPEN["none", "workspace"] = OPEN["none", "workspace of root"] = OPEN["none", "container"] | _IN_WORKSPACE

_OPEN_TO_ROOT = frozenset({"write a sysctl", "set the core pattern", "leave a file of root's"})
"""What the control is open to besides, if root runs it."""

NOT_TRIED = {
    # As root these would reach the host itself, and some of them depend on its settings.
    "none": frozenset(ATTEMPTS) - (OPEN["none", "workspace"] | _OPEN_TO_ROOT)
    | {
        *("300 MB of disk", "fill /dev/shm", "400 forks", "matplotlib", "open_by_handle_at", "keyctl"),
        *("POSIX shared memory", "System V semaphores and messages"),
    },
}


def tried(backend: str, kind: str = "container") -> list[str]:
    """The attempts that the battery makes."""
    left_out = NOT_TRIED.get(backend, frozenset()) | (_IN_WORKSPACE if kind == "container" else frozenset())
    return [name for name in ATTEMPTS if name not in left_out]


def expected(backend: str, kind: str = "container", *, as_root: bool, has_cgroup: bool = True) -> dict[str, str]:
    """Attempt → how it ends."""
    is_open = OPEN[backend, kind] | (_OPEN_TO_ROOT if backend == "none" and as_root else frozenset())
    if (backend, kind) == ("bubblewrap", "workspace of root") and not has_cgroup:
        is_open |= {"400 forks"}  # the limits of processes do not count for root
    return {name: "open" if name in is_open else "held" for name in tried(backend, kind)}


def has_cgroup() -> bool:
    """Whether a container has a cgroup here."""
    group = bubblewrap.create(LIMITS)
    if group is not None:
        group.remove()
    return group is not None


def markdown() -> str:
    """The table of attempts and sandboxes, as the tests hold it true."""
    columns = [column for column in OPEN if column[0] != "none"] + [("none", "workspace of root")]
    lines = [
        "| attempt | " + " | ".join(_title(*column) for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name in ATTEMPTS:
        cells = [_cell(name, *column) for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _title(backend: str, kind: str) -> str:
    return backend if kind == "container" or backend == "none" else f"{backend}, {kind}"


def _cell(name: str, backend: str, kind: str) -> str:
    ending = expected(backend, kind, as_root=True).get(name)
    if ending is None:
        return "not tried"
    return (
        ("works" if ending == "open" else "fails") if name in MUST_WORK else "**open**" if ending == "open" else ending
    )


@asynccontextmanager
async def host(kind: str) -> AsyncGenerator[dict[str, str]]:
    """What the attempts look for on this side: listeners, a secret file, a canary in the environment, a workspace."""
    os.environ["CANARY_KEY"] = CANARY
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    udp.setblocking(False)
    abstract = socket.socket(socket.AF_UNIX)
    name = f"sidestream-{os.getpid()}"
    abstract.bind(f"\0{name}")
    abstract.listen()
    loop = asyncio.get_running_loop()

    def echo() -> None:
        data, address = udp.recvfrom(8)
        udp.sendto(data, address)

    loop.add_reader(udp, echo)
    service = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory(prefix="sidestream-secret-") as folder, tcp, udp, abstract, service:
        secret = os.path.join(folder, "secret")
        with open(secret, "w") as file:  # noqa: ASYNC230
            file.write(CANARY)
        workspace = os.path.join(folder, "workspace")
        os.mkdir(workspace)
        os.symlink(secret, os.path.join(workspace, "link"))
        service.bind(os.path.join(workspace, "service.sock"))
        service.listen()
        if kind == "workspace" and os.geteuid() == 0:
            for path in (workspace, os.path.join(workspace, "service.sock")):
                os.chown(path, OWNER, OWNER)
        yield {
            "$PROJECT": PROJECT,
            "$PREFIX": sys.base_prefix,
            "$WORKSPACE": workspace,
            "$SECRET": secret,
            "$TCP": str(tcp.getsockname()[1]),
            "$UDP": str(udp.getsockname()[1]),
            "$ABSTRACT": name,
            "$CANARY": CANARY,
            "$PID": str(os.getpid()),
        }
        loop.remove_reader(udp)
    del os.environ["CANARY_KEY"]


async def attempt(container: Container, code: str, values: dict[str, str]) -> CellOutcome:
    for name, value in values.items():
        code = code.replace(name, value)
    return await container.run(code, lambda text: None)


def left_in(workspace: str) -> set[str]:
    """What a command must not leave in a workspace, as the host sees it: set-uid files, devices, files of root's."""
    found: set[str] = set()
    for folder, folders, names in os.walk(workspace):
        for path in (os.path.join(folder, name) for name in (*folders, *names) if name != "link"):
            status = os.lstat(path)
            is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
            is_root = status.st_uid == 0 and os.path.basename(path) == "whose"
            if is_device or is_root or status.st_mode & (stat.S_ISUID | stat.S_ISGID):
                found.add(path)
    return found


async def battery(backend: str, names: Iterable[str], kind: str = "container") -> dict[str, str]:
    """Attempt → `open` or `held`, each in a container that the others have not ended."""
    outcomes: dict[str, str] = {}
    async with host(kind) as values:
        workspace = None if kind == "container" else values["$WORKSPACE"]
        spec = ContainerSpec(limits=LIMITS, workspace=workspace, allow_root=kind == "workspace of root")
        container: Container | None = None
        for name in names:
            if container is None or not container.is_alive:
                container = await choice.start(backend, spec)
            before = left_in(workspace) if workspace else set[str]()
            outcome = await attempt(container, ATTEMPTS[name], values)
            left = left_in(workspace) - before if workspace else set[str]()
            # Code that fails proves nothing; an interpreter without system calls refuses most of it.
            is_broken = outcome.ending == "raised" and backend != "monty"
            is_open = left or any(line.startswith("OPEN") for line in outcome.logs.splitlines())
            outcomes[name] = "open" if is_open else "broken" if is_broken else "held"
        if container is not None:
            await container.kill()
    return outcomes


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if "--markdown" in sys.argv:
        print(markdown(), end="")
        sys.exit()
    backend, kind = (*sys.argv[1:], "container")[:2]
    try:
        print(json.dumps(asyncio.run(battery(backend, tried(backend, kind), kind))))
    except SandboxError as error:
        print(json.dumps({"error": str(error)}))
