"""The files in deploy/: their commands are those of this version, and systemd accepts the units."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import parse
from sidestream.cli.main import commands
from support.places import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMPOSE = (ROOT / "deploy" / "compose.yaml").read_text("utf-8")
ENVIRONMENT = (ROOT / "deploy" / "systemd" / "sidestream.env").read_text("utf-8")


def commands_in(text: str, pattern: str) -> list[str]:
    return [line.replace("%i", "8791") for line in re.findall(pattern, text, re.MULTILINE) if "sidestream" in line]


EXECUTED = [line for unit in UNITS for line in commands_in(unit.read_text("utf-8"), r"^ExecStart=(.*sidestream .*)$")]
COMPOSED = commands_in(COMPOSE, r"^ +command: (sidestream .*)$")


def test_server_and_worker_have_unit_and_container():
    assert [shlex.split(line)[1] for line in EXECUTED] == ["serve", "worker"]
    assert [shlex.split(line)[1] for line in COMPOSED] == ["serve", "worker"]


@pytest.mark.parametrize("line", [*EXECUTED, *COMPOSED])
def test_deployed_command_parses(line: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in re.findall(r"^(SIDESTREAM_\w+)=(.*)$", ENVIRONMENT, re.MULTILINE):
        monkeypatch.setenv(name, value)
    parse(commands, "sidestream", shlex.split(line)[1:])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_unit(unit: Path, tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # The programs of this installation stand for those of the machine that it is deployed to.
    text = unit.read_text("utf-8").replace("/srv/sidestream/.venv/bin/", f"{Path(sys.executable).parent}/")
    copy = tmp_path / unit.name.replace("@.", "@8791.")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_compose_file_is_marked_as_untried():
    assert COMPOSE.startswith("# Untried")
