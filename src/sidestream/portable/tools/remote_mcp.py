"""Remote MCP servers that this process calls, with the lifecycle events and results of hosted ones."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from sidestream import jsontext
from sidestream.jsontext import Json, JsonObject, as_object
from sidestream.limits import DEFAULT_LIMITS
from sidestream.mcp import MCPServer
from sidestream.messages.message import DataPart, LinkPart
from sidestream.parts import ToolCall
from sidestream.tools.context import ToolContext
from sidestream.tools.outcome import ToolOutcome
from sidestream.tools.results import cut
from sidestream.tools.server_side import RemoteMCP
from sidestream.tools.stages import Listing, StageEvent, StagesOf
from sidestream.tools.tool import Tool

_MAX_OUTPUT_BYTES = DEFAULT_LIMITS.max_tool_result_bytes - 1024
"""Maximum size of an output as JSON. The rest of the limit is for the other fields of the result."""


class _Listed(Struct):
    """The last list of a server's tools."""

    source: Sequence[Tool]
    tools: tuple[Tool, ...]
    is_reported: bool = False


class RemoteTools:
    """The tools of a remote server, whose calls have the parts of hosted ones.

    Raises UnsupportedError if its settings need a provider.
    """

    key = RemoteMCP.key

    def __init__(self, remote: RemoteMCP) -> None:
        self._server = MCPServer.from_remote(remote)
        self._listed: WeakKeyDictionary[asyncio.AbstractEventLoop, _Listed] = WeakKeyDictionary()
        """Last lists, by event loop, since the server has one connection in each."""

    @property
    def label(self) -> str:
        return self._server.label

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._server.warnings

    async def list(self) -> Sequence[Tool]:
        """Return the current tools. Raises ToolServerError if the server cannot be used."""
        source = await self._server.list()
        loop = asyncio.get_running_loop()
        known = self._listed.get(loop)
        if known is None or known.source is not source:
            tools = tuple(_as_hosted(tool, self.label) for tool in source)
            self._listed[loop] = known = _Listed(source, tools)
        return known.tools

    def take_listing(self) -> Listing | None:
        """Return the last listing that was requested in this event loop, once."""
        known = self._listed.get(asyncio.get_running_loop())
        if known is None or known.is_reported:
            return None
        known.is_reported = True
        return partial(listing, self.label, known.tools)

    async def aclose(self) -> None:
        """Stop the connection. Safe to call twice; listing the tools starts it again."""
        await self._server.aclose()


def _as_hosted(tool: Tool, label: str) -> Tool:
    """Return the tool with the lifecycle events and results of a hosted one."""

    async def call(arguments: dict[str, Any], context: ToolContext) -> object:
        return hosted_result(await tool.function(arguments=arguments, context=context), label)

    return replace(tool, key=RemoteMCP.key, stages=stages_of(label, tool.server_tool or tool.name), function=call)


def hosted_result(value: object, label: str) -> object:
    """Return a tool's value or failure in the format of the Responses API.

    A value with files stays as it is, since the model could not see them inside of an object.
    """
    if isinstance(value, ToolOutcome):
        if value.suspended is not None or not value.is_error:
            return value
        return replace(value, result={"server_label": label, "output": None, "error": _error(value.result)})
    if jsontext.is_array(value) and any(isinstance(part, DataPart | LinkPart) for part in value):
        return value
    text = value if isinstance(value, str) else jsontext.dumps(value).decode()
    return {"server_label": label, "output": cut(text, _MAX_OUTPUT_BYTES)}


