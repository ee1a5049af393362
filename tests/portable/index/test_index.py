"""The file index: what is found, what changes with the files, and every way to search vectors."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, NewerSchemaError, StoreError
from sidestream.portable.documents import Document
from sidestream.portable.index import AddReport, Index
from sidestream.portable.index.chunks import MAX_CHARS, chunks_of
from sidestream.portable.index.index import fits
from sidestream.portable.index.relevance import WordMatches, ranked
from sidestream.portable.index.sqlite import SqliteIndex
from sidestream.portable.index.vectors import Driver, connect
from sidestream.tools.server_side import Combination, Comparison, HybridSearch
from support import warm
from support.places import ROOT, TESTS
from support.portable_index import DIMENSIONS, bag_of_words, pdf_of, write_corpus

WORDS = HybridSearch(embedding_weight=0.0, text_weight=1.0)
MEANING = HybridSearch(embedding_weight=1.0, text_weight=0.0)
HAS_EXTENSIONS = hasattr(sqlite3.Connection, "enable_load_extension")


@pytest.fixture(params=["apsw", "matrix", *(["sqlite3"] if HAS_EXTENSIONS else [])])
def driver(request: pytest.FixtureRequest) -> Driver:
    return request.param


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
async def index(driver: Driver, tmp_path: Path) -> AsyncGenerator[Index]:
    async with Index(SqliteIndex(tmp_path / "index.db", driver), bag_of_words, "words") as opened:
        yield opened


def names(found: Sequence[object]) -> list[str]:
    return [passage.filename for passage in found]  # type: ignore[attr-defined]


@requirement("R126")
async def test_search_finds_words_at_once_and_meaning_after_embedding(index: Index, docs: Path):
    never = asyncio.Event()

    async def wait(texts: Sequence[str]) -> list[list[float]]:
        await never.wait()
        return []

    slow = Index(index._database, wait, "words")  # its vectors never come
    assert await slow.add(docs) == AddReport(added=3)
    assert names(await slow.search("disc brakes")) == ["cars.md"]
    assert await slow.search("automobile") == []
    await slow.aclose()

    await index.add(docs)
    await index.complete()
    counts = await index.counts()
    assert counts.vectors == counts.passages > 0
    assert names(await index.search("automobile"))[0] == "cars.md"
    assert names(await index.search("feline"))[0] == "cats.html"


@requirement("R126")
async def test_hit_has_position_in_file(index: Index, docs: Path):
    (docs / "report.pdf").write_bytes(pdf_of(["An introduction", "The harvest was good", "An appendix"]))
    await index.add(docs)
    (hit, *_) = await index.search("harvest")
    assert (hit.filename, hit.page, hit.text) == ("report.pdf", 2, "The harvest was good")
    text = await index.text(hit.digest)
    assert text is not None
    assert text[hit.start : hit.end] == hit.text
    (hit, *_) = await index.search("paint red")
    assert hit.title == "Cars"
    assert hit.page is None


@requirement("R126")
async def test_only_changed_files_are_read_and_embedded_again(driver: Driver, tmp_path: Path, docs: Path):
    embedded: list[str] = []

    async def counting(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        return await bag_of_words(texts)

    async with Index(SqliteIndex(tmp_path / "i.db", driver), counting, "words") as index:
        await index.add(docs)
        await index.complete()
        first = len(embedded)
        os.utime(docs / "cars.md", (1, 1))  # another time, the same content
        assert await index.add(docs) == AddReport(unchanged=3)
        (docs / "cooking.txt").write_text("Fry the onions.")
        (docs / "copy.md").write_bytes((docs / "cars.md").read_bytes())
        (docs / "sub" / "cats.html").unlink()
        assert await index.add(docs) == AddReport(added=1, changed=1, unchanged=1, removed=1)
        await index.complete()
        assert len(embedded) == first + 1, "a copy has the vectors of the original"
        assert not any("nine minutes" in passage.text for passage in await index.search("pasta nine minutes"))
        assert sorted(names(await index.search("disc brakes", 2, paths=[docs])))[:2] == ["cars.md", "copy.md"]
        assert not [file for file in await index.list() if file.filename == "cats.html"]


async def test_remove_deletes_folder_from_index(index: Index, docs: Path):
    await index.add(docs)
    assert await index.remove(docs / "sub") == 1
    assert "cats.html" not in names(await index.search("windowsill"))
    assert await index.remove(docs) == 2
    assert (await index.counts()).files == 0
    assert await index.roots() == []


@requirement("R126")
async def test_filters_match_hosted_tools(index: Index, docs: Path):
    await index.add(docs / "cars.md", attributes={"year": 2024, "team": "a"})
    await index.add(docs / "cooking.txt", attributes={"year": 2025})
    await index.complete()
    query = "car pasta paint water"
    newer = Comparison(attribute="year", operator="gt", value=2024)
    assert set(names(await index.search(query, filters=newer))) == {"cooking.txt"}
    by_type = Comparison(attribute="extension", operator="in", value=["md"])
    both = Combination(operator="or", filters=[newer, by_type])
    assert set(names(await index.search(query, filters=both))) == {"cars.md", "cooking.txt"}
    assert await index.search(query, filters=Combination(operator="and", filters=[newer, by_type])) == []


async def test_file_without_text_says_why(index: Index, docs: Path):
    (docs / "empty.md").write_text("")
    (docs / "blank.md").write_text(" \n")
    (docs / "app.html").write_text("<html><body><div id='root'></div><script>draw()</script></body></html>")
    (docs / "scan.pdf").write_bytes(pdf_of([""]))
    (docs / "logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><path d='M0 0'/></svg>")
    problems = {Path(path).name: problem for path, problem in (await index.add(docs)).problems.items()}
    assert problems.keys() == {"empty.md", "blank.md", "app.html", "scan.pdf"}
    words = {"empty.md": "empty", "blank.md": "white space", "app.html": "scripts", "scan.pdf": "recognition"}
    assert all(words[name] in problem for name, problem in problems.items())


@requirement("R126")
async def test_add_without_attributes_keeps_them(index: Index, docs: Path):
    sales = Comparison(attribute="dept", value="sales")
    await index.add(docs, attributes={"dept": "sales"})
    assert await index.add(docs) == AddReport(unchanged=3)
    assert len(await index.search("brakes", filters=sales)) == 3
    await index.add(docs, attributes={})
    assert await index.search("brakes", filters=sales) == []


async def test_file_has_attributes_of_all_roots_around_it(index: Index, docs: Path):
    await index.add(docs, attributes={"dept": "sales", "year": 2024})
    await index.add(docs / "sub", attributes={"dept": "hr"})
    await index.add(docs / "cars.md")
    for _ in range(2):
        found = {file.filename: file.attributes for file in await index.list()}
        assert found == {
            "cars.md": {"dept": "sales", "year": 2024},
            "cooking.txt": {"dept": "sales", "year": 2024},
            "cats.html": {"dept": "hr", "year": 2024},
        }
        assert await index.refresh() == AddReport(unchanged=5), "no root overwrites another's attributes"


@pytest.mark.parametrize(
    ("operator", "value", "holds"),
    [
        ("eq", 3, True), ("eq", "3", False), ("ne", 4, True), ("gt", 2, True), ("gte", 3, True), ("lt", 3, False),
        ("lte", 3, True), ("in", [1, 3], True), ("nin", [1, 3], False), ("gt", "2", False),
    ],
)  # fmt: skip
def test_comparison_operators_match_attribute(operator: str, value: object, holds: bool):
    assert fits({"n": 3}, Comparison(attribute="n", operator=operator, value=value)) is holds  # type: ignore[arg-type]
    assert fits({}, Comparison(attribute="n", operator=operator, value=value)) is (operator in ("ne", "nin"))  # type: ignore[arg-type]


def test_relevance_is_absolute_share_of_words_and_similarity():
    common = WordMatches(90, frozenset({1, 2, 3}), frozenset())
    rare = WordMatches(1, frozenset({3}), frozenset())
    (first, best), (_, other), *_ = ranked([3, 1, 2], None, [common, rare], 100)
    assert (first, best) == (3, 1.0)
    assert other < 0.1, "a word that most passages have says little"
    assert [number for number, _ in ranked([1, 3, 2], None, [common, rare], 100)] == [1, 3, 2]
    found = dict(ranked([3], {3: 0.5, 4: 0.25}, [rare], 100, HybridSearch(embedding_weight=1.0, text_weight=1.0)))
    assert found == {3: 0.75, 4: 0.125}
    assert [number for number, _ in ranked([1, 2], {9: 0.9}, [common], 100, WORDS)] == [1, 2]
    assert [number for number, _ in ranked([1, 2], {9: 0.9}, [common], 100, MEANING)] == [9]


async def test_similarity_is_cosine_with_every_driver(index: Index, docs: Path):
    await index.add(docs)
    await index.complete()
    (query,) = await bag_of_words(["automobile with disc brakes"])
    database = index._database
    found = await index._call(database.similarities, query, range(1, 1000))
    texts = {number: rows[0].text for number, rows in (await index._call(database.rows, list(found))).items()}
    assert len(found) == (await index.counts()).passages
    assert "brakes" in texts[max(found, key=found.__getitem__)]
    assert await index._call(database.similarities, query, [max(found)]) == {max(found): found[max(found)]}
    assert all(-1e-6 <= near <= 1 + 1e-6 for near in found.values())
    assert set((await index._call(database.similarities, [0.0] * DIMENSIONS, range(1, 1000))).values()) == {0.0}


async def test_unrelated_query_scores_below_threshold(index: Index, docs: Path):
    await index.add(docs)
    await index.complete()
    (hit, *_) = await index.search("boil pasta salt water")
    assert hit.filename == "cooking.txt"
    assert hit.score > 0.5
    assert all(hit.score < 0.3 for hit in await index.search("quantum chromodynamics"))
    assert await index.search("quantum chromodynamics", score_threshold=0.3) == []
    assert names(await index.search("boil pasta salt water", score_threshold=0.5)) == ["cooking.txt"]


async def test_index_of_newer_version_is_left_unchanged(tmp_path: Path, docs: Path):
    path = tmp_path / "index.db"
    async with Index(SqliteIndex(path), None, "words") as index:
        await index.add(docs)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    async with Index(SqliteIndex(path), None, "words") as index:
        with pytest.raises(NewerSchemaError):
            await index.search("cars")
    assert path.read_bytes() == before


async def test_foreign_or_damaged_index_file_is_refused(tmp_path: Path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database at all" * 100)
    for path in (other, damaged):
        before = path.read_bytes()
        async with Index(SqliteIndex(path), None, "words") as index:
            with pytest.raises(StoreError):
                await index.counts()
        assert path.read_bytes() == before


async def test_vectors_of_another_model_are_not_compared(tmp_path: Path, docs: Path):
    path = tmp_path / "index.db"
    async with Index(SqliteIndex(path), bag_of_words, "words") as index:
        await index.add(docs)
        await index.complete()
    async with Index(SqliteIndex(path), bag_of_words, "another") as index:
        with pytest.raises(ConfigurationError):
            await index.search("cars")


async def test_files_are_found_by_words_without_model(tmp_path: Path, docs: Path):
    async def fails(texts: Sequence[str]) -> list[list[float]]:
        raise ConfigurationError("the model is not installed")

    async with Index(SqliteIndex(tmp_path / "index.db"), fails, "words") as index:
        await index.add(docs)
        with pytest.raises(ConfigurationError):
            await index.complete()
        index.start()
        assert index._work is not None
        await index._work
        assert index.problem == "the model is not installed"
        assert names(await index.search("windowsill")) == ["cats.html"]


async def test_index_is_shared_with_and_without_vector_extension(tmp_path: Path, docs: Path):
    path = tmp_path / "index.db"
    for driver in ("apsw", "matrix", "apsw", "matrix"):
        async with Index(SqliteIndex(path, driver), bag_of_words, "words") as index:
            (docs / f"{driver}.txt").write_text(f"Text {len(os.listdir(docs))} about the automobile.")
            await index.add(docs)
            await index.complete()
            found = names(await index.search("car", 3))
            assert found[0] in ("apsw.txt", "matrix.txt", "cars.md")
            vector = (await bag_of_words(["car"]))[0]
            best = await index._call(index._database.nearest, vector, None, 10)
            assert len(best) == (await index.counts()).vectors


async def test_missing_folder_keeps_its_files_until_removed(index: Index, docs: Path):
    await index.add(docs)
    os.rename(docs, f"{docs}-elsewhere")
    report = await index.refresh()
    assert (report.removed, list(report.problems)) == (0, [str(docs)])
    assert names(await index.search("windowsill"))[0] == "cats.html"


async def test_unreadable_file_does_not_stop_other_files(index: Index, docs: Path):
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    (docs / "empty.pdf").write_bytes(pdf_of([""]))
    report = await index.add(docs)
    assert report.added == 4
    assert set(report.problems) == {str(docs / "broken.pdf"), str(docs / "empty.pdf")}
    again = await index.add(docs)
    assert (again.added, again.changed) == (0, 0)
    assert set(again.problems) == set(report.problems)


_CHILD = """
import asyncio, os, signal, sys
from support.portable_index import bag_of_words
from sidestream.portable.index import Index, index as module
from sidestream.portable.index.sqlite import SqliteIndex

