"""Pure functions that format parts, tool calls and results as terminal text without control characters."""

import re
from typing import Literal

from sidestream import jsontext
from sidestream.cli.display.screen import Screen, one_line
from sidestream.evidence.verdict import Evidence
from sidestream.parts import Custom, Error, File, Finish, Json, Source, ToolApprovalRequest, Usage
from sidestream.results.citations import REMARKS, CitedSource
from sidestream.results.tool_code import output_text
from sidestream.results.tool_labels import LABELS, MAX_LABEL_CHARS, things, tool_label
from sidestream.results.tool_runs import ToolRun
from sidestream.text.html import without_tracking
from sidestream.text.redaction import redact

DATA_LOSS_KINDS = frozenset({"sidestream.not-stored"})
"""Custom part kinds that report data loss."""

FIRST_LINES, LAST_LINES = 4, 8
"""Lines shown of a tool's output; those between are counted."""

THINKING = "Thinking…"
WAITS = {
    "retry": "Waiting to try again",
    "limiter": "Waiting for the rate limiter",
    "queue": "Waiting for a worker",
    "compaction": "Summarising older messages",
}
"""Labels of waits, by reason."""
LOCAL = "here"
"""Location shown for a tool that the provider does not execute."""
GRANTED = "allowed in this conversation"

Place = Literal["first", "last"]

_BLOCK = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)(?:^[ ]{0,3}(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)


def thought_for(seconds: float | None) -> str:
    """Return how long the model reasoned."""
    return "Thought" if seconds is None or seconds < 1 else f"Thought for {duration(seconds)}"


def duration(seconds: float) -> str:
    """Format a time as `1.4 s`, `42 s`, `3 min 5 s` or `1 h 2 min`."""
    if seconds < 10:
        tenths = f"{seconds:.1f}".removesuffix(".0")
        return f"{tenths} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def tool_line(run: ToolRun) -> str:
    """Return the label of a call, without control characters."""
    return one_line(tool_label(run), MAX_LABEL_CHARS)


def tool_output(result: Json) -> str:
    """Return the first and last lines of a tool's text output."""
    lines = output_text(result).split("\n")
    hidden = len(lines) - FIRST_LINES - LAST_LINES
    if hidden > 1:
        lines = [*lines[:FIRST_LINES], f"… {hidden} more lines", *lines[-LAST_LINES:]]
    return "\n".join(line if len(line) <= 400 else line[:399] + "…" for line in lines)


def arguments_line(run: ToolRun) -> str:
    """Return the arguments to append to a tool's line, empty for tools whose label includes them."""
    is_known = run.tool in LABELS and run.server is None
    return "" if is_known or not run.input or run.error is not None else f"  {compact(run.input)}"


def approval_request(part: ToolApprovalRequest) -> str:
    """Describe a call that is pending approval."""
    owner = f" of {part.server_label}" if part.server_label else ""
    title = "external result needed" if part.is_external else "approval requested"
    return one_line(f"{title}: {part.name}{owner} {compact(part.input) if part.input else ''}".strip())


def file(part: File) -> str:
    """Describe a file by name, type and size."""
    size = f", {file_size(len(part.data))}" if part.data is not None else ""
    return f"{one_line(part.name or part.id, 120)} ({one_line(part.mime_type, 60)}{size})"


def is_link(part: File) -> bool:
    """Return whether a file is only a web page's address, such as a search result."""
    return part.data is None and part.mime_type == "text/html" and bool(part.url)


def link(part: File) -> str:
    """Describe a web page by title and address."""
    url = one_line(without_tracking(part.url or ""), 400)
    return f"{one_line(part.name, 120)}  {url}" if part.name else url


def save_failure(part: File, error: OSError) -> str:
    """Return a warning that a file was not saved, with the reason."""
    return f"warning: {file(part)} was not saved: {one_line(error.strerror or str(error))}"


def file_size(count: int) -> str:
    """Format a number of bytes in B, kB or MB."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def data_loss(part: Custom) -> str:
    """Return the message of a part that reports data loss."""
    return redact(one_line(str(jsontext.as_object(part.data).get("message")), 1000))


def source(part: Source) -> str:
    """Describe a source by title and location, as far as they are known."""
    location = without_tracking(part.url) if part.url else part.file_id
    if part.title and location:
        return f"{one_line(part.title, 120)}  {one_line(location, 400)}"
    return one_line(part.title or location or part.id, 400)


def print_evidence(screen: Screen, claim: str, label: str, found: Evidence) -> None:
    """Print a claim with what its source proves."""
    screen.line(
        f"  {found.state}: {one_line(claim, 200)}", "dim" if found.state in ("quoted", "supported") else "yellow"
    )
    screen.line(f"      {label}: {one_line(found.reason, 300)}", "dim")
    if found.judge is not None:
        screen.line(f"      {one_line(found.judge.summary, 300)}", "dim")


def cited_source(source: CitedSource) -> str:
    """Describe a cited source by title and location, as far as they are known."""
    location = source.shown_url or source.file_id
    title = one_line(source.label, 120)
    return f"{title}  {one_line(location, 400)}" if source.title and location else title


def evidence(source: CitedSource) -> str:
    """Describe what was established about a source's citations, or return an empty string if nothing was."""
    words = REMARKS.get(source.evidence.state)
    if words is None:
        return ""
    return f"{words}: {one_line(source.evidence.reason, 300)}" if source.evidence.reason else words


def cited_passages(passages: tuple[str, ...]) -> list[str]:
    """Return the first three cited passages of a source, and the number of others."""
    texts = [f"“{one_line(text, 200)}”" for text in passages]
    return texts if len(texts) <= 3 else [*texts[:3], f"… and {len(texts) - 3} more"]


def usage(usage: Usage) -> str:
    """Format a run's tokens, tool calls and cost."""
    tokens_in, tokens_out = usage.input, usage.output
    cached = f" ({tokens_in.cache_read:,} cached)" if tokens_in.cache_read else ""
    reasoning = f" ({tokens_out.reasoning:,} reasoning)" if tokens_out.reasoning else ""
    used = usage.server_tool_use.items()
    tools = "".join(f", {things(count, one_line(tool, 60).replace('_', ' ') + ' call')}" for tool, count in used)
    return f"{tokens_in.total:,} tokens in{cached}, {tokens_out.total:,} out{reasoning}{tools}, {_cost(usage)}"


def dollars(cost: float) -> str:
    """Format a cost in US dollars."""
    return f"${cost:,.{4 if cost >= 0.01 else 6}f}"


def _cost(usage: Usage) -> str:
    if usage.cost is not None:
        return dollars(usage.cost)
    return f"cost unknown (no price: {', '.join(usage.unpriced)})" if usage.unpriced else "cost unknown"


def stop_reason(part: Finish, unanswered: list[str]) -> str | None:
    """Return why a run stopped early, or None if it did not. `unanswered` names the calls without a result."""
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
    """Return the error message followed by advice on what to do."""
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
    """Format a JSON value on one line, a string without quotes."""
    return one_line(value if isinstance(value, str) else jsontext.dumps(value).decode("utf-8", "replace"))


def code_block(text: str, place: Place) -> str | None:
    """Return the code of the first or last block, with a final newline, or None if there is none.

    A block without an end extends to the end of the text.
    """
    found = [match["code"] for match in _BLOCK.finditer(text)]
    if not found:
        return None
    code = found[0 if place == "first" else -1]
    return code if code.endswith("\n") else f"{code}\n"
