"""Tests in forks of the process that collected them.

Collection takes longer than all but a few tests: each worker of pytest-xdist imports the SDKs of all vendors and makes
17,000 tests. Here one process collects and then forks the workers, which also replaces one that dies. A worker starts
with its share of the tests in order, so that neighbours use the same servers and modules, and then takes half of what
the worker with the most work has left.
"""

import atexit
import fcntl
import mmap
import os
import pickle
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Pipe, wait
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from support.children import ends

NOBODY = -1
"""In place of the index of a test."""
STOPPED_S = 30.0
"""An interrupted worker may take this long to end its servers."""
FIELDS = struct.Struct("4q")
"""What a worker has: its current test, its next one, and the first and the end of the others."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", metavar="N", help="run the tests in N forks of this process, or in `auto`")


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--forks")
    if count is not None:
        number = config.hook.pytest_xdist_auto_num_workers(config=config) if count == "auto" else int(count)
        config.pluginmanager.register(Parent(number), "forks")


class Shares:
    """What each worker has to do, in memory that all processes share."""

    def __init__(self, tests: int, workers: int) -> None:
        self._memory = mmap.mmap(-1, FIELDS.size * workers)
        self._lock = os.memfd_create("shares")
        self._workers = workers
        for worker in range(workers):
            self._set(worker, NOBODY, NOBODY, tests * worker // workers, tests * (worker + 1) // workers)

    def advance(self, worker: int) -> tuple[int, int]:
        """Make the next test of a worker its current one; return both, the second for fixtures that it shares."""
        with self._locked():
            _, current, start, end = self._get(worker)
            if current == NOBODY:
                current, start, end = self._taken(worker, start, end)
            following, start, end = self._taken(worker, start, end)
            self._set(worker, current, following, start, end)
            return current, following

    def current(self, worker: int) -> int:
        """Return the test that a worker runs."""
        return self._get(worker)[0]

    def clear(self) -> None:
        """Leave no more tests to start."""
        with self._locked():
            for worker in range(self._workers):
                self._set(worker, self._get(worker)[0], NOBODY, 0, 0)

    def _taken(self, worker: int, start: int, end: int) -> tuple[int, int, int]:
        """Return a test, and what is left of the worker's range or of the half that it takes from another."""
        if start == end:
            loads = {other: self._get(other) for other in range(self._workers) if other != worker}
            richest = max(loads, key=lambda other: loads[other][3] - loads[other][2], default=worker)
            if richest == worker or loads[richest][2] == loads[richest][3]:
                return NOBODY, start, end
            current, following, first, end = loads[richest]
            start = (first + end) // 2
            self._set(richest, current, following, first, start)
        return start, start + 1, end

    def _get(self, worker: int) -> tuple[int, int, int, int]:
        return FIELDS.unpack_from(self._memory, FIELDS.size * worker)

    def _set(self, worker: int, *values: int) -> None:
        FIELDS.pack_into(self._memory, FIELDS.size * worker, *values)

    @contextmanager
    def _locked(self) -> Generator[None]:
        # The lock belongs to a process, and ends with it.
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)


class Parent:
    """Forks the workers and passes on what they report. Runs no test itself."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._workers_by_connection: dict[Any, tuple[int, int]] = {}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        collected = not session.testsfailed or session.config.option.continue_on_collection_errors
        if not collected or session.config.option.collectonly or not session.items:
            return None
        # Its files would be the same in all workers.
        _plugin(session.config, "capturemanager").stop_global_capturing()
        _folders(session.config).getbasetemp()
        workers = min(self._workers, len(session.items))
        shares = Shares(len(session.items), workers)
        try:
            for worker in range(workers):
                self._fork(session, shares, worker)
            while self._workers_by_connection:
                for connection in wait([*self._workers_by_connection]):
                    self._receive(session, shares, connection)
                if session.shouldfail or session.shouldstop:
                    shares.clear()
        finally:
            for pid, _ in self._workers_by_connection.values():
                os.kill(pid, signal.SIGINT)
            for pid, _ in self._workers_by_connection.values():
                if not ends(pid, STOPPED_S):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session, shares: Shares, worker: int) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Threads of libraries that are safe to fork.
            pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers_by_connection):
                connection.close()
            _work(session, shares, worker, theirs)
        theirs.close()
        self._workers_by_connection[ours] = pid, worker

    def _receive(self, session: pytest.Session, shares: Shares, connection: Any) -> None:
        pid, worker = self._workers_by_connection[connection]
        hook = session.config.hook
        try:
            kind, given = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            del self._workers_by_connection[connection]
            connection.close()
            _, status = os.waitpid(pid, 0)
            if status:
                self._replace(session, shares, worker, status)
            return
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=session.config, data=given)
            report.node = SimpleNamespace(gateway=SimpleNamespace(id=f"gw{worker}"), _workerinfocache=f"[gw{worker}]")
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=given)
        elif kind == "stop":
            session.shouldstop = session.shouldstop or given
        else:
            getattr(hook, kind)(**given)

    def _replace(self, session: pytest.Session, shares: Shares, worker: int, status: int) -> None:
        """Report the test that ended a worker, and start another one for those that it had left."""
        index = shares.current(worker)
        if index == NOBODY:
            session.shouldfail = f"worker gw{worker} ended with status {os.waitstatus_to_exitcode(status)}"
            return
        item = session.items[index]
        message = f"worker gw{worker} ended with status {os.waitstatus_to_exitcode(status)} in {item.nodeid}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call", duration=0.0)
        session.config.hook.pytest_runtest_logreport(report=report)
        self._fork(session, shares, worker)


class Child:
    """Sends the parent what its plugins are to see."""

    def __init__(self, config: pytest.Config, connection: Any) -> None:
        self._config = config
        self._connection = connection

    def send(self, kind: str, given: Any) -> None:
        """Send an event, with a plain value."""
        self._connection.send_bytes(pickle.dumps((kind, given), pickle.HIGHEST_PROTOCOL))

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.send("pytest_runtest_logstart", {"nodeid": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.send("report", data)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.send("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location})

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self.send("warning", given)


def _work(session: pytest.Session, shares: Shares, worker: int, connection: Any) -> None:
    """Run the tests of a worker, and end the process."""
    status = 1
    try:
        child = _become_worker(session, worker, connection)
        current, following = shares.advance(worker)
        while current != NOBODY:
            item = session.items[current]
            nextitem = session.items[following] if following != NOBODY else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if session.shouldstop:
                child.send("stop", str(session.shouldstop))
            current, following = shares.advance(worker)
        session.config._ensure_unconfigure()
        status = 0
    except KeyboardInterrupt:
        _stop(session)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        _stop(session)
    finally:
        connection.close()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _stop(session: pytest.Session) -> None:
    """End what the fixtures of an interrupted worker have started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)


def _plugin(config: pytest.Config, name: str) -> Any:
    return config.pluginmanager.get_plugin(name)


def _folders(config: pytest.Config) -> Any:
    return vars(config)["_tmp_path_factory"]


def _become_worker(session: pytest.Session, worker: int, connection: Any) -> Child:
    config = session.config
    name = f"gw{worker}"
    os.environ["PYTEST_XDIST_WORKER"] = name
    vars(config)["workerinput"] = {"workerid": name}  # A plugin with it leaves caches and reports to the parent.
    folders = _folders(config)
    folders._given_basetemp, folders._basetemp = folders.getbasetemp() / name, None
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=TerminalWriter(sys.__stderr__)), "terminalreporter")
    plugins.unregister(name="forks")
    child = Child(config, connection)
    plugins.register(child, "forks")
    capture = _plugin(config, "capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    return child
