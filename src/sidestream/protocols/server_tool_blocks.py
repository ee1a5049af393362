"""Blocks of Anthropic's Messages API for tools that the provider or the server runs.

A search, a fetched page and executed code have blocks of their own in the API. Those of Anthropic are passed on
verbatim, and those of other providers are converted. Other tools have no equivalent.
"""

import re
from typing import Any

from sidestream import parts
from sidestream.jsontext import Json, JsonObject, as_object, is_array, is_object, objects, text_in

_NAMES = {"web_search": "web_search", "web_fetch": "web_fetch", "code_interpreter": "code_execution"}
"""The API's tool names by the portable ones."""
_OWN = frozenset({*_NAMES.values(), "bash_code_execution", "text_editor_code_execution"})
"""Names of Anthropic's own tools."""
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]")


def call_block(part: parts.ToolCall) -> JsonObject | None:
    """Return the block of a call with its input, or None if the API has no such tool."""
    name = _name(part.name, part.tool)
    if name is None:
        return None
    given = as_object(part.input)
    shown = _input(name, given) if name in _NAMES.values() else given
    return {"type": "server_tool_use", "id": _id(part.id), "name": name, "input": shown}


def result_block(part: parts.ToolResult) -> JsonObject | None:
    """Return the block of a call's result, or None if the API has no such tool."""
    name = _name(part.name, part.tool)
    if name is None:
        return None
    return {"type": f"{name}_tool_result", "tool_use_id": _id(part.id), "content": _content(name, part)}


def _name(name: str, tool: str) -> str | None:
    return name if name in _OWN else _NAMES.get(tool)


def _id(call_id: str) -> str:
    return call_id if call_id.startswith("srvtoolu_") else f"srvtoolu_{_ILLEGAL.sub('_', call_id)}"


def _input(name: str, given: JsonObject) -> JsonObject:
    """Return a call's input with the names that the API uses."""
    match name:
        case "web_search":
            queries = [str(query) for query in given.get("queries") or () if query]
            return {"query": text_in(given, "query") or ", ".join(queries)}
        case "web_fetch":
            urls = [str(url) for url in given.get("urls") or () if url]
            return {"url": text_in(given, "url") or ", ".join(urls)}
        case _:
            return {"code": text_in(given, "code") or ""}


def _content(name: str, part: parts.ToolResult) -> Any:
    result = part.result
    if _is_own(name, result):
        return result
    if part.is_error:
        return {"type": f"{name}_tool_result_error", "error_code": "unavailable"}
    match name:
        case "web_search":
            return [_page(entry) for entry in _entries(result)]
        case "web_fetch":
            return _document(result)
        case _:
            return _execution(result)


def _is_own(name: str, result: Json) -> bool:
    """Return whether a result is Anthropic's own content."""
    if is_object(result):
        return str(result.get("type")).startswith(f"{name}_")
    return is_array(result) and all(entry.get("type") == f"{name}_result" for entry in map(as_object, result))


def _entries(result: Json) -> list[JsonObject]:
    """Return the pages of a search result."""
    if is_object(result):
        result = next((result[key] for key in ("sources", "results", "pages", "chunks") if result.get(key)), None)
    return [entry for entry in objects(result) if _url(entry)]


def _page(entry: JsonObject) -> JsonObject:
    url = _url(entry)
    title = text_in(entry, "title") or url
    return {"type": "web_search_result", "url": url, "title": title, "encrypted_content": "", "page_age": None}


def _url(entry: JsonObject) -> str:
    return text_in(entry, "url") or text_in(entry, "uri") or ""


def _document(result: Json) -> JsonObject:
    page = as_object(result)
    pages = _entries(result)
    text = result if isinstance(result, str) else text_in(page, "text") or text_in(page, "content") or ""
    source = {"type": "text", "media_type": "text/plain", "data": text}
    document = {"type": "document", "source": source, "title": text_in(page, "title"), "citations": None}
    url = _url(page) or (_url(pages[0]) if pages else "")
    return {"type": "web_fetch_result", "url": url, "retrieved_at": None, "content": document}


def _execution(result: Json) -> JsonObject:
    ran = as_object(result)
    logs = "".join(text_in(entry, "logs") or "" for entry in objects(ran.get("outputs")))
    output = logs or text_in(ran, "output") or text_in(ran, "stdout") or (result if isinstance(result, str) else "")
    has_failed = ran.get("outcome") not in (None, "OUTCOME_OK") or ran.get("status") in ("failed", "incomplete")
    code = ran.get("return_code") if isinstance(ran.get("return_code"), int) else int(has_failed)
    return {
        "type": "code_execution_result",
        "stdout": output,
        "stderr": text_in(ran, "stderr") or "",
        "return_code": code,
        "content": [],
    }
