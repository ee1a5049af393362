"""Results of server-side tools, and the links, documents and files in them."""

import posixpath
from collections.abc import Callable
from urllib.parse import urlsplit

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_object, objects, text_in
from sidestream.parts import Custom, File, ToolCall
from sidestream.providers.anthropic.decode import shapes
from sidestream.providers.anthropic.decode.state import BlockState, MessagesState
from sidestream.providers.protocol import FileRef

RESULTS = {
    "web_search_tool_result": "web_search",
    "web_fetch_tool_result": "web_fetch",
    "code_execution_tool_result": "code_execution",
    "bash_code_execution_tool_result": "bash_code_execution",
    "text_editor_code_execution_tool_result": "text_editor_code_execution",
    "tool_search_tool_result": "tool_search",
    "mcp_tool_result": "mcp",
    "advisor_tool_result": "advisor",
}
"""Type of a result block → the key of its tool's events."""


def result_start(s: MessagesState, block: BlockState, value: shapes.ResultBlock) -> None:
    """Emit `tool-result`, and `file` for each file that it delivers. Emit `custom` if its call is unknown."""
    call = _call_of(s, value.tool_use_id)
    content = value.content
    is_failed = is_error(block.raw)
    if call is None:
        s.out.append(Custom(f"anthropic.{block.kind}", block.raw))
    else:
        s.result(call, content, is_error=is_failed)
    deliver = DELIVERIES.get(block.kind)
    if deliver is not None and not is_failed:
        call_id = value.tool_use_id if call is None else call.part_id
        deliver(s, block, content, call_id)


def is_error(block: JsonObject) -> bool:
    """Return whether a result block reports an error."""
    content = block.get("content")
    return block.get("is_error") is True or (is_object(content) and str(content.get("type")).endswith("_error"))


def _call_of(s: MessagesState, call_id: str) -> BlockState | None:
    """Return the call of a result, from this response or from an earlier one that the provider continues."""
    call = s.calls.get(call_id)
    if call is not None:
        s.end_call(call)
        return call if call.provider_executed else None
    made = s.answered_call("", call_id)
    if made is None and (raw := s.context.waiting.get(call_id)) is not None:
        # An earlier turn made the call, so this stream has not reported it yet.
        name = text_in(raw, "name") or str(raw.get("type"))
        tool = tool_key(raw)
        made = ToolCall(call_id, name, s.portable(tool), True, input=raw.get("input") or {}, provider_tool=tool)
        s.out.append(made)
    if made is None:
        return None
    call = BlockState(-1, "server_tool_use", call_id, {})
    call.name, call.input = made.name, made.input
    s.of_tool(call, made.provider_tool or made.tool)
    call.provider_executed = call.called = True
    s.calls[call_id] = call
    return call


def tool_key(raw: JsonObject) -> str:
    """Return the key of a server-side call's events."""
    name = text_in(raw, "name") or ""
    if raw.get("type") == "mcp_tool_use":
        return "mcp"
    return "tool_search" if name.startswith("tool_search_tool") else name


def _links(s: MessagesState, block: BlockState, content: object, call_id: str) -> None:
    """Emit each page found, once."""
    for number, entry in enumerate(objects(content)):
        url = text_in(entry, "url")
        if entry.get("type") == "web_search_result" and url and s.is_new(url):
            s.count_entry()
            name = text_in(entry, "title")
            s.out.append(
                File(f"{call_id}:{number}", "text/html", name, url=url, tool=block.portable_tool, call_id=call_id)
            )


def _document(s: MessagesState, block: BlockState, content: object, call_id: str) -> None:
    """Emit the fetched page as text or PDF, once."""
    fetched = content if is_object(content) else {}
    document = fetched.get("content")
    source = document.get("source") if is_object(document) else None
    data = _bytes_of(source) if is_object(source) else None
    if data is None or not is_object(document) or not is_object(source):
        return
    claimed = text_in(source, "media_type")
    mime_type = media_types.checked_type(data, claimed) if claimed else media_types.sniff(data)
    name = _name(text_in(document, "title"), text_in(fetched, "url"), mime_type)
    digest = media_types.digest(data)
    known = s.documents.get(digest)
    block.file = known or name
    if known is None and s.is_new(digest):
        s.documents[digest] = name
        s.out.append(File(f"{call_id}:document", mime_type, name, data, tool=block.portable_tool, call_id=call_id))


def _bytes_of(source: JsonObject) -> bytes | None:
    data = text_in(source, "data")
    if not data:
        return None
    if source.get("type") == "base64":
        return media_types.from_base64(data)
    return data.encode("utf-8", "replace") if source.get("type") == "text" else None


def _name(title: str | None, url: str | None, mime_type: str) -> str:
    """Return a name for a page, from its title or the end of its URL."""
    try:
        parts = urlsplit(url or "")
    except ValueError:
        parts = urlsplit("")
    name = (title or "").strip() or posixpath.basename(parts.path.rstrip("/")) or parts.netloc or "document"
    ending = f".{media_types.extension(mime_type)}"
    return name if name.lower().endswith(ending) else name + ending


def _sandbox_files(s: MessagesState, block: BlockState, content: object, call_id: str) -> None:
    """Register or emit the files that code wrote, each once."""
    for entry in objects(content.get("content")) if is_object(content) else ():
        file_id = text_in(entry, "file_id")
        if file_id:
            add_download(s, file_id, block.portable_tool, call_id)
        else:
            _inline_file(s, block, entry, call_id)


def _inline_file(s: MessagesState, block: BlockState, entry: JsonObject, call_id: str) -> None:
    """Emit a file that the result itself holds, once."""
    source = entry.get("source")
    held: JsonObject = source if is_object(source) else {**entry, "type": "base64"}
    data = _bytes_of(held) if held.get("type") == "base64" else None
    if data is None or not s.is_new(media_types.digest(data)):
        return
    s.count_entry()
    mime_type = media_types.sniff(data)
    number = len(s.documents)
    name = f"output_{block.index}_{number}.{media_types.extension(mime_type)}"
    s.documents[media_types.digest(data)] = name
    s.out.append(File(f"{call_id}:output:{number}", mime_type, name, data, tool=block.portable_tool, call_id=call_id))


def add_download(s: MessagesState, file_id: str, tool: str | None, call_id: str | None) -> None:
    """Register a file to download, once. The provider does not send its name."""
    if s.is_new(file_id):
        s.count_entry()
        s.downloads[file_id] = FileRef(id=file_id, tool=tool, call_id=call_id)


def _viewed_file(s: MessagesState, block: BlockState, content: object, call_id: str) -> None:
    """Emit an image or PDF that the editor displayed. The result itself holds it."""
    seen = content if is_object(content) else {}
    data = (
        media_types.from_base64(text_in(seen, "content") or "") if seen.get("file_type") in ("image", "pdf") else None
    )
    if data is None:
        return
    digest = media_types.digest(data)
    block.file = s.documents.get(digest)
    if not s.is_new(digest):
        return
    mime_type = media_types.sniff(data)
    name = f"view_{block.index}.{media_types.extension(mime_type)}"
    block.file = s.documents[digest] = name
    s.out.append(File(f"{call_id}:view", mime_type, name, data, tool=block.portable_tool, call_id=call_id))


DELIVERIES: dict[str, Callable[[MessagesState, BlockState, object, str], None]] = {
    "web_search_tool_result": _links,
    "web_fetch_tool_result": _document,
    "code_execution_tool_result": _sandbox_files,
    "bash_code_execution_tool_result": _sandbox_files,
    "text_editor_code_execution_tool_result": _viewed_file,
}
"""Type of a result block → how its files are delivered."""
