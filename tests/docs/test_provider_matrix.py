"""The tables in docs/providers.md match the providers' own data."""

import re
import runpy
from typing import Any

import pytest

from sidestream.providers import Capabilities, Settings, find_provider, providers
from sidestream.providers.openai.chat import PRESETS
from support.places import ROOT

GENERATOR: dict[str, Any] = runpy.run_path(str(ROOT / "tools/docs/provider_matrix.py"))


def test_documented_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")  # Must not affect the tables.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    page = (ROOT / "docs/providers.md").read_text("utf-8")
    assert GENERATOR["filled"](page) == page, "run: python tools/docs/provider_matrix.py --write"


def test_every_capability_has_its_row() -> None:
    assert [*GENERATOR["LABELS"], "settings", "instead"] == [*Capabilities.__struct_fields__]


VARIABLES = [
    (name, variable) for name, provider in providers().items() for variable in [*getattr(provider, "base_urls", {})][:1]
]


def test_hosted_tools_of_presets_are_listed() -> None:
    page = (ROOT / "docs/providers.md").read_text("utf-8")
    listed = set(
        re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| [^|]+ \| (?:recorded|scripted|documented only) \|", page, re.M)
    )
    assert listed == {(host.name, tool.__name__) for host in PRESETS for tool in host.server_side_tools}


@pytest.mark.parametrize(("name", "variable"), VARIABLES)
def test_documented_variable_sets_base_url(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:4321/v1")
    model: Any = find_provider(name).chat_model("some-model", Settings())
    assert model.base_url == "http://127.0.0.1:4321/v1"
