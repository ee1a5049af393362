"""A tool call as one line: what it is doing, did, or failed at. One row per kind of tool, in the words of `words`."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sidestream import jsontext
from sidestream.cli.display import tool_words
from sidestream.cli.display.screen import one_line
from sidestream.results.tool_runs import ToolRun
from sidestream.stream.parts import Json

Line = Callable[[ToolRun], str]
MAX_SHOWN = 160


def tool_line(run: ToolRun, result: Json = None) -> str:
    """The line of a call as far as it has come. `result` is what it returned, for what the record does not hold."""
    if run.status == "failed" and isinstance(run.input, str) and run.error is not None and run.code is None:
        return tool_words.not_json()
    if run.tool == "file_search" and run.status == "done":
        return _passages(run, result)
    text = one_line(_kind(run)(run), 400)
    is_cut_off = run.status == "unfinished" and run.tool != "image_generation"
    return f"{text.removesuffix('…')}: not finished" if is_cut_off else text


def is_code(run: ToolRun) -> bool:
    """True for a tool whose input is code."""
    return LINES.get(run.tool) in (_code, _shell, _patch)


def language_of(run: ToolRun) -> str:
    """The language of its code, by the name that highlighters use."""
    line = LINES.get(run.tool)
    return "bash" if line is _shell else "diff" if line is _patch else "python"


def _kind(run: ToolRun) -> Line:
    if run.server is not None or run.tool == "mcp":
        return _mcp_list if _is_list(run) else _mcp
    return LINES.get(run.tool) or LINES.get(run.name) or _own


def _is_list(run: ToolRun) -> bool:
    """True if a server lists its tools: no tool is called, but tools are counted."""
    return "mcp_list_tools" in (run.name, run.tool) or (run.tool == run.name == "mcp" and run.result_count is not None)


def _is_running(run: ToolRun) -> bool:
    return run.status not in ("done", "failed")


def _input(run: ToolRun) -> dict[str, Any]:
    fields = jsontext.as_object(run.input)
    return jsontext.as_object(fields.get("action")) or fields


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _address(run: ToolRun) -> str:
    fields = _input(run)
    urls = jsontext.as_list(fields.get("urls"))
    return _text(fields.get("url")) or (_text(urls[0]) if urls else "")


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or address
    except ValueError:
        return address


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return one_line(lines[-1], MAX_SHOWN) if lines else ""


def _search(run: ToolRun) -> str:
    if run.status == "failed":
        return tool_words.search_failed(_last_line(run.error))
    address, pattern = _address(run), _text(_input(run).get("pattern"))
    if address and pattern:
        return tool_words.looked_for(pattern, _host(address))
    if address:
        return tool_words.opening(_host(address)) if _is_running(run) else tool_words.opened(_host(address))
    query = one_line(run.queries[0], MAX_SHOWN) if run.queries else _text(_input(run).get("query")) or None
    return tool_words.searching(query) if _is_running(run) else tool_words.searched(query, run.result_count or 0)


def _fetch(run: ToolRun) -> str:
    short = _address(run).removeprefix("https://").removeprefix("http://")[:80]
    if run.status == "failed":
        return tool_words.not_fetched(_last_line(run.error) or short)
    if _is_running(run):
        return tool_words.fetching(short)
    return tool_words.fetched(short or one_line(run.snippet, 80) or "a page", None)


def _file_search(run: ToolRun) -> str:
    if run.status == "failed":
        return tool_words.search_failed(_last_line(run.error))
    return tool_words.searching_index()


def _passages(run: ToolRun, result: Json) -> str:
    """What a search in files found; without the passages, as providers send them by default, only the query."""
    results = jsontext.objects(jsontext.as_object(result).get("results"))
    if not results:
        return tool_words.searched(run.queries[0] if run.queries else "the files", 0)
    files = {_text(found.get("filename")) or _text(found.get("file_id")) for found in results}
    return tool_words.passages(len(results), len(files))


def _code(run: ToolRun) -> str:
    if run.status == "failed":
        return tool_words.raised(_last_line(run.error) or "an error")
    if _is_running(run):
        return tool_words.writing_code() if run.status == "writing" else tool_words.running_code()
    return tool_words.ran_code("Python")


def command_of(run: ToolRun) -> str:
    """The command of a shell's call."""
    fields = _input(run)
    given = fields.get("commands") or fields.get("command") or ""
    return _text(given) or " && ".join(map(str, jsontext.as_list(given)))


