"""Conversion of tool calls run by the client, the server and providers to items of a response.

Providers that use this API send items and lifecycle events of their own, which are forwarded with this response's
sequence numbers and ids. For other providers, the items are built from the calls and their results.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sidestream import parts
from sidestream.jsontext import JsonObject, as_object, text_in
from sidestream.protocols.ai_sdk.content import is_denial
from sidestream.protocols.responses import items
from sidestream.protocols.responses.stream import OpenItem, ResponseStream, input_field
from sidestream.results.tool_code import CodeExtractor

_ADDED = "response.output_item.added"
_DONE = "response.output_item.done"
_CODE = "code_interpreter_call"
_NOT_IN_SPECIFICATION = frozenset({"mcp_list_tools"})
"""Item types without an equivalent in the specification, and without content that clients need."""
_STARTS = ("searching", "interpreting", "generating")
"""Names of the stage in which a hosted tool works. Each item type has at most one of them."""


class ToolItems:
    """The tool calls of one response.

    `functions` are the functions that the client runs. None means all tools that are not hosted.
    """

    def __init__(
        self,
        stream: ResponseStream,
        functions: Collection[str] | None,
        custom: Collection[str] = (),
        namespaces: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._stream = stream
        self._functions = None if functions is None else frozenset(functions)
        self._custom = frozenset(custom)
        """Names of client functions whose input is a string."""
        self._namespaces = namespaces or {}
        """Namespace and name of client functions that the request has in a namespace."""
        self._native_owner: dict[int, str | None] = {}
        """Call ids, by the provider's item index."""
        self._native: dict[int, OpenItem] = {}
        """Open items that the provider sent, by its item index."""
        self._native_calls: set[str] = set()
        """Ids of calls that the provider reports in items of its own."""
        self._native_approvals: set[str] = set()
        """Ids of calls for which the provider itself requests approval."""
        self._open: dict[str, OpenItem] = {}
        """Open items, by call id."""
        self._code: dict[str, CodeExtractor] = {}
        """Extractors of the code of hosted calls with incomplete input, by call id."""
        self._calls: dict[str, parts.ToolCall] = {}
        self._files: dict[str, list[parts.File]] = {}
        """Images to add to a call's item, by call id."""
        self._ended: tuple[parts.ToolCall, parts.ToolResult] | None = None
        """Finished code interpreter call and its result. Kept open because its images arrive after the result."""
        self._over: set[str] = set()
        """Ids of calls whose items are done."""
        self._file_count = 0
        self._approvals: dict[str, str] = {}
        """Id of a call's approval, pending or decided, by call id."""

    @property
    def _is_strict(self) -> bool:
        return self._stream.dialect == "open-responses"

    # Beginnings

    def knows(self, call: parts.ToolCall) -> None:
        """Register a call from an earlier response of the same turn."""
        self._calls[call.id] = call

    def asked_before(self, part: parts.ToolApprovalRequest) -> None:
        """Register an approval that an earlier response of the same turn requested."""
        self._approvals[part.id] = part.approval_id

    def input_start(self, part: parts.ToolInputStart) -> None:
        """Open an item for a client function, or start extracting a hosted call's code."""
        if part.id in self._native_calls:
            return
        if part.provider_executed:
            if part.name in ("code_interpreter", "code_execution"):
                self._code[part.id] = CodeExtractor(("code",))
        elif self._is_client(part.name):
            self._open_function(part.id, part.name)

    def input_delta(self, part: parts.ToolInputDelta) -> None:
        """Emit a delta of a call's input."""
        if (extractor := self._code.get(part.id)) is not None:
            code = extractor.feed(part.delta)
            if code and not self._is_strict:
                self._stream.input_delta(self._open.get(part.id) or self._begin_code(part.id), code)
        elif (item := self._open.get(part.id)) is not None and item.type == "function_call" and part.delta:
            self._stream.input_delta(item, part.delta)

    def call(self, part: parts.ToolCall) -> None:
        """Handle a complete call, which ends a client function's item or begins a hosted call's."""
        self._calls[part.id] = part
        if part.id in self._native_calls:
            return
        if part.provider_executed:
            if not self._is_strict and part.id not in self._approvals:
                self._begin_hosted(part)
        elif parts.program_of(part) is not None:
            self.started(part.id)
        elif self._is_client(part.name):
            self._end_function(part)

    def started(self, call_id: str) -> None:
        """Begin the item of a call that the server starts to run."""
        call = self._calls.get(call_id)
        if call is None or self._is_strict or call_id in self._open or call_id in self._native_calls:
            return
        if not call.provider_executed and not self._is_clients(call):
            self._begin_hosted(call)

    # Ends

    def result(self, part: parts.ToolResult) -> None:
        """End the item of a call, ignoring previews, denials of calls without one and results of client functions.

        A code interpreter call stays open until `settle`, because its images arrive after the result.
        """
        call = self._calls.get(part.id)
        if call is None or part.id in self._native_calls or (not part.provider_executed and self._is_clients(call)):
            return
        if part.preliminary or (is_denial(part) and part.id not in self._open):
            return
        if part.provider_executed and items.item_type(call) == _CODE:
            self._ended = (call, part)
        else:
            self._close(call, part)

    def settle(self, part: parts.StreamPart | None = None) -> None:
        """End the finished code interpreter call, unless the next part may be one of its files."""
        if self._ended is None or (part is not None and part.type in _BESIDE_FILES):
            return
        call, result = self._ended
        if not isinstance(part, parts.File) or part.call_id != call.id:
            self._ended = None
            self._close(call, result)

    def _close(self, call: parts.ToolCall, part: parts.ToolResult) -> None:
        self._over.add(call.id)
        if self._is_strict:
            kind = items.item_type(call) if part.provider_executed else "mcp_call"
            begun = {
                **items.opened(kind, call),
                **({"arguments": items.input_text(call)} if kind == "mcp_call" else {}),
            }
            code: JsonObject = {"code": items.code_of(call)} if kind == _CODE else {}
            self._as_function(
                {**begun, **code, **items.closed(kind, call, part, self._files.pop(part.id, []))}, part.id
            )
            return
        item = self._open.pop(part.id, None) or self._begin_hosted(call)
        self._open.pop(part.id, None)
        files = self._files.pop(part.id, [])
        changes = items.closed(item.type, call, part, files)
        self._stream.stage(item, "failed" if part.is_error else "completed")
        self._stream.done(item, **changes)
        if item.type == "image_generation_call":
            for file in files[1:]:
                self._image(file)

    def approval(self, part: parts.ToolApprovalRequest) -> None:
        """Emit an approval request, except for the client's own functions, which already have an item."""
        if part.is_external or part.id in self._approvals:
            return
        self._approvals[part.id] = part.approval_id
        if part.id not in self._native_approvals:
            self._whole(items.approval_item(part))

    def file(self, part: parts.File) -> JsonObject | None:
        """Add a file to its call's item or emit an item for it, else return an annotation for the text beside it."""
        number, self._file_count = self._file_count, self._file_count + 1
        if part.call_id is not None and part.call_id in self._native_calls:
            return None
        if self._belongs_to_call(part):
            self._files.setdefault(part.call_id or "", []).append(part)
        elif self._is_made_image(part):
            self._image(part)
        elif self._is_strict:
            self._file_function(part, number)
        else:
            return items.file_annotation(part, number, self._stream.head.id, 0)
        return None

    def is_cited(self, part: parts.File) -> bool:
        """Return whether the file becomes an annotation."""
        is_native = part.call_id is not None and part.call_id in self._native_calls
        return not (is_native or self._is_strict or self._belongs_to_call(part) or self._is_made_image(part))

    def _belongs_to_call(self, part: parts.File) -> bool:
        """Return whether the file is an image of an unfinished call whose item has a field for images."""
        call = self._calls.get(part.call_id or "")
        if call is None or call.id in self._over or not call.provider_executed:
            return False
        return part.mime_type.startswith("image/") and items.item_type(call) in (_CODE, "image_generation_call")

    def _is_made_image(self, part: parts.File) -> bool:
        """Return whether the file is a generated image, which gets an item of its own."""
        is_image = part.mime_type.startswith("image/") and part.data is not None
        return is_image and part.tool in (None, "image_generation")

    def _image(self, part: parts.File) -> None:
        self._whole({**items.image_item(part), "id": self._stream.next_id("image_generation_call")})

    def _file_function(self, part: parts.File, number: int) -> None:
        """Emit a file as the output of a call to its tool, because the specification has no items for files."""
        name = items.function_name(part.tool or "file")
        output = [items.file_content(part)]
        self._pair(f"{name}_{items.file_id(number)}", name, "{}", output)

    def end_step(self, *, is_cut: bool) -> None:
        """End items that the step left open as incomplete, except those of calls that the server runs."""
        self.settle()
        for index in list(self._native):
            call = self._calls.get(self._native_owner.get(index) or "")
            if is_cut or call is None or call.provider_executed:
                self._cut(self._native.pop(index))
        self._code = {}
        for id in list(self._open):
            call = self._calls.get(id)
            if is_cut or call is None or call.provider_executed:
                self._cut(self._open.pop(id))

    def end(self) -> None:
        """End all open items as incomplete."""
        self.end_step(is_cut=True)

    # Items that a provider sends itself

    def event(self, part: parts.ToolEvent) -> None:
        """Forward a tool event of a provider that uses this API."""
        event = as_object(part.event)
        kind = text_in(event, "type") or ""
        index = event.get("output_index", part.output_index)
        if not isinstance(index, int):
            return
        if kind in (_ADDED, _DONE):
            given = as_object(event.get("item"))
        elif part.provider_stage == "done" and not kind.startswith("response.") and kind in items_sent():
            given = event  # Non-streaming responses have items but no events.
        else:
            self._native_stage(index, kind, event)
            return
        ids = {id for id in (part.call_id, *(text_in(given, name) for name in _IDS)) if id}
        self._native_calls |= ids
        if given.get("type") == "mcp_approval_request":
            self._native_approvals |= ids
        if self._is_strict:
            if kind != _ADDED and given.get("type") not in _NOT_IN_SPECIFICATION:
                self._native_function(given)
        elif kind == _ADDED:
            if (earlier := self._native.pop(index, None)) is not None:
                self._cut(earlier)
            self._native[index] = self._stream.add(self._own(given))
            self._native_owner[index] = part.call_id
        else:
            item = self._native.pop(index, None)
            if item is not None and item.type != given.get("type"):
                self._cut(item)
                item = None
            item = item or self._stream.add(self._own(_begun(given)))
            changes = self._own(given, item.id)
            if (field := input_field(item.type)) is not None and item.input:
                if not item.has_input:
                    self._stream.end_input(item, text_in(given, field))
                changes[field] = item.fields[field]
            self._stream.done(item, **changes)

    def _native_stage(self, index: int, kind: str, event: JsonObject) -> None:
        item = self._native.get(index)
        if item is None or not kind.startswith("response."):
            return
        name, _, last = kind.rpartition(".")
        if name == f"response.{item.type}":
            more = {field: value for field, value in event.items() if field not in _OWN_FIELDS}
            self._stream.stage(item, last, **more)
        elif name in (f"response.{item.type}_arguments", f"response.{item.type}_code") and input_field(item.type):
            if item.has_input:
                return
            if last == "delta":
                self._stream.input_delta(item, str(event.get("delta", "")))
            else:
                self._stream.end_input(item, text_in(event, "arguments") or text_in(event, "code"))
        elif name.startswith(f"response.{item.type}_"):
            more = {field: value for field, value in event.items() if field not in _OWN_FIELDS}
            self._stream.other(item, kind, **more)

    def _native_function(self, given: JsonObject) -> None:
        if given.get("type") == "mcp_approval_request":
            self._whole(self._own(given))
        else:
            self._as_function(given, text_in(given, "call_id") or str(given.get("id")))

    def _own(self, given: JsonObject, id: str | None = None) -> JsonObject:
        """Return a provider's item with its own id and the id of its approval replaced by this response's."""
        kind, was = str(given.get("type")), text_in(given, "id") or ""
        if id is None:
            id = items.approval_item_id(was) if kind == "mcp_approval_request" else self._stream.next_id(kind)
        own = {**given, "id": id}
        if isinstance(asked := given.get("approval_request_id"), str):
            own["approval_request_id"] = items.approval_item_id(asked)
        return own

    # Making items

    def _is_client(self, name: str) -> bool:
        return self._functions is None or name in self._functions

    def _is_clients(self, call: parts.ToolCall) -> bool:
        """Return whether the client runs the call. It never runs those of a program that the server runs."""
        return parts.program_of(call) is None and self._is_client(call.name)

    def _open_function(self, call_id: str, name: str) -> OpenItem:
        namespace, shown = self._namespaces.get(name, ("", name))
        if name in self._custom:
            fields: JsonObject = {"type": "custom_tool_call", "call_id": call_id, "name": shown, "input": ""}
        else:
            fields = {"type": "function_call", "call_id": call_id, "name": shown, "arguments": ""}
            fields["status"] = "in_progress"
        if namespace:
            fields["namespace"] = namespace
        item = self._open[call_id] = self._stream.add({"id": self._stream.next_id(fields["type"]), **fields})
        return item

    def _end_function(self, part: parts.ToolCall) -> None:
        item = self._open.pop(part.id, None) or self._open_function(part.id, part.name)
        self._open.pop(part.id, None)
        if item.type == "custom_tool_call":
            given = as_object(part.input).get("input", part.input)
            self._stream.end_input(item, items.shown(given))
            self._stream.done(item)
            return
        self._stream.end_input(item, items.input_text(part) if not item.input else None)
        self._stream.done(item, status="completed", **_origin(part))

    def _begin_code(self, call_id: str) -> OpenItem:
        fields: JsonObject = {"type": _CODE, "status": "in_progress", "container_id": "", "code": ""}
        item = self._open[call_id] = self._stream.add({"id": self._stream.next_id(_CODE), **fields})
        self._stream.stage(item, "in_progress")
        return item

    def _begin_hosted(self, call: parts.ToolCall) -> OpenItem:
        """Open the item of a call that the client does not run, and emit its events up to the tool's working stage."""
        stream = self._stream
        item = self._open.get(call.id)
        if item is None:
            kind = items.item_type(call) if call.provider_executed else "mcp_call"
            fields = {"id": self._stream.next_id(kind), **items.opened(kind, call)}
            if (approval := self._approvals.get(call.id)) is not None:
                fields["approval_request_id"] = items.approval_item_id(approval)
            item = self._open[call.id] = stream.add(fields)
            stream.stage(item, "in_progress")
        if item.type == _CODE:
            stream.end_input(item, items.code_of(call))
        elif item.type == "mcp_call":
            stream.end_input(item, items.input_text(call))
        for stage in _STARTS:
            stream.stage(item, stage)
        return item

    def _as_function(self, item: JsonObject, call_id: str) -> None:
        """Emit a call run by others as a function call and its output, as the specification requires."""
        self._pair(call_id, *items.as_function(item))

    def _pair(self, call_id: str, name: str, arguments: str, output: Any) -> None:
        stream, call = self._stream, f"call_{call_id}"[:64]
        begun: JsonObject = {"type": "function_call", "call_id": call, "name": name, "arguments": ""}
        opened = stream.add({"id": self._stream.next_id("function_call"), **begun, "status": "in_progress"})
        stream.end_input(opened, arguments)
        stream.done(opened, status="completed")
        given: JsonObject = {"type": "function_call_output", "call_id": call, "output": output}
        answered = stream.add({"id": self._stream.next_id("function_call_output"), **given, "status": "in_progress"})
        stream.done(answered, status="completed")

    def _whole(self, item: JsonObject) -> None:
        """Emit an item that is complete from the start."""
        if self._is_strict and item["type"] == "mcp_approval_request":
            # The specification has no item for approvals; this is how it names extensions.
            item = {**item, "type": "sidestream:approval_request", "status": "completed"}
        elif self._is_strict:
            self._as_function(item, item["id"])
            return
        self._stream.done(self._stream.add(item))

    def _cut(self, item: OpenItem) -> None:
        if not item.is_open:
            return
        if item.input and not item.has_input:
            self._stream.end_input(item)
        changes: JsonObject = {"status": "incomplete"} if "status" in item.fields else {}
        self._stream.done(item, **changes)


