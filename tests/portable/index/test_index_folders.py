"""Folders of the file index that somebody else writes to: links, odd names, and files that change while they are read."""

import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError, DocumentError
from sidestream.portable.index import AddReport, Index, folder
from sidestream.portable.index.folder import Contents, FolderEntry, Root, Stamp, message_of
from sidestream.portable.index.sqlite import SqliteIndex
from support.portable_index import SECRET, bag_of_words, holding, skips_and_reports, write_corpus


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
async def index(tmp_path: Path) -> AsyncGenerator[Index]:
    async with Index(SqliteIndex(tmp_path / "index.db"), bag_of_words, "words") as opened:
        yield opened


def racing(patch: pytest.MonkeyPatch, change: Callable[[FolderEntry], None]) -> None:
    """Have somebody change the folder after it was listed, right before a file is opened."""
    real = Root.contents

    def contents(self: Root, entry: FolderEntry, max_bytes: int) -> Contents:
        change(entry)
        return real(self, entry, max_bytes)

    patch.setattr(Root, "contents", contents)


async def test_files_added_or_deleted_during_indexing_are_handled(
    index: Index, docs: Path, monkeypatch: pytest.MonkeyPatch
):
    def change(entry: FolderEntry) -> None:
        if entry.path.endswith("cooking.txt"):
            os.unlink(entry.path)
        if entry.path.endswith("cars.md"):
            (docs / "new.txt").write_text("It came meanwhile.")

    racing(monkeypatch, change)
    report = await index.add(docs)
    assert (report.added, report.problems) == (2, {})
    monkeypatch.undo()
    assert (await index.add(docs)).added == 1
    assert [file.filename for file in await index.list()] == ["cars.md", "new.txt", "cats.html"]


def test_file_changed_during_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.txt"
    path.write_text("old")
    root = Root(str(path))
    (entry,) = root.entries()
    real = folder._stamp_of
    looks = 0

    def stamp_of(status: os.stat_result) -> Stamp:
        nonlocal looks
        looks += 1
        if looks == 1:
            path.write_text("newer")
        return real(status)

    monkeypatch.setattr(folder, "_stamp_of", stamp_of)
    contents = root.contents(entry, 100)
    assert (contents.data, contents.stamp.size, looks) == (b"newer", 5, 4)


async def test_links_and_hidden_files_are_not_followed(index: Index, docs: Path, tmp_path: Path):
    (tmp_path / "secret.txt").write_text(SECRET)
    (docs / "link.txt").symlink_to(tmp_path / "secret.txt")
    (docs / "loop").symlink_to(docs)
    (docs / ".hidden.txt").write_text("swordfish")
    os.mkfifo(docs / "pipe.txt")
    report = await index.add(docs)
    assert report.added == 3
    assert set(report.problems) == {str(docs / name) for name in ("link.txt", "loop", "pipe.txt")}
    assert not await holding(index, "swordfish")


async def test_link_within_folder_is_indexed_under_its_name(index: Index, docs: Path):
    (docs / "same.html").symlink_to("sub/cats.html")
    (docs / "sub" / "up.md").symlink_to(docs / "cars.md")
    assert await index.add(docs) == AddReport(added=5)
    assert await holding(index, "windowsill") == {"cats.html", "same.html"}
    (docs / "sub" / "cats.html").write_text("<p>The dog sleeps on the doormat.</p>")
    assert (await index.add(docs)).changed == 2
    assert await holding(index, "doormat") == {"cats.html", "same.html"}


@requirement("F56")
async def test_links_loops_and_odd_names_are_reported(docs: Path, tmp_path: Path):
    await skips_and_reports(lambda: SqliteIndex(tmp_path / "index.db"), docs)