def listing(label: str, tools: Sequence[Tool], listing_id: str, place: int) -> list[StageEvent]:
    """Return the events of a server's list of tools."""
    at: JsonObject = {"output_index": place, "item_id": listing_id}
    item: JsonObject = {"id": listing_id, "type": "mcp_list_tools", "server_label": label, "tools": []}
    listed: list[Json] = [
        {
            "name": tool.server_tool or tool.name,
            "description": tool.description,
            "input_schema": tool.parameters,
            "annotations": None,
        }
        for tool in tools
    ]
    return [
        ("started", "added", {"type": "response.output_item.added", "output_index": place, "item": item}),
        ("started", "in_progress", {"type": "response.mcp_list_tools.in_progress", **at}),
        ("completed", "completed", {"type": "response.mcp_list_tools.completed", **at}),
        (
            "completed",
            "done",
            {"type": "response.output_item.done", "output_index": place, "item": item | {"tools": listed}},
        ),
    ]


def stages_of(label: str, name: str) -> StagesOf:
    """Return the lifecycle events for the calls of a server's tool."""
    return lambda call_id, place: MCPStages(label, name, call_id, place)


class MCPStages:
    """Produces the lifecycle events of one call, in the format of the Responses API."""

    places = 1

    def __init__(self, label: str, name: str, call_id: str, place: int) -> None:
        self._item: JsonObject = {"id": call_id, "type": "mcp_call", "name": name, "server_label": label}
        self._at: JsonObject = {"output_index": place, "item_id": call_id}
        self._has_streamed = False

    def begun(self) -> list[StageEvent]:
        """Return the added item, in progress."""
        item = {**self._item, "status": "in_progress", "arguments": ""}
        return [
            self._of_item("started", "added", item),
            ("started", "in_progress", self._event("mcp_call.in_progress")),
        ]

    def delta(self, text: str) -> list[StageEvent]:
        """Return the arguments as the model writes them."""
        self._has_streamed = True
        return [("input", "delta", self._event("mcp_call_arguments.delta", delta=text))]

    def called(self, call: ToolCall) -> list[StageEvent]:
        """Return the complete arguments."""
        text = _arguments(call)
        streamed = [] if self._has_streamed else self.delta(text)
        return [*streamed, ("input", "done", self._event("mcp_call_arguments.done", arguments=text))]

    def running(self) -> list[StageEvent]:
        """Return no events, since the API has none for a call whose arguments are complete."""
        return []

    def ended(self, call: ToolCall, result: Json, *, is_error: bool) -> list[StageEvent]:
        """Return the completed or failed event, and the finished item."""
        stage = "failed" if is_error else "completed"
        item = {**self._item, "status": stage, "arguments": _arguments(call), "approval_request_id": None}
        item |= _outcome(result, is_error=is_error)
        return [(stage, stage, self._event(f"mcp_call.{stage}")), self._of_item(stage, "done", item)]

    def is_repeated(self, event: JsonObject) -> bool:
        """Return whether the event is one of the lifecycle events emitted here."""
        return str(event.get("type")).startswith(("response.mcp_call", "response.output_item."))

    def placed(self, event: JsonObject) -> JsonObject:
        """Return the event with its item's id and position."""
        return self._at | event

    def _event(self, kind: str, **fields: Json) -> JsonObject:
        return {"type": f"response.{kind}", **self._at, **fields}

    def _of_item(self, stage: Any, word: str, item: JsonObject) -> StageEvent:
        place = self._at["output_index"]
        return stage, word, {"type": f"response.output_item.{word}", "output_index": place, "item": item}


def _arguments(call: ToolCall) -> str:
    return call.input_text if call.input_text is not None else jsontext.dumps(call.input).decode()


def _outcome(result: Json, *, is_error: bool) -> JsonObject:
    """Return the item's output and error, also of a result that the server did not give, e.g. after a timeout."""
    fields = as_object(result)
    if "output" in fields:
        return {"output": fields["output"], "error": fields.get("error")}
    if is_error:
        return {"output": None, "error": _error(result)}
    # Files have no place in an output.
    texts = [as_object(part).get("text") for part in jsontext.as_list(result)]
    return {"output": "\n".join(text for text in texts if isinstance(text, str)), "error": None}


def _error(result: Json) -> JsonObject:
    """Return a failed call's error, with the message that the model reads."""
    message = as_object(result).get("message")
    text = message if isinstance(message, str) else jsontext.dumps(result).decode()
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
