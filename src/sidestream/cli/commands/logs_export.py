"""`sidestream logs export`: a conversation as Markdown, as JSON, or as a recording that `replay` decodes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidestream import jsontext
from sidestream.cli import exit_codes
from sidestream.cli.chat.transcript import format_time
from sidestream.cli.display.screen import one_line, strip_controls
from sidestream.cli.inputs import options
from sidestream.cli.inputs.conversations import with_store
from sidestream.parts import Finish, StepFinish, StepStart, StreamPart
from sidestream.protocols.markdown import to_markdown
from sidestream.protocols.responses.events import ResponsesEncoder
from sidestream.protocols.responses.object import ResponseHead
from sidestream.replay.recording import EVENT_STREAM, Exchange, RecordedRequest, RecordedResponse, Recording
from sidestream.store.log.summary import text_of
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import MessageAdded, Record, RunStarted, Segment
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
@options.store_option
def export(id: str | None, kind: str, output: Path | None, store: str | None) -> int:
    """Export a conversation. ID defaults to the latest one."""
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: choose another name")

    async def work(opened: "Store") -> int:
        from sidestream.cli.inputs.conversations import find_conversation
        from sidestream.store.log.conversation import Conversation

        info = await find_conversation(opened, id, default_to_latest=True)
        records = await Conversation(opened, info.id).records()
        _write(EXPORTS[kind](info, records), output)
        if output is not None:
            click.echo(f"{info.id} exported to {output}", err=True)
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
