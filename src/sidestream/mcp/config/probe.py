"""Server probe: the time to start it, shake hands and list its tools, and what the tools claim."""

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
    """A completed stage."""

    name: Stage
    ms: int


class ProbedTool(Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool as its server describes it. Everything here is the server's claim."""

    name: str
    description: str
    read_only: bool
    sensitive: bool
    """Whether it is destructive or open-world, and not read-only."""


class Probe(Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a probe."""

    stages: tuple[StageTime, ...]
    tools: tuple[ProbedTool, ...] = ()
    """All tools, allowed or not."""
    warnings: tuple[str, ...] = ()
    error: str | None = None
    """Error after the last completed stage, with the server's stderr."""
    needs_sign_in: bool = False


async def probe(server: MCPServer, accepted: AcceptedDefinitions | None = None) -> Probe:
    """Connect, list the tools and close. Server failures are reported in the result, not raised.

    With `accepted`, the list is compared with the accepted definitions, or becomes the first one.
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
