"""Conversion of a log to Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from sidestream import jsontext, parts
from sidestream.jsontext import Json
from sidestream.messages.message import ChatMessage, DataPart, LinkPart, TextPart
from sidestream.results.citations import Citations, source_key
from sidestream.results.tool_code import output_text
from sidestream.results.tool_labels import is_code, language_of, tool_label
from sidestream.results.tool_runs import ToolRun, ToolRunFold
from sidestream.store import records
from sidestream.store.log.fold import stream_of


def to_markdown(log: Iterable[records.Record]) -> str:
    """Convert a log to Markdown, in order: messages, tool calls with results, decisions, and answers with sources.

    What models, tools and users wrote stays verbatim.
    """
    return "\n\n".join(_blocks(log)) + "\n"


def _blocks(log: Iterable[records.Record]) -> Iterator[str]:
    segments: list[records.Record] = []
    for record in log:
        match record.body:
            case records.MessageAdded(message=message):
                yield from _stream_blocks(segments)
                segments = []
                yield f"## {'You' if message.role == 'user' else 'Model'}\n\n{_message(message)}"
            case records.RunStarted(model=model, resumes=resumes):
                yield from _stream_blocks(segments)
                segments = []
                yield f"## {model}{', resumed' if resumes else ''}"
            case records.ApprovalAsked(approval=approval):
                yield f"**Waits for a decision**: {approval.tool}\n\n{_fenced(approval.input)}"
            case records.ApprovalDecided(decision=decision):
                scope = " in this conversation" if decision.grant is not None else ""
                word = f"Allowed{scope}" if decision.is_approved else f"Denied: {decision.reason or 'no reason given'}"
                yield f"**{word}** ({decision.tool})"
            case records.ApprovalRefused(reason=reason):
                yield f"**Decision refused**: {reason}"
            case records.EvidenceChecked(claims=claims):
                if segments and segments[-1].kind == "finish":  # A run may check an answer before it continues.
                    yield from _stream_blocks(segments)
                    segments = []
                yield "\n".join(["**Evidence**", "", *map(_checked_claim, claims)])
            case records.Segment():
                segments.append(record)
            case _:
                pass
    yield from _stream_blocks(segments)


def _stream_blocks(segments: Sequence[records.Record]) -> Iterator[str]:
    """Yield the blocks of one run. Text and calls appear where they begin, in their final form."""
    stream = stream_of(segments)
    citations, calls, sources = Citations("footnotes"), ToolRunFold(), dict[str, parts.Source]()
    for part in stream:
        citations.feed(part)
        calls.feed(part)
        if isinstance(part, parts.Source):
            sources.setdefault(source_key(part), part)
    runs = {(run.step, run.call_id): run for run in calls.runs}
    ran_code = {run.call_id for run in calls.runs if is_code(run)}
    step = 0
    for part in stream:
        match part:
            case parts.StepStart():
                step = part.step
            case parts.TextStart():
                if text := citations.block_text(step, part.id):
                    yield text
            case parts.ToolCall():
                yield _call(part, runs.get((step, part.id)))
            case parts.ToolResult(preliminary=False):
                printed = output_text(part.result) if part.id in ran_code else ""
                word = "Failed" if part.is_error else "Result"
                yield f"{word} of {part.name}:\n\n{_fenced(printed or part.result)}"
            case _:
                if (line := _line(part)) is not None:
                    yield line
    cited = citations.cited()
    numbered = {source.shown_url or source.file_id or source.title for source in cited.sources}
    others = [
        f"- {source.title or key}: {source.url and key}" for key, source in sources.items() if key not in numbered
    ]
    if cited.sources:
        yield cited.listing
    if others:
        yield "\n".join(others)


def _call(call: parts.ToolCall, run: ToolRun | None) -> str:
    label = tool_label(run) if run is not None else call.name
    line = f"**{label}** ({'provider' if call.provider_executed else 'here'})"
    if run is not None and run.code and is_code(run):
        return f"{line}\n\n{_fenced(run.code, language_of(run))}"
    return f"{line}\n\n{_fenced(call.input or call.input_text)}"


def _line(part: parts.StreamPart) -> str | None:
    match part:
        case parts.File():
            return f"File: {part.name or part.id} ({part.mime_type})"
        case parts.Error():
            return f"**Error** ({part.kind}): {part.message}"
        case parts.Finish(usage=usage):
            cost = "price unknown" if usage.cost is None else f"${usage.cost:.4f}"
            return f"*{part.reason}; {usage.input.total} tokens in, {usage.output.total} out; {cost}*"
        case _:
            return None


def _checked_claim(claim: records.CheckedClaim) -> str:
    source = claim.title or claim.url or claim.source
    judge = "" if claim.evidence.judge is None else f"; {claim.evidence.judge.summary}"
    return f"- {claim.evidence.state}: {' '.join(claim.text.split())} ({source}: {claim.evidence.reason}{judge})"


def _message(message: ChatMessage) -> str:
    shown: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                shown.append(part.text)
            case DataPart():
                shown.append(f"File: {part.name or part.mime_type}")
            case LinkPart():
                shown.append(f"File: {part.url}")
            case _:
                pass
    return "\n\n".join(shown)


def _fenced(value: Json, language: str = "") -> str:
    text = (value if isinstance(value, str) else jsontext.dumps(value).decode()).rstrip("\n")
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
