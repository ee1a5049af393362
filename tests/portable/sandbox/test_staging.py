"""Where root shows files to a process that has dropped its user."""

import tempfile
from pathlib import Path

import pytest

from sidestream.portable.sandbox.workspace import is_reachable, reachable_folder


def test_private_temporary_folder_is_not_used_for_shared_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tmp_path.chmod(0o700)
    inner = tmp_path / "inner"
    inner.mkdir(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(inner))
    assert not is_reachable(str(inner))
    assert is_reachable(reachable_folder())


def test_usual_temporary_folder_is_used_when_reachable(monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory(dir=reachable_folder()) as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert reachable_folder() == folder
