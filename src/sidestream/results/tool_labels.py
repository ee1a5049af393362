"""One-line labels that say what a tool call is doing, did, or failed at, shared by all user interfaces.

Labels contain text from the model and its tools, reduced to one line but otherwise verbatim. User interfaces must
make them safe to display.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sidestream import jsontext
from sidestream.results.tool_runs import ToolRun

MAX_LABEL_CHARS = 400
MAX_SHOWN = 160
"""Maximum characters of a query or an error."""

WRITING_CODE = "Writing code…"

Label = Callable[[ToolRun], str]


def tool_label(run: ToolRun, *, is_agent: bool = False, is_allowed: bool = False, is_denied: bool = False) -> str:
    """Return the label of a call in its current state.

    `is_agent` means that the tool is a subagent; `is_allowed` and `is_denied` give the decision on the call's approval.
    """
    if is_denied:
        return _one_line(f"{run.name} was denied", MAX_LABEL_CHARS)
    if run.status == "failed" and isinstance(run.input, str) and run.error is not None and run.code is None:
        return "Not run: arguments are not valid JSON"
    is_request = is_allowed and run.provider_executed and run.status in ("waiting", "unfinished")
    if is_request and run.server is not None:
        # The call itself follows, with its own id.
        return _one_line(f"Asked to call {run.name} on {run.server}", MAX_LABEL_CHARS)
    label = _one_line((_agent if is_agent else _kind(run))(run), MAX_LABEL_CHARS)
    is_cut_off = run.status == "unfinished" and run.tool != "image_generation" and not is_agent
    return f"{label.removesuffix('…')}: not finished" if is_cut_off else label


def is_code(run: ToolRun) -> bool:
    """Whether the tool's input is code."""
    return _label_of(run) in (_code, _shell, _patch)


def language_of(run: ToolRun) -> str:
    """Return the language of its code, as named by syntax highlighters."""
    label = _label_of(run)
    return "bash" if label is _shell else "diff" if label is _patch else "python"


