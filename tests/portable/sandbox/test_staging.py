"""Where root shows files to a process that has dropped its user."""

import tempfile
from pathlib import Path

import pytest

from sidestream.portable.sandbox.workspace import is_reachable, reachable_folder


def test_a_private_folder_for_temporary_files_is_not_used_for_what_others_must_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.chmod(0o700)
    inner = tmp_path / "inner"
    inner.mkdir(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(inner))
    assert not is_reachable(str(inner))
    assert is_reachable(reachable_folder())


def test_the_usual_folder_for_temporary_files_is_used_if_others_can_reach_it(monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory(dir=reachable_folder()) as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert reachable_folder() == folder
