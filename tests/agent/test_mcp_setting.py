"""`Agent(mcp=…)`: the servers of a file, or servers, beside the tools."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, MCPServer, RemoteMCP
from sidestream.testing import ScriptedModel, tool_call
from support.places import TESTS

ROGUE = TESTS / "support" / "mcp_servers" / "rogue.py"
COMMAND = {"command": sys.executable, "args": ["-I", str(ROGUE)]}


def with_servers(mcp: Any) -> Agent[str]:
    script = [tool_call("echo", text="hello"), "Done."]
    return Agent(ScriptedModel(script), mcp=mcp, approval="run")


@requirement("R70", "R76")
@pytest.mark.parametrize("form", ["path", "server", "list"])
async def test_server_tools_are_called_for_every_setting_form(tmp_path: Path, form: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"rogue": COMMAND}}))
    server = MCPServer("rogue", **COMMAND)
    async with with_servers({"path": file, "server": server, "list": [server]}[form]) as agent:
        result = await agent.send("hi")
    (ran,) = result.tool_runs
    assert (ran.name, ran.status, ran.provider_executed) == ("echo", "completed", False)
    assert result.output == "Done."


@requirement("R70")
def test_remote_servers_of_file_or_list_become_server_side_tools(tmp_path: Path) -> None:
    remote = RemoteMCP(label="docs", url="https://docs.example/mcp")
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps({"remote_servers": [{"server_label": "docs", "server_url": "https://docs.example/mcp"}]})
    )
    for mcp in ([remote], str(file)):
        agent = Agent("openai-responses", api_key="none", mcp=mcp)
        (found,) = agent.server_side_tools
        assert isinstance(found, RemoteMCP)
        assert (found.label, found.url) == ("docs", "https://docs.example/mcp")


@requirement("R70")
def test_invalid_mcp_setting_is_rejected_with_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"path of an mcp\.json, or hold MCPServer or RemoteMCP, not function"):
        Agent("openai-responses", api_key="none", mcp=[lambda: None])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="cannot read"):
        Agent("openai-responses", api_key="none", mcp="nowhere.json")
    server = MCPServer("one", **COMMAND)
    with pytest.raises(ConfigurationError, match="two tool servers have the label 'one'"):
        Agent("openai-responses", api_key="none", mcp=[server], tools=[server])
