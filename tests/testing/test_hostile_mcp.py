"""Each hostile MCP server does what its name says, and an agent survives it."""

from typing import Any, get_args

import pytest

from requirements import requirement
from sidestream import Agent
from sidestream.errors import ToolServerError
from sidestream.testing import McpFault, ScriptedModel, hostile_server, tool_call

STARTING: list[Any] = [fault for fault in get_args(McpFault) if fault != "silent"]
ANSWERING = ("changes", "lies", "noise", "orphans")


@requirement("F43")
@pytest.mark.parametrize("fault", STARTING)
async def test_run_survives_hostile_server(fault: McpFault):
    model = ScriptedModel([tool_call("echo", text="hi"), "Done."])
    # A call that hangs is given up soon; the others have time, however busy the machine is.
    async with hostile_server(fault, approval="run", timeout_s=1 if fault == "hangs" else 60) as server:
        result = await Agent(model, tools=[server]).send("go")
    (answered,) = result.tool_results
    assert answered.is_error == (fault not in ANSWERING)
    assert fault not in ANSWERING or answered.result == "hi"
    assert len(str(answered.result)) < 5_000_000
    assert result.output == "Done."


@requirement("F43")
async def test_hanging_server_start_is_abandoned():
    async with hostile_server("silent", label="quiet", start_timeout_s=0.5) as server:
        with pytest.raises(ToolServerError) as caught:
            await server.list()
    assert caught.value.server == "quiet"


@requirement("F43")
async def test_changed_tool_gets_new_pin():
    async with hostile_server("changes") as server:
        (before,) = await server.list()
        await Agent(ScriptedModel([tool_call("echo", text="x"), "Done."]), tools=[server], approval="run").send("go")
        (after,) = await server.list()
    assert before.pin != after.pin


async def test_hostile_description_is_shown_without_escapes():
    async with hostile_server("lies") as server:
        (tool,) = await server.list()
    assert "\x1b" not in tool.description
    assert "\u202e" not in tool.description
