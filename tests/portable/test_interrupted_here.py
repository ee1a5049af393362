"""Tools that run here: which of them are run again after an interruption, and how a config changes that."""

from typing import Any

import pytest

from requirements import requirement
from sidestream import (
    CodeInterpreter,
    ConfigurationError,
    FileSearch,
    ImageGeneration,
    Memory,
    Shell,
    ToolSearch,
    WebFetch,
    WebSearch,
)
from sidestream.portable.here import toolset_for
from sidestream.portable.services import Services
from sidestream.tools.server_side import ServerSideTool

SERVICES: Any = Services(start_run=None, embed=None, transport=None)  # type: ignore[arg-type]


@requirement("R161")
@pytest.mark.parametrize(
    ("config", "policy"),
    [
        (WebSearch(engine="corpus:."), "retry"),
        (WebSearch(via="openai-responses"), "retry"),
        (WebFetch(), "retry"),
        (FileSearch(stores=["notes"]), "retry"),
        (ToolSearch(local=True), "retry"),
        (Memory(), "ask"),
        (Shell(), "ask"),
        (CodeInterpreter(), "ask"),
        (CodeInterpreter(on_interruption="fail"), "fail"),
        (WebFetch(on_interruption="ask"), "ask"),
        (WebFetch(on_interruption="hints"), "retry"),
        (ImageGeneration(via="openai-responses"), "ask"),
    ],
    ids=repr,
)
async def test_only_reading_tools_rerun_by_default(config: ServerSideTool, policy: str) -> None:
    tools = await toolset_for(config, SERVICES).list()
    assert {tool.on_interruption for tool in tools} == {policy}


def test_unknown_interruption_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_interruption"):
        CodeInterpreter(on_interruption="again")  # type: ignore[arg-type]
