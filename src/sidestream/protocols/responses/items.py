"""Conversion of tool calls, whether run by a provider or by this server, to items of the Responses API."""

import re
from hashlib import sha256
from typing import Any, Final

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import Json, JsonObject, as_list, as_object
from sidestream.parts import File, Source, ToolApprovalRequest, ToolCall, ToolResult
from sidestream.protocols.responses.object import Dialect
from sidestream.results import tool_facts
from sidestream.results.tool_code import code_fields, code_in

_RESPONSE: Final = "resp_"
_STRICT: Final = "s"
_ITEM_ID: Final = re.compile(rf"[a-z]+_([0-9a-f]+)_[0-9]+({_STRICT})?")
_CONTAINER: Final = "cntr_resp_"
SERVER: Final = "server"
"""The `server_label` of functions registered on the server."""

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "compaction": "cmp",
}
"""Item type → prefix of its ids."""
_ITEM_TYPES: Final = {
    "web_search": "web_search_call",
    "web_fetch": "web_search_call",
    "file_search": "file_search_call",
    "code_interpreter": "code_interpreter_call",
    "image_generation": "image_generation_call",
}
"""Hosted tool key → type of its items. Other tools become `mcp_call`, which clients never try to run."""


def made_id(type: str, *names: object) -> str:
    """Return a deterministic id that does not reveal the names it is derived from."""
    digest = sha256("\0".join(map(str, names)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_PREFIXES.get(type, 'item')}_{digest[:40]}"


def item_id(type: str, response_id: str, index: int, dialect: Dialect) -> str:
    """Return an item id that encodes the response and index, so that later requests can refer to the item."""
    place = f"{response_id.removeprefix(_RESPONSE)}_{index}"
    return f"{_PREFIXES.get(type, 'item')}_{place}{_STRICT if dialect == 'open-responses' else ''}"


def response_of_item(id: str) -> tuple[str, Dialect] | None:
    """Return the response and dialect that an item id encodes, or None if `item_id` did not make the id."""
    if (found := _ITEM_ID.fullmatch(id)) is None:
        return None
    return f"{_RESPONSE}{found[1]}", "open-responses" if found[2] else "openai"


def approval_item_id(approval_id: str) -> str:
    """Return the id of an approval request item, which the client's answer refers to."""
    return made_id("mcp_approval_request", approval_id)


def item_type(call: ToolCall) -> str:
    """Return the type of a hosted call's item."""
    return _ITEM_TYPES.get(call.tool, "mcp_call")


def input_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON text."""
    return call.input_text if call.input_text is not None else jsontext.dumps(call.input).decode()


def opened(type: str, call: ToolCall) -> JsonObject:
    """Return the initial item of a hosted call, without its id."""
    match type:
        case "web_search_call":
            return {"type": type, "status": "in_progress", "action": _action(call)}
        case "file_search_call":
            return {"type": type, "status": "in_progress", "queries": list(tool_facts.queries_in(call.input))}
        case "code_interpreter_call":
            container = as_object(call.input).get("container_id")
            return {
                "type": type,
                "status": "in_progress",
                "container_id": container if isinstance(container, str) else "",
                "code": "",
            }
        case "image_generation_call":
            return {"type": type, "status": "in_progress"}
        case _:
            return {
                "type": "mcp_call",
                "status": "in_progress",
                "server_label": server_of(call),
                "name": call.name,
                "arguments": "",
            }


def server_of(call: ToolCall) -> str:
    """Return the label of the call's MCP server, else the hosted tool's key, else `SERVER`."""
    label = tool_facts.server_in(call.provider_metadata) or tool_facts.server_in({"input": call.input})
    return label or (call.tool if call.provider_executed else SERVER)


def closed(type: str, call: ToolCall, result: ToolResult, files: list[File]) -> JsonObject:
    """Return the fields that a result adds to a hosted call's item."""
    status = "failed" if result.is_error else "completed"
    match type:
        case "web_search_call":
            return {"status": status, "action": _action(call, result.result)}
        case "file_search_call":
            found = as_list(as_object(result.result).get("results"))
            return {"status": status, **({"results": found} if found else {})}
        case "code_interpreter_call":
            return {"status": status, "outputs": _outputs(result.result, files)}
        case "image_generation_call":
            image = next((file for file in files if file.data is not None), None)
            return {"status": status, **(_image(image) if image is not None else {})}
        case _:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": shown(result.result)}]}
            outcome: JsonObject = {"error": error} if result.is_error else {"output": shown(result.result)}
            label = tool_facts.server_in(result.result) or tool_facts.server_in(result.provider_metadata)
            named: JsonObject = {"server_label": label} if label is not None else {}
            return {"status": status, **named, **outcome}


def container_of(response_id: str) -> str:
    """Return the container id that citations of a response's files use."""
    return f"{_CONTAINER}{response_id.removeprefix(_RESPONSE)}"


def is_container_of_response(id: str) -> bool:
    """Return whether `container_of` made this id, rather than a provider."""
    return id.startswith(_CONTAINER)


def response_of_container(id: str) -> str:
    """Return the id of the response that a container id encodes."""
    return f"{_RESPONSE}{id.removeprefix(_CONTAINER)}"


def file_id(number: int) -> str:
    """Return the id of a response's file, by its index."""
    return f"sfile_{number}"


def file_annotation(file: File, number: int, response_id: str, at: int) -> JsonObject:
    """Return an annotation that refers to a file, because the API has items for images only."""
    if file.data is None and file.url is not None:
        named = {"url": file.url, "title": file.name or file.url}
        return {"type": "url_citation", "start_index": at, "end_index": at, **named}
    return {
        "type": "container_file_citation",
        "container_id": container_of(response_id),
        "file_id": file_id(number),
        "filename": file.name or file.id,
        "start_index": at,
        "end_index": at,
    }


def file_content(file: File) -> JsonObject:
    """Convert a file to function output content."""
    if file.mime_type.startswith("image/"):
        return {"type": "input_image", "image_url": data_url(file), "detail": "auto"}
    named: JsonObject = {"type": "input_file", "filename": file.name or file.id}
    return {**named, "file_url": file.url} if file.data is None else {**named, "file_data": data_url(file)}


def image_item(file: File) -> JsonObject:
    """Return the item of an image that a model generated without a call."""
    return {"type": "image_generation_call", "status": "completed", **_image(file)}


def approval_item(part: ToolApprovalRequest) -> JsonObject:
    """Return the item of a call that needs approval."""
    return {
        "id": approval_item_id(part.approval_id),
        "type": "mcp_approval_request",
        "server_label": part.server_label or SERVER,
        "name": part.name,
        "arguments": jsontext.dumps(part.input).decode(),
    }


def code_of(call: ToolCall) -> str:
    """Return the code that a call runs, or an empty string."""
    return code_in(call.input, code_fields(call) or ("code",)) or ""


def annotation_of(source: Source) -> JsonObject | None:
    """Convert a source to an annotation of its text, or return None if the API has no matching kind."""
    start, end = source.start or 0, source.end or source.start or 0
    match source.kind:
        case "url" | "place" if source.url is not None:
            title = source.title or source.url
            return {"type": "url_citation", "start_index": start, "end_index": end, "url": source.url, "title": title}
        case "document" if source.file_id is not None or source.title is not None:
            name = source.title or source.file_id
            return {"type": "file_citation", "file_id": source.file_id or name, "filename": name, "index": start}
        case "container_file" if source.file_id is not None:
            container = next(
                (as_object(value).get("container_id") for value in (source.provider_metadata or {}).values()), ""
            )
            return {
                "type": "container_file_citation",
                "container_id": container,
                "file_id": source.file_id,
                "filename": source.title or source.file_id,
                "start_index": start,
                "end_index": end,
            }
        case "file_path" if source.file_id is not None:
            return {"type": "file_path", "file_id": source.file_id, "index": start}
        case _:
            return None


def shown(value: Json) -> str:
    """Return a string result as is, and any other as JSON text."""
    return value if isinstance(value, str) else jsontext.dumps(value).decode()


def _action(call: ToolCall, result: Json = None) -> JsonObject:
    given = as_object(call.input)
    if isinstance(given.get("type"), str) and given["type"] in ("search", "open_page", "find_in_page"):
        return given
    queries = list(tool_facts.queries_in(given))
    if not queries and isinstance(url := given.get("url"), str):
        return {"type": "open_page", "url": url}
    listed = as_list(result) or as_list(as_object(result).get("sources"))
    urls = [url for entry in listed if isinstance(url := as_object(entry).get("url"), str)]
    sources: JsonObject = {"sources": [{"type": "url", "url": url} for url in urls]} if urls else {}
    return {"type": "search", "query": queries[0] if queries else "", "queries": queries, **sources}


def _outputs(result: Json, files: list[File]) -> list[JsonObject]:
    fields = as_object(result)
    if listed := [entry for entry in jsontext.objects(fields.get("outputs")) if entry.get("type") in ("logs", "image")]:
        return listed
    texts = [text for name in ("stdout", "stderr", "output") if isinstance(text := fields.get(name), str) and text]
    logs = "".join(texts) or (result if isinstance(result, str) else "")
    images = [{"type": "image", "url": data_url(file)} for file in files if file.mime_type.startswith("image/")]
    return [*([{"type": "logs", "logs": logs}] if logs else []), *images]


def _image(file: File) -> JsonObject:
    form = file.mime_type.removeprefix("image/").partition("+")[0]
    return {"result": media_types.to_base64(file.data or b""), "output_format": form}


def data_url(file: File) -> str:
    """Return a data URL of the file's bytes, or its own URL if it has none."""
    return file.url or "" if file.data is None else media_types.data_url(file.data, file.mime_type)


# The specification has items for functions only, so calls run by others become a function call and its output.

_ARGUMENTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "web_search_call": ("web_search", ("action",)),
    "file_search_call": ("file_search", ("queries",)),
    "code_interpreter_call": ("code_interpreter", ("code",)),
    "image_generation_call": ("image_generation", ("revised_prompt", "size", "quality")),
    "shell_call": ("shell", ("action",)),
    "apply_patch_call": ("apply_patch", ("operation",)),
    "tool_search_call": ("tool_search", ("arguments",)),
    "program": ("program", ("code",)),
}
"""Item type → name of the function that replaces it, and the fields that become its arguments."""
_NOT_SAID = ("id", "type", "status", "call_id", "server_label", "name", "arguments")


def as_function(item: JsonObject) -> tuple[str, str, Any]:
    """Convert a call that the client did not run to a function's name, arguments and output."""
    kind = str(item.get("type"))
    if kind == "mcp_call":
        output = item.get("output") if item.get("output") is not None else item.get("error")
        label = item.get("server_label")
        name = str(item.get("name")) if label == SERVER else f"{label}__{item.get('name')}"
        return function_name(name), str(item.get("arguments") or "{}"), shown(output)
    name, fields = _ARGUMENTS.get(kind, (kind, ()))
    arguments = {field: item[field] for field in fields if item.get(field) is not None}
    if kind == "image_generation_call" and isinstance(item.get("result"), str):
        url = f"data:image/{item.get('output_format') or 'png'};base64,{item['result']}"
        return name, jsontext.dumps(arguments).decode(), [{"type": "input_image", "image_url": url, "detail": "auto"}]
    rest = {field: value for field, value in item.items() if field not in (*_NOT_SAID, *fields) and value is not None}
    said: JsonObject = {"status": item.get("status") or "completed", **rest}
    return function_name(name), jsontext.dumps(arguments).decode(), jsontext.dumps(said).decode()


def function_name(name: str) -> str:
    """Return the name with the characters that function names may not contain replaced."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "tool"
