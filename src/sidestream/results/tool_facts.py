"""Readers of any provider's tool inputs, events and results. They are pure, and find nothing in malformed values."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sidestream import jsontext
from sidestream.jsontext import as_list, as_object, is_array, is_object

MAX_SNIPPET_CHARS = 200
_MAX_DEPTH = 6
_MAX_READ_CHARS = 2000
"""Maximum characters of a string that are read for its snippet."""

_COUNTED = (
    *("sources", "results", "links", "groundingChunks", "urlMetadata"),
    *("tool_references", "tools", "browser_results"),
)
"""Fields that list findings."""
_TEXTS = (
    *("text", "snippet", "logs", "stdout", "output", "outputs", "stderr", "results", "groundingChunks"),
    *("search_results", "retrievedContext", "web", "maps", "content", "source", "data", "title", "revised_prompt"),
    "message",
)
"""Fields that hold or contain readable text, best first."""
_TEXT_NAMES = frozenset(_TEXTS)
_REASONS = ("message", "error_message", "content", "error_code", "code", "error", "outcome")
_NESTED = ("groundingMetadata", "urlContextMetadata", "item", "search_results")
_ITEMS = ("item", "content_block", "step")
_CALLS = frozenset({"toolCall", "executableCode"})
_COUNTING = frozenset({*_COUNTED, *_NESTED})
_QUERIED = frozenset({"queries", "groundingMetadata", "paths", "query"})
_EXITING = frozenset({"output", "return_code", "exit_code"})


def queries_in(value: Any) -> tuple[str, ...]:
    """Return the search queries in an input or an event."""
    fields = as_object(value)
    if _QUERIED.isdisjoint(fields):
        return ()
    grounding = as_object(fields.get("groundingMetadata"))
    listed = [*as_list(fields.get("queries")), *as_list(grounding.get("webSearchQueries"))]
    listed = listed or as_list(fields.get("paths"))  # What OpenAI's tool search looks for.
    return tuple(query for query in (listed or [fields.get("query")]) if isinstance(query, str) and query)


def count_in(value: Any) -> int | None:
    """Return the number of pages, passages or tools that a result or an event lists, or None without a list."""
    if is_array(value):
        # Search hits have URLs; content blocks do not.
        return sum("url" in as_object(entry) for entry in value) or None
    fields = as_object(value)
    if _COUNTING.isdisjoint(fields):
        return None
    for name in _NESTED:
        if name in fields and (count := count_in(fields[name])) is not None:
            return count
    return next((len(fields[name]) for name in _COUNTED if isinstance(fields.get(name), list)), None)


def file_count_in(value: Any) -> int | None:
    """Return how many files the passages in a result are from, or None if it names no files."""
    found = as_object(value).get("results")
    if found is None:
        return None
    names = [entry.get("filename") or entry.get("file_id") for entry in jsontext.objects(found)]
    return len({name for name in names if isinstance(name, str) and name}) or None


def snippet_of(value: Any) -> str:
    """Return the beginning of the first text in a result, on one line of at most `MAX_SNIPPET_CHARS` characters."""
    return cut(next(_texts(value, _MAX_DEPTH), ""))


def cut(text: str) -> str:
    """Return the text on one line, truncated to `MAX_SNIPPET_CHARS` characters."""
    line = " ".join(text[:_MAX_READ_CHARS].split())
    return line if len(line) <= MAX_SNIPPET_CHARS else line[: MAX_SNIPPET_CHARS - 1] + "…"


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if value.strip():
            yield value
    elif depth and is_array(value):
        for entry in value:
            yield from _texts(entry, depth - 1)
    elif depth and is_object(value) and not _TEXT_NAMES.isdisjoint(value) and value.get("type") != "base64":
        for name in _TEXTS:
            if name in value:
                yield from _texts(value[name], depth - 1)


def error_in(value: Any) -> str:
    """Return the error message in a failed tool's result."""
    fields = as_object(value)
    nested = as_object(fields.get("error"))
    for source in (nested, fields):
        for name in _REASONS:
            found = source.get(name)
            if isinstance(found, str) and found.strip():
                return cut(found)
    if text := snippet_of(nested):
        return text
    if fields.get("error"):
        return cut(jsontext.shown(fields["error"]))
    return snippet_of(value) or "failed"


def failure_in(event: Any) -> str | None:
    """Return the error message of a failed item in an event, or None if it has not failed."""
    item = _item_in(event)
    content = as_object(item.get("content"))
    if item.get("is_error") is True or str(content.get("type")).endswith("_error"):
        return error_in(content or item)
    return error_in(item) if item.get("error") or item.get("status") in ("failed", "incomplete") else None


def begins_call(stage: str | None, event: Any) -> bool:
    """Return whether an event with the provider's stage begins a call, as opposed to a result of the same kind."""
    if not _CALLS.isdisjoint(as_object(event)):
        return True
    return stage in ("start", "added") and not str(_item_in(event).get("type")).endswith(("_output", "_result"))


def is_list(event: Any) -> bool:
    """Return whether the event is an MCP server's list of tools rather than a call."""
    return _item_in(event).get("type") == "mcp_list_tools"


def _item_in(event: Any) -> dict[str, Any]:
    fields = as_object(event)
    return next((found for name in _ITEMS if (found := as_object(fields.get(name)))), fields)


def exit_code_in(value: Any) -> int | None:
    """Return a command's exit status, or the first nonzero one of several commands."""
    fields = as_object(value)
    if _EXITING.isdisjoint(fields):
        return None
    outcomes = [as_object(as_object(entry).get("outcome")) for entry in as_list(fields.get("output"))]
    found = [fields.get("return_code"), fields.get("exit_code"), *(outcome.get("exit_code") for outcome in outcomes)]
    codes = [code for code in found if type(code) is int]
    return next((code for code in codes if code), codes[0] if codes else None)


class Origin(NamedTuple):
    """Where a call was made, and by whom, as its metadata says."""

    server: str | None = None
    """Label of its MCP server."""
    server_tool: str | None = None
    """Name of its tool on that server, if it differs from the name for the model."""
    caller: str | None = None
    """Id of the call whose program made it. None means that the model made it."""


_UNKNOWN = Origin()
_ORIGINS = frozenset({"server_label", "server_name", "server_tool", "caller"})


def origin_in(metadata: Any) -> Origin:
    """Return the origin of a call with this provider metadata."""
    if not is_object(metadata):
        return _UNKNOWN
    found = _UNKNOWN
    for marks in metadata.values():
        # Most calls have metadata, and few have an origin. The provider and the run may each know a part of it.
        if is_object(marks) and not _ORIGINS.isdisjoint(marks):
            caller = as_object(marks.get("caller"))
            found = Origin(
                jsontext.text_in(marks, "server_label") or jsontext.text_in(marks, "server_name") or found.server,
                jsontext.text_in(marks, "server_tool") or found.server_tool,
                jsontext.text_in(caller, "caller_id") or jsontext.text_in(caller, "tool_id") or found.caller,
            )
    return found


def server_in(value: Any) -> str | None:
    """Return the label of the MCP server in a result, an event or provider metadata."""
    fields = as_object(value)
    for place in (fields, fields.get("item"), *fields.values()):
        if is_object(place):
            for name in ("server_label", "server_name"):
                if isinstance(label := place.get(name), str):
                    return label
    return None
