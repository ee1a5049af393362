"""A Linux script that runs a local server so that nothing it starts outlives it or us. It imports nothing of ours.

    python -I -S supervisor.py CONTROL OWNER PROGRAM ARGUMENT...

It is two processes. The supervisor starts the server, which inherits its pipes, and adopts every orphan below it
(PR_SET_CHILD_SUBREAPER): a daemon can leave its group, its session and its environment, but not this tree. The guard,
its parent, exits with the server's exit status. If one of the two is killed, the other ends the tree.

CONTROL is a socket. The supervisor sends "0" once the server runs, or the errno of a failed start. It receives
TERMINATE; the end of the stream, or of the process OWNER, makes it kill the tree. It closes the socket when the tree
has ended.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the same without enums, whose import takes as long as Python's start

TERMINATE = b"t"

_LEFTOVERS_S = 1.5
"""Seconds that processes outliving the server have after SIGTERM."""
_KILLING_S = 10.0
"""Seconds for which remaining processes are killed repeatedly, since new ones may appear. Another user's process may
never die."""
_POLL_S = 0.005
_PDEATHSIG = 1
_DUMPABLE = 4
_CHILD_SUBREAPER = 36


def main() -> None:
    control, owner, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(control, False)
    owner_exit = _process_descriptor(owner)
    if os.getppid() != owner:
        sys.exit(1)  # the owner has already exited
    _prctl(_CHILD_SUBREAPER, 1)
    status_reader, status_writer = os.pipe()
    if os.fork():
        os.close(control)
        os.close(status_writer)
        _guard(status_reader)
    else:
        os.close(status_reader)
        _prctl(_CHILD_SUBREAPER, 1)  # not inherited by a fork
        _Supervisor(control, owner_exit, status_writer).run(command)
        os._exit(0)


def _guard(status_reader: int) -> None:
    """Exit with the server's status.

    If the supervisor is killed, the guard inherits the tree and kills it.
    """
    _release_pipes()
    status = os.read(status_reader, 16)
    if not status:
        _kill_descendants()
        os._exit(1)
    code = os.waitstatus_to_exitcode(int(status))
    if code < 0:
        _prctl(_DUMPABLE, 0)  # only the server should dump its core
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class _Supervisor:
    def __init__(self, control: int, owner_exit: int | None, status_writer: int) -> None:
        self._control = control
        self._owner_exit = owner_exit
        self._status_writer = status_writer
        self._server = 0
        self._kill_at_s: float | None = None
        self._poll = select.poll()

    def run(self, command: list[str]) -> None:
        child_exit = _child_exit_descriptor()
        failure, self._server = _start(command)
        _release_pipes()
        _write(self._control, failure)
        self._poll.register(self._status_writer, 0)  # reports an error if the guard was killed
        for descriptor in (child_exit, self._control, self._owner_exit):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)
        while self._reap():
            ready = self._wait()
            if child_exit in ready:
                os.read(child_exit, 4096)
            is_terminated = self._control in ready and self._is_terminate_request()
            if ready - {child_exit} and not is_terminated:
                break
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                break
        self._report(_kill_descendants())

    def _wait(self) -> set[int]:
        timeout_s = None if self._kill_at_s is None else max(0, self._kill_at_s - time.monotonic())
        return {descriptor for descriptor, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000 + 1)}

    def _is_terminate_request(self) -> bool:
        """Forward a terminate request. Return False if the owner has closed its end."""
        try:
            is_request = bool(os.read(self._control, 16))
        except ConnectionError:
            return False
        if is_request:
            _signal_descendants(signal.SIGTERM)
        return is_request

    def _reap(self) -> bool:
        """Reap ended children, and return whether a descendant is left.

        Processes that outlive the server get SIGTERM and `_LEFTOVERS_S` seconds.
        """
        statuses, is_any_left = _reap()
        if self._server in statuses:
            self._report(statuses)
            if is_any_left:
                _signal_descendants(signal.SIGTERM)
                self._kill_at_s = time.monotonic() + _LEFTOVERS_S
        return is_any_left

    def _report(self, statuses: dict[int, int]) -> None:
        if self._server in statuses:
            self._poll.unregister(self._status_writer)  # the guard is expected to exit now
            _write(self._status_writer, statuses[self._server])


def _start(command: list[str]) -> tuple[int, int]:
    """Start the server. Return the errno of a failure or 0, and the server's pid."""
    environment = _original_environment()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            os.execve(command[0], command, environment)
        except OSError as error:
            os.write(writer, b"%d" % (error.errno or 1))
        finally:
            os._exit(127)
    os.close(writer)
    failure = os.read(reader, 16)  # empty once the program runs, which does not inherit the pipe
    os.close(reader)
    return int(failure or 0), pid


def _original_environment() -> dict[bytes, bytes]:
    """Return the environment as given. Python adds LC_CTYPE to its own if no locale is set."""
    with open("/proc/self/environ", "rb") as file:
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return {name: value for name, _, value in entries}


def _kill_descendants() -> dict[int, int]:
    """Kill descendants until none is left, and return the statuses of those reaped."""
    deadline_s = time.monotonic() + _KILLING_S
    reaped, is_any_left = _reap()
    while is_any_left and time.monotonic() < deadline_s:
        _signal_descendants(signal.SIGKILL)
        time.sleep(_POLL_S)
        statuses, is_any_left = _reap()
        reaped |= statuses
    return reaped


def _reap() -> tuple[dict[int, int], bool]:
    """Return the status of each ended child, and whether there are others. Without children there are no orphans."""
    reaped: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped, False
        if pid == 0:
            return reaped, True
        reaped[pid] = status


def _signal_descendants(number: int) -> None:
    for pid in _descendants():
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    status = file.read()
            except OSError:
                continue  # the process has ended
            # proc_pid_stat(5): the name is in brackets and may contain some; state and parent follow.
            parent = int(status.rpartition(b") ")[2].split(None, 2)[1])
            children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, ())
    return found[1:]


def _write(descriptor: int, number: int) -> None:
    try:
        os.write(descriptor, b"%d" % number)
    except BrokenPipeError:
        return  # the poll reports that the reader was killed


def _release_pipes() -> None:
    """Release the server's pipes, so that each end notices when the other closes."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _child_exit_descriptor() -> int:
    """Return a descriptor that becomes readable when a child has exited."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    return reader


def _ignore(number: int, frame: object) -> None:
    """Ignore the signal. Without a handler it would not wake up the poll."""


def _process_descriptor(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process has exited.

    Returns None before Linux 5.3, where only the control socket reports the exit.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main()