def things(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun, such as `3 pages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return _one_line(lines[-1], MAX_SHOWN) if lines else ""


def _quoted(text: str) -> str:
    return f"“{text}”"


def _kind(run: ToolRun) -> Label:
    if run.server is not None or run.tool == "mcp":
        return _mcp_list if _is_list(run) else _mcp
    return _label_of(run) or LABELS.get(run.name) or _own


def _label_of(run: ToolRun) -> Label | None:
    """Return the label of the provider's own tool, else that of the portable one."""
    return LABELS.get(run.provider_tool or run.tool) or LABELS.get(run.tool)


def _is_list(run: ToolRun) -> bool:
    """Return whether the server lists its tools, in which case they are counted but none is called."""
    return "mcp_list_tools" in (run.name, run.tool) or (run.tool == run.name == "mcp" and run.result_count is not None)


def _is_running(run: ToolRun) -> bool:
    return run.status not in ("completed", "failed")


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


def _search_failed(run: ToolRun) -> str:
    return f"Search failed: {_last_line(run.error)}"


def _search(run: ToolRun) -> str:
    if run.status == "failed":
        return _search_failed(run)
    address, pattern = _address(run), _text(_input(run).get("pattern"))
    if address and pattern:
        return f"Looked for {_quoted(pattern)} in {_host(address)}"
    if address:
        return f"Opening {_host(address)}…" if _is_running(run) else f"Opened {_host(address)}"
    query = _one_line(run.queries[0], MAX_SHOWN) if run.queries else _text(_input(run).get("query"))
    if _is_running(run):
        return f"Searching {_quoted(query)}…" if query else "Searching…"
    found = f" · {things(run.result_count, 'page')}" if run.result_count else ""
    return f"Searched {_quoted(query) if query else 'the web'}{found}"


def _fetch(run: ToolRun) -> str:
    short = _address(run).removeprefix("https://").removeprefix("http://")[:80]
    if run.status == "failed":
        return f"Not fetched: {_last_line(run.error) or short}"
    if _is_running(run):
        return f"Fetching {short}…"
    return f"Fetched {short or _one_line(run.snippet, 80) or 'a page'}"


def _file_search(run: ToolRun) -> str:
    if run.status == "failed":
        return _search_failed(run)
    if _is_running(run):
        return "Searching index…"
    if run.file_count is None or run.result_count is None:
        # By default, providers send the query without the passages.
        return f"Searched {_quoted(run.queries[0] if run.queries else 'the files')}"
    return f"{things(run.result_count, 'passage')} in {things(run.file_count, 'file')}"


def _code(run: ToolRun) -> str:
    if run.status == "failed":
        return f"Raised {_last_line(run.error) or 'an error'}"
    if _is_running(run):
        return WRITING_CODE if run.status == "started" else "Running…"
    return "Ran Python"


def _shell(run: ToolRun) -> str:
    fields = _input(run)
    given = fields.get("commands") or fields.get("command") or ""
    commands = _text(given) or " && ".join(map(str, jsontext.as_list(given)))
    command = commands.split("\n")[0][:120]
    if _is_running(run):
        return f"$ {command}" if command else WRITING_CODE
    return f"Ran {command}".rstrip() if run.exit_code is None else f"Exit {run.exit_code}"


def _image(run: ToolRun) -> str:
    if run.status in ("failed", "unfinished"):
        return "Preview only: not finished"
    if run.status == "completed":
        return "Made an image"
    return f"Preview {run.previews}" if run.previews else "Making an image…"


def _patch(run: ToolRun) -> str:
    if run.status == "failed":
        return f"Patch did not apply: {_last_line(run.error)}"
    if _is_running(run):
        return "Editing files…"
    lines = (run.code or "").split("\n")
    plus = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    minus = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"Edited 1 file, +{plus} \N{MINUS SIGN}{minus}"


def _mcp(run: ToolRun) -> str:
    server = run.server or "MCP"
    if run.name == run.tool:  # The name is not known yet.
        return f"Calling a tool on {server}…"
    if run.status == "failed":
        error = _last_line(run.error)
        return _answered_error(run) + (f": {error}" if error else "")
    return f"Calling {run.name} on {server}…" if _is_running(run) else f"{server}: {run.name}"


def _mcp_list(run: ToolRun) -> str:
    server = run.server or "MCP"
    if run.status == "failed":
        return f"{server} did not answer: {_last_line(run.error)}"
    if _is_running(run):
        return f"Asking {server} for its tools…"
    return f"{server} offers {things(run.result_count or 0, 'tool')}"


def _tool_search(run: ToolRun) -> str:
    if run.status == "failed":
        return _search_failed(run)
    return "Looking for a tool…" if _is_running(run) else f"Found {things(run.result_count or 0, 'tool')}"


_NOTES = {"view": "Read notes", "delete": "Deleted a note", "rename": "Renamed a note"}
"""Memory command → label. Other commands save a note."""


def _memory(run: ToolRun) -> str:
    command = _text(_input(run).get("command"))
    if run.status == "failed":
        return _own(run)
    if _is_running(run):
        return "Reading notes…" if command == "view" else "Saving a note…"
    return _NOTES.get(command, "Saved a note")


def _computer(run: ToolRun) -> str:
    fields = jsontext.as_object(run.input)
    given = fields.get("actions")
    actions = jsontext.objects(given) if isinstance(given, list) else [_input(run)]
    if run.status == "failed" or run.input is None:
        return _own(run)
    if len(actions) != 1:
        return things(len(actions), "action")
    (action,) = actions
    at = [action[name] for name in ("x", "y") if name in action]
    keys = "+".join(map(str, jsontext.as_list(action.get("keys"))))
    what = action.get("text") or keys or action.get("keys") or action.get("key")
    name = _text(action.get("type")) or _text(action.get("action"))
    detail = str(what or ", ".join(map(str, jsontext.as_list(action.get("coordinate")) or at)))[:80]
    return f"{name[:1].upper()}{name[1:].replace('_', ' ')} {detail}".rstrip()


def _agent(run: ToolRun) -> str:
    if run.status == "unfinished":
        return f"{run.name} did not answer"
    if run.status == "failed":
        return _own(run)
    return f"Asking {run.name}…" if _is_running(run) else f"{run.name} answered"


def _own(run: ToolRun) -> str:
    if run.status == "failed":
        return f"{run.name}: {_last_line(run.error) or _answered_error(run)}"
    return f"{run.name}…" if _is_running(run) and run.status != "waiting" else run.name


def _answered_error(run: ToolRun) -> str:
    return f"{run.name} answered with an error"


LABELS: dict[str, Label] = {
    "web_search": _search,
    "x_search": _search,
    "google_maps": _search,
    "web_fetch": _fetch,
    "file_search": _file_search,
    "code_interpreter": _code,
    "programmatic_tool_calling": _code,
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
"""Tool → label function. Other tools are labelled by name."""
