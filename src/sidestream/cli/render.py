"""Renders the parts of a run: as text and progress for people, as JSON lines for programs."""

from typing import BinaryIO, Protocol, TextIO, assert_never

from sidestream import jsontext
from sidestream.cli import formatting
from sidestream.cli.output_folder import OutputFolder
from sidestream.cli.terminal import Screen, one_line, write
from sidestream.redaction import redact
from sidestream.run.code import CodeExtractor
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
    Steer,
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
)


class View(Protocol):
    """Renders stream parts. One view can show several runs in sequence."""

    has_unsaved: bool
    """True once saving a file has failed."""

    def feed(self, part: StreamPart) -> None:
        """Renders the next part."""
        ...

    def heading(self, text: str) -> None:
        """Renders a heading before the next run."""
        ...

    def close(self) -> None:
        """Ends open lines. Must also be called after an interrupted run."""
        ...


class JsonLinesView:
    """Prints each part unchanged as a line of JSON. Also saves files, if there is a folder."""

    def __init__(self, out: BinaryIO, err: TextIO, folder: OutputFolder | None = None) -> None:
        self.has_unsaved = False
        self._out = out
        self._err = err
        self._folder = folder

    def feed(self, part: StreamPart) -> None:
        write(self._out, part.to_json().encode() + b"\n")
        if isinstance(part, Custom) and part.kind in formatting.DATA_LOSS_KINDS:
            write(self._err, f"error: {formatting.data_loss(part)}\n")
        if self._folder is not None and isinstance(part, File):
            try:
                self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                write(self._err, formatting.save_failure(part, error) + "\n")

    def heading(self, text: str) -> None:
        """Prints nothing: each run begins with `stream-start`."""

    def close(self) -> None:
        """Does nothing: every line is complete."""


