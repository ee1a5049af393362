"""Where blobs are: in a folder, in the database or in a bucket, and what happens if that place fails."""

import logging
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import BlobError, ConfigurationError, StoreError
from sidestream.store import open_store
from sidestream.store.blobs.bucket import BlobBucket
from sidestream.store.blobs.folder import BlobFolder
from sidestream.store.postgres.blob_table import BlobTable
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.sqlite.store import SqliteStore
from support.postgres import Server, kill_others
from support.s3 import KEY, SECRET, environment
from support.stores import digest_of, row, rows

DATA = b"picture" * 100
DIGEST = digest_of(DATA)


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_blob_location_is_chosen_by_url_or_in_python(tmp_path: Path):
    url = "postgresql://host/app?schema=talks"
    bucket = "s3://talks/some/prefix"
    for store, kind, place in [
        (open_store(f"{url}&blobs=database"), BlobTable, "postgresql://host/app"),
        (open_store(url, blobs="database"), BlobTable, "postgresql://host/app"),
        (open_store(f"{url}&blobs={bucket}"), BlobBucket, bucket),
        (open_store(f"sqlite:///{tmp_path}/talks.db?blobs={bucket}"), BlobBucket, bucket),
        (open_store(tmp_path / "talks.db", blobs=bucket), BlobBucket, bucket),
        (open_store(url, blobs=tmp_path), BlobFolder, str(tmp_path)),
        (open_store(f"{url}&blobs={tmp_path}"), BlobFolder, str(tmp_path)),
        (open_store(f"{url}&blobs={tmp_path}", blobs=bucket), BlobBucket, bucket),
    ]:
        assert isinstance(store, PostgresStore | SqliteStore)
        assert (type(store.blobs), store.blobs.place) == (kind, place)


@pytest.mark.parametrize(
    "blobs",
    [
        f"s3://{KEY}:{SECRET}@talks/prefix",
        f"s3://talks/prefix?secret={SECRET}",
        f"https://{SECRET}@host/x",
        "s3://",
        "s3://A",
    ],
)
def test_invalid_blob_location_is_rejected_without_being_shown(tmp_path: Path, blobs: str):
    with pytest.raises(ConfigurationError) as caught:
        open_store(tmp_path / "talks.db", blobs=blobs)
    assert SECRET not in shown(caught.value)


def test_blobs_in_database_require_unopened_postgresql_store(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        open_store(tmp_path / "talks.db", blobs="database")
    with pytest.raises(ConfigurationError, match="when you open it"):
        open_store(open_store(tmp_path / "talks.db"), blobs="database")


@requirement("F33")
async def test_unreachable_bucket_raises_error_without_keys(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for name, value in environment(s3_endpoint).items():
            monkeypatch.setenv(name, value)
        store = SqliteStore(tmp_path / "talks.db", "s3://talks/unreachable")
        await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: DATA})
        await store.aclose()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        store = SqliteStore(tmp_path / "talks.db", "s3://talks/unreachable")
        with caplog.at_level(logging.DEBUG):
            for attempt in (
                store.append("talk", 1, [row(2, blobs=[DIGEST])], {DIGEST: DATA}),
                store.blob(DIGEST),
                store.check(),
            ):
                with pytest.raises(StoreError) as caught:
                    await attempt
                assert not isinstance(caught.value, BlobError)
                assert caught.value.retryable
                assert "s3://talks/unreachable" in str(caught.value)
                assert SECRET not in shown(caught.value) + caplog.text
                assert KEY not in shown(caught.value) + caplog.text
        assert len(await store.read("talk")) == 1
        await store.aclose()


@requirement("F33")
async def test_missing_bucket_is_reported(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    store = SqliteStore(tmp_path / "talks.db", "s3://nowhere/prefix")
    with pytest.raises(StoreError, match="bucket does not exist"):
        await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: DATA})
    assert await store.read("talk") == []
    await store.append("talk", 0, rows(1, 1))
    await store.aclose()


@requirement("F33")
async def test_blob_connection_is_reopened_silently(postgres_server: Server, postgres_url: str):
    store = PostgresStore(postgres_url, "database")
    schema = postgres_url.partition("&schema=")[2]
    await store.append("talk", 0, [row(1, blobs=[DIGEST])], {DIGEST: DATA})
    assert await store.blob(DIGEST) == DATA
    assert kill_others(postgres_server, f"{schema}.blob") == 1
    assert await store.blob(DIGEST) == DATA
    await store.aclose()


def test_bucket_without_extra_names_extra(tmp_path: Path):
    program = """
import asyncio, sys
sys.modules["obstore"] = sys.modules["obstore.store"] = sys.modules["obstore.exceptions"] = None
from sidestream.errors import MissingExtraError
from sidestream.store import open_store
store = open_store(sys.argv[1], blobs="s3://talks/prefix")
try:
    asyncio.run(store.blob("0" * 64))
except MissingExtraError as error:
    print(error.extra)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "talks.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "s3\n", "")