def _shell(run: ToolRun) -> str:
    command = command_of(run).split("\n")[0][:120]
    if _is_running(run):
        return f"$ {command}" if command else tool_words.writing_code()
    if run.exit_code is None:
        return f"{tool_words.ran_shell()} {command}".rstrip()
    return tool_words.exit(run.exit_code)


def _image(run: ToolRun) -> str:
    if run.status in ("failed", "unfinished"):
        return tool_words.image_failed()
    if run.status == "done":
        return tool_words.made_image()
    return tool_words.preview(run.previews) if run.previews else tool_words.making_image()


def _patch(run: ToolRun) -> str:
    if run.status == "failed":
        return tool_words.patch_failed(_last_line(run.error))
    if _is_running(run):
        return tool_words.patching()
    lines = (run.code or "").split("\n")
    plus = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    minus = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return tool_words.patched(1, plus, minus)


def _mcp(run: ToolRun) -> str:
    server = run.server or "MCP"
    if run.name == run.tool:  # Its name follows.
        return tool_words.calling("a tool", server)
    if run.status == "failed":
        error = _last_line(run.error)
        return tool_words.answered_error(run.name) + (f": {error}" if error else "")
    return tool_words.calling(run.name, server) if _is_running(run) else tool_words.called(run.name, server)


def _mcp_list(run: ToolRun) -> str:
    server = run.server or "MCP"
    if run.status == "failed":
        return tool_words.list_failed(server, _last_line(run.error))
    return tool_words.listing(server) if _is_running(run) else tool_words.listed(server, run.result_count or 0)


def _tool_search(run: ToolRun) -> str:
    if run.status == "failed":
        return tool_words.search_failed(_last_line(run.error))
    return tool_words.looking_for_tool() if _is_running(run) else tool_words.found_tools(run.result_count or 0)


def _memory(run: ToolRun) -> str:
    command = _text(_input(run).get("command"))
    if run.status == "failed":
        return _own(run)
    if _is_running(run):
        return tool_words.remembering() if command == "view" else tool_words.saving_note()
    return tool_words.saved_note(command)


def _computer(run: ToolRun) -> str:
    fields = jsontext.as_object(run.input)
    given = fields.get("actions")
    actions = jsontext.objects(given) if isinstance(given, list) else [_input(run)]
    if run.status == "failed":
        return _own(run)
    if len(actions) != 1:
        return tool_words.actions(len(actions))
    (action,) = actions
    at = [action[name] for name in ("x", "y") if name in action]
    keys = "+".join(map(str, jsontext.as_list(action.get("keys"))))
    what = action.get("text") or keys or action.get("keys") or action.get("key")
    name = _text(action.get("type")) or _text(action.get("action"))
    return tool_words.action(
        name, str(what or ", ".join(map(str, jsontext.as_list(action.get("coordinate")) or at)))[:80]
    )


def _own(run: ToolRun) -> str:
    if run.status == "failed":
        return f"{run.name}: {_last_line(run.error) or tool_words.answered_error(run.name)}"
    return tool_words.function_running(run.name) if _is_running(run) else run.name


LINES: dict[str, Line] = {
    "web_search": _search,
    "x_search": _search,
    "google_search": _search,
    "maps": _search,
    "web_fetch": _fetch,
    "url_context": _fetch,
    "file_search": _file_search,
    "code_interpreter": _code,
    "code_execution": _code,
    "programmatic_tool_calling": _code,
    "text_editor_code_execution": _code,
    "bash_code_execution": _shell,
    "shell": _shell,
    "local_shell": _shell,
    "image_generation": _image,
    "apply_patch": _patch,
    "mcp_list_tools": _mcp_list,
    "tool_search": _tool_search,
    "memory": _memory,
    "computer_use": _computer,
}
"""Tool → its line; the others are shown by their names."""
