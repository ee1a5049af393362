"""The escape battery: what code in a container tries, and what each sandbox is expected to do about it.

An attempt prints OPEN if it got what it wanted. The same attempts without a sandbox are the control: a table in which
nothing is ever open proves nothing. Run as a script, it tries them all and prints the outcomes as JSON:

    python escapes.py BACKEND
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from sidestream.limits import MIB, SandboxLimits
from sidestream.portable.sandbox import choice
from sidestream.portable.sandbox.port import CellOutcome, Container, ContainerSpec, SandboxError

PROJECT = str(Path(__file__).resolve().parents[1])
CANARY = "canary-7f3a91"
LIMITS = SandboxLimits(memory_bytes=512 * MIB, processes=32, disk_bytes=16 * MIB, cell_s=60)

_SYSCALL = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def reached(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES)
"""


def _reads(path: str) -> str:
    return f"""
try:
    data = open({path!r}, "rb").read(64)
    if data: print("OPEN")
except Exception as error:
    print(type(error).__name__)
"""


def _calls(x86: int, arm: int, arguments: str) -> str:
    return f"{_SYSCALL}\nprint('OPEN' if reached({x86} if x86 else {arm}, {arguments}) else 'held')"


def _fills(folder: str, mebibytes: int) -> str:
    return f"""
import os, uuid
wrote, paths = 0, [os.path.join({folder!r}, "." + uuid.uuid4().hex) for _ in range(20)]
try:
    for path in paths:
        with open(path, "wb") as file:
            for _ in range({mebibytes} // 20 + 1):
                wrote += file.write(bytes(1 << 20))
except OSError as error:
    print(type(error).__name__)
for path in paths: os.path.exists(path) and os.remove(path)
print("OPEN" if wrote >= {mebibytes} << 20 else "held", wrote)
"""


ATTEMPTS: dict[str, str] = {
    "read /etc/shadow": _reads("/etc/shadow"),
    "read the project": _reads("$PROJECT/pyproject.toml"),
    "read a secret of the user": _reads("$SECRET"),
    "list the home": """
import os
for home in ("/root", "/home"):
    try:
        if os.listdir(home): print("OPEN")
    except OSError as error:
        print(type(error).__name__)
""",
    "write outside": """
for path in ("$SECRET", "/usr/lib/x", "/etc/x", "/opt/x", "/x", "/proc/sys/kernel/hostname"):
    try:
        with open(path, "ab") as file: file.write(b"x")
        print("OPEN", path)
    except OSError as error:
        print(type(error).__name__)
""",
    "loopback TCP": """
import socket
try:
    socket.create_connection(("127.0.0.1", $TCP), 2).close()
    print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "loopback UDP": """
import socket
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        s.sendto(b"?", ("127.0.0.1", $UDP))
        if s.recv(8): print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "abstract unix socket": """
import socket
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0$ABSTRACT")
    print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "environment of the host": """
import os
found = str(dict(os.environ))
for path in ("/proc/1/environ", "/proc/self/environ"):
    try:
        found += open(path, "rb").read().decode("utf-8", "replace")
    except OSError as error:
        print(type(error).__name__)
print("OPEN" if "$CANARY" in found else "held")
""",
    "processes of the host": """
import os
numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
print("OPEN" if any(str($PID) in open(f"/proc/{n}/cmdline").read() or n == $PID for n in numbers) else "held")
""",
    "signal a process of the host": """
import os
try:
    os.kill($PID, 0)
    print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "become root": """
import os
try:
    os.setuid(0)
    os.chown("/", 0, 0)
    print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "unshare": _calls(272, 97, "0x10000000"),
    "mount": """
import ctypes, os
libc = ctypes.CDLL(None)
print("OPEN" if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0 else "held")
""",
    "clone into a user namespace": _calls(56, 220, "0x10000000 | 17, 0, 0, 0, 0").replace(
        "print('OPEN'", "import os\nprint('OPEN'"
    ),
    "bpf": _calls(321, 280, "0, 0, 0"),
    "io_uring": _calls(425, 425, "1, 0"),
    "keyctl": _calls(250, 219, "0, -4, 0"),
    "userfaultfd": _calls(323, 282, "1"),
    "ptrace": _calls(101, 117, "16, 1, 0, 0"),
    "perf": _calls(298, 241, "0, 0, -1, -1, 0"),
    "process_vm_readv": _calls(310, 270, "1, 0, 0, 0, 0, 0"),
    "open_by_handle_at": _calls(304, 265, "-1, 0, 0"),
    "terminal injection": """
import fcntl, os
done = False
for path in ("/dev/tty", "/dev/stdin", "/dev/console", "/dev/tty1", "/dev/pts/0"):
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        print(type(error).__name__)
        continue
    try:
        fcntl.ioctl(fd, 0x5412, b"x")
        done = True
    except OSError as error:
        print(type(error).__name__)
    os.close(fd)
print("OPEN" if done else "held")
""",
    "a device": """
import os
try:
    os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0))
    print("OPEN")
