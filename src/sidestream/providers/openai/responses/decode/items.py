"""Table of output items, with the handlers for their start and end."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject
from sidestream.messages.references import reference_to
from sidestream.parts import Custom, File, Stage, ToolApprovalRequest
from sidestream.providers.openai.responses.decode import local_actions, reasoning, shapes, text
from sidestream.providers.openai.responses.decode.state import X_SEARCH, ItemState, ResponsesState
from sidestream.providers.openai.responses.options import PROVIDER_NAME
from sidestream.providers.shared.decoding import CUSTOM_TOOL, parse_input

Handler = Callable[[ResponsesState, ItemState, Any], None]
_FAILED = ("failed", "incomplete")


class ItemRow(Struct, frozen=True, kw_only=True):
    """The shape and handlers of one item type. `tool` is the metadata key of its tool events, or None for no events."""

    shape: type[shapes.Item]
    done: Handler
    added: Handler | None = None
    tool: str | None = None
    name: str | None = None
    hosted: bool = True
    """Whether the provider executes the call, rather than the client."""
    opens: Stage = "started"
    """Stage in which the item's first event puts its call."""
    ends: Stage = "completed"
    """Stage in which the item's last event puts its call, unless it failed."""
    paired_by_call_id: bool = False
    """Whether parts use the call id, to which the output refers, rather than the item's id."""


def begin(s: ResponsesState, item: ItemState, row: ItemRow, value: shapes.Item) -> None:
    """Set the name, tool and part id of an item, from its row and its first event."""
    item.name = row.name or getattr(value, "name", "") or row.tool or item.kind
    item.tool = row.tool or item.name
    item.provider_tool = row.tool
    item.provider_executed = row.hosted
    if item.kind == "custom_tool_call":
        inner = s.inner_tool(item.name)
        item.tool, item.provider_tool = inner or CUSTOM_TOOL, inner or item.name
        item.provider_executed = inner is not None
    wanted = value.call_id if row.paired_by_call_id else getattr(value, "approval_request_id", None)
    if row.done is _output_done:
        call = _call_of(s, item, value)
        item.part_id = value.call_id or (call.part_id if call is not None else item.part_id)
    elif wanted is not None:
        # An approved call keeps the id of its approval request.
        item.part_id = s.unique_id(wanted, item)


def _input_added(s: ResponsesState, item: ItemState, value: shapes.Item) -> None:
    """Emit a `tool-input-start`."""
    s.open_input(item)


def _listed(s: ResponsesState, item: ItemState, value: shapes.McpListToolsItem) -> None:
    """Emit only the tool event."""
    if value.server_label is not None and value.error is None:
        # Remembered approvals apply only to unchanged tool definitions.
        s.listed[value.server_label] = {
            str(tool.get("name")): media_types.digest(jsontext.canonical(tool))
            for tool in jsontext.objects(value.tools)
        }


def _function_added(s: ResponsesState, item: ItemState, value: shapes.FunctionItem) -> None:
    """Emit a `tool-input-start`."""
    s.open_input(item)
    if value.arguments:
        item.streamed.append(value.arguments)
        s.input_delta(item, value.arguments)


def _function_done(s: ResponsesState, item: ItemState, value: shapes.FunctionItem) -> None:
    """Emit `tool-input-end` and `tool-call`."""
    s.open_input(item)
    extra = {"namespace": value.namespace, "caller": value.caller, "item_id": value.id}
    metadata = {PROVIDER_NAME: {key: content for key, content in extra.items() if content}}
    arguments = value.arguments if value.arguments is not None else item.input_final
    arguments = "".join(item.streamed) if arguments is None else arguments
    s.json_call(item, arguments, metadata)


def _custom_added(s: ResponsesState, item: ItemState, value: shapes.CustomToolItem) -> None:
    """Emit a `tool-input-start`. The input is a JSON string, and of a hosted call a JSON object."""
    s.open_input(item, "" if item.provider_executed else '"')


def _custom_done(s: ResponsesState, item: ItemState, value: shapes.CustomToolItem) -> None:
    """Emit `tool-input-end` and `tool-call`."""
    _custom_added(s, item, value)
    given = value.input if value.input is not None else item.input_final or "".join(item.streamed)
    if item.provider_executed:
        _x_search(s, item, given, value.status)
    else:
        s.wrapped_call(item, given, '"', given)


