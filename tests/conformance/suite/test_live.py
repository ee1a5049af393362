"""`make live` says whom it tests and whom not, and spends nothing where no key is set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.suite.subjects import KEY, ROWS, Subject, live
from conformance.suite.wires import Completions, Responses, Text
from sidestream.providers.registry import providers
from sidestream.testing import FakeProvider

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command with no key but those given."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.run(
        command, cwd=ROOT, env={**kept, **variables}, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


def test_live_suite_without_keys_skips_every_row() -> None:
    done = run(sys.executable, str(HERE / "live.py"))
    assert done.returncode == 0, done.stderr
    assert "No key is set" in done.stdout
    for row in ROWS:
        assert f"leaving out {row.id}: " in done.stdout
    assert "ANTHROPIC_API_KEY" in done.stdout
    assert "testing" not in done.stdout


def test_live_suite_tests_providers_with_keys() -> None:
    answer = Text("The capital of France is Paris.")
    fake = FakeProvider()
    for wire in (Responses(), Completions()):
        fake.on("POST", f"*{wire.call_path}", wire.script(answer).reply())
    with fake.in_thread():
        done = run(
            sys.executable,
            str(HERE / "live.py"),
            "-k",
            "test_send_returns_text or test_unreachable_server",
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=fake.base_url,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "testing openai-responses: openai-responses:gpt-5.4-mini" in done.stdout
    assert "testing openai: openai:gpt-5.4-mini" in done.stdout
    assert "leaving out anthropic: ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN is not set" in done.stdout
    assert "2 passed" in done.stdout
    assert {request.headers["authorization"] for request in fake.requests} == {f"Bearer {KEY}"}
    assert KEY not in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_live_runs_suite_and_make_test_does_not() -> None:
    assert "live.py -k tools" in run("make", "--dry-run", "live", "ARGS=-k tools").stdout
    assert "live.py" not in run("make", "--dry-run", "test").stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_dry_run_of_make_test_runs_no_check(tmp_path: Path) -> None:
    given = "Makefile pyproject.toml constraints.txt page/package.json page/package-lock.json page/index.html"
    for name in (*given.split(), "page/vite.config.ts"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = run("make", "--dry-run", "-C", str(tmp_path), "test")
    assert done.returncode == 0, done.stderr
    assert "check-types" in done.stdout
    assert not (tmp_path / ".checks.log").exists()


def test_every_installed_provider_is_in_live_suite() -> None:
    found, left_out = live({})
    assert found == []
    names = {name.removesuffix("-interactions") for name in left_out}
    assert names == providers().keys() - {"replay"}


@pytest.mark.parametrize(
    ("variables", "tested"),
    [
        ({"GEMINI_API_KEY": "k"}, ["google:gemini-3-flash-preview", "google:interactions/gemini-3-flash-preview"]),
        ({"ANTHROPIC_API_KEY": "  "}, []),
        ({"ANTHROPIC_AUTH_TOKEN": "k", "SIDESTREAM_LIVE_ANTHROPIC": "claude-x"}, ["anthropic:claude-x"]),
        ({"GROQ_API_KEY": "k"}, []),
        ({"GROQ_API_KEY": "k", "SIDESTREAM_LIVE_GROQ": "m"}, ["groq:m"]),
        ({"SIDESTREAM_LIVE_OLLAMA": "m"}, ["ollama:m"]),
    ],
)
def test_live_subjects_follow_keys_and_named_models(variables: dict[str, str], tested: list[str]) -> None:
    found: list[Subject] = live(variables)[0]
    assert [subject.model for subject in found] == tested