_BESIDE_FILES = frozenset({"raw", "response-metadata", "tool-event"})
"""Types of parts that may come between a call's result and its files."""
_IDS = ("id", "call_id", "approval_request_id")
_OWN_FIELDS = frozenset({"type", "sequence_number", "output_index", "item_id", "obfuscation", "stream_id"})
"""Event fields that this response replaces with its own values."""


def items_sent() -> Collection[str]:
    """Return the types of tool items."""
    return _TYPES


_TYPES = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"),
        *("mcp_list_tools", "mcp_approval_request", "shell_call", "shell_call_output", "apply_patch_call"),
        *("apply_patch_call_output", "local_shell_call", "local_shell_call_output", "computer_call"),
        *("computer_call_output", "tool_search_call", "tool_search_output", "program", "program_output"),
    }
)


def _origin(call: parts.ToolCall) -> JsonObject:
    """Return the namespace and caller of a call, if its provider reported them."""
    found: JsonObject = {}
    for details in map(as_object, (call.provider_metadata or {}).values()):
        if isinstance(namespace := details.get("namespace"), str):
            found["namespace"] = namespace
        if as_object(details.get("caller")).get("type") in ("direct", "program"):
            found["caller"] = details["caller"]
    return found


def _begun(item: JsonObject) -> JsonObject:
    """Return the initial form of an item of which only the final form is known."""
    return {**item, "status": "in_progress"} if "status" in item else item


def passed_on(data: Any, *, is_strict: bool) -> JsonObject | None:
    """Return a provider-specific item if clients of the dialect can read it, else None."""
    match as_object(data):
        case {"type": "compaction", "encrypted_content": str()} as item:
            return item
        case {"type": "additional_tools", "tools": list()} as item if not is_strict:
            return item
        case _:
            return None
