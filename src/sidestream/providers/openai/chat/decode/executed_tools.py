"""Tools that a server runs itself.

Groq's `executed_tools` are calls that are reported when they start and again, under the same index, when they end.
Perplexity lists what it found in every chunk, and reports the steps of deep research.
"""

import re
from collections.abc import Callable
from typing import Any

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_list, as_object, is_object, objects, text_in
from sidestream.parts import File
from sidestream.providers.openai.chat.decode.hosted import HostCall
from sidestream.providers.openai.chat.decode.state import CompletionsState
from sidestream.providers.shared.decoding import int_in, parse_input

PLAIN_INPUTS = {"code_interpreter": "code", "web_search": "query", "web_fetch": "url"}
"""Tool → the input field that arguments which are not a JSON object belong to. Others are `input`."""
RESULTS = ("output", "search_results", "browser_results", "code_results")
"""Fields of an entry that hold what the tool found or printed."""
IMAGES = ("png", "jpeg")
"""Fields of a code result that hold an image in base64."""


def on_executed_tools(s: CompletionsState, value: list[JsonObject]) -> None:
    """Emit `tool-event`, `tool-input-*` and `tool-call`, then `tool-result`, `source` and `file` once the call ends."""
    for place, entry in enumerate(value):
        index = int_in(entry, "index")
        key = place if index is None else index
        call = s.hosted.get(key)
        if call is not None and call.is_answered and (index is None or _is_other(call, entry)):
            call = None  # The next call.
        is_new = call is None
        if call is None:
            call = s.hosted[key] = s.begin_hosted(_tool(entry), entry)
        is_over = s.is_whole or _has_result(entry) or (not is_new and entry.get("output") is not None)
        if call.is_answered:
            continue
        call.entry = entry
        if entry.get("arguments") or is_over:
            s.hosted_input(call, _input(entry, call.name))
        if is_over:
            _end(s, call, entry)


def end_executed_tools(s: CompletionsState) -> None:
    """End the calls of a complete response that were not reported as ended."""
    for call in s.hosted.values():
        s.hosted_input(call, {})
        s.hosted_result(call, _result(call, call.entry))


def _is_other(call: HostCall, entry: JsonObject) -> bool:
    """Return whether an entry is another call under the index of one that has ended, rather than a repetition."""
    return entry.get("arguments") != call.entry.get("arguments") or entry.get("output") is None


def _tool(entry: JsonObject) -> str:
    kind, name = text_in(entry, "type"), text_in(entry, "name")
    return (name if kind in (None, "function") else kind) or kind or "unknown_tool"


def _input(entry: JsonObject, tool: str) -> JsonObject:
    """Parse the arguments: JSON, perhaps with raw line breaks in its strings, or plain text such as code."""
    given = entry.get("arguments")
    if is_object(given):
        return given
    text = given if isinstance(given, str) else ""
    field = PLAIN_INPUTS.get(tool, "input")
    value, error = parse_input(text)
    if error is not None:
        value, _ = parse_input(_STRING.sub(_escaped, text))
    # A program may itself be a JSON object.
    is_code = tool == "code_interpreter" and text.strip() and field not in as_object(value)
    return value if is_object(value) and not is_code else {field: text}


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


def _escaped(string: re.Match[str]) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", string[0])


def _has_result(entry: JsonObject) -> bool:
    found = as_object(entry.get("search_results")).get("results")
    return bool(entry.get("output") or found or entry.get("browser_results") or entry.get("code_results"))


def _result(call: HostCall, entry: JsonObject) -> JsonObject:
    result: JsonObject = {name: entry[name] for name in RESULTS if entry.get(name) is not None}
    if call.name != "web_search" and not as_object(result.get("search_results")).get("results"):
        result.pop("search_results", None)  # Every entry has an empty one.
    return result


def _end(s: CompletionsState, call: HostCall, entry: JsonObject) -> None:
    result = _result(call, entry)
    files = _files(call, entry)
    if files:
        result["code_results"] = [_without_images(found) for found in objects(result["code_results"])]
    s.hosted_result(call, result, entry)
    search = as_object(entry.get("search_results"))
    for found in [*objects(search.get("results")), *objects(entry.get("browser_results"))]:
        s.source(text_in(found, "url"), text_in(found, "title"), call.id)
    for file in files:
        s.count_entry()
        s.out.append(file)


def _files(call: HostCall, entry: JsonObject) -> list[File]:
    files: list[File] = []
    for found in objects(entry.get("code_results")):
        for field in IMAGES:
            data = media_types.from_base64(text_in(found, field) or "")
            if data:
                mime_type = media_types.sniff(data)
                name = f"image_{len(files)}.{media_types.extension(mime_type)}"
                files.append(
                    File(f"{call.id}:file:{len(files)}", mime_type, name, data, tool=call.name, call_id=call.id)
                )
    return files


def _without_images(found: JsonObject) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in IMAGES}


# Perplexity

FOUND = frozenset({"citations", "search_results"})
"""Fields of a response that list what a search found."""


def on_found(s: CompletionsState, fields: JsonObject) -> None:
    """Emit the search behind these lists, once. Their sources follow, each where the text cites it as `[n]`."""
    lists = (fields.get("citations"), fields.get("search_results"))
    if lists == s.lists:
        return
    s.lists = lists
    results = objects(fields.get("search_results"))
    titles = {url: text_in(found, "title") for found in results if (url := text_in(found, "url"))}
    cited = [url for url in as_list(fields.get("citations")) if isinstance(url, str)] or [*titles]
    if not cited:
        return
    s.facts["citations"] = cited
    found = {"search_results": results or [{"url": url} for url in cited]}
    s.begin_search(found, found)
    s.cites(cited, titles)


def on_reasoning_steps(s: CompletionsState, value: list[JsonObject]) -> None:
    """Emit `reasoning-delta` for each thought, and `tool-call` and `tool-result` for what the step did."""
    for step in value:
        if thought := text_in(step, "thought"):
            s.reasoning_delta(thought)
        for tool, given in step.items():
            read = STEPS.get(tool)
            if read is not None and (done := as_object(given)):
                asked, result = read(done)
                s.hosted_result(s.hosted_call(tool, asked, step), result, step)
            elif tool not in ("thought", "type") and given:
                s.raw_chunk()


def _searched(done: JsonObject) -> tuple[JsonObject, Any]:
    return {"queries": as_list(done.get("search_keywords"))}, {"search_results": objects(done.get("search_results"))}


def _fetched(done: JsonObject) -> tuple[JsonObject, Any]:
    pages = objects(done.get("contents"))
    return {"urls": [url for page in pages if (url := text_in(page, "url"))]}, {"results": pages}


def _ran(done: JsonObject) -> tuple[JsonObject, Any]:
    return {"code": text_in(done, "code") or ""}, {"output": done.get("result")}


STEPS: dict[str, Callable[[JsonObject], tuple[JsonObject, Any]]] = {
    "web_search": _searched,
    "fetch_url_content": _fetched,
    "execute_python": _ran,
}
"""Field of a step → the input and the result of what it did."""
