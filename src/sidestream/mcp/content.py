"""From what a server's tool gave back to the result of a client tool."""

import json
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sidestream.deliverables import from_base64, sniff
from sidestream.limits import DEFAULT_LIMITS
from sidestream.messages.message import Content, DataPart, LinkPart, TextPart
from sidestream.tools.results import cut, json_value
from sidestream.tools.tool import ToolOutcome

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, EmbeddedResource, ResourceLink

_WEB = ("http", "https")
_SHOWN_NAME = 200


def outcome_of(result: "CallToolResult") -> ToolOutcome | object:
    """The value for the model, or a failure with what the server said about it.

    - Only text: a string. Texts are joined by line breaks.
    - Images, audio and other bytes: a list of texts and files.
    - Structured content alone, or with the same as text: the JSON value. `{"result": x}` beside the text x is x.
    - Structured content beside other text: `{"content": ..., "structured_content": ...}`; beside files: a last text.
    """
    value = _value(result)
    if not result.is_error:
        return value
    max_bytes = DEFAULT_LIMITS.max_tool_result_bytes
    if isinstance(value, str):
        return ToolOutcome.failure("ToolError", cut(value or "The tool failed without saying why.", max_bytes))
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
    if not parts or _says(text, structured):
        return structured
    inner = _only_value(structured)
    if text == inner or _says(text, inner):
        # Python servers wrap what is no object, so that it can be structured content at all.
        return inner if "result" in structured else structured
    return {"content": text, "structured_content": structured}


def _only_value(value: Any) -> Any:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return next(iter(fields.values())) if len(fields) == 1 else None


def _says(text: str, value: Any) -> bool:
    """Whether the text is the JSON of the value, as the protocol recommends for clients that know only text."""
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


def _file(data: str, claimed: str | None, name: str | None, what: str) -> Content:
    content = from_base64(data)
    if content is None:
        return TextPart(f"[the server sent an {what} that is no base64]")
    return DataPart(content, media_type_of(content, claimed, name), name)


def media_type_of(content: bytes, claimed: str | None, name: str | None = None) -> str:
    """The type by content; where that says nothing certain, what the server claims."""
    found = sniff(content, name)
    uncertain = found in ("application/octet-stream", "text/plain")
    return claimed if claimed and uncertain and not claimed.startswith("image/") else found


def _resource(block: "EmbeddedResource") -> Content:
    resource = block.resource
    if hasattr(resource, "text"):
        return TextPart(f"Resource {resource.uri}:\n{getattr(resource, 'text', '')}")
    name = str(resource.uri).rstrip("/").rpartition("/")[2][-_SHOWN_NAME:] or None
    return _file(str(getattr(resource, "blob", "")), resource.mime_type, name, "embedded resource")


def _link(block: "ResourceLink") -> Content:
    """A link on the web is a link. Another scheme may mean something to a provider, so it is only named."""
    scheme = block.uri.partition(":")[0].lower()
    if scheme in _WEB:
        return LinkPart(block.uri, block.mime_type, block.title or block.name)
    about = f": {block.description}" if block.description else ""
    kind = f", {block.mime_type}" if block.mime_type else ""
    return TextPart(f"Resource {block.uri} ({block.title or block.name}{kind}){about}")