class ProgressView:
    """Prints text as it streams, and the progress of tools."""

    def __init__(
        self,
        screen: Screen,
        folder: OutputFolder | None = None,
        *,
        thinking: bool = False,
        verbose: bool = False,
        usage: bool = False,
        hints: bool = True,
        prompts_for_approval: bool = False,
    ) -> None:
        self.has_unsaved = False
        self._screen = screen
        self._folder = folder
        self._thinking = thinking
        self._verbose = verbose
        self._usage = usage or verbose
        self._hints = hints
        self._prompts_for_approval = prompts_for_approval
        self._reset()

    def _reset(self) -> None:
        self._names: dict[str, str] = {}
        self._extractors: dict[str, CodeExtractor] = {}
        self._code_call: str | None = None
        self._previews: dict[str, int] = {}
        self._sources: dict[str, list[Source]] = {}
        self._files: set[str] = set()
        self._unanswered_calls: dict[str, str] = {}
        self._errors: list[Error] = []
        self._is_thinking = False
        self._last_line = ("", "")

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
                self._extractors[part.id] = CodeExtractor()
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
                self._reset()
                for warning in part.warnings:
                    self._screen.line(f"warning: {one_line(warning)}", "yellow")
            case ResponseMetadata():
                self._detail(f"model: {part.model}, response {part.id}")
            case Custom():
                self._custom(part)
            case Raw():
                self._detail(f"unknown event: {formatting.compact(part.event)}")
            case Steer():
                self._steer(part)
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

    def _tool_line(self, tool: str, text: str | None, *styles: str) -> None:
        """Prints a line of a tool's progress, unless it repeats the line before."""
        if text and self._last_line != (tool, text):
            self._screen.line(f"{formatting.tool_label(tool)}: {text}", *(styles or ("cyan",)))
            self._last_line = (tool, text)
            self._is_thinking = False

    def _detail(self, text: str) -> None:
        if self._verbose:
            self._screen.line(one_line(text), "dim")

    def _think(self) -> None:
        if not self._is_thinking:
            self._screen.line("thinking …", "dim")
        self._is_thinking = True

    def _steer(self, part: Steer) -> None:
        """Shows what became of a message; who entered it has seen that it is pending."""
        text = one_line(part.text or "(files)")
        if part.status == "applied":
            self._screen.line(f"steer: {text}", "bold")
        elif part.status == "failed":
            self._screen.line(f"steer: {text} (not sent: {one_line(part.reason or 'unknown reason')})", "yellow")
        self._is_thinking = self._is_thinking and part.status == "accepted"

    def _text_end(self, part: TextEnd) -> None:
        if part.text is not None:
            self._screen.end_text()
            self._screen.line("note: the final text differs from the streamed text and follows here", "yellow")
            self._screen.text(part.text)

    def _event(self, part: ToolEvent) -> None:
        name = self._names.get(part.call_id or "")
        if part.stage == "in_progress" and name is not None and name != part.tool:
            self._tool_line(part.tool, one_line(f"calling {name} …"))
        elif part.stage == "done":
            self._tool_line(part.tool, formatting.offered_tools(part.event))
        else:
            self._tool_line(part.tool, formatting.stage(part.stage, part.event))

    def _input(self, part: ToolInputDelta) -> None:
        extractor = self._extractors.get(part.id)
        if extractor is not None:
            self._code(part.id, self._names[part.id], extractor.feed(part.delta))

    def _code(self, call_id: str, tool: str, code: str) -> None:
        if not code:
            return
        if self._code_call != call_id:
            self._tool_line(tool, "writing …")
            self._code_call = call_id
        self._screen.block(code)

    def _call(self, part: ToolCall) -> None:
        self._screen.end_text()
        extractor = self._extractors.pop(part.id, CodeExtractor())
        self._code(part.id, part.tool, extractor.remainder(formatting.code_of(part.input) or ""))
        self._screen.end_block()
        self._tool_line(part.tool, formatting.tool_call(part))
        if not part.provider_executed:
            self._unanswered_calls[part.id] = part.name

    def _result(self, part: ToolResult) -> None:
        if part.preliminary:
            number = self._previews[part.id] = self._previews.get(part.id, 0) + 1
            self._tool_line(part.tool, formatting.preview(part.result, number))
            return
        self._unanswered_calls.pop(part.id, None)
        if part.is_error:
            self._tool_line(part.tool, formatting.tool_failure(part.result), "yellow")
            return
        self._tool_line(part.tool, formatting.result_count(part.result))
        output = "" if "results" in jsontext.as_object(part.result) else formatting.tool_output(part.result)
        if not part.provider_executed and not output.strip():
            output = formatting.compact(part.result)
        if output.strip():
            self._tool_line(part.tool, "answered" if part.tool == "mcp" else "printed")
            self._screen.block(output, "dim")
            self._screen.end_block()

    def _file(self, part: File) -> None:
        self._screen.end_text()
        self._files.add(part.id)
        description = formatting.file(part)
        if part.data is None:
            self._screen.line(f"file: {description} at {one_line(part.url or '', 400)}", "cyan")
        elif self._folder is None:
            hint = "; --out DIR saves it" if self._hints else ""
            self._screen.line(f"file: {description}{hint}", "cyan")
        else:
            try:
                path = self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                self._screen.line(formatting.save_failure(part, error), "yellow")
            else:
                self._screen.line(f"file: {description} saved as {path}", "cyan")

    def _approval(self, part: ToolApprovalRequest) -> None:
        if not self._prompts_for_approval:  # Otherwise the prompt shows it.
            self._screen.line(formatting.approval_request(part), "yellow")

    def _custom(self, part: Custom) -> None:
        message = jsontext.as_object(part.data).get("message")
        if part.kind in formatting.DATA_LOSS_KINDS:
            self._screen.end_text()
            self._screen.line(f"error: {formatting.data_loss(part)}", "red")
        elif isinstance(message, str):
            self._screen.line(f"note: {one_line(message)}", "yellow")
        else:
            self._detail(f"{part.kind}: {formatting.compact(part.data)}")

    def _error(self, part: Error) -> None:
        if part.kind == "tool":
            self._screen.end_text()
            self._screen.line(f"warning: {redact(one_line(part.message, 1000))}", "yellow")
        else:
            # Printed at the end, where it is seen.
            self._errors.append(part)

    def _finish(self, part: Finish) -> None:
        self.close()
        shown = [cited for cited in self._sources.values() if cited[0].file_id not in self._files or cited[0].url]
        if shown:
            self._screen.line("sources:", "bold")
        for number, cited in enumerate(shown, 1):
            self._screen.line(f"  [{number}] {formatting.source(cited[0])}")
            for passage in formatting.cited_passages(cited):
                self._screen.line(f"      {passage}", "dim")
        is_prompted = self._prompts_for_approval and part.reason == "approval"
        if not is_prompted and (reason := formatting.stop_reason(part, list(self._unanswered_calls.values()))):
            self._screen.line(reason, "yellow")
        if self._usage:
            self._screen.line(f"usage: {one_line(formatting.usage(part.usage), 1000)}", "dim")
        for error in self._errors:
            self._screen.line(f"error: {redact(formatting.error_with_advice(error))}", "red")
