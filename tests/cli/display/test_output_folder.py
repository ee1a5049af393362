"""Names of files that strangers choose, and the folder that they are saved to."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from requirements import requirement
from sidestream.cli.display.output_folder import OutputFolder
from sidestream.errors import ConfigurationError
from sidestream.files.saving import MAX_NAME_BYTES, safe_name
from sidestream.parts import File


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("plot.png", "plot.png"),
        ("Übersicht 2026.csv", "Übersicht 2026.csv"),
        ("archive.tar.gz", "archive.tar.gz"),
        ("../../etc/passwd.png", "passwd.png"),
        ("/etc/passwd.png", "passwd.png"),
        ("..\\..\\x.png", "x.png"),
        ("C:\\Windows\\x.png", "x.png"),
        ("C:x.png", "x.png"),
        ("\\\\server\\share\\x.png", "x.png"),
        ("x.png:stream", "x.png_stream"),
        ("a\0b.png", "ab.png"),
        ("a\nb\x1b[31m.png", "ab[31m.png"),
        ("gpj.\u202eexe.png", "gpj.exe.png"),
        ("zero\u200bwidth.png", "zerowidth.png"),
        (".bashrc", "bashrc.png"),
        ("...x.png", "x.png"),
        ("-rf.png", "rf.png"),
        ("--help", "help.png"),
        ("~root.png", "root.png"),
        ("trailing. . ", "trailing.png"),
        ("NUL", "file-NUL.png"),
        ("nul.txt", "file-nul.txt"),
        ("con.tar.gz", "file-con.tar.gz"),
        ("COM1.png", "file-COM1.png"),
        ("LPT¹.png", "file-LPT¹.png"),
        ('a<b>c"d|e?f*.png', "a_b_c_d_e_f_.png"),
        ("no ending", "no ending.png"),
        ("", "file.png"),
        (None, "file.png"),
        ("..", "file.png"),
        ("/", "file.png"),
        ("\ud800", "file.png"),
    ],
)
def test_hostile_name_becomes_plain(name: str | None, safe: str):
    assert safe_name(name, "image/png") == safe


def test_long_name_is_cut_and_keeps_extension():
    assert safe_name("a" * 300 + ".csv", "text/csv") == "a" * (MAX_NAME_BYTES - 4) + ".csv"
    assert len(safe_name("é" * 300 + ".csv", "text/csv").encode()) <= MAX_NAME_BYTES
    assert len(safe_name("a." + "b" * 300, "image/png").encode()) <= MAX_NAME_BYTES


@requirement("F37")
@given(st.text(max_size=400))
@example("." * 300 + "a")
@example("a" * 179 + " .b")
def test_safe_name_stays_in_its_folder(name: str):
    safe = safe_name(name, "image/png")
    assert safe == os.path.basename(safe)
    assert not set(safe) & set('/\\:\0<>"|?*')
    assert safe[0] not in ".-~ "
    assert safe[-1] not in ". "
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert safe_name(safe, "image/png") == safe


@requirement("F37")
def test_files_are_not_overwritten_and_links_not_followed(tmp_path: Path):
    target = tmp_path / "target"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.png").symlink_to(target)
    folder = OutputFolder(tmp_path / "out")
    paths = [folder.save(File(str(n), "image/png", name, b"x")) for n, name in enumerate(["a.png", "a.png", "A-1.png"])]
    assert [path.name for path in paths if path] == ["a-1.png", "a-2.png", "A-1-1.png"]
    assert not target.exists()


def test_file_known_only_by_url_is_not_saved(tmp_path: Path):
    assert OutputFolder(tmp_path).save(File("1", "image/png", "a.png", url="https://a.example/a.png")) is None
    assert list(tmp_path.iterdir()) == []


def test_uncreatable_folder_raises_configuration_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError):
        OutputFolder(tmp_path / "file" / "out")
