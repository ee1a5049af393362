"""Conversion of an MCP tool result to that of a client tool."""

import json
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sidestream.files.media_types import from_base64, sniff
from sidestream.limits import DEFAULT_LIMITS
from sidestream.messages.message import Content, DataPart, LinkPart, TextPart
from sidestream.tools.results import cut, json_value
from sidestream.tools.tool import ToolOutcome

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, EmbeddedResource, ResourceLink

_WEB = ("http", "https")
_MAX_NAME_CHARACTERS = 200


def outcome_of(result: "CallToolResult") -> ToolOutcome | object:
    """Convert a result to the value for the model, or to a failure with the server's message.

    - Only text becomes a string; several texts are joined by newlines.
    - Images, audio and other bytes become a list of strings and files.
    - Structured content alone, or with the same JSON as text, becomes the JSON value. `{"result": x}` with the text x
      becomes x.
    - Structured content with other text becomes `{"content": ..., "structured_content": ...}`; with files, it becomes a
      last string in the list.
    """
    value = _value(result)
    if not result.is_error:
        return value
    max_bytes = DEFAULT_LIMITS.max_tool_result_bytes
    if isinstance(value, str):
        return ToolOutcome.failure("ToolError", cut(value or "The tool failed without a message.", max_bytes))
    return ToolOutcome(json_value(value, max_bytes), is_error=True)


def _value(result: "CallToolResult") -> object:
    parts = [part for block in result.content for part in _parts(block)]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    is_text = len(texts) == len(parts)
    text = "\n".join(texts)
    structured = result.structured_content
    if structured is None:
        return text if is_text else parts
    if not is_text:
        return [*parts, TextPart(json.dumps(structured, ensure_ascii=False))]
    if not parts or _is_json_of(text, structured):
        return structured
    inner = _only_value(structured)
    if text == inner or _is_json_of(text, inner):
        # Python servers wrap values that are not objects, since structured content must be one.
        return inner if "result" in structured else structured
    return {"content": text, "structured_content": structured}


def _only_value(value: Any) -> Any:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return next(iter(fields.values())) if len(fields) == 1 else None


def _is_json_of(text: str, value: Any) -> bool:
    """Return whether the text is the value's JSON, which the protocol recommends for clients that only read text."""
    try:
        return msgspec.json.decode(text) == value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _parts(block: "ContentBlock") -> list[Content]:
    match block.type:
        case "text":
            return [TextPart(block.text)]
        case "image" | "audio":
            return [_file(block.data, block.mime_type, None, f"{block.type} file")]
        case "resource":
            return [_resource(block)]
        case "resource_link":
            return [_link(block)]


def _file(data: str, claimed: str | None, name: str | None, description: str) -> Content:
    content = from_base64(data)
    if content is None:
        return TextPart(f"[the server sent an {description} that is not valid base64]")
    return DataPart(content, mime_type_of(content, claimed, name), name)


def mime_type_of(content: bytes, claimed: str | None, name: str | None = None) -> str:
    """Detect the MIME type of the content, falling back to the server's claim."""
    found = sniff(content, name)
    uncertain = found in ("application/octet-stream", "text/plain")
    return claimed if claimed and uncertain and not claimed.startswith("image/") else found


def _resource(block: "EmbeddedResource") -> Content:
    resource = block.resource
    if hasattr(resource, "text"):
        return TextPart(f"Resource {resource.uri}:\n{getattr(resource, 'text', '')}")
    name = str(resource.uri).rstrip("/").rpartition("/")[2][-_MAX_NAME_CHARACTERS:] or None
    return _file(str(getattr(resource, "blob", "")), resource.mime_type, name, "embedded resource")


def _link(block: "ResourceLink") -> Content:
    """Convert a resource link to a web link.

    Other URIs become text, since a provider might interpret their scheme.
    """
    scheme = block.uri.partition(":")[0].lower()
    if scheme in _WEB:
        return LinkPart(block.uri, block.mime_type, block.title or block.name)
    description = f": {block.description}" if block.description else ""
    mime_type = f", {block.mime_type}" if block.mime_type else ""
    return TextPart(f"Resource {block.uri} ({block.title or block.name}{mime_type}){description}")