@requirement("F56")
@pytest.mark.parametrize("swapped", ["file", "folder"])
async def test_file_swapped_for_link_is_not_followed(
    swapped: str, index: Index, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cats.html").write_text(f"<p>{SECRET}</p>")
    await index.add(docs)

    def swap(entry: FolderEntry) -> None:
        if entry.path.endswith("cats.html"):
            place = docs / "sub" / "cats.html" if swapped == "file" else docs / "sub"
            os.rename(place, tmp_path / "moved")
            place.symlink_to(outside / "cats.html" if swapped == "file" else outside)

    (docs / "sub" / "cats.html").write_text("<p>Another cat.</p>")
    racing(monkeypatch, swap)
    report = await index.add(docs)
    assert list(report.problems) == [str(docs / "sub" / "cats.html")]
    assert not await holding(index, "swordfish")
    assert await holding(index, "brakes") == {"cars.md"}


@requirement("F56")
@pytest.mark.parametrize("other", ["link", "pipe"])
def test_file_swapped_after_its_check_is_refused(
    other: str, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "secret.txt").write_text(SECRET)
    root = Root(str(docs))
    entry = next(entry for entry in root.entries() if entry.path.endswith("cooking.txt"))
    real = folder._check_regular
    checks = 0

    def check(status: os.stat_result) -> None:
        nonlocal checks
        real(status)
        checks += 1
        if checks == 1:  # By name; the next one is of what was opened.
            (docs / "cooking.txt").unlink()
            if other == "link":
                (docs / "cooking.txt").symlink_to("../secret.txt")
            else:
                os.mkfifo(docs / "cooking.txt")

    monkeypatch.setattr(folder, "_check_regular", check)
    with pytest.raises((OSError, DocumentError)) as raised:
        root.contents(entry, 1000)
    assert checks == 1
    assert message_of(raised.value)


@requirement("F56")
async def test_root_swapped_for_link_keeps_its_files(index: Index, docs: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    os.mkdir(outside)
    (outside / "secret.txt").write_text(SECRET)
    await index.add(docs)
    root = Root(str(docs))
    os.rename(docs, tmp_path / "moved")
    os.symlink(outside, docs)
    report = await index._refresh(str(docs), root, lambda *_: None)
    assert (report.removed, list(report.problems)) == (0, [str(docs)])
    with pytest.raises(ConfigurationError):
        await index.add(docs, within=[str(docs)])
    assert not await holding(index, "swordfish")


def test_sparse_and_growing_files_respect_size_limit(docs: Path):
    with open(docs / "sparse.txt", "wb") as file:
        file.truncate(1 << 40)
    (docs / "grown.txt").write_text("small")
    root = Root(str(docs))
    entries = {os.path.basename(entry.path): entry for entry in root.entries()}
    (docs / "grown.txt").write_text("large " * 1000)
    for name in ("sparse.txt", "grown.txt"):
        with pytest.raises(DocumentError) as raised:
            root.contents(entries[name], 1000)
        assert raised.value.reason == "too-large"
    # Its size is said to be 0.
    status = Root("/proc/self/status")
    with pytest.raises(DocumentError):
        status.contents(status.entries()[0], 10)


async def test_transient_problem_is_retried(index: Index, docs: Path, monkeypatch: pytest.MonkeyPatch):
    def deny(entry: FolderEntry) -> None:
        if entry.path.endswith("cars.md"):
            raise PermissionError(13, "Permission denied")

    racing(monkeypatch, deny)
    assert (await index.add(docs)).problems == {str(docs / "cars.md"): "Permission denied"}
    monkeypatch.undo()
    assert (await index.add(docs)).problems == {}
    assert await holding(index, "brakes") == {"cars.md"}


async def test_deep_folders_are_reported(index: Index, docs: Path):
    deepest = docs
    for _ in range(folder.MAX_DEPTH + 2):
        deepest = deepest / "a"
    deepest.mkdir(parents=True)
    (deepest / "note.txt").write_text("deep")
    report = await index.add(docs)
    assert report.added == 3
    assert ["nested" in problem for problem in report.problems.values()] == [True]


async def test_root_link_is_followed(index: Index, docs: Path, tmp_path: Path):
    (tmp_path / "named").symlink_to(docs)
    (tmp_path / "note.md").symlink_to(docs / "cars.md")
    assert await index.add(tmp_path / "named", tmp_path / "note.md") == AddReport(added=4)
    assert await holding(index, "brakes") == {"cars.md", "note.md"}


async def test_root_with_undecodable_name_is_refused(index: Index, tmp_path: Path):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")
    os.mkdir(place)
    with pytest.raises(ConfigurationError):
        await index.add(place)
