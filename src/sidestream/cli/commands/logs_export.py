"""`sidestream logs export`: a conversation as Markdown, JSON, a recording that `replay` decodes, or evidence."""

import hashlib
import html
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from sidestream import jsontext
from sidestream.cli import exit_codes
from sidestream.cli.chat.transcript import format_time
from sidestream.cli.display.screen import one_line, strip_controls
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import with_store
from sidestream.errors import BlobError
from sidestream.evidence import JudgeOpinion
from sidestream.files.folders import write_private
from sidestream.parts import Finish, Source, StepFinish, StepStart, StreamPart
from sidestream.protocols.markdown import to_markdown
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import ResponseHead
from sidestream.replay.recording import EVENT_STREAM, Exchange, RecordedRequest, RecordedResponse, Recording
from sidestream.results.chunks import ChunkFold
from sidestream.results.citations import CitedSource, with_evidence
from sidestream.results.results import ChatResult, fold
from sidestream.store.log.fold import stream_of
from sidestream.store.log.summary import text_of
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import (
    CheckedClaim,
    EvidenceChecked,
    MessageAdded,
    Record,
    RunStarted,
    Segment,
    TurnDiscarded,
)
from sidestream.text.html import is_web, without_tracking
from sidestream.text.redaction import redact

if TYPE_CHECKING:
    from sidestream.store.protocol import ConversationInfo, Store
    from sidestream.store.records import Record


@click.command()
@click.argument("id", required=False)
@click.option(
    "-f",
    "--format",
    "kind",
    type=click.Choice(["markdown", "json", "recording"]),
    default="markdown",
    show_default=True,
    help="Markdown to read, the messages as JSON, or a recording, which sidestream replay and tests play.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this new file.")
@click.option(
    "--evidence",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.zip",
    help="Write the answers to this new file, with each claim, its source, what was found, and the checked pages.",
)
@options.store_option
@click.pass_context
def export(
    context: click.Context, id: str | None, kind: str, output: Path | None, evidence: Path | None, store: str | None
) -> int:
    """Export a conversation. ID defaults to the latest one."""
    if evidence is not None and (
        output is not None or context.get_parameter_source("kind") is not ParameterSource.DEFAULT
    ):
        raise click.UsageError("--evidence names the file and its format: leave out -o and -f")
    if (target := evidence or output) is not None and target.exists():
        raise click.UsageError(f"{target} exists: choose another name")

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.store.log.conversation import Conversation

        info = await find_conversation(opened, id, default_to_latest=True)
        records = await Conversation(opened, info.id).records()
        if evidence is not None:
            write_private(evidence, await _evidence_bundle(opened, info, records))
        else:
            _write(EXPORTS[kind](info, records), output)
        if target is not None:
            click.echo(f"{info.id} exported to {target}", err=True)
        return exit_codes.OK

    return with_store(store, work)


def _write(text: str, output: Path | None) -> None:
    from sidestream.cli.display.screen import write
    from sidestream.cli.stdio import text_stream

    if output is None:
        write(text_stream(sys.stdout), text)
    else:
        output.write_text(text, "utf-8", errors="replace")


def _as_json(info: "ConversationInfo", records: "list[Record]") -> str:
    from sidestream import jsontext
    from sidestream.messages.message import messages_to_json
    from sidestream.store.log.fold import fold

    about: dict[str, Any] = {name: getattr(info, name) for name in ("id", "title", "model", "created", "updated")}
    messages = jsontext.loads(messages_to_json(fold(records).messages))
    return jsontext.dumps({**about, "messages": messages}).decode("utf-8", "replace") + "\n"


def _as_markdown(info: "ConversationInfo", records: "list[Record]") -> str:
    head = f"# {one_line(info.title, 200) or info.id}\n\n{one_line(info.id)}, {format_time(info.created)}\n\n"
    return head + strip_controls(to_markdown(records))


def _as_recording(info: "ConversationInfo", records: "list[Record]") -> str:
    return to_recording(info, records).to_json()


EXPORTS: "dict[str, Callable[[ConversationInfo, list[Record]], str]]" = {
    "markdown": _as_markdown,
    "json": _as_json,
    "recording": _as_recording,
}
"""Format → what makes the text of it."""


