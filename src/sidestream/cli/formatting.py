"""What a run does, in words for a person. Pure: parts in, text out; all of it fit for one line of a terminal."""

from collections.abc import Callable, Iterator
from typing import Any

from sidestream import jsontext
from sidestream.cli.terminal import one_line
from sidestream.redaction import redact
from sidestream.stream.parts import Custom, Error, File, Finish, Json, Source, ToolApprovalRequest, ToolCall, Usage

LABELS = {
    "web_search": "web search",
    "web_fetch": "web fetch",
    "file_search": "file search",
    "code_interpreter": "code",
    "image_generation": "image",
    "tool_search": "tool search",
    "apply_patch": "patch",
    "local_shell": "shell",
    "computer_use": "computer",
    "programmatic_tool_calling": "program",
}
"""Tool → what it is called here; the others are called by their key."""

STAGES = {
    "searching": "searching …",
    "interpreting": "running …",
    "generating": "generating …",
    "calling": "calling …",
}
"""Stage → how it reads; a stage that is in neither table is shown by its name."""

SILENT = frozenset({"added", "done", "in_progress", "completed", "failed", "delta", "partial_image", "annotation"})
"""Stages that say nothing beyond the call, its input, its previews and its result."""

ALARMS = frozenset({"sidestream.not-stored"})
"""Kinds of custom parts that say that something is being lost."""

OUTPUT_FIELDS = ("logs", "stdout", "stderr", "output", "text")
MAX_OUTPUT_LINES = 12


def label(tool: str) -> str:
    """What a tool is called."""
    return LABELS.get(tool) or one_line(tool, 60)


def stage(name: str, event: Json) -> str | None:
    """A stage in words, None where it needs none."""
    if name in SILENT:
        return None
    if name == "progress":
        return compact(event)
    return STAGES.get(name, one_line(name.replace("_", " "), 60))


def offered_tools(event: Json) -> str | None:
    """What a remote server says that it can do, where an event tells."""
    item = jsontext.as_object(jsontext.as_object(event).get("item"))
    server = item.get("server_label")
    names = [jsontext.as_object(tool).get("name") for tool in jsontext.as_list(item.get("tools"))]
    if not isinstance(server, str) or not names:
        return None
    return one_line(f"{server} offers {', '.join(str(name) for name in names)}")


def call(part: ToolCall) -> str | None:
    """A call in words, None where its input says nothing or was shown already."""
    if part.input_error is not None:
        return one_line(f"{part.name} was called with input that cannot be read: {part.input_error}")
    words = CALLS.get(part.tool)
    if words is not None:
        return words(jsontext.as_object(part.input))
    words_given = [] if part.tool == part.name else [part.name]
    return one_line(" ".join([*words_given, compact(part.input)] if part.input else words_given)) or "called"


def _web(given: dict[str, Any]) -> str | None:
    url, pattern = given.get("url"), given.get("pattern")
    if pattern:
        return one_line(f"looked for “{pattern}” in {url}")
    if url:
        return one_line(f"opened {url}")
    return _queries(given)


def _queries(given: dict[str, Any]) -> str | None:
    queries = [query for query in jsontext.as_list(given.get("queries")) if isinstance(query, str)]
    if not queries and isinstance(given.get("query"), str):
        queries = [given["query"]]
    return one_line(", ".join(f"“{query}”" for query in queries)) or None


def _image(given: dict[str, Any]) -> str | None:
    prompt = given.get("prompt")
    return one_line(prompt) if isinstance(prompt, str) else None


def _commands(given: dict[str, Any]) -> str | None:
    commands = jsontext.as_list(given.get("commands")) or [given.get("command")]
    lines = [line if isinstance(line, str) else " ".join(map(str, jsontext.as_list(line))) for line in commands]
    return one_line("; ".join(f"$ {line}" for line in lines if line)) or None


def _patch(given: dict[str, Any]) -> str | None:
    operation, path = given.get("type"), given.get("path")
    return one_line(f"{str(operation).replace('_', ' ')} {path}") if operation and path else None


def _nothing(given: dict[str, Any]) -> str | None:
    return None


CALLS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "web_search": _web,
    "web_fetch": _web,
    "file_search": _queries,
    "image_generation": _image,
    "shell": _commands,
    "local_shell": _commands,
    "code_interpreter": _nothing,
    "programmatic_tool_calling": _nothing,
    "apply_patch": _patch,
}
"""Tool → its input in words; code is shown as it is written."""


def code_of(given: Json) -> str | None:
    """The code in a call's input."""
    fields = jsontext.as_object(given)
    return next((fields[key] for key in ("code", "diff") if isinstance(fields.get(key), str)), None)


def found(result: Json) -> str | None:
    """How many pages a search looked at, or how many passages it found."""
    fields = jsontext.as_object(result)
    for key, noun in (("sources", "page"), ("results", "passage")):
        if count := len(jsontext.as_list(fields.get(key))):
            return f"{count} {noun}{'' if count == 1 else 's'}"
    return None


