"""`python -m bench.appends`: measure appends of many conversations to a SQLite file, one by one and together.

Next to a computing thread, such as the event loop of a server with many streams, each statement waits for the GIL.
"""

import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sidestream.durable.worker.process_tuning import SWITCH_S
from sidestream.store.database import Append
from sidestream.store.records import Row
from sidestream.store.sqlite.file import MIGRATIONS, SqliteFile, Transaction
from sidestream.store.sqlite.rows import append_group, append_rows

TALKS = 100
ROUNDS = 100
BODY = b'{"type":"segment","kind":"text-delta","parts":[{"type":"text-delta","id":"0","delta":"a few words of it "}]}'

Write = Callable[[sqlite3.Connection, Sequence[Append]], object]


def one_by_one(connection: sqlite3.Connection, appends: Sequence[Append]) -> None:
    """Write the appends with one or two statements each."""
    for append in appends:
        append_rows(connection, append)


@contextmanager
def computing() -> Generator[None]:
    """Keep another thread computing while the block runs."""
    is_over = False

    def compute() -> None:
        while not is_over:
            {number: str(number) for number in range(200)}

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        is_over = True
        thread.join()


def appends_at(seq: int) -> list[Append]:
    """Return the next record of each conversation."""
    row = Row(seq=seq, time=time.time(), run="run_1", kind="text-delta", body=BODY)
    return [Append(f"talk{number}", seq - 1, [row], {}, False) for number in range(TALKS)]


def times_ms(write: Write) -> list[float]:
    """Return the sorted durations of the transactions, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = SqliteFile(Path(folder) / "talks.db", MIGRATIONS, 5.0)
        with closing(file.open_to_write()) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            with Transaction(connection):
                one_by_one(connection, appends_at(1))
            found: list[float] = []
            for number in range(ROUNDS):
                appends = appends_at(number + 2)
                began_s = time.perf_counter()
                with Transaction(connection):
                    write(connection, appends)
                found.append((time.perf_counter() - began_s) * 1000)
    return sorted(found)


def main() -> None:
    sys.setswitchinterval(SWITCH_S)
    print(f"{TALKS} appends in a transaction, ms: median and 98 of {ROUNDS}")
    for name, write in (("one by one", one_by_one), ("together", append_group)):
        alone = times_ms(write)
        with computing():
            beside = times_ms(write)
        figures = (statistics.median(alone), alone[-3], statistics.median(beside), beside[-3])
        print("{}: {:.1f}, {:.1f}; beside a thread that computes {:.1f}, {:.1f}".format(name, *figures))


if __name__ == "__main__":
    main()
