"""A logged conversation as Markdown to read, print or share."""

from sidestream.cli.chat.transcript import SourcesInPlace, format_time, message_lines
from sidestream.cli.display import formatting
from sidestream.cli.display.screen import one_line, strip_controls
from sidestream.cli.display.tool_labels import is_code, language_of, tool_line
from sidestream.results.citations import Citations
from sidestream.results.tool_run import ToolRun
from sidestream.results.tool_runs import ToolRunFold
from sidestream.store.protocol import ConversationInfo
from sidestream.store.records import MessageAdded, Record, RunStarted, Segment
from sidestream.stream.parts import Error, File, StreamPart, ToolResult


class _RunText:
    """What one run did and said."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._calls = ToolRunFold()
        self._outputs: dict[str, str] = {}
        self._citations = Citations("footnotes")
        self._order = SourcesInPlace()
        self._files: list[File] = []
        self._errors: list[str] = []

    def feed(self, part: StreamPart) -> None:
        self._calls.feed(part)
        for ordered in self._order.feed(part):
            self._citations.feed(ordered)
        match part:
            case ToolResult(preliminary=False):
                self._outputs[part.id] = formatting.tool_output(part.result)
            case File():
                self._files.append(part)
            case Error():
                self._errors.append(part.message)
            case _:
                pass

    def lines(self) -> list[str]:
        lines = [f"## {one_line(self._model)}", ""]
        for run in self._calls.runs:
            if run.has_ended:
                lines += self._call(run)
        cited = self._citations.cited()
        if cited.text:
            lines += [strip_controls(cited.text), ""]
        if cited.sources:
            lines += [strip_controls(cited.listing), ""]
        lines += [f"- file: {formatting.file(file)}" for file in self._files]
        lines += [f"**error:** {one_line(message, 1000)}" for message in self._errors]
        return [*lines, ""] if self._files or self._errors else lines

    def _call(self, run: ToolRun) -> list[str]:
        lines = [f"*{tool_line(run)}*{_arguments(run)}", ""]
        if run.code and is_code(run):
            lines += _fenced(run.code, language_of(run))
        output = self._outputs.get(run.call_id, "")
        return [*lines, *_fenced(output, "text")] if is_code(run) and output.strip() else lines


def _arguments(run: ToolRun) -> str:
    text = formatting.arguments_line(run).strip()
    quoted = text.replace("`", "'")
    return f" `{quoted}`" if quoted else ""


def _fenced(text: str, language: str) -> list[str]:
    text = strip_controls(text).rstrip("\n")
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", text, fence, ""]


def to_markdown(info: ConversationInfo, records: list[Record]) -> str:
    """The conversation: its messages, what tools did, and the answers with their sources."""
    lines = [f"# {one_line(info.title, 200) or info.id}", "", f"{one_line(info.id)}, {format_time(info.created)}", ""]
    run: _RunText | None = None
    for record in records:
        match record.body:
            case MessageAdded():
                lines += run.lines() if run is not None else []
                run = None
                lines += [f"## {record.body.message.role}", "", *message_lines(record.body.message), ""]
            case RunStarted() if run is None or not record.body.resumes:
                lines += run.lines() if run is not None else []
                run = _RunText(record.body.model)
            case Segment() if run is not None:
                for part in record.body.parts:
                    run.feed(part)
            case _:
                pass
    lines += run.lines() if run is not None else []
    return "\n".join(lines).rstrip("\n") + "\n"
