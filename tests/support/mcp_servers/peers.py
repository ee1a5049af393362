"""How the tests start servers, call their tools, and look for what is left of them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.mcp import MCPServer
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome

HERE = Path(__file__).resolve().parent
PATIENCE_S = 30.0


def rogue(*options: str, label: str = "rogue", **settings: Any) -> MCPServer:
    """The server that does as it is told."""
    return MCPServer(label, command=sys.executable, args=["-I", str(HERE / "rogue.py"), *options], **settings)


def modern(**settings: Any) -> MCPServer:
    """A server of the newer protocol generation."""
    return MCPServer("modern", command=sys.executable, args=["-I", str(HERE / "modern.py")], **settings)


async def tools_of(server: MCPServer) -> dict[str, Tool]:
    return {tool.name: tool for tool in await server.list()}


async def call(
    server: MCPServer,
    name: str,
    arguments: object = None,
    *,
    progress: Callable[[Any], None] = lambda value: None,
    limits: Limits = DEFAULT_LIMITS,
) -> ToolOutcome:
    """What an agent would get."""
    tool = (await tools_of(server))[name]
    return await tool.run({} if arguments is None else arguments, ToolContext("call-1", name, progress), limits)


async def told(server: MCPServer, name: str, arguments: object = None) -> Any:
    """The JSON in a text result of the rogue server."""
    outcome = await call(server, name, arguments)
    assert not outcome.is_error, outcome.result
    return json.loads(outcome.result) if isinstance(outcome.result, str) else outcome.result


def received(log: Path) -> list[dict[str, Any]]:
    """The messages that the rogue server got."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


def asked(log: Path, method: str) -> list[dict[str, Any]]:
    return [message for message in received(log) if message.get("method") == method]
