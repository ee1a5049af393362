"""Moves what SQLite's write-ahead log has gathered into the file, beside the thread that appends to it."""

import sqlite3
import threading
from contextlib import closing

from sidestream.errors import StoreError
from sidestream.store.sqlite.file import SqliteFile

CHECKPOINT_BYTES = 16 << 20
"""The size of the write-ahead log at which a checkpoint begins."""
CHECKED_AFTER = 8
"""Commits after which the size is looked at."""


class Checkpoints:
    """Makes checkpoints in a thread of their own: they wait for the disk, and appends must not wait for them.

    One that fails is not reported: once the log is larger still, the writer makes one itself, and gets the error.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread: threading.Thread | None = None
        self._commits = 0

    def begin_if_due(self) -> None:
        """Begins one if the log is large and none is being made. Call it after each commit, from one thread only."""
        self._commits += 1
        if self._commits % CHECKED_AFTER:
            return
        is_running = self._thread is not None and self._thread.is_alive()
        if not is_running and self._file.wal_bytes() >= CHECKPOINT_BYTES:
            self._thread = threading.Thread(target=self._make, name="sidestream-checkpoint", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until none is being made."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _make(self) -> None:
        try:
            with self._file.errors(), closing(self._file.open_to_checkpoint()) as connection:
                # Passive: it waits for nobody, and nobody waits for it.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (StoreError, sqlite3.Error):
            pass
