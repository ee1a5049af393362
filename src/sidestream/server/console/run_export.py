"""The records of a run, as the timeline of the page reads them, and a run as a file to keep."""

from collections.abc import Iterable, Iterator, Sequence

from sidestream import jsontext
from sidestream.jsontext import Json, JsonObject, as_object, objects
from sidestream.messages.message import ChatMessage, DataPart, TextPart
from sidestream.results.citations import Citations, source_key
from sidestream.store.log.fold import stream_of
from sidestream.store.records import (
    ApprovalAsked,
    ApprovalDecided,
    ApprovalRefused,
    MessageAdded,
    Record,
    Row,
    RunStarted,
    Segment,
)
from sidestream.stream.parts import Error, File, Finish, Source, StepStart, StreamPart, TextStart, ToolCall, ToolResult
from sidestream.text.redaction import REDACTED, redact


def record_json(row: Row) -> JsonObject:
    """A record as JSON: `parts` of the stream, or a `fact`. Blobs stand in it as `{"$bytes": digest}` and the like.

    The names of those that do are in `blobs`: the content of a record could look like an address.
    """
    shown: JsonObject = {"seq": row.seq, "time": row.time, "kind": row.kind}
    if row.blobs:
        shown["blobs"] = list(row.blobs)
    try:
        body = as_object(jsontext.loads(row.body))
    except (ValueError, RecursionError):
        return {**shown, "damaged": True}
    if body.get("type") != "segment":
        return {**shown, "fact": body}
    # What a decoder says to the turn is internal.
    parts = [{key: value for key, value in part.items() if key != "outcome"} for part in objects(body.get("parts"))]
    return {**shown, "parts": parts}


def parts_text(records: Iterable[Record]) -> tuple[str, int]:
    """The part stream of a run, one line of JSON for each part, and how many secrets were replaced in it."""
    return _redacted("".join(f"{part.to_json()}\n" for part in stream_of(records)))


def markdown_text(records: Sequence[Record]) -> tuple[str, int]:
    """A run as Markdown, for people, and how many secrets were replaced in it."""
    return _redacted("\n\n".join(_markdown(records)) + "\n")


def _redacted(text: str) -> tuple[str, int]:
    clean = redact(text)
    return clean, clean.count(REDACTED) - text.count(REDACTED)


def _markdown(records: Sequence[Record]) -> Iterator[str]:
    segments: list[Record] = []
    for record in records:
        match record.body:
            case MessageAdded(message=message):
                yield from _in_stream(segments)
                segments = []
                yield f"## {'You' if message.role == 'user' else 'Model'}\n\n{_message(message)}"
            case RunStarted(model=model, resumes=resumes):
                yield from _in_stream(segments)
                segments = []
                yield f"## {model}{', resumed' if resumes else ''}"
            case ApprovalAsked(approval=approval):
                yield f"**Waits for a decision**: {approval.tool}{_fenced(approval.input)}"
            case ApprovalDecided(decision=decision):
                scope = " in this conversation" if decision.grant is not None else ""
                word = f"Allowed{scope}" if decision.is_approved else f"Denied: {decision.reason or 'no reason given'}"
                yield f"**{word}** ({decision.tool})"
            case ApprovalRefused(reason=reason):
                yield f"**Decision refused**: {reason}"
            case Segment():
                segments.append(record)
            case _:
                pass
    yield from _in_stream(segments)


def _in_stream(records: Sequence[Record]) -> Iterator[str]:
    citations, sources, step = Citations(), dict[str, Source](), 0
    entries: list[str | tuple[int, str]] = []
    for part in stream_of(records):
        citations.feed(part)
        if isinstance(part, StepStart):
            step = part.step
        elif isinstance(part, TextStart):
            entries.append((step, part.id))
        elif isinstance(part, Source):
            sources.setdefault(source_key(part), part)
        elif (line := _line(part)) is not None:
            entries.append(line)
    yield from filter(None, (entry if isinstance(entry, str) else citations.block_text(*entry) for entry in entries))
    cited = {source.shown_url or source.file_id or source.title for source in citations.sources}
    listed = [f"[{source.number}] {source.label}: {source.shown_url or ''}" for source in citations.sources]
    listed += [f"{source.title or key}: {source.url and key}" for key, source in sources.items() if key not in cited]
    if listed:
        yield "\n".join(f"- {line}" for line in listed)


def _line(part: StreamPart) -> str | None:
    match part:
        case ToolCall(name=name, provider_executed=hosted):
            return f"**{name}** ({'provider' if hosted else 'here'}){_fenced(part.input or part.input_text)}"
        case ToolResult(preliminary=False):
            return f"{'Failed' if part.is_error else 'Result'} of {part.name}:{_fenced(part.result)}"
        case File():
            return f"File: {part.name or part.id} ({part.mime_type})"
        case Error():
            return f"**Error** ({part.kind}): {part.message}"
        case Finish(usage=usage):
            cost = "price unknown" if usage.cost is None else f"${usage.cost:.4f}"
            return f"*{part.reason}; {usage.input.total} tokens in, {usage.output.total} out; {cost}*"
        case _:
            return None


def _message(message: ChatMessage) -> str:
    shown: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            shown.append(part.text)
        elif isinstance(part, DataPart):
            shown.append(f"File: {part.name or part.mime_type}")
    return "\n\n".join(shown)


def _fenced(value: Json) -> str:
    text = value if isinstance(value, str) else jsontext.dumps(value).decode()
    fence = "`" * max(
        3, 1 + max((len(run) for run in text.replace("\n", " ").split(" ") if set(run) == {"`"}), default=0)
    )
    return f"\n\n{fence}\n{text}\n{fence}"