def _x_search_done(s: ResponsesState, item: ItemState, value: shapes.XSearchItem) -> None:
    """Emit `tool-input-*`, `tool-call` and `tool-result`."""
    s.open_input(item)
    _x_search(s, item, value.arguments or "".join(item.streamed), value.status)


def _x_search(s: ResponsesState, item: ItemState, arguments: str, status: str | None) -> None:
    s.json_call(item, arguments)
    s.result(item, {"status": status}, is_error=status in _FAILED)


def _web_search_done(s: ResponsesState, item: ItemState, value: shapes.WebSearchItem) -> None:
    """Emit `tool-input-*`, `tool-call` with the action, and `tool-result` with the sources."""
    action = value.action
    if action is None and value.arguments is not None:
        action = jsontext.as_object(parse_input(value.arguments)[0])
    action = action or {}
    given = {key: content for key, content in action.items() if key != "sources" and content is not None}
    s.whole_call(item, _without_call_ids(given))
    sources = {"sources": action["sources"]} if action.get("sources") else {}
    s.result(item, {"status": value.status, **sources}, is_error=value.status in _FAILED)


_CALL_ID = "ws_call_id="


def _without_call_ids(action: JsonObject) -> JsonObject:
    """Remove the call's id, which DeepSeek appends to an action as a last query or as the fragment of a URL."""
    queries, url = action.get("queries"), action.get("url")
    if jsontext.is_array(queries):
        action["queries"] = [query for query in queries if not str(query).startswith(_CALL_ID)]
    if isinstance(url, str):
        action["url"] = url.partition(f"#{_CALL_ID}")[0]
    return action


def _file_search_done(s: ResponsesState, item: ItemState, value: shapes.FileSearchItem) -> None:
    """Emit `tool-input-*`, `tool-call` with the queries, and `tool-result` with the matches."""
    s.whole_call(item, {"queries": value.queries or []})
    s.result(item, {"status": value.status, "results": value.results}, is_error=value.status in _FAILED)


def _code_added(s: ResponsesState, item: ItemState, value: shapes.CodeInterpreterItem) -> None:
    """Emit `tool-input-start` and the start of the JSON text."""
    s.in_container(item, value.container_id)
    s.open_input(item, f'{{"container_id":{jsontext.dumps(value.container_id).decode()},"code":"')


def code_call(s: ResponsesState, item: ItemState, code: str) -> None:
    """Emit the call once the code is complete, before it runs."""
    s.wrapped_call(item, code, '"}', {"container_id": item.container_id, "code": code})


def _code_done(s: ResponsesState, item: ItemState, value: shapes.CodeInterpreterItem) -> None:
    """Emit `tool-call` unless already emitted, `tool-result` with the outputs, and a `file` for each image."""
    if not item.input_started:
        _code_added(s, item, value)
    s.in_container(item, value.container_id or item.container_id)
    code = value.code if value.code is not None else item.input_final or "".join(item.streamed)
    if not code and value.arguments is not None:
        code = jsontext.text_in(jsontext.as_object(parse_input(value.arguments)[0]), "code") or ""
    code_call(s, item, code)
    result = {"status": value.status, "container_id": item.container_id, "outputs": value.outputs}
    s.result(item, result, is_error=value.status in _FAILED)
    for number, output in enumerate(value.outputs or ()):
        _code_image(s, item, number, output)


def _code_image(s: ResponsesState, item: ItemState, number: int, output: JsonObject) -> None:
    """Emit a `file` if an output of the code is an image."""
    url = output.get("url")
    if output.get("type") != "image" or not isinstance(url, str):
        return
    data = media_types.from_data_url(url)
    if data is None and not url.startswith(("https://", "http://")):
        return
    s.count_entry()
    mime_type = media_types.sniff(data) if data is not None else "image/png"
    name = f"output_{item.index}_{number}.{media_types.extension(mime_type)}"
    link = url if data is None else None
    s.out.append(
        File(
            f"{item.part_id}:output:{number}",
            mime_type,
            name,
            data,
            link,
            tool=item.tool,
            call_id=item.part_id,
        )
    )


def _image_added(s: ResponsesState, item: ItemState, value: shapes.ImageItem) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    s.whole_call(item, {})


