"""Formats parts, tool calls and results as text for a terminal, without control characters. Pure functions."""

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
"""Tool → its label; other tools are labelled by their key."""

STAGES = {
    "searching": "searching …",
    "interpreting": "running …",
    "generating": "generating …",
    "calling": "calling …",
}
"""Stage → its text; a stage that is in neither table is shown by its name."""

SILENT_STAGES = frozenset(
    {"added", "done", "in_progress", "completed", "failed", "delta", "partial_image", "annotation"}
)
"""Stages that add nothing to the call, its input, its previews and its result."""

DATA_LOSS_KINDS = frozenset({"sidestream.not-stored"})
"""Kinds of custom parts that report data loss."""

OUTPUT_FIELDS = ("logs", "stdout", "stderr", "output", "text")
MAX_OUTPUT_LINES = 12


def tool_label(tool: str) -> str:
    """The label of a tool."""
    return LABELS.get(tool) or one_line(tool, 60)


def stage(name: str, event: Json) -> str | None:
    """The text for a stage; None if nothing is to be shown."""
    if name in SILENT_STAGES:
        return None
    if name == "progress":
        return compact(event)
    return STAGES.get(name, one_line(name.replace("_", " "), 60))


def offered_tools(event: Json) -> str | None:
    """The tools that a remote server lists, if the event contains such a list."""
    item = jsontext.as_object(jsontext.as_object(event).get("item"))
    server = item.get("server_label")
    names = [jsontext.as_object(tool).get("name") for tool in jsontext.as_list(item.get("tools"))]
    if not isinstance(server, str) or not names:
        return None
    return one_line(f"{server} offers {', '.join(str(name) for name in names)}")


def tool_call(part: ToolCall) -> str | None:
    """The text for a call; None if its input is empty or was shown as it streamed."""
    if part.input_error is not None:
        return one_line(f"{part.name} was called with invalid input: {part.input_error}")
    format_input = CALL_FORMATTERS.get(part.tool)
    if format_input is not None:
        return format_input(jsontext.as_object(part.input))
    name = [] if part.tool == part.name else [part.name]
    return one_line(" ".join([*name, compact(part.input)] if part.input else name)) or "called"


def _web_input(input: dict[str, Any]) -> str | None:
    url, pattern = input.get("url"), input.get("pattern")
    if pattern:
        return one_line(f"searched for “{pattern}” in {url}")
    if url:
        return one_line(f"opened {url}")
    return _query_input(input)


def _query_input(input: dict[str, Any]) -> str | None:
    queries = [query for query in jsontext.as_list(input.get("queries")) if isinstance(query, str)]
    if not queries and isinstance(input.get("query"), str):
        queries = [input["query"]]
    return one_line(", ".join(f"“{query}”" for query in queries)) or None


def _image_input(input: dict[str, Any]) -> str | None:
    prompt = input.get("prompt")
    return one_line(prompt) if isinstance(prompt, str) else None


def _shell_input(input: dict[str, Any]) -> str | None:
    commands = jsontext.as_list(input.get("commands")) or [input.get("command")]
    lines = [line if isinstance(line, str) else " ".join(map(str, jsontext.as_list(line))) for line in commands]
    return one_line("; ".join(f"$ {line}" for line in lines if line)) or None


def _patch_input(input: dict[str, Any]) -> str | None:
    operation, path = input.get("type"), input.get("path")
    return one_line(f"{str(operation).replace('_', ' ')} {path}") if operation and path else None


def _no_text(input: dict[str, Any]) -> str | None:
    return None


CALL_FORMATTERS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "web_search": _web_input,
    "web_fetch": _web_input,
    "file_search": _query_input,
    "image_generation": _image_input,
    "shell": _shell_input,
    "local_shell": _shell_input,
    "code_interpreter": _no_text,
    "programmatic_tool_calling": _no_text,
    "apply_patch": _patch_input,
}
"""Tool → formatter of its input; code is shown as it streams."""


def code_of(input: Json) -> str | None:
    """The code in a call's input, if any."""
    fields = jsontext.as_object(input)
    return next((fields[key] for key in ("code", "diff") if isinstance(fields.get(key), str)), None)


def result_count(result: Json) -> str | None:
    """The number of pages or passages that a search found."""
    fields = jsontext.as_object(result)
    for key, noun in (("sources", "page"), ("results", "passage")):
        if count := len(jsontext.as_list(fields.get(key))):
            return f"{count} {noun}{'' if count == 1 else 's'}"
    return None


def tool_output(result: Json) -> str:
    """The text output of a tool, truncated to a dozen lines."""
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


def tool_failure(result: Json) -> str:
    """Why a tool failed, according to its result."""
    fields = jsontext.as_object(result)
    error = fields.get("error")
    inner = jsontext.as_object(error)
    reason = inner.get("message") or inner.get("content") or fields.get("message") or error
    reason = reason if isinstance(reason, str) else (compact(reason) if reason else tool_output(result))
    return one_line(f"failed: {reason}" if reason.strip() else "failed")


