"""Provides PostgreSQL for measurements, at a URL or as a server started from this machine's programs."""

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def database(url: str | None = None) -> Generator[str]:
    """Yield the URL of a database. Raises RuntimeError if PostgreSQL is not installed.

    Blobs of a database that it starts are in a temporary folder.
    """
    if url is not None:
        yield url
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support.postgres import binaries, shared_server

    if binaries() is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder  # blobs
        with shared_server(Path(folder)) as server:
            yield server.url("postgres")