def to_recording(info: ConversationInfo, records: list[Record]) -> Recording:
    """Return the model calls of a conversation, with secrets redacted."""
    prompt, model = "", info.model
    exchanges: list[Exchange] = []
    step: list[StreamPart] = []
    for record in records:
        match record.body:
            case MessageAdded():
                prompt = text_of(record.body.message)
            case RunStarted():
                model, step = record.body.model, []
            case Segment():
                for part in record.body.parts:
                    step = [] if isinstance(part, StepStart) else step
                    step.append(part)
                    if isinstance(part, StepFinish):
                        exchanges.append(_exchange(step, model.partition(":")[2], prompt, len(exchanges), record.time))
                        step = []
            case _:
                pass
    return Recording(tuple(exchanges), source=f"sidestream logs export {info.id}")


def _exchange(parts: list[StreamPart], model: str, prompt: str, number: int, time: float) -> Exchange:
    head = ResponseHead(id=f"resp_{number}", model=model, created=int(time))
    encoder = ResponsesEncoder(head, functions=None)
    events = encoder.begin()
    for part in _with_end(parts):
        events += encoder.feed(part)
    body = "".join(f"data: {redact(jsontext.dumps(event).decode())}\n\n" for event in events)
    request = {"model": model, "stream": True, "input": [{"role": "user", "content": redact(prompt)}]}
    return Exchange(RecordedResponse(200, EVENT_STREAM, body), RecordedRequest("POST", "/v1/responses", request))


def _with_end(parts: list[StreamPart]) -> Iterator[StreamPart]:
    """Convert the end of a step to the end of a response."""
    yield from parts
    last = parts[-1]
    assert isinstance(last, StepFinish)
    raw_reason = last.outcome.raw_reason if last.outcome is not None else None
    yield Finish(reason=last.reason, usage=last.usage, raw_reason=raw_reason)


class _CheckedTurn(NamedTuple):
    question: str
    time: float
    """Time of the question, in seconds since 1970."""
    result: ChatResult[str]
    checks: dict[tuple[int, str], CheckedClaim]
    """Logged checks, by step and source id."""
    runs: set[str]
    """Ids of its runs."""

    def to_json(self) -> dict[str, Any]:
        """Return the question, the answer with markers, its sources and its claims."""
        cited = self.result.cited_text()
        numbers = {_location(source): source.number for source in cited.sources}
        return {
            "question": self.question,
            "asked_at": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "answer": cited.text,
            "sources": [
                {"number": source.number, "title": source.title, "url": source.url, "file_id": source.file_id}
                for source in cited.sources
            ],
            "claims": [
                {
                    "text": claim.text,
                    "source": numbers.get(_location(claim.source)),
                    "state": claim.source.evidence.state,
                    "reason": claim.source.evidence.reason,
                    "checks": msgspec.to_builtins(claim.source.evidence.checks),
                    "judge": msgspec.to_builtins(claim.source.evidence.judge),
                    "passage": check.passage if check is not None else claim.source.cited_text or "",
                    "page": check.snapshot if check is not None else None,
                }
                for claim in self.result.claims()
                for check in [self.checks.get((claim.step, claim.source.id))]
            ],
        }


def _location(source: Source | CitedSource) -> str | None:
    return without_tracking(source.url) if source.url else source.file_id or source.title


def _checked_turns(records: list[Record]) -> list[_CheckedTurn]:
    """Return the turns of a conversation, each claim with the result of its latest check."""
    turns: list[_CheckedTurn] = []
    question, time, log, checks = "", 0.0, list[Record](), list[tuple[CheckedClaim, str]]()

    def close() -> None:
        if log:
            folding = ChunkFold()
            result = fold([chunk for part in stream_of(log) for chunk in folding.feed(part)])
            turns.append(_CheckedTurn(question, time, result, {}, {record.run for record in log}))
            log.clear()
        for check, run in checks:
            _assign(check, run, turns)
        checks.clear()

    for record in records:
        match record.body:
            case MessageAdded(message=message):
                close()
                question, time = text_of(message), record.time
            case TurnDiscarded():
                log.clear()
                checks.clear()
            case Segment():
                log.append(record)
            case EvidenceChecked(claims=claims):
                checks += [(claim, record.run) for claim in claims]
            case _:
                pass
    close()
    return [
        turn._replace(
            result=with_evidence(turn.result, {key: check.evidence for key, check in turn.checks.items()}, {})
        )
        for turn in turns
    ]


def _assign(check: CheckedClaim, run: str, turns: list[_CheckedTurn]) -> None:
    """Add a check to the turn of its run, or to the latest turn that has its claim."""
    latest = turns[::-1]
    for turn in (*(turn for turn in latest if run in turn.runs), *latest):
        for claim in turn.result.claims():
            found = claim.step, claim.source.id, claim.source.url, claim.text
            if found == (check.step, check.source, check.url, check.text):
                turn.checks[check.step, check.source] = check
                return