module.BATCH = 4
left = int(sys.argv[3])

def dies(stage, done, total):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Index(SqliteIndex(sys.argv[1]), bag_of_words, "words") as index:
        await index.add(sys.argv[2], progress=dies)
        await index.complete(progress=dies)

asyncio.run(main())
"""


async def indexing(path: Path, docs: Path, dies_at: int = 0) -> asyncio.subprocess.Process:
    """A process that indexes a folder, and is killed when it reports progress for that time."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    arguments = (str(path), str(docs), str(dies_at))
    return await warm.start(sys.executable, "-c", _CHILD, *arguments, env=environment)


@requirement("R126")
async def test_two_processes_can_index_one_folder(tmp_path: Path):
    docs, path = tmp_path / "docs", tmp_path / "index.db"
    write_corpus(docs)
    for number in range(40):
        (docs / f"n{number}.txt").write_text(f"File number {number} about topic{number}.")
    children = [await indexing(path, docs) for _ in range(3)]
    assert [await child.wait() for child in children] == [0, 0, 0]
    async with Index(SqliteIndex(path), bag_of_words, "words") as index:
        counts = await index.counts()
        assert (counts.files, counts.passages, counts.vectors) == (43, 43, 43)
        assert await index.add(docs) == AddReport(unchanged=43)
        assert names(await index.search("topic17", 1)) == ["n17.txt"]