def _image_done(s: ResponsesState, item: ItemState, value: shapes.ImageItem) -> None:
    """Emit `tool-result` and the `file` that it refers to. If the image is missing, use the last preview."""
    s.whole_call(item, {})
    raw = item.raw
    facts = {
        key: content for key, content in raw.items() if key not in ("result", "id", "type") and content is not None
    }
    # A complete image may still have the status `generating`. An incomplete one has that status or no data.
    result = value.result
    if not result and value.status == "completed" and value.error is None and item.preview:
        result, facts["from_preview"] = item.preview, True
    data = media_types.from_base64(result) if result else None
    failed = value.error is not None or value.status in _FAILED or data is None
    if failed or data is None:
        if result and data is None:
            facts["error"] = {"message": "the image data is not base64"}
        s.result(item, facts, is_error=True)
        return
    s.result(item, {**facts, "result": reference_to(item.part_id, data)})
    mime_type = media_types.sniff(data, f"image.{raw.get('output_format')}")
    name = f"image_{item.index}.{media_types.extension(mime_type)}"
    s.files[item.id] = name
    s.out.append(File(item.part_id, mime_type, name, data, tool=item.tool, call_id=item.part_id))


def _mcp_done(s: ResponsesState, item: ItemState, value: shapes.McpCallItem) -> None:
    """Emit `tool-input-*`, `tool-call` and `tool-result`."""
    s.open_input(item)
    arguments = value.arguments if value.arguments is not None else item.input_final
    s.json_call(item, "".join(item.streamed) if arguments is None else arguments)
    failed = value.error is not None or value.status in _FAILED
    result = {"server_label": value.server_label, "output": value.output}
    s.result(item, {**result, "error": value.error} if value.error is not None else result, is_error=failed)


def _approval_done(s: ResponsesState, item: ItemState, value: shapes.McpApprovalItem) -> None:
    """Emit `tool-input-*`, `tool-call` and `tool-approval-request`."""
    s.open_input(item)
    s.json_call(item, value.arguments or "")
    given, error = parse_input(value.arguments)
    s.has_approval = True
    s.out.append(
        ToolApprovalRequest(
            item.part_id,
            item.part_id,
            value.name,
            given if error is None else value.arguments,
            value.server_label,
        )
    )


def _tool_search_done(s: ResponsesState, item: ItemState, value: shapes.ToolSearchItem) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    item.provider_executed = value.execution != "client"
    item.call_id = value.call_id
    arguments = value.arguments
    if isinstance(arguments, str):
        s.open_input(item)
        s.json_call(item, arguments)
    else:
        s.whole_call(item, arguments if arguments is not None else {})


def _program_done(s: ResponsesState, item: ItemState, value: shapes.ProgramItem) -> None:
    """Emit `tool-input-*` and `tool-call`."""
    s.whole_call(item, {"code": value.code or ""})


def _output_done(s: ResponsesState, item: ItemState, value: shapes.Item) -> None:
    """Emit a `tool-result`, or a `custom` if its call is unknown."""
    raw = item.raw
    call = _call_of(s, item, value)
    if call is None:
        s.out.append(Custom(f"openai.{item.kind}", raw))
        return
    kept = {key: content for key, content in raw.items() if key in ("output", "result", "tools", "status")}
    s.result(call, kept, is_error=value.status in _FAILED or _timed_out(kept.get("output")))


def _call_of(s: ResponsesState, output: ItemState, value: shapes.Item) -> ItemState | None:
    """Find the call of an output. Without a call id, that is the nearest call before it."""
    if value.call_id is not None:
        return s.unanswered(output.tool, value.call_id) or s.taken_up(output.tool, value.call_id)
    before = (item for item in s.last_unanswered(output.tool) if item.index < output.index)
    return max(before, key=lambda item: item.index, default=None) or s.taken_up(output.tool, None)


def stage_at_end(row: ItemRow, item: JsonObject) -> Stage:
    """Return the stage in which a complete item puts its call."""
    failed = item.get("status") in _FAILED or item.get("error") is not None or _timed_out(item.get("output"))
    return "failed" if failed and row.ends == "completed" else row.ends


def _timed_out(output: Any) -> bool:
    outcomes = [jsontext.as_object(entry).get("outcome") for entry in jsontext.as_list(output)]
    return any(jsontext.as_object(outcome).get("type") == "timeout" for outcome in outcomes)


def _custom(s: ResponsesState, item: ItemState, value: shapes.Item) -> None:
    """Emit a `custom` of the kind `openai.` plus the item type."""
    s.out.append(Custom(f"openai.{item.kind}", item.raw))


_ONLY_HERE = ItemRow(shape=shapes.Item, done=_custom)
_PROGRAM = "programmatic_tool_calling"

