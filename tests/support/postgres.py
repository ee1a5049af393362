"""A PostgreSQL server of the test run: Debian's binaries, a folder of its own, on 127.0.0.1 and a socket.

All workers of a run share one. Each holds a lock as long as it lives; a watcher waits until the last lock is gone,
however its holder ended, and then stops the server and removes the folder.
"""

import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

SETTINGS = {
    "fsync": "off",  # What a kill of the server loses is not the point here.
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "listen_addresses": "127.0.0.1",
}


class Server(NamedTuple):
    """Where the server listens: on a socket without a password, on 127.0.0.1 with one."""

    folder: str
    port: int

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def stop(self) -> None:
        """Stops it, as a restart of the machine would. Only for a server that no other test uses."""
        run_program(Path(self.folder), "pg_ctl", "-w", "-m", "fast", "stop")

    def start(self) -> None:
        """Starts it again."""
        run_program(Path(self.folder), "pg_ctl", "-w", "-l", f"{self.folder}/log", "start")

    def tcp_url(self, database: str, user: str, password: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"


def kill_others(server: Server, words: str) -> int:
    """Terminates the connections whose last query holds these words; returns their number."""
    import psycopg

    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
        return len(connection.execute(query, (f"%{words}%",)).fetchall())


def binaries() -> Path | None:
    """The folder of the newest server that is installed, if one is."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    return Path(path).resolve().parent if (path := shutil.which("postgres")) else None


@contextmanager
def shared_server(place: Path) -> Generator[Server]:
    """The server of the run that this folder belongs to; the first to come starts it."""
    with ExitStack() as stack:
        folder = shared_folder(place, "postgres", __file__, stack)
        yield Server(str(folder), int((folder / "port").read_text()))


def shared_folder(place: Path, name: str, script: str, stack: ExitStack) -> Path:
    """The folder of a server that runs until the last stack is closed; the script starts one in a folder."""
    current = place / f"{name}.current"
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _join(current, stack) or _begin(current, name, script, stack)


def _begin(current: Path, name: str, script: str, stack: ExitStack) -> Path:
    """Starts a server."""
    folder = Path(tempfile.mkdtemp(prefix=f"sidestream-{name}-", dir=fastest_folder()))
    folder.chmod(0o755)
    users = stack.enter_context((folder / "users").open("w"))
    fcntl.flock(users, fcntl.LOCK_SH)
    try:
        program = [sys.executable, "-m", f"support.{Path(script).stem}", str(folder)]
        subprocess.run(program, cwd=Path(__file__).parents[1], check=True, timeout=120)
    except BaseException:
        shutil.rmtree(folder)
        raise
    current.write_text(str(folder))
    return folder


def fastest_folder() -> str:
    """Return a folder for temporary files: in memory if there is room and programs may run from there."""
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return "/tmp"
    has_room = state.f_bavail * state.f_frsize > 1 << 30
    return "/dev/shm" if has_room and not state.f_flag & os.ST_NOEXEC else "/tmp"


def _join(current: Path, stack: ExitStack) -> Path | None:
    """The server that runs; None where none runs, or it is about to end."""
    try:
        folder = Path(current.read_text())
        users = stack.enter_context((folder / "users").open("r"))
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return None
    return folder


def run_program(folder: Path, program: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL on the server in the folder."""
    programs = binaries()
    assert programs is not None
    user = _owner()
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    subprocess.run(
        [programs / program, "-D", folder / "data", *arguments],
        timeout=60,
        check=True,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder)},
        **as_user,  # type: ignore[arg-type]
    )


def _owner() -> pwd.struct_passwd | None:
    """The user who runs the server, for root, as whom PostgreSQL refuses to run; None for others."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _start_and_watch(folder: Path) -> None:
    """Starts the server; a process stays behind that stops it once nobody uses it."""
    data = folder / "data"
    data.mkdir()
    if user := _owner():
        for path in (folder, data):
            os.chown(path, user.pw_uid, user.pw_gid)

    def run(program: str, *arguments: str) -> None:
        run_program(folder, program, *arguments)

    run("initdb", "-U", "postgres", "-E", "UTF8", "--no-sync", "-A", "trust")
    (data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = SETTINGS | {"port": str(port), "unix_socket_directories": str(folder)}
    with (data / "postgresql.conf").open("a") as conf:
        conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    run("pg_ctl", "-w", "-l", str(folder / "log"), "start")
    (folder / "port").write_text(str(port))
    if os.fork():
        return
    os.setsid()
    with open(os.devnull, "r+") as nothing:
        for descriptor in (0, 1, 2):
            os.dup2(nothing.fileno(), descriptor)
    with (folder / "users").open("r") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        run("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _start_and_watch(Path(sys.argv[1]))
