"""Tool calls on a server, with every result or error converted to an outcome."""

from collections.abc import Callable
from typing import Any, cast

from sidestream.errors import SidestreamError, ToolServerError
from sidestream.mcp.client.connection import Connection, ServerStoppedError
from sidestream.mcp.client.failures import describe_error
from sidestream.mcp.display import visible
from sidestream.text.redaction import redact
from sidestream.tools.arguments import ArgumentBinder, InvalidArgumentsError
from sidestream.tools.context import ToolContext
from sidestream.tools.tool import ToolOutcome

_MAX_MESSAGE_CHARACTERS = 2000


def pass_arguments(name: str) -> ArgumentBinder:
    """Return a binder that forwards the model's arguments unchanged, since the server validates them."""

    def bind(arguments: object, context: ToolContext) -> dict[str, Any]:
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidArgumentsError(f"{name} takes a JSON object of arguments, not {type(arguments).__name__}.")
        return {"arguments": cast(dict[str, Any], arguments), "context": context}

    return bind


async def call_tool(
    connect: Callable[[], Connection], label: str, name: str, arguments: dict[str, Any], context: ToolContext
) -> object:
    """Call a server's tool and return the result for the model.

    A call is sent at most once; if the server stops, it is not retried. A server may request more input, and then gets
    the call again with the answers. If the user must give them, the outcome is suspended.
    """
    try:
        await connect().ready()
        # Needs the official client, which is imported by now.
        from sidestream.mcp.client.server_call import ServerCall

        return await ServerCall(connect, label, name, arguments, context).run()
    except ToolServerError as error:
        # The lines after the first are the server's stderr, which is not for the model.
        return ToolOutcome.failure("ToolServerError", error.message.partition("\n")[0], error)
    except ServerStoppedError as error:
        message = (
            f"The MCP server {label} stopped before it answered ({error}). It is unknown whether {name} took effect; "
            "it was not called again."
        )
        return ToolOutcome.failure("ToolServerError", message, error)
    except SidestreamError as error:
        return ToolOutcome.failure(type(error).__name__, str(error), error)
    except Exception as error:
        message = _error_message(label, error)
        # Not the client's exception, which holds what the server sent, unredacted.
        return ToolOutcome.failure("ToolError", message, ToolServerError(message, server=label))


def _error_message(label: str, error: Exception) -> str:
    from mcp import MCPError

    if isinstance(error, MCPError):
        return f"The MCP server {label} returned an error: {visible(redact(error.message), _MAX_MESSAGE_CHARACTERS)}"
    return f"The MCP server {label} returned an invalid result ({describe_error(error)})."