ITEMS: dict[str, ItemRow] = {
    "message": ItemRow(shape=shapes.MessageItem, added=text.message_added, done=text.message_done),
    "reasoning": ItemRow(shape=shapes.ReasoningItem, added=reasoning.reasoning_added, done=reasoning.reasoning_done),
    "function_call": ItemRow(
        shape=shapes.FunctionItem,
        added=_function_added,
        done=_function_done,
        hosted=False,
        paired_by_call_id=True,
    ),
    "custom_tool_call": ItemRow(
        shape=shapes.CustomToolItem,
        added=_custom_added,
        done=_custom_done,
        hosted=False,
        paired_by_call_id=True,
    ),
    "web_search_call": ItemRow(
        shape=shapes.WebSearchItem, tool="web_search", added=_input_added, done=_web_search_done
    ),
    # The older form of xAI's search of X, which is a custom_tool_call now.
    **dict.fromkeys(
        ("x_search_call", "view_x_video_call", "view_image_call"),
        ItemRow(shape=shapes.XSearchItem, tool=X_SEARCH, added=_input_added, done=_x_search_done),
    ),
    "file_search_call": ItemRow(
        shape=shapes.FileSearchItem, tool="file_search", added=_input_added, done=_file_search_done
    ),
    **dict.fromkeys(
        ("code_interpreter_call", "code_execution_call"),
        ItemRow(shape=shapes.CodeInterpreterItem, tool="code_interpreter", added=_code_added, done=_code_done),
    ),
    "image_generation_call": ItemRow(
        shape=shapes.ImageItem, tool="image_generation", added=_image_added, done=_image_done
    ),
    "mcp_call": ItemRow(shape=shapes.McpCallItem, tool="mcp", added=_input_added, done=_mcp_done),
    "mcp_list_tools": ItemRow(shape=shapes.McpListToolsItem, tool="mcp", done=_listed),
    "mcp_approval_request": ItemRow(shape=shapes.McpApprovalItem, tool="mcp", done=_approval_done, ends="started"),
    "shell_call": ItemRow(
        shape=shapes.ShellItem,
        tool="shell",
        name="shell",
        added=local_actions.shell_added,
        done=local_actions.shell_done,
        hosted=False,
        paired_by_call_id=True,
        ends="running",
    ),
    "shell_call_output": ItemRow(shape=shapes.Item, tool="shell", done=_output_done, opens="running"),
    "apply_patch_call": ItemRow(
        shape=shapes.PatchItem,
        tool="apply_patch",
        added=local_actions.patch_added,
        done=local_actions.patch_done,
        hosted=False,
        paired_by_call_id=True,
        ends="running",
    ),
    "apply_patch_call_output": ItemRow(shape=shapes.Item, tool="apply_patch", done=_output_done, opens="running"),
    "local_shell_call": ItemRow(
        shape=shapes.ActionItem,
        tool="local_shell",
        added=_input_added,
        done=local_actions.action_done,
        hosted=False,
        paired_by_call_id=True,
        ends="running",
    ),
    "local_shell_call_output": ItemRow(shape=shapes.Item, tool="local_shell", done=_output_done, opens="running"),
    "computer_call": ItemRow(
        shape=shapes.ActionItem,
        tool="computer_use",
        added=_input_added,
        done=local_actions.action_done,
        hosted=False,
        paired_by_call_id=True,
        ends="running",
    ),
    "computer_call_output": ItemRow(shape=shapes.Item, tool="computer_use", done=_output_done, opens="running"),
    # The call id may change between added and done, so nothing is emitted before done.
    "tool_search_call": ItemRow(
        shape=shapes.ToolSearchItem, tool="tool_search", done=_tool_search_done, ends="running"
    ),
    "tool_search_output": ItemRow(shape=shapes.Item, tool="tool_search", done=_output_done, opens="running"),
    "program": ItemRow(
        shape=shapes.ProgramItem, tool=_PROGRAM, done=_program_done, paired_by_call_id=True, ends="running"
    ),
    "program_output": ItemRow(shape=shapes.Item, tool=_PROGRAM, done=_output_done, opens="running"),
    "compaction": _ONLY_HERE,
    "additional_tools": _ONLY_HERE,
    "configuration_update": _ONLY_HERE,
    "function_call_output": _ONLY_HERE,
    "custom_tool_call_output": _ONLY_HERE,
    "mcp_approval_response": _ONLY_HERE,
}
"""Shapes and handlers, by output item type."""
