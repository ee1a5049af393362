"""Opening a store by its path or URL, or at the default location."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.files.folders import data_folder
from sidestream.store import Store, open_store
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.sqlite.store import SqliteStore


def path_of(store: Store) -> Path:
    assert isinstance(store, SqliteStore)
    return store.path


@requirement("R83")
def test_default_is_data_folder_or_location_in_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SIDESTREAM_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert path_of(open_store()) == tmp_path / "sidestream" / "log.db"
        monkeypatch.setenv("XDG_DATA_HOME", "relative")
        assert path_of(open_store()) == Path.home() / ".local" / "share" / "sidestream" / "log.db"
    monkeypatch.setenv("SIDESTREAM_STORE", str(tmp_path / "mine.db"))
    assert path_of(open_store()) == tmp_path / "mine.db"
    monkeypatch.setenv("SIDESTREAM_STORE", "postgresql://host/db")
    assert isinstance(open_store(), PostgresStore)
    assert not any(tmp_path.iterdir()), "nothing is made before it is used"


def test_data_folder_follows_platform():
    platformdirs = pytest.importorskip("platformdirs")
    assert data_folder() == platformdirs.user_data_path("sidestream", appauthor=False)


def test_path_may_be_relative_url_or_in_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert path_of(open_store("a b.db")) == tmp_path / "a b.db"
    assert path_of(open_store(Path("sub/talks.db"))) == tmp_path / "sub" / "talks.db"
    assert path_of(open_store("sqlite:///talks.db")) == tmp_path / "talks.db"
    assert path_of(open_store("sqlite:////srv/my%20talks.db")) == Path("/srv/my talks.db")
    assert path_of(open_store("~/talks.db")) == Path(os.path.expanduser("~/talks.db"))


def test_store_is_returned_unchanged(tmp_path: Path):
    store = SqliteStore(tmp_path / "talks.db")
    assert open_store(store) is store


@pytest.mark.parametrize(
    "where", ["mysql://user:s3cret-word@host/db", "sqlite://host/talks.db", "sqlite:///", "https://x", 7, b"x"]
)
def test_other_locations_are_rejected(where):
    with pytest.raises(ConfigurationError) as caught:
        open_store(where)
    assert "s3cret-word" not in str(caught.value)


def test_database_drivers_are_imported_only_when_needed(tmp_path: Path):
    program = (
        "import sys, sidestream.store; "
        "assert not {'sqlite3', 'psycopg'} & set(sys.modules); "
        "sidestream.store.open_store('talks.db'); "
        "assert 'sqlite3' in sys.modules and 'psycopg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=60)


def test_postgresql_without_extra_names_extra(tmp_path: Path):
    (tmp_path / "psycopg.py").write_text("raise ImportError('not here')")
    program = (
        "import sys; sys.path.insert(0, '.'); import sidestream.store, sidestream.errors\n"
        "try: sidestream.store.open_store('postgresql://host/db')\n"
        "except sidestream.errors.MissingExtraError as error: print(error.extra)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout == "postgres\n"
