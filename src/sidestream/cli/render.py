"""Shows a run: to people as text and progress, to programs as one part per line."""

from typing import BinaryIO, Protocol, TextIO, assert_never

from sidestream import jsontext
from sidestream.cli import formatting
from sidestream.cli.code_extractor import CodeExtractor
from sidestream.cli.output_folder import OutputFolder
from sidestream.cli.terminal import Screen, one_line, write
from sidestream.redaction import redact
from sidestream.stream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Source,
    StepFinish,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    encode_part,
)


class View(Protocol):
    """Something that shows parts. One is enough for several runs, one after the other."""

    has_unsaved: bool
    """True once a file could not be saved."""

    def feed(self, part: StreamPart) -> None:
        """Shows the next part."""
        ...

    def heading(self, text: str) -> None:
        """Says which run comes next."""
        ...

    def close(self) -> None:
        """Ends what is open, also where a run was broken off."""
        ...


class JsonLinesView:
    """Every part as one line of JSON, as it is. Files are saved besides, if there is a folder."""

    def __init__(self, out: BinaryIO, err: TextIO, folder: OutputFolder | None = None) -> None:
        self.has_unsaved = False
        self._out = out
        self._err = err
        self._folder = folder

    def feed(self, part: StreamPart) -> None:
        write(self._out, encode_part(part) + b"\n")
        if isinstance(part, Custom) and part.kind in formatting.ALARMS:
            write(self._err, f"error: {formatting.alarm(part)}\n")
        if self._folder is not None and isinstance(part, File):
            try:
                self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                write(self._err, formatting.unsaved(part, error) + "\n")

    def heading(self, text: str) -> None:
        """Programs see it by `stream-start`."""

    def close(self) -> None:
        """Every line is complete."""


