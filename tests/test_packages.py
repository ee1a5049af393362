"""The packages that a checkout builds: with the web UI, or not at all."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.places import ROOT

PAGE = "src/sidestream/server/page"
WRITES_PAGE = (
    f"node -e \"fs.mkdirSync('../{PAGE}', {{recursive: true}}); fs.writeFileSync('../{PAGE}/index.html', 'page')\""
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a wheel is built from, with a page that needs no registry."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/page_hook.py", "src/sidestream/py.typed"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "page").mkdir()
    return tmp_path


def build(clone: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Builds a wheel without a registry, as `pip install .` does."""
    (clone / "page" / "package.json").write_text(json.dumps({"name": "page", "scripts": {"build": script}}))
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "out"],
        cwd=clone,
        env={**os.environ, "npm_config_offline": "true", "npm_config_cache": str(clone / "npm"), **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


def files_of(clone: Path) -> list[str]:
    (wheel,) = (clone / "out").glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_of_fresh_clone_contains_web_ui(clone: Path) -> None:
    done = build(clone, WRITES_PAGE)
    assert done.returncode == 0, done.stderr
    assert "sidestream/server/page/index.html" in files_of(clone)


def test_web_ui_build_trusts_certificates_of_machine(clone: Path) -> None:
    done = build(clone, f'test "$NODE_USE_SYSTEM_CA" = 1 && {WRITES_PAGE}')
    assert done.returncode == 0, done.stderr


def test_failed_web_ui_fails_build_with_reason_and_remedy(clone: Path) -> None:
    done = build(clone, "echo no such registry && exit 1")
    assert done.returncode == 1
    assert "npm run build failed" in done.stderr
    assert "no such registry" in done.stderr
    assert "make page" in done.stderr
    assert "SIDESTREAM_WITHOUT_PAGE=1" in done.stderr
    assert "Traceback" not in done.stderr


def test_wheel_can_be_built_without_web_ui(clone: Path) -> None:
    done = build(clone, "exit 1", SIDESTREAM_WITHOUT_PAGE="1")
    assert done.returncode == 0, done.stderr
    assert "sidestream/server/page/index.html" not in files_of(clone)


def test_editable_install_does_not_build_web_ui(clone: Path) -> None:
    program = "from hatchling.build import build_editable; build_editable('out')"
    (clone / "out").mkdir()
    done = subprocess.run([sys.executable, "-c", program], cwd=clone, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert not (clone / PAGE).exists()
