"""Connects to MCP servers and lists their tools, to see whether they work."""

import asyncio
import time
from collections.abc import AsyncIterator

from msgspec import Struct

from sidestream.cli.display.screen import one_line
from sidestream.cli.display.tool_words import duration, things
from sidestream.errors import SidestreamError
from sidestream.mcp import MCPConfig, MCPServer
from sidestream.text.redaction import redact

TIMEOUT_S = 30.0


class ServerCheck(Struct, frozen=True):
    """What came of connecting to a server."""

    label: str
    is_ok: bool
    text: str
    tools: tuple[str, ...] = ()


async def check_servers(
    config: MCPConfig, timeout_s: float = TIMEOUT_S, label: str | None = None
) -> AsyncIterator[ServerCheck]:
    """Connects to each server, or to the one with this label, one after the other, from this machine."""
    for server in config.toolsets:
        if label in (None, server.label):
            yield await _check(server, timeout_s)
    for remote in config.remote_servers:
        if label not in (None, remote.label):
            continue
        if remote.url is None:
            yield ServerCheck(remote.label, True, "is reached by the provider only; not checked")
        else:
            yield await _check(MCPServer.from_remote(remote), timeout_s)


async def _check(server: MCPServer, timeout_s: float) -> ServerCheck:
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s), server:
            names = tuple(tool.name for tool in await server.list())
    except TimeoutError:
        return ServerCheck(server.label, False, f"did not answer within {timeout_s:g} s")
    except (SidestreamError, OSError) as error:
        return ServerCheck(server.label, False, redact(one_line(str(error) or type(error).__name__, 400)))
    took = duration(time.monotonic() - began)
    return ServerCheck(server.label, True, f"{things(len(names), 'tool')} · {took}", names)