def output_of(result: Json) -> str:
    """What a tool printed or said, with the lines beyond a dozen counted."""
    lines = "\n".join(text.rstrip("\n") for text in _texts(result)).split("\n")
    hidden = len(lines) - MAX_OUTPUT_LINES
    if hidden > 1:
        lines = [*lines[:MAX_OUTPUT_LINES], f"… {hidden} more lines"]
    return "\n".join(line if len(line) <= 400 else line[:399] + "…" for line in lines)


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for entry in jsontext.as_list(value):
        if not isinstance(entry, str):
            yield from _texts(entry)
    fields = jsontext.as_object(value)
    for key in (*OUTPUT_FIELDS, "outputs"):
        if fields.get(key):
            yield from _texts(fields[key])


def failure(result: Json) -> str:
    """Why a tool failed, as far as its result says."""
    fields = jsontext.as_object(result)
    error = fields.get("error")
    inner = jsontext.as_object(error)
    said = inner.get("message") or inner.get("content") or fields.get("message") or error
    said = said if isinstance(said, str) else (compact(said) if said else output_of(result))
    return one_line(f"failed: {said}" if said.strip() else "failed")


def preview(result: Json, number: int) -> str:
    """A preview on the way to an image."""
    size = next((len(text) * 3 // 4 for text in jsontext.as_object(result).values() if isinstance(text, str)), 0)
    return f"preview {number}" + (f" ({file_size(size)})" if size else "")


def approval(part: ToolApprovalRequest) -> str:
    """A call that waits for a decision."""
    owner = f" of {part.server_label}" if part.server_label else ""
    return one_line(f"approval asked: {part.name}{owner} {compact(part.input) if part.input else ''}".strip())


def file(part: File) -> str:
    """A file: its name, type and size."""
    size = f", {file_size(len(part.data))}" if part.data is not None else ""
    return f"{one_line(part.name or part.id, 120)} ({one_line(part.mime_type, 60)}{size})"


def unsaved(part: File, error: OSError) -> str:
    """Why a file is not where it was to be."""
    return f"warning: {file(part)} was not saved: {one_line(error.strerror or str(error))}"


def file_size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def alarm(part: Custom) -> str:
    """What is being lost, and why."""
    return redact(one_line(str(jsontext.as_object(part.data).get("message")), 1000))


def source(part: Source) -> str:
    """A source: title and address, or whatever is known of it."""
    address = part.url or part.file_id
    if part.title and address:
        return f"{one_line(part.title, 120)}  {one_line(address, 400)}"
    return one_line(part.title or address or part.id, 400)


def passages(cited: list[Source]) -> list[str]:
    """What a source is cited for, each passage once; more than three are counted."""
    texts = list(dict.fromkeys(f"“{one_line(part.cited_text, 200)}”" for part in cited if part.cited_text))
    return texts if len(texts) <= 3 else [*texts[:3], f"… and {len(texts) - 3} more"]


def usage(spent: Usage) -> str:
    """What a run cost."""
    given, made = spent.input, spent.output
    cached = f" ({given.cache_read:,} cached)" if given.cache_read else ""
    thought = f" ({made.reasoning:,} reasoning)" if made.reasoning else ""
    tools = "".join(
        f", {count} {label(tool)} call{'' if count == 1 else 's'}" for tool, count in spent.server_tool_use.items()
    )
    return f"{given.total:,} tokens in{cached}, {made.total:,} out{thought}{tools}"


def ending(part: Finish, waiting: list[str]) -> str | None:
    """Why a run stopped, where it did not just end; `waiting` names the calls that nobody answered."""
    match part.reason:
        case "stop" | "error":
            return None
        case "length":
            return "stopped: the answer is incomplete, it reached the output limit"
        case "content-filter":
            declined = part.raw_reason == "refusal"
            return "stopped: the model declined" if declined else "stopped: the provider's content filter cut in"
        case "tool-calls":
            names = one_line(", ".join(waiting)) or "a tool"
            return f"stopped: the model asks for {names}, which this command does not run"
        case "approval":
            return "stopped: the call waits for an approval"
        case "limit":
            facts = part.metadata
            return one_line(f"stopped: the limit {facts.get('limit')} was reached ({facts.get('reached')})")
        case "other":
            return one_line(f"stopped: {part.raw_reason or 'for a reason that the provider did not give'}")


def failed_run(part: Error) -> str:
    """What went wrong and what to do about it."""
    advice = _advice(part)
    message = one_line(part.message, 1000)
    if not advice or message.endswith(advice):
        return message
    return f"{message}{'' if message.endswith(('.', '!', '?', '…')) else '.'} {advice}"


def _advice(part: Error) -> str:
    if part.kind == "rate-limit":
        return "Wait a little and try again, or check the limits of your plan."
    if part.status == 404:
        return "Check the model's name and the base URL."
    if part.status is not None and part.status >= 500:
        return "The provider has trouble; try again later."
    return "Try again." if part.retryable else ""


def compact(value: Json) -> str:
    """A JSON value on one line; of text only the text."""
    return one_line(value if isinstance(value, str) else jsontext.dumps(value).decode("utf-8", "replace"))