def preview(result: Json, number: int) -> str:
    """A preview of an image, with its size."""
    size = next((len(text) * 3 // 4 for text in jsontext.as_object(result).values() if isinstance(text, str)), 0)
    return f"preview {number}" + (f" ({file_size(size)})" if size else "")


def approval_request(part: ToolApprovalRequest) -> str:
    """A call that is pending approval."""
    owner = f" of {part.server_label}" if part.server_label else ""
    title = "waits for its result from outside" if part.is_external else "approval requested"
    return one_line(f"{title}: {part.name}{owner} {compact(part.input) if part.input else ''}".strip())


def file(part: File) -> str:
    """A file: its name, type and size."""
    size = f", {file_size(len(part.data))}" if part.data is not None else ""
    return f"{one_line(part.name or part.id, 120)} ({one_line(part.mime_type, 60)}{size})"


def save_failure(part: File, error: OSError) -> str:
    """Why a file was not saved."""
    return f"warning: {file(part)} was not saved: {one_line(error.strerror or str(error))}"


def file_size(count: int) -> str:
    """A number of bytes in B, kB or MB."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def data_loss(part: Custom) -> str:
    """The message of a part that reports data loss."""
    return redact(one_line(str(jsontext.as_object(part.data).get("message")), 1000))


def source(part: Source) -> str:
    """A source: title and URL, or whatever is known of it."""
    location = part.url or part.file_id
    if part.title and location:
        return f"{one_line(part.title, 120)}  {one_line(location, 400)}"
    return one_line(part.title or location or part.id, 400)


def cited_passages(cited: list[Source]) -> list[str]:
    """The cited passages of a source, without duplicates; those after the third are counted."""
    texts = list(dict.fromkeys(f"“{one_line(part.cited_text, 200)}”" for part in cited if part.cited_text))
    return texts if len(texts) <= 3 else [*texts[:3], f"… and {len(texts) - 3} more"]


def usage(usage: Usage) -> str:
    """Tokens, tool calls and cost of a run."""
    tokens_in, tokens_out = usage.input, usage.output
    cached = f" ({tokens_in.cache_read:,} cached)" if tokens_in.cache_read else ""
    reasoning = f" ({tokens_out.reasoning:,} reasoning)" if tokens_out.reasoning else ""
    tools = "".join(
        f", {count} {tool_label(tool)} call{'' if count == 1 else 's'}" for tool, count in usage.server_tool_use.items()
    )
    return f"{tokens_in.total:,} tokens in{cached}, {tokens_out.total:,} out{reasoning}{tools}, {_cost(usage)}"


def _cost(usage: Usage) -> str:
    if usage.cost is not None:
        return f"${usage.cost:.{4 if usage.cost >= 0.01 else 6}f}"
    return f"cost unknown (no price: {', '.join(usage.unpriced)})" if usage.unpriced else "cost unknown"


def stop_reason(part: Finish, unanswered: list[str]) -> str | None:
    """Why a run stopped early, if it did; `unanswered` names the calls without a result."""
    match part.reason:
        case "stop" | "error":
            return None
        case "length":
            return "stopped: the answer is incomplete, the output limit was reached"
        case "content-filter":
            declined = part.raw_reason == "refusal"
            return (
                "stopped: the model declined"
                if declined
                else "stopped: the provider's content filter blocked the answer"
            )
        case "tool-calls":
            names = one_line(", ".join(unanswered)) or "a tool"
            return f"stopped: the model called {names}, which this command does not run"
        case "approval":
            return "stopped: the call is waiting for approval"
        case "limit":
            metadata = part.metadata
            if metadata.get("limit") == "max_cost" and metadata.get("reached") is None:
                return one_line(f"stopped: max_cost cannot be checked, {_cost(part.usage)}", 400)
            return one_line(f"stopped: the limit {metadata.get('limit')} was reached ({metadata.get('reached')})")
        case "other":
            return one_line(f"stopped: {part.raw_reason or 'the provider gave no reason'}")


def error_with_advice(part: Error) -> str:
    """The error message, and what to do about it."""
    advice = _advice(part)
    message = one_line(part.message, 1000)
    if not advice or message.endswith(advice):
        return message
    return f"{message}{'' if message.endswith(('.', '!', '?', '…')) else '.'} {advice}"


def _advice(part: Error) -> str:
    if part.kind == "rate-limit":
        return "Wait a moment and try again, or check the limits of your plan."
    if part.status == 404:
        return "Check the model's name and the base URL."
    if part.status is not None and part.status >= 500:
        return "The provider is having problems; try again later."
    return "Try again." if part.retryable else ""


def compact(value: Json) -> str:
    """A JSON value on one line; a string without quotes."""
    return one_line(value if isinstance(value, str) else jsontext.dumps(value).decode("utf-8", "replace"))
