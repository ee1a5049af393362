"""`sidestream index` and what it prints."""

import json
from pathlib import Path

from cli.command import Run
from requirements import requirement
from support.portable_index import hostile_folder, write_corpus


@requirement("R126")
def test_files_are_added_listed_searched_and_removed(sidestream: Run, tmp_path: Path):
    write_corpus(tmp_path / "docs")
    added = sidestream("index", "add", "docs", "--no-vectors", "--attribute", "year=2024")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("3 added, 0 changed, 0 unchanged, 0 removed; 3 files with")
    assert "0 added, 0 changed, 3 unchanged" in sidestream("index", "add", "--no-vectors").stdout
    lines = [json.loads(line) for line in sidestream("index", "list", "--json").stdout.splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["cars.md", "cooking.txt", "cats.html"]
    assert lines[0]["attributes"] == {"year": 2024}
    found = sidestream("index", "search", "windowsill", "--json", "-n", "1", "--in", "docs")
    assert json.loads(found.stdout)["filename"] == "cats.html"
    assert "cats.html" in sidestream("index", "search", "windowsill").stdout
    assert sidestream("index", "search", "xyzzy").returncode == 1
    assert sidestream("index", "remove", "docs").stdout.startswith("3 files removed")
    assert sidestream("index", "remove", "docs").returncode == 1


@requirement("F56")
def test_skipped_files_are_printed(sidestream: Run, tmp_path: Path):
    write_corpus(tmp_path / "docs")
    expected = hostile_folder(tmp_path / "docs")
    added = sidestream("index", "add", "docs", "--no-vectors")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("3 added, ")
    lines = [line.partition(": ") for line in added.stderr.splitlines()]
    assert {path for path, _, _ in lines} == expected.keys()
    assert all(expected[path] in problem for path, _, problem in lines)
    assert "it is a link that leads to itself" in sidestream("index", "list").stdout
    assert sidestream("index", "search", "swordfish").returncode == 1


def test_index_errors_are_one_line(sidestream: Run, tmp_path: Path):
    (tmp_path / "other.db").write_bytes(b"not a database" * 100)
    for arguments in (
        ("add",),
        ("add", "nowhere"),
        ("add", ".", "--attribute", "x"),
        ("list", "--index", "other.db"),
        ("list", "--index", "mysql://x"),
    ):
        done = sidestream("index", *arguments)
        assert done.returncode in (1, 2), arguments
        assert done.stderr.startswith("error: "), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
