"""Where each tool runs, as the command line, the server and the docs say it."""

import json
import os
import subprocess
import sys

import pytest

from requirements import requirement
from sidestream import (
    CodeInterpreter,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    Memory,
    RemoteMCP,
    WebFetch,
    WebSearch,
)
from sidestream.portable import where
from sidestream.portable.here import MODULES, NOT_HERE
from sidestream.portable.tools.delegation import TOOLS as DELEGATED
from sidestream.portable.where import is_there, missing_here, place_of, places
from sidestream.server.http.offered_models import offered_models
from sidestream.server.settings import ServerSettings
from sidestream.tools.server_side import TOOLS


@requirement("R120")
def test_tool_place_is_hosted_local_or_delegated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert place_of(CodeInterpreter, {CodeInterpreter}) == "hosted"
    assert place_of(CodeInterpreter, ()) == place_of(RemoteMCP, ()) == place_of(Memory, ()) == "here"
    assert place_of(ImageGeneration, ()) == "by openai-responses"
    assert not is_there(place_of(ComputerUse, ()))


def test_missing_engine_and_package_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SIDESTREAM_SEARCH", raising=False)
    assert "SIDESTREAM_SEARCH" in (missing_here(WebSearch) or "")
    monkeypatch.setenv("SIDESTREAM_SEARCH", "brave")
    assert missing_here(WebSearch) is None
    assert missing_here(Memory) is None
    monkeypatch.setattr(where, "find_spec", lambda name: None)
    assert missing_here(FileSearch) == 'pip install "sidestream[index]"'
    assert missing_here(WebFetch) == 'pip install "sidestream[fetch]"'


def test_every_module_belongs_to_tool():
    assert MODULES.keys() | NOT_HERE.keys() | DELEGATED.keys() <= TOOLS.keys()
    assert places(()).keys() == TOOLS.keys()


@requirement("R120")
def test_cli_shows_where_each_tool_runs():
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_SEARCH"))}
    command = [sys.executable, "-m", "sidestream.cli", "tools"]
    done = subprocess.run(
        [*command, "-m", "local", "--json"], capture_output=True, env=environment, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert found["model"] == "local"
    assert found["tools"]["code_interpreter"] == "here"
    assert "SIDESTREAM_SEARCH" in found["missing"]["web_search"]
    shown = subprocess.run(
        [*command, "-m", "anthropic"], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    local = subprocess.run(
        [*command, "-m", "local"], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    (search,) = [line.split(maxsplit=1)[1] for line in local.stdout.splitlines() if "web_search" in line]
    assert search.startswith("not yet: set SIDESTREAM_SEARCH")
    assert [line.split() for line in shown.stdout.splitlines() if "code_interpreter" in line] == [
        ["code_interpreter", "hosted"]
    ]


@requirement("R120")
def test_server_offers_local_tools(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    models = {
        model.provider: model.abilities.tools for model in offered_models(ServerSettings(agents={}, default="local"))
    }
    assert models["local"]["code_interpreter"] == "here"
    assert models["anthropic"]["code_interpreter"] == "hosted"
    assert models["anthropic"]["image_generation"] == "by openai-responses"