@requirement("R126")
def test_index_waits_while_another_connection_creates_file(driver: Driver, tmp_path: Path):
    path = tmp_path / "index.db"
    index = SqliteIndex(path, driver)
    with closing(connect(path, driver)[0]) as other, ThreadPoolExecutor() as pool:
        other.execute("BEGIN IMMEDIATE").fetchall()
        opening = pool.submit(index.open)
        with pytest.raises(TimeoutError):
            opening.result(0.1)
        other.execute("COMMIT").fetchall()
        opening.result(60)
    index.close()


@requirement("R126")
async def test_index_is_completed_after_writer_is_killed_anywhere(tmp_path: Path):
    docs, path = tmp_path / "docs", tmp_path / "index.db"
    write_corpus(docs)
    for number in range(9):
        (docs / f"n{number}.txt").write_text(f"File number {number} about topic{number}.")
    for moment in (5, 15):
        child = await indexing(path, docs, dies_at=moment)
        async with asyncio.timeout(60):
            assert await child.wait() == -signal.SIGKILL
        async with Index(SqliteIndex(path), None, "words") as index:
            counts = await index.counts()
            assert counts.vectors <= counts.passages == counts.files <= 12
    async with Index(SqliteIndex(path), bag_of_words, "words") as index:
        report = await index.add(docs)
        assert (report.changed, report.removed, report.problems) == (0, 0, {})
        await index.complete()
        counts = await index.counts()
        assert (counts.files, counts.passages, counts.vectors) == (12, 12, 12)
        assert names(await index.search("topic7", 1)) == ["n7.txt"]
        assert names(await index.search("feline"))[0] == "cats.html"