except OSError as error:
    print(type(error).__name__)
""",
    "300 MB of disk": _fills("/tmp", 300),
    "fill /dev/shm": _fills("/dev/shm", 64),
    "fill /": _fills("/", 64),
    "fill /dev": _fills("/dev", 64),
    "fill the output folder": _fills(".", 64),
    "2 GB of memory": """
try:
    block = bytearray(2 << 30)
    block[::4096] = bytes(len(block[::4096]))
    print("OPEN")
except MemoryError:
    print("MemoryError")
""",
    "400 forks": """
import os, signal
children = []
try:
    for _ in range(400):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
except OSError as error:
    print(type(error).__name__)
for child in children: os.kill(child, signal.SIGKILL)
for child in children: os.waitpid(child, 0)
print("OPEN" if len(children) == 400 else "held", len(children))
""",
    "subprocess": "import subprocess\nprint(subprocess.run(['sh', '-c', 'echo OP''EN'], capture_output=True, text=True).stdout)",
    "numpy": "import numpy\nprint('OPEN' if numpy.linalg.det(numpy.eye(3)) == 1.0 else 'held')",
    "matplotlib": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('/tmp/x.png')\nplt.close('all')\nprint('OPEN')",
}
"""Attempt → code. The last three are no escapes: they must work."""

MUST_WORK = frozenset({"subprocess", "numpy", "matplotlib"})

OPEN: dict[str, frozenset[str]] = {
    "bubblewrap": MUST_WORK,
    # Its kernel is not the host's: what it grants there reaches nothing here. It ignores the limit of processes, and its
    # /dev has no size.
    "runsc": MUST_WORK | {"400 forks", "unshare", "io_uring", "perf", "open_by_handle_at", "a device", "fill /dev"},
    "monty": frozenset(),
    # The control, whoever runs it.
    "none": MUST_WORK
    | {
        *("read the project", "read a secret of the user", "write outside", "loopback TCP", "loopback UDP"),
        *("abstract unix socket", "processes of the host", "signal a process of the host", "300 MB of disk"),
        *("fill /dev/shm", "fill the output folder", "400 forks", "keyctl", "open_by_handle_at", "process_vm_readv"),
    },
}
"""Sandbox → the attempts that are open in it; all others are held."""

NOT_TRIED = {
    # As root these would reach the host itself, and some of them depend on its settings.
    "none": frozenset(ATTEMPTS) - (MUST_WORK | OPEN["none"])
    | {"300 MB of disk", "fill /dev/shm", "400 forks", "matplotlib", "open_by_handle_at", "keyctl"},
}


@asynccontextmanager
async def host() -> AsyncGenerator[dict[str, str]]:
    """What the attempts look for on this side: listeners, a secret file, a canary in the environment."""
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
    with tempfile.TemporaryDirectory(prefix="sidestream-secret-") as folder, tcp, udp, abstract:
        secret = os.path.join(folder, "secret")
        with open(secret, "w") as file:  # noqa: ASYNC230
            file.write(CANARY)
        yield {
            "$PROJECT": PROJECT,
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


async def battery(backend: str, names: Iterable[str]) -> dict[str, str]:
    """Attempt → `open` or `held`, each in a container that the others have not ended."""
    outcomes: dict[str, str] = {}
    async with host() as values:
        container: Container | None = None
        for name in names:
            if container is None or not container.is_alive:
                container = await choice.start(backend, ContainerSpec(limits=LIMITS))
            outcome = await attempt(container, ATTEMPTS[name], values)
            outcomes[name] = "open" if "OPEN" in outcome.logs else "held"
        if container is not None:
            await container.kill()
    return outcomes


def tried(backend: str) -> list[str]:
    return [name for name in ATTEMPTS if name not in NOT_TRIED.get(backend, frozenset())]


if __name__ == "__main__":
    try:
        print(json.dumps(asyncio.run(battery(sys.argv[1], tried(sys.argv[1])))))
    except SandboxError as error:
        print(json.dumps({"error": str(error)}))
