"""Python programs that start in a copy of a warm interpreter.

Most of what a short program costs is the import of the package. A template process does that once, and forks for each
program: `python -m sidestream.cli` then costs a tenth. `Warm` is a `subprocess.Popen` whose process is a child of the
caller as any other, with its own pid, arguments, environment, folder, streams and session.

Start-up itself is not covered this way: `tests/cli/test_command.py`, for one, starts fresh interpreters.
"""

import asyncio
import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from asyncio import unix_events
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LOCALE = "C.UTF-8"
"""Of the template. Python reads its locale, and the variables that begin with PYTHON, only as it starts."""
UNDERSTOOD = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
"""Variables of Python that a copy heeds too, or that change nothing which can be seen."""
COLD = (
    "sidestream.durable.engines.temporal",  # slow, and few programs need it
    "sidestream.cli.main",  # the program imports it, over the function of this name
)
"""Modules that the template does not import."""
MAX_BYTES = 1 << 17
"""Of the description of a program."""
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
KILLED_S = 10.0
SYS_CLONE3 = 435
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
PR_GET_TID_ADDRESS = 40


def is_warmable(args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a program would start the same way in a copy of the template."""
    is_program = len(args) > 1 and args[0] == sys.executable and (args[1] in ("-m", "-c") or args[1][0] != "-")
    is_usual = all(
        value == LOCALE if name == "LANG" or name.startswith("LC_") else name in UNDERSTOOD
        for name, value in env.items()
        if name == "LANG" or name.startswith(("LC_", "PYTHON"))
    )
    return _has_clone() and is_program and is_usual and len(repr((args, env))) < MAX_BYTES // 2


@cache
def _has_clone() -> bool:
    """Whether the kernel, or the container, has the calls that fork a sibling."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    knows_address = libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(ctypes.c_uint64())) == 0
    libc.syscall(SYS_CLONE3, None, 0)
    return knows_address and ctypes.get_errno() == errno.EINVAL


class Warm(subprocess.Popen[Any]):
    """A Python program in a copy of the template, or in a fresh interpreter where the copy would not do."""

    def __init__(self, args: Sequence[str], *, terminal: bool = False, **options: Any) -> None:
        """Take the options of `subprocess.Popen`. `terminal` makes stdin the controlling terminal of a new session."""
        self._terminal = terminal
        super().__init__(args, start_new_session=terminal, **options)

    def _execute_child(self, *given: Any) -> None:
        args, _, preexec, _, pass_fds, cwd, env, _, _, shell, *streams = given[:16]
        args = [os.fspath(arg) for arg in args]
        env = dict(os.environ if env is None else env)
        if preexec or pass_fds or shell or not is_warmable(args, env):
            first = [sys.executable, "-c", ON_TERMINAL, *args] if self._terminal else args
            super()._execute_child(first, *given[1:])  # pyright: ignore[reportAttributeAccessIssue]
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = streams
        program = {"args": args, "cwd": os.fspath(cwd or os.getcwd()), "env": env, "terminal": self._terminal}
        wanted = [own if own != -1 else inherited for inherited, own in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _template.start(json.dumps(program).encode(), wanted)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # pyright: ignore[reportAttributeAccessIssue]


def run(args: Sequence[str], *, input: Any = None, timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a Python program to its end, as `subprocess.run` does."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Warm(args, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


async def start(*args: str | Path, **options: Any) -> asyncio.subprocess.Process:
    """Start a Python program as `asyncio.create_subprocess_exec` does."""

    def popen(args: Sequence[str], **options: Any) -> Warm:
        unix_events.__dict__["subprocess"] = subprocess
        return Warm(args, **options)

    # The event loop takes the class of a process from this module, before it first waits for anything.
    unix_events.__dict__["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    try:
        return await asyncio.create_subprocess_exec(*args, **options)
    finally:
        unix_events.__dict__["subprocess"] = subprocess


class _Template:
    """The process that forks, and the socket to it. Starts with the first program."""

    def __init__(self) -> None:
        # Opened here, so that no test seems to leave it behind.
        kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
        self._channel, self._theirs = socket.socketpair(type=kind)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Leave the template to the process from which this one was forked."""
        self._channel.close()
        self._theirs.close()
        self.__init__()

    def start(self, program: bytes, streams: list[int]) -> int:
        """Start a program as a child of this process; return its pid."""
        with self._lock:
            if self._process is None:
                self._process = self._started()
            socket.send_fds(self._channel, [program], streams)
            pid = self._channel.recv(64)
            assert pid, "the template ended"
        return int(pid)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._theirs:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), str(self._theirs.fileno())],
                cwd="/",
                env={"PATH": os.environ["PATH"], "LANG": LOCALE, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
                stdin=subprocess.DEVNULL,
                pass_fds=[self._theirs.fileno()],
            )
        atexit.register(process.wait, KILLED_S)
        atexit.register(process.kill)
        return process


_template = _Template()
if __name__ != "__main__":
    os.register_at_fork(after_in_child=_template.renew)


def _import_all(package: Any) -> None:
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__") and module.name not in COLD:
            imported = importlib.import_module(module.name)
            if module.ispkg:
                _import_all(imported)


def _serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each program. Return in the copy, with the program and its streams."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # It is for the programs; a Ctrl-C ends the tests, and so this.
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MAX_BYTES, 3)
        if not message:
            os._exit(0)
        if (pid := _forked_sibling()) == 0:
            return json.loads(message), streams
        for descriptor in streams:
            os.close(descriptor)
        channel.send(str(pid).encode())


def _forked_sibling() -> int:
    """Fork as `os.fork` does, but make the new process a child of this one's parent."""
    libc, address = ctypes.CDLL(None), ctypes.c_uint64()
    assert libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address)) == 0
    # As the C library does it: the thread knows its number. Flags, two addresses, and the rest of the structure.
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    how = (ctypes.c_uint64 * 8)(flags, 0, address.value)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = ctypes.pythonapi.syscall(SYS_CLONE3, ctypes.byref(how), ctypes.sizeof(how))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    assert pid > 0, "the program could not be forked"
    return pid


def _become(program: dict[str, Any], streams: list[int]) -> None:
    """Take over what a new process is given: session, streams, folder, environment, path and arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if program["terminal"]:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["env"])
    time.tzset()
    errors = sys.stdin.errors
    sys.stdin = sys.__stdin__ = _stream(0, "r", errors)
    sys.stdout = sys.__stdout__ = _stream(1, "w", errors)
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")
    _, first, *rest = program["args"]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = {"-m": program["cwd"], "-c": ""}.get(first, str(Path(first).resolve().parent))
    sys.path[:] = [here, *(os.path.abspath(entry) for entry in entries if entry), *sys.path[1:]]
    importlib.invalidate_caches()
    sys.orig_argv[:] = program["args"]
    sys.argv[:] = rest if first == "-m" else [first, *rest[first == "-c" :]]


def _stream(number: int, mode: str, errors: str | None) -> io.TextIOWrapper:
    """Open a standard stream as Python does."""
    is_unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    binary = os.fdopen(number, f"{mode}b", 0 if is_unbuffered else -1, closefd=False)
    is_by_line = number == 2 or binary.isatty()
    return io.TextIOWrapper(binary, "utf-8", errors, "\n", line_buffering=is_by_line, write_through=is_unbuffered)


def _run(args: list[str]) -> None:
    _, first, *rest = args
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


def _main(channel: socket.socket) -> None:
    status: list[int] = []
    atexit.register(_exit, status)
    import sidestream

    _import_all(sidestream)
    gc.collect()
    gc.freeze()
    program, streams = _serve(channel)
    channel.detach()
    _become(program, streams)
    try:
        _run(program["args"])
        status.append(0)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status.append(end.code or 0)
        raise


def _exit(status: list[int]) -> None:
    """End the process, as the last of the exit functions, but do not tear down the many modules of the template.

    What the program left is collected, so its finalizers run. An exit by an exception takes the long way.
    """
    if status:
        gc.collect()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return
        os._exit(status[0] & 0xFF)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