def test_passages_follow_structure_and_cover_whole_text():
    text = (
        "# A\n\n"
        + "First. " * 60
        + "\n\n## B\n\n"
        + "Second. " * 60
        + "\n\n```\ncode\n\n# no heading\n```\n"
        + "x" * 4000
    )
    document = Document(text=text, mime_type="text/markdown")
    made = chunks_of(document)
    assert all(chunk.end - chunk.start <= MAX_CHARS for chunk in made)
    assert "".join(text[c.start : c.end] for c in made).replace(" ", "").replace("\n", "") == text.replace(
        " ", ""
    ).replace("\n", "")
    headings = [chunk.heading for chunk in made]
    assert headings[0] == "A"
    assert "A > B" in headings
    assert not any("no heading" in heading for heading in headings)


@pytest.mark.parametrize(
    ("text", "mime_type"),
    [
        ("# a" + " " * 200_000 + "b\n", "text/markdown"),
        ("# a\n" * 200_000, "text/x-py"),
        ("class A:\n    x = 1\n\n    def f(self):\n        pass\n\n" + "    # a\n" * 200_000, "text/x-py"),
        ("\n" * 3_000_000 + "x", "text/x-py"),
    ],
    ids=["heading", "comments", "comments-in-class", "lines"],
)
def test_hostile_text_is_split_in_linear_time(text: str, mime_type: str):
    made = chunks_of(Document(text=text, mime_type=mime_type))
    assert made
    assert all(chunk.end - chunk.start <= MAX_CHARS for chunk in made)


