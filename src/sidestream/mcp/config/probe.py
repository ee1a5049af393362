"""Tries a server: how long it takes to start, to shake hands and to list its tools, and what they claim to be."""

from asyncio import get_running_loop
from typing import Literal

from msgspec import Struct

from sidestream.errors import SignInError, ToolServerError
from sidestream.mcp.client.accepted import AcceptedDefinitions
from sidestream.mcp.client.server import MCPServer
from sidestream.mcp.client.tool_definitions import parse_tool_list
from sidestream.text.redaction import redact

Stage = Literal["start", "handshake", "list"]


class StageTime(Struct, frozen=True):
    """A stage that was completed."""

    name: Stage
    ms: int


class ProbedTool(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool as its server describes it; all of this is the server's claim."""

    name: str
    description: str
    read_only: bool
    sensitive: bool
    """Destructive, or in contact with the open world, and not read-only."""


class Probe(Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a try."""

    stages: tuple[StageTime, ...]
    tools: tuple[ProbedTool, ...] = ()
    """All of them, allowed or not."""
    warnings: tuple[str, ...] = ()
    error: str | None = None
    """What went wrong after the last stage, with what the server wrote to stderr."""
    needs_sign_in: bool = False


async def probe(server: MCPServer, accepted: AcceptedDefinitions | None = None) -> Probe:
    """Connects, lists the tools and closes. Never raises for what the server does.

    With `accepted`, the list is compared with the definitions that were accepted, or becomes the first one.
    """
    loop = get_running_loop()
    stages: list[StageTime] = []
    since_s = loop.time()

    def completed(name: Stage, at_s: float) -> None:
        nonlocal since_s
        stages.append(StageTime(name, round((at_s - since_s) * 1000)))
        since_s = at_s

    try:
        connection = server._connection()  # pyright: ignore[reportPrivateUsage]
        try:
            await connection.ready()
        finally:
            if connection.launched_s is not None:
                completed("start", connection.launched_s)
        completed("handshake", loop.time())
        listed, _ = await server._request_list(connection)  # pyright: ignore[reportPrivateUsage]
        completed("list", loop.time())
        definitions, warnings = parse_tool_list(listed, server.label)
        if accepted is not None:
            accepted.review(server.label, definitions)
    except ToolServerError as error:
        return Probe(stages=tuple(stages), error=redact(str(error)), needs_sign_in=isinstance(error, SignInError))
    finally:
        await server.aclose()
    tools = tuple(
        ProbedTool(
            name=definition.raw_name,
            description=definition.description,
            read_only=definition.is_read_only,
            sensitive=definition.is_sensitive,
        )
        for definition in definitions
    )
    return Probe(stages=tuple(stages), tools=tools, warnings=tuple(warnings))
