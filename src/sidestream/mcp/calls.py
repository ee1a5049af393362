"""One call of a server's tool: arguments in, an outcome out, whatever the server does."""

from collections.abc import Callable
from typing import Any, cast

from sidestream.errors import ToolServerError
from sidestream.mcp.connection import Connection, StoppedError
from sidestream.mcp.content import outcome_of
from sidestream.mcp.display import visible
from sidestream.mcp.failures import what_is_wrong
from sidestream.redaction import redact
from sidestream.tools.signature import Bind, InvalidArgumentsError, ToolContext
from sidestream.tools.tool import ToolOutcome

_MAX_MESSAGE = 2000
_MAX_PROGRESS = 1000
_MAX_REPORTS = 1000
"""Reports of progress of one call; a server that sends more is not listened to."""


def bind(name: str) -> Bind:
    """Passes the model's arguments on as they are: the server knows best whether they fit."""

    def checked(arguments: object, context: ToolContext) -> dict[str, Any]:
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidArgumentsError(f"{name} takes a JSON object of arguments, not {type(arguments).__name__}.")
        return {"arguments": cast(dict[str, Any], arguments), "context": context}

    return checked


async def run_call(
    connect: Callable[[], Connection], label: str, name: str, arguments: dict[str, Any], context: ToolContext
) -> object:
    """The result for the model. A call is sent once at most: one without an answer is told, not repeated."""

    told = 0

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        nonlocal told
        told += 1
        if told > _MAX_REPORTS:
            return
        report = {"progress": progress, "total": total, "message": message and visible(message, _MAX_PROGRESS)}
        context.progress({key: value for key, value in report.items() if value is not None})

    try:
        result = await connect().call(name, arguments, on_progress)
    except ToolServerError as error:
        # What the server wrote to stderr is for people.
        return ToolOutcome.failure("ToolServerError", error.message.partition("\n")[0], error)
    except StoppedError as error:
        said = (
            f"The MCP server {label} stopped before it answered ({error}). Whether {name} took effect is not "
            "known; it was not called again."
        )
        return ToolOutcome.failure("ToolServerError", said, error)
    except Exception as error:
        return ToolOutcome.failure("ToolError", _said(label, error), error)
    return outcome_of(result)


def _said(label: str, error: Exception) -> str:
    from mcp import MCPError

    if isinstance(error, MCPError):
        return f"The MCP server {label} answered with an error: {visible(redact(error.message), _MAX_MESSAGE)}"
    return f"The answer of the MCP server {label} cannot be used ({what_is_wrong(error)})."