@pytest.mark.parametrize(
    ("line", "title"), [("# A #", "A"), ("## A ## ", "A"), ("# #", "#"), ("# a # b", "a # b"), ("#  x\t", "x")]
)
def test_heading_drops_its_marks(line: str, title: str):
    (chunk,) = chunks_of(Document(text=f"{line}\n\nText.", mime_type="text/markdown"))
    assert chunk.heading == title


async def test_search_accepts_any_query_string(index: Index, docs: Path):
    await index.add(docs)
    for query in ('"', "AND OR NOT", "a* OR (b", "\x00", "; DROP TABLE files", "", " ", "x" * 100_000, "🙂", "\ud800"):
        await index.search(query)
    assert DIMENSIONS


@pytest.mark.skipif(HAS_EXTENSIONS, reason="this Python itself runs that way")
def test_index_works_with_standard_library_sqlite(tmp_path: Path):
    """Debian's own interpreter can load extensions, and uses the packages of this environment."""
    import shutil
    import subprocess

    python = shutil.which("python3", path="/usr/bin")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (
        python is None
        or version not in subprocess.run([python, "-V"], capture_output=True, text=True, timeout=60).stdout
    ):
        pytest.skip("there is no other interpreter of this version")
    write_corpus(tmp_path / "docs")
    program = """
import asyncio, sqlite3, sys
if not hasattr(sqlite3.Connection, "enable_load_extension"):
    sys.exit(42)
from support.portable_index import bag_of_words
from sidestream.portable.index import Index
from sidestream.portable.index.sqlite import SqliteIndex

async def main():
    async with Index(SqliteIndex(sys.argv[1], "sqlite3"), bag_of_words, "words") as index:
        await index.add(sys.argv[2])
        await index.complete()
        print([passage.filename for passage in await index.search("automobile")][0])

asyncio.run(main())
"""
    places = [str(TESTS), str(ROOT / "src"), *sys.path]
    done = subprocess.run(
        [python, "-c", program, str(tmp_path / "i.db"), str(tmp_path / "docs")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in places if "site-packages" in path or path in places[:2]),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 42:
        pytest.skip("that interpreter cannot load extensions either")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "cars.md"
