"""A machine without any sandbox, as a new user has it: what each choice says, and that the doctor leads to the fix."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from requirements import requirement
from support.places import ROOT

SOURCE = ROOT / "src"
HIDDEN = ("bubblewrap", "pydantic_monty")
CHOICES = """
import asyncio, json, sys
from sidestream import Agent, CodeInterpreter
from sidestream.portable.sandbox.bare import UnisolatedWarning
from sidestream.testing import ScriptedModel, tool_call
import warnings
async def main():
    found = {}
    for name in ("auto", "bubblewrap", "runsc", "monty", "none"):
        model = ScriptedModel([tool_call("code_interpreter", code="print(6 * 7)"), "ok"])
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            tool = CodeInterpreter(execution="here", sandbox=name)
            async with Agent(model, server_side_tools=[tool]) as agent:
                (entry,) = (await agent.send("go")).tool_results
        isolated = not any(issubclass(each.category, UnisolatedWarning) for each in raised)
        found[name] = {"error": entry.is_error, "result": entry.result, "isolated": isolated}
    print(json.dumps(found))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has this project's packages, but no sandbox among them, and no programs."""
    folder = tmp_path_factory.mktemp("machine")
    for name in ("site", "bin"):
        (folder / name).mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(HIDDEN):
            (folder / "site" / entry.name).symlink_to(entry)
    path = os.pathsep.join([str(folder / "site"), str(SOURCE)])
    return {"PATH": str(folder / "bin"), "PYTHONPATH": path, "HOME": str(folder)}


def program(machine: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: without the packages that the interpreter would find by itself.
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env=machine, capture_output=True, text=True, timeout=100, check=False)


@requirement("R122")
def test_missing_sandbox_explains_setup_and_runs_no_code(machine: dict[str, str]) -> None:
    done = program(machine, "-c", CHOICES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    none = found.pop("none")
    # Only who asks for it by name runs code without isolation, and is warned.
    assert (none["error"], none["isolated"]) == (False, False)
    assert none["result"]["outputs"][0]["logs"] == "42\n"
    assert all(entry["error"] and "42" not in str(entry["result"].get("outputs")) for entry in found.values())
    ways = {
        "auto": ['pip install "sidestream[sandbox]"', "apt install runsc", 'sandbox="monty"', "sidestream doctor"],
        "bubblewrap": ['pip install "sidestream[sandbox]"', "apt install bubblewrap"],
        "runsc": ["apt install runsc"],
        "monty": ['pip install "sidestream[monty]"'],
    }
    for name, words in ways.items():
        message = found[name]["result"]["message"]
        assert all(word in message for word in words), (name, message)


@requirement("R122")
def test_doctor_names_missing_sandbox_and_fix(machine: dict[str, str]) -> None:
    done = program(machine, "-m", "sidestream", "doctor", "--json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    sandboxes = [entry for entry in findings if entry["topic"] == "sandbox"]
    assert [entry["state"] for entry in sandboxes] == ["missing"] * 3
    bubblewrap, runsc, monty = (entry["text"] for entry in sandboxes)
    assert 'pip install "sidestream[sandbox]"' in bubblewrap
    assert "apt install runsc" in runsc
    assert 'pip install "sidestream[monty]"' in monty
