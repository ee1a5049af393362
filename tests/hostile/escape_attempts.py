"""The attempts of the escape battery: Python code that prints OPEN if it got what it wanted.

None of them writes where it must not: a file of the kernel is opened for writing, and closed again.
"""

_SYSCALL = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def reached(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES)
"""

_SOCKET = """
import socket
def opens(family):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            return True
        except OSError:
            continue
    return False
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


def _opens_for_writing(*paths: str) -> str:
    return f"""
import os
def files(path):
    if not os.path.isdir(path): return [path]
    return (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
opened = []
for path in (each for given in {paths!r} for each in files(given)):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        opened.append(path)
    except OSError as error:
        pass
print("OPEN" if opened else "held", opened[:3])
"""


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
import os
for path in ("$SECRET", "/usr/lib", "/etc", "/opt", "/"):
    if os.access(path, os.W_OK): print("OPEN", path)
""",
    "write a sysctl": _opens_for_writing(
        *(f"/proc/sys/{name}" for name in ("fs", "kernel/hostname", "kernel/modprobe", "kernel/sysrq", "net", "vm"))
    ),
    "set the core pattern": _opens_for_writing("/proc/sys/kernel/core_pattern"),
    "write other files of the kernel": _opens_for_writing(
        *(
            f"/proc/{name}"
            for name in ("sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr", "self/oom_score_adj")
        )
    ),
    "read kernel memory, keys and devices": """
import os
names = "kcore kmsg keys key-users timer_list slabinfo vmallocinfo kpagecount kpageflags pagetypeinfo iomem partitions"
for name in names.split():
    try:
        fd = os.open(f"/proc/{name}", os.O_RDONLY | os.O_NONBLOCK)
        if os.read(fd, 64): print("OPEN", name)
    except OSError as error:
        print(name, type(error).__name__)
""",
    "see /sys": "import os\nprint('OPEN' if os.path.isdir('/sys') and os.listdir('/sys') else 'held')",
    "see folders of the host in mountinfo": """
import os
for owner in ("self", "1", "thread-self"):
    for name in ("mountinfo", "mounts", "mountstats"):
        if not os.path.exists(f"/proc/{owner}/{name}"): continue
        text = open(f"/proc/{owner}/{name}").read()
        devices = [line.partition(" - ")[2].split()[1] for line in text.splitlines() if " - " in line]
        if any(folder in text for folder in ("$PROJECT", "$PREFIX", "$WORKSPACE")): print("OPEN", owner, name)
        if any(device.startswith("/dev/") for device in devices): print("OPEN", owner, name, "devices")
""",
    "have capabilities": """
import ctypes
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
found = {name: value for name, value in status.items() if name.startswith("Cap") and int(value, 16)}
print("OPEN" if found or ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) != 1 else "held", found)
""",
    "run a set-uid program or open a device": """
import os
missing = {path: os.statvfs(path).f_flag & 6 for path in (".", "/tmp") if os.statvfs(path).f_flag & 6 != 6}
print("OPEN" if missing else "held", missing)
""",
    "leave a set-uid or set-gid file": """
import ctypes, os, platform, stat, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
os.umask(0)
def name(): return f"bits-{os.urandom(4).hex()}"
def tries():
    for bits in (0o4755, 0o2755, 0o6777):
        def made():
            path = name()
            open(path, "w").close()
            return path
        yield lambda: os.chmod(made(), bits)
        yield lambda: os.fchmod(os.open(made(), os.O_RDONLY), bits)
        yield lambda: os.chmod(made(), bits, follow_symlinks=False)
        yield lambda: libc.syscall(ctypes.c_long(452), -100, made().encode(), bits, 0)
        yield lambda: os.close(os.open(name(), os.O_CREAT | os.O_WRONLY, bits))
        yield lambda: os.link(f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_RDWR, bits)}", name(), follow_symlinks=True)
        yield lambda: libc.creat(name().encode(), bits)
        yield lambda: libc.syscall(ctypes.c_long(437), -100, name().encode(), struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, bits, 0), 24)
        yield lambda: os.mknod(name(), stat.S_IFREG | bits)
        yield lambda: os.mkfifo(name(), bits)
        yield lambda: os.mkdir(name(), bits)
        def folder():
            path = name()
            os.mkdir(path)
            os.chmod(path, bits)
        yield folder
for attempt in tries():
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__)
left = [path for path in os.listdir(".") if path.startswith("bits-") and os.lstat(path).st_mode & 0o6000]
print("OPEN" if left else "held", left)
""",
    "leave a file of root's": """
import os
open("whose", "w").close()
print("OPEN" if os.geteuid() == 0 else "held")
""",
    "follow a link in the workspace": _reads("link"),
    "connect to a socket in the workspace": """
import socket
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("service.sock")
    print("OPEN")
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
    "vsock": f"{_SOCKET}\nprint('OPEN' if opens(40) else 'held')",
    "other socket families": f"{_SOCKET}\nprint([n for n in range(64) if n not in (1, 2, 10, 40) and opens(n) and not print('OPEN')])",
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
    "open_tree": _calls(428, 428, "-100, 0, 0"),
    "listmount": _calls(458, 458, "0, 0, 0, 0"),
    "umount": _calls(166, 39, "0, 2"),
    "memfd": """
import os
try:
    print("OPEN" if os.write(os.memfd_create("x"), b"x") else "held")
except OSError as error:
    print(type(error).__name__)
""",
    "System V shared memory": _calls(29, 194, "0, 1 << 26, 0o1600"),
    "System V semaphores and messages": _calls(64, 190, "0, 1, 0o1600") + _calls(68, 186, "0, 0o1600"),
    "POSIX message queue": _calls(240, 180, "0, 0, 0, 0"),
    "POSIX shared memory": """
import _posixshmem, os
wrote = 0
for number in range(5):
    fd = _posixshmem.shm_open(f"/s{number}", os.O_CREAT | os.O_RDWR, mode=0o600)
    try:
        for _ in range(15): wrote += os.write(fd, bytes(1 << 20))
    except OSError as error:
        print(type(error).__name__)
    os.close(fd)
for number in range(5): _posixshmem.shm_unlink(f"/s{number}")
print("OPEN" if wrote > 64 << 20 else "held", wrote)
""",
    "20,000 empty files": """
import os, shutil
folder, made = f"/tmp/{os.urandom(8).hex()}", 0
os.mkdir(folder)
try:
    for made in range(20_000):
        os.close(os.open(f"{folder}/{made}", os.O_CREAT))
except OSError as error:
    print(type(error).__name__)
shutil.rmtree(folder)
print("OPEN" if made == 19_999 else "held", made)
""",
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
for path in ("/tmp/disk", "disk"):
    for kind in (0o60600, 0o20600):
        try:
            os.mknod(path, kind, os.makedev(254, 0))
            print("OPEN")
            os.remove(path)
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
    "loopback inside": """
import asyncio
async def main():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    print("OPEN" if await reader.read() == b"" else "held")
    writer.close()
    server.close()
asyncio.new_event_loop().run_until_complete(main())
""",
    "processes and callbacks": """
import ctypes, multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    both = pool.map(abs, [-1, 2])
called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)(3)
print("OPEN" if both == [1, 2] and called == 4 else "held")
""",
    "matplotlib": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('/tmp/x.png')\nplt.close('all')\nprint('OPEN')",
}
"""Attempt → code. The last of them are no escapes: they must work."""