async def _evidence_bundle(store: "Store", info: ConversationInfo, records: list[Record]) -> bytes:
    """Return a ZIP file with the answers and their evidence as HTML and JSON, the checked pages, and all digests.

    The same log always makes the same bytes: names are sorted, times fixed, and nothing is compressed, since
    compressors differ.
    """
    files: dict[str, bytes] = {}
    pages: dict[str, dict[str, Any]] = {}
    for record in records:
        for page in record.body.snapshots if isinstance(record.body, EvidenceChecked) else ():
            name = f"pages/{page.sha256}{_SUFFIXES.get(page.mime_type, '.bin')}"
            try:
                files[name] = await store.blob(page.sha256)
            except BlobError:
                name = None
            pages.setdefault(page.sha256, {**msgspec.structs.asdict(page), "file": name})
    head = {"conversation": info.id, "title": info.title, "model": info.model}
    bundle = {"version": 1, **head, "turns": [turn.to_json() for turn in _checked_turns(records)], "pages": pages}
    files["evidence.json"] = (json.dumps(bundle, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    files["index.html"] = _evidence_html(bundle).encode("utf-8", "replace")
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())]
    files["SHA256SUMS"] = "".join(sums).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, data)
    return packed.getvalue()


_SUFFIXES = {
    "text/html": ".html.txt",
    "application/xhtml+xml": ".html.txt",
    "text/plain": ".txt",
    "application/pdf": ".pdf",
}
"""Mime type → end of a page's name. A browser shows HTML as text, so that its scripts do not run."""
_HTML_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
.answer { white-space: pre-wrap } table { border-collapse: collapse }
td, th { border: 1px solid #999; padding: .3rem .6rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }
</style>
"""


def _evidence_html(bundle: dict[str, Any]) -> str:
    pages: dict[str, dict[str, Any]] = bundle["pages"]
    title = html.escape(bundle["title"] or bundle["conversation"])
    lines = [f"{_HTML_HEAD}<title>{title}</title>", f"<h1>{title}</h1>"]
    lines.append(
        f"<p>Conversation {html.escape(bundle['conversation'])}, answered by {html.escape(bundle['model'])}.</p>"
    )
    for turn in bundle["turns"]:
        lines.append(f"<h2>{html.escape(turn['question'])}</h2>\n<p>Asked at {turn['asked_at']}</p>")
        lines.append(f"<p class=answer>{html.escape(turn['answer'])}</p>")
        if turn["sources"]:
            entries = [f"<li value={source['number']}>{_html_source(source)}</li>" for source in turn["sources"]]
            lines.append(f"<ol>{''.join(entries)}</ol>")
        if turn["claims"]:
            lines.append("<table><tr><th>Claim<th>Source<th>State<th>Reason<th>Passage<th>Page</tr>")
            lines += [_html_claim(claim, pages) for claim in turn["claims"]]
            lines.append("</table>")
    if pages:
        lines.append("<h2>Pages</h2>\n<table><tr><th>Page<th>Retrieved<th>Bytes<th>SHA-256</tr>")
        for digest, page in pages.items():
            cells = page["url"], page["retrieved_at"], str(page["size"]), digest
            lines.append(f"<tr>{''.join(f'<td>{html.escape(cell)}' for cell in cells)}</tr>")
        lines.append("</table>")
    return "\n".join(lines) + "\n"


def _html_source(source: dict[str, Any]) -> str:
    label = html.escape(source["title"] or source["url"] or source["file_id"] or "source")
    url = source["url"]
    return f'<a href="{html.escape(url)}" rel="noreferrer">{label}</a>' if url and is_web(url) else label


def _html_claim(claim: dict[str, Any], pages: dict[str, dict[str, Any]]) -> str:
    page = pages.get(claim["page"] or "")
    file = page["file"] if page is not None else None
    cells = [html.escape(claim["text"]), str(claim["source"] or "")]
    judge = "" if claim["judge"] is None else f"; {msgspec.convert(claim['judge'], JudgeOpinion).summary}"
    cells += [html.escape(text) for text in (claim["state"], claim["reason"] + judge, claim["passage"])]
    cells.append(f'<a href="{file}">{claim["page"][:12]}</a>' if file else "not kept" if page is not None else "")
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"