class ProgressView:
    """Text as it comes, and what tools do on the way."""

    def __init__(
        self,
        screen: Screen,
        folder: OutputFolder | None = None,
        *,
        thinking: bool = False,
        verbose: bool = False,
        hints: bool = True,
        asks: bool = False,
    ) -> None:
        self.has_unsaved = False
        self._screen = screen
        self._folder = folder
        self._thinking = thinking
        self._verbose = verbose
        self._hints = hints
        self._asks = asks
        self._begin()

    def _begin(self) -> None:
        self._names: dict[str, str] = {}
        self._readers: dict[str, CodeExtractor] = {}
        self._writing: str | None = None
        self._previews: dict[str, int] = {}
        self._sources: dict[str, list[Source]] = {}
        self._files: set[str] = set()
        self._waiting: dict[str, str] = {}
        self._errors: list[Error] = []
        self._is_thinking = False
        self._last = ("", "")

    def feed(self, part: StreamPart) -> None:
        match part:
            case TextDelta():
                self._is_thinking = False
                self._screen.text(part.delta)
            case TextEnd():
                self._text_end(part)
            case ToolEvent():
                self._event(part)
            case ToolInputDelta():
                self._input(part)
            case ToolInputStart():
                self._screen.end_text()
                self._names[part.id] = part.name
                self._readers[part.id] = CodeExtractor()
            case ToolCall():
                self._call(part)
            case ToolResult():
                self._result(part)
            case ReasoningStart():
                self._screen.end_text()
                self._think()
            case ReasoningDelta():
                if self._thinking:
                    self._screen.block(part.delta, "dim")
            case ReasoningEnd():
                self._screen.end_block()
            case Source():
                self._sources.setdefault(part.url or part.file_id or part.title or part.id, []).append(part)
            case File():
                self._file(part)
            case ToolApprovalRequest():
                self._approval(part)
            case Error():
                self._error(part)
            case StreamStart():
                self._begin()
                for warning in part.warnings:
                    self._screen.line(f"warning: {one_line(warning)}", "yellow")
            case ResponseMetadata():
                self._detail(f"model: {part.model}, response {part.id}")
            case Custom():
                self._custom(part)
            case Raw():
                self._detail(f"unknown event: {formatting.compact(part.event)}")
            case StepStart():
                self._screen.end_text()
            case Finish():
                self._finish(part)
            case TextStart() | ToolInputEnd() | StepFinish():
                pass
            case _:
                assert_never(part)

    def heading(self, text: str) -> None:
        self._screen.gap()
        self._screen.line(one_line(text, 400), "bold")

    def close(self) -> None:
        self._screen.end_text()
        self._screen.end_block()

    def _say(self, tool: str, words: str | None, *styles: str) -> None:
        """One line of a tool's progress; the same line is not said twice in a row."""
        if words and self._last != (tool, words):
            self._screen.line(f"{formatting.label(tool)}: {words}", *(styles or ("cyan",)))
            self._last = (tool, words)
            self._is_thinking = False

    def _detail(self, text: str) -> None:
        if self._verbose:
            self._screen.line(one_line(text), "dim")

    def _think(self) -> None:
        if not self._is_thinking:
            self._screen.line("thinking …", "dim")
        self._is_thinking = True

    def _text_end(self, part: TextEnd) -> None:
        if part.text is not None:
            self._screen.end_text()
            self._screen.line("note: the final text differs from what was streamed; it follows", "yellow")
            self._screen.text(part.text)

    def _event(self, part: ToolEvent) -> None:
        name = self._names.get(part.call_id or "")
        if part.stage == "in_progress" and name is not None and name != part.tool:
            self._say(part.tool, one_line(f"calling {name} …"))
        elif part.stage == "done":
            self._say(part.tool, formatting.offered_tools(part.event))
        else:
            self._say(part.tool, formatting.stage(part.stage, part.event))

    def _input(self, part: ToolInputDelta) -> None:
        reader = self._readers.get(part.id)
        if reader is not None:
            self._code(part.id, self._names[part.id], reader.feed(part.delta))

    def _code(self, call_id: str, tool: str, code: str) -> None:
        if not code:
            return
        if self._writing != call_id:
            self._say(tool, "writing …")
            self._writing = call_id
        self._screen.block(code)

    def _call(self, part: ToolCall) -> None:
        self._screen.end_text()
        reader = self._readers.pop(part.id, CodeExtractor())
        self._code(part.id, part.tool, reader.remainder(formatting.code_of(part.input) or ""))
        self._screen.end_block()
        self._say(part.tool, formatting.call(part))
        if not part.provider_executed:
            self._waiting[part.id] = part.name

    def _result(self, part: ToolResult) -> None:
        if part.preliminary:
            number = self._previews[part.id] = self._previews.get(part.id, 0) + 1
            self._say(part.tool, formatting.preview(part.result, number))
            return
        self._waiting.pop(part.id, None)
        if part.is_error:
            self._say(part.tool, formatting.failure(part.result), "yellow")
            return
        self._say(part.tool, formatting.found(part.result))
        output = "" if "results" in jsontext.as_object(part.result) else formatting.output_of(part.result)
        if not part.provider_executed and not output.strip():
            output = formatting.compact(part.result)
        if output.strip():
            self._say(part.tool, "answered" if part.tool == "mcp" else "printed")
            self._screen.block(output, "dim")
            self._screen.end_block()

    def _file(self, part: File) -> None:
        self._screen.end_text()
        self._files.add(part.id)
        what = formatting.file(part)
        if part.data is None:
            self._screen.line(f"file: {what} at {one_line(part.url or '', 400)}", "cyan")
        elif self._folder is None:
            hint = "; --out DIR saves it" if self._hints else ""
            self._screen.line(f"file: {what}{hint}", "cyan")
        else:
            try:
                path = self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                self._screen.line(formatting.unsaved(part, error), "yellow")
            else:
                self._screen.line(f"file: {what} saved as {path}", "cyan")

    def _approval(self, part: ToolApprovalRequest) -> None:
        if not self._asks:  # Else the question follows, and says all of it.
            self._screen.line(formatting.approval(part), "yellow")

    def _custom(self, part: Custom) -> None:
        message = jsontext.as_object(part.data).get("message")
        if part.kind in formatting.ALARMS:
            self._screen.end_text()
            self._screen.line(f"error: {formatting.alarm(part)}", "red")
        elif isinstance(message, str):
            self._screen.line(f"note: {one_line(message)}", "yellow")
        else:
            self._detail(f"{part.kind}: {formatting.compact(part.data)}")

    def _error(self, part: Error) -> None:
        if part.kind == "tool":
            self._screen.end_text()
            self._screen.line(f"warning: {redact(one_line(part.message, 1000))}", "yellow")
        else:
            # Said last, where it is seen.
            self._errors.append(part)

    def _finish(self, part: Finish) -> None:
        self.close()
        known = self._sources.values()
        shown = [cited for cited in known if cited[0].file_id not in self._files or cited[0].url]
        if shown:
            self._screen.line("sources:", "bold")
        for number, cited in enumerate(shown, 1):
            self._screen.line(f"  [{number}] {formatting.source(cited[0])}")
            for passage in formatting.passages(cited):
                self._screen.line(f"      {passage}", "dim")
        is_asked = self._asks and part.reason == "approval"
        if not is_asked and (reason := formatting.ending(part, list(self._waiting.values()))):
            self._screen.line(reason, "yellow")
        self._detail(f"usage: {formatting.usage(part.usage)}")
        for error in self._errors:
            self._screen.line(f"error: {redact(formatting.failed_run(error))}", "red")
