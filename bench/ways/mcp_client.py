"""The official MCP client, with nothing around it."""

import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from bench.worker import Clock

SERVER = Path(__file__).resolve().parents[1] / "mcp_server.py"


async def calls(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """So many calls, one after the other, on a connection that is open."""
    times = task["times"]
    async with Client(StdioServerParameters(command=sys.executable, args=["-I", str(SERVER)])) as client:
        await client.call_tool("add", {"a": 1, "b": 1})
        clock = Clock()
        results = [await client.call_tool("add", {"a": step, "b": 1}) for step in range(times)]
        spent = clock.stop()
    return {**spent, "calls": sum(not result.is_error for result in results)}


PLAYERS = {}
PROGRAMS = {"mcp-bare": calls}
