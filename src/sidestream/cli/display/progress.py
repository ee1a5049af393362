"""Rendering of a run for people: the answer, one line per tool call, code, files, sources and errors."""

import time
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from sidestream import jsontext, parts
from sidestream.cli.display import formatting
from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.screen import Screen, one_line
from sidestream.results.citations import Citations, source_key
from sidestream.results.tool_code import ANY_FIELD, CODE_FIELDS, CodeExtractor, code_fields, code_in
from sidestream.results.tool_labels import WRITING_CODE, is_code, language_of
from sidestream.results.tool_runs import ToolRun, ToolRunFold
from sidestream.text.redaction import redact
from sidestream.tools.grants import CALL_GRANTED
from sidestream.transport.waits import WAITING

MAX_UNCITED = 3
"""Uncited sources that are listed. The others are counted."""
MIN_SHOWN_S = 2.0
"""Seconds below which a finished call's time is not shown."""


class Detail(Struct, frozen=True, kw_only=True):
    """Options for how much of a run to show."""

    thinking: bool = False
    verbose: bool = False
    usage: bool = False
    hints: bool = True
    prompts_for_approval: bool = False
    """Whether the command prompts for pending approvals after the run, so that the view omits them."""


class ProgressView:
    """Shows runs on a screen. Times need a clock; without one, the same run always gives the same text."""

    def __init__(
        self,
        screen: Screen,
        folder: OutputFolder | None = None,
        detail: Detail | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.has_unsaved = False
        self._screen = screen
        self._folder = folder
        self._detail = detail or Detail()
        self._clock = clock
        self._reset()

    def _reset(self) -> None:
        self._began = self._clock() if self._clock is not None else None
        self._calls = ToolRunFold()
        self._ended: set[tuple[int, str]] = set()
        self._extractors: dict[str, CodeExtractor] = {}
        self._titles: dict[str, ToolRun] = {}
        self._citations = Citations()
        self._sources: dict[str, list[parts.Source]] = {}
        self._files: set[str] = set()
        self._links: dict[str, parts.File] = {}
        self._unanswered_calls: dict[str, str] = {}
        self._errors: list[parts.Error] = []
        self._unknown = 0
        self._thinking_since: float | None = None
        self._is_thinking = False

    @property
    def _now(self) -> float | None:
        return None if self._clock is None or self._began is None else self._clock() - self._began

    def feed(self, part: parts.StreamPart) -> None:
        """Render the next part."""
        if isinstance(part, parts.StreamStart):
            self._reset()
        changed = self._calls.feed(part, self._now)
        for run in changed:
            if not run.has_ended and run.status != "waiting":
                self._screen.running(run)
        self._part(part, changed)
        if isinstance(part, parts.ToolEvent | parts.Finish):
            for run in changed:
                self._end(run)

    def _part(self, part: parts.StreamPart, changed: tuple[ToolRun, ...]) -> None:
        match part:
            case parts.TextDelta():
                self._end_thinking()
                self._text(part)
            case parts.TextEnd():
                self._text(part)
                self._text_end(part)
            case parts.TextStart() | parts.StepFinish():
                self._text(part)
            case parts.ToolEvent():
                self._event(part, changed)
            case parts.ToolInputDelta():
                self._code(part.id, part.delta)
            case parts.ToolInputStart():
                self._begin_input(part)
            case parts.ToolCall():
                self._call(part, changed)
            case parts.ToolResult():
                self._result(part, changed)
            case parts.ReasoningStart():
                self._think()
            case parts.ReasoningDelta():
                if self._detail.thinking:
                    self._screen.block(part.delta, "dim")
            case parts.ReasoningEnd():
                self._screen.end_block()
            case parts.Source():
                self._text(part)
                self._sources.setdefault(source_key(part), []).append(part)
            case parts.File():
                self._file(part)
            case parts.ToolApprovalRequest():
                self._approval(part, changed)
            case parts.Error():
                self._error(part)
            case parts.StreamStart():
                self._start(part)
            case parts.ResponseMetadata():
                self._screen.status(model=one_line(part.model or ""))
                self._note(f"model: {part.model}, response {part.id}")
            case parts.Custom():
                self._custom(part)
            case parts.Raw():
                self._unknown += 1
                self._note(f"unknown event: {formatting.compact(part.event)}")
            case parts.Steer():
                self._steer(part)
            case parts.StepStart():
                self._text(part)
                self._screen.end_text()
                self._screen.status(step=f"step {part.step}" if part.step > 1 else "")
            case parts.Finish():
                self._text(part)
                self._finish(part)
            case parts.ToolInputEnd():
                pass
            case _:
                assert_never(part)

    def heading(self, text: str) -> None:
        """Render a heading before the next run."""
        self._screen.gap()
        self._screen.line(one_line(text, 400), "bold")

    def close(self) -> None:
        """Finish open lines. Must also be called after an interrupted run."""
        self._screen.close()

    def _start(self, part: parts.StreamStart) -> None:
        self._screen.begin()
        for warning in part.warnings:
            self._screen.line(f"warning: {one_line(warning)}", "yellow")

    def _text(self, part: parts.StreamPart) -> None:
        """Show the text that a part adds, with source numbers if the screen shows text."""
        plain = part.delta if isinstance(part, parts.TextDelta) else ""
        marked = self._citations.feed(part)
        if not self._screen.shows_text:
            marked = plain
        # A mark whose source came late belongs further up, if that text can still be redrawn.
        if marked and (plain or not self._screen.replace_text(self._citations.text)):
            self._screen.text(marked)

    def _line(self, text: str, *styles: str) -> None:
        self._end_thinking()
        self._screen.line(text, *styles)

    def _note(self, text: str) -> None:
        if self._detail.verbose:
            self._screen.line(one_line(text), "dim")

    def _think(self) -> None:
        if not self._is_thinking:
            self._screen.end_text()
            self._is_thinking, self._thinking_since = True, self._now
            self._screen.thinking(True)
            if self._detail.thinking:
                self._screen.line(formatting.THINKING, "dim")

    def _end_thinking(self) -> None:
        """Report that the model has reasoned, once for consecutive blocks."""
        if not self._is_thinking:
            return
        self._is_thinking = False
        self._screen.thinking(False)
        self._screen.end_block()
        now, since = self._now, self._thinking_since
        took = None if now is None or since is None else now - since
        if not self._detail.thinking or took is not None:
            self._screen.line(formatting.thought_for(took), "dim")

    def _begin_input(self, part: parts.ToolInputStart) -> None:
        self._end_thinking()
        self._screen.end_text()
        self._extractors[part.id] = CodeExtractor(CODE_FIELDS.get(part.name, ANY_FIELD))
        if (run := self._calls.run_of(part.id)) is not None:
            self._titles[part.id] = run

    def _code(self, call: str, delta: str) -> None:
        extractor = self._extractors.get(call)
        if extractor is not None:
            self._show_code(call, extractor.feed(delta), self._titles.get(call))

    def _show_code(self, call: str, code: str, run: ToolRun | None) -> None:
        if code and run is not None and is_code(run):
            self._screen.code(call, code, WRITING_CODE, language_of(run))

    def _call(self, part: parts.ToolCall, changed: tuple[ToolRun, ...]) -> None:
        self._end_thinking()
        self._screen.end_text()
        for run in changed:
            # A call may get its final id after its input has streamed under another.
            streamed = next((id for id in (part.id, run.id) if id in self._extractors), part.id)
            extractor = self._extractors.pop(streamed, CodeExtractor())
            code = code_in(part.input, code_fields(part)) if is_code(run) else None
            self._show_code(streamed, extractor.remainder(code) if code else "", run)
            self._screen.end_code()
            self._end(run)
        if not part.provider_executed:
            self._unanswered_calls[part.id] = part.name

    def _event(self, part: parts.ToolEvent, changed: tuple[ToolRun, ...]) -> None:
        if part.provider_stage == "progress":
            self._line(f"{one_line(part.tool, 60)}: {formatting.compact(part.event)}", "cyan")

    def _result(self, part: parts.ToolResult, changed: tuple[ToolRun, ...]) -> None:
        if part.preliminary:
            preview = parts.preview_of(part)
            if preview is not None:
                self._screen.image(preview.data, preview.mime_type, is_preview=True)
            return
        self._unanswered_calls.pop(part.id, None)
        for run in changed:
            self._end(run)
        output = "" if "results" in jsontext.as_object(part.result) else formatting.tool_output(part.result)
        if not part.provider_executed and not output.strip():
            output = formatting.compact(part.result)
        if output.strip():
            self._screen.block(output, "dim")
            self._screen.end_block()

    def _end(self, run: ToolRun) -> None:
        """Print a finished call's line, once."""
        if not run.has_ended or run.key in self._ended:
            return
        self._ended.add(run.key)
        self._screen.over(run)
        if run.status == "unfinished" and not run.provider_executed:
            return  # The stop reason names the unanswered calls.
        self._end_thinking()
        took = run.seconds
        time_text = f" · {formatting.duration(took)}" if took is not None and took >= MIN_SHOWN_S else ""
        granted = f" · {formatting.GRANTED}" if run.grant is not None else ""
        arguments = formatting.arguments_line(run)
        style = "cyan" if run.status == "completed" else "yellow"
        self._screen.line(f"{formatting.tool_line(run)}{time_text}{granted}{arguments}", style)

    def _file(self, part: parts.File) -> None:
        if formatting.is_link(part):
            self._links.setdefault(str(part.url), part)  # Listed with the sources.
            return
        self._end_thinking()
        self._screen.end_text()
        self._files.add(part.id)
        if part.data is not None:
            self._screen.image(part.data, part.mime_type, is_preview=False)
        description = formatting.file(part)
        if part.data is None:
            self._screen.line(f"file: {description} at {one_line(part.url or '', 400)}", "cyan")
        elif self._folder is None:
            hint = "; --out DIR saves it" if self._detail.hints else ""
            self._screen.line(f"file: {description}{hint}", "cyan")
        else:
            try:
                path = self._folder.save(part)
            except OSError as error:
                self.has_unsaved = True
                self._screen.line(formatting.save_failure(part, error), "yellow")
            else:
                self._screen.line(f"file: {description} saved as {path}", "cyan")

    def _approval(self, part: parts.ToolApprovalRequest, changed: tuple[ToolRun, ...]) -> None:
        for run in changed:
            self._screen.over(run)
        if not self._detail.prompts_for_approval:  # Otherwise the prompt shows it.
            self._line(formatting.approval_request(part), "yellow")

    def _steer(self, part: parts.Steer) -> None:
        """Show whether a steering message was applied. The user already knows that it is pending."""
        text = one_line(part.text or "(files)")
        if part.status == "applied":
            self._line(f"steer: {text}", "bold")
        elif part.status == "failed":
            self._line(f"steer: {text} (not sent: {one_line(part.reason or 'unknown reason')})", "yellow")

    def _text_end(self, part: parts.TextEnd) -> None:
        if part.text is not None:
            self._screen.end_text()
            self._screen.line("note: the final text differs from the streamed text and follows here", "yellow")
            self._screen.text(part.text)

    def _wait(self, part: parts.Custom) -> None:
        wait = jsontext.as_object(part.data)
        message = "" if wait.get("over") is True else one_line(str(wait.get("message", "")))
        until, since = wait.get("until"), wait.get("since")
        left_s = until - since if isinstance(until, float) and isinstance(since, float) else None
        label = formatting.WAITS.get(str(wait.get("reason")), message)
        self._screen.waiting(message, label, left_s)

    def _custom(self, part: parts.Custom) -> None:
        message = jsontext.as_object(part.data).get("message")
        if part.kind == WAITING:
            self._wait(part)
            return
        if part.kind in formatting.DATA_LOSS_KINDS:
            self._screen.end_text()
            self._screen.line(f"error: {formatting.data_loss(part)}", "red")
        elif part.kind in (CALL_GRANTED, parts.TEXT_CORRECTED):
            return  # The line of the call or the text says so.
        elif isinstance(message, str):
            self._line(f"note: {one_line(message)}", "yellow")
        else:
            self._note(f"{part.kind}: {formatting.compact(part.data)}")

    def _error(self, part: parts.Error) -> None:
        if part.kind == "tool":
            self._screen.end_text()
            self._line(f"warning: {redact(one_line(part.message, 1000))}", "yellow")
        else:
            # Printed at the end, where it is seen.
            self._errors.append(part)

    def _finish(self, part: parts.Finish) -> None:
        self._end_thinking()
        self._screen.end_text()
        self._screen.end_code()
        for run in self._calls.runs:
            self._end(run)
        self._footnotes()
        is_prompted = self._detail.prompts_for_approval and part.reason == "approval"
        if not is_prompted and (reason := formatting.stop_reason(part, list(self._unanswered_calls.values()))):
            self._screen.line(reason, "yellow")
        if self._detail.usage or self._detail.verbose:
            self._screen.line(f"usage: {one_line(formatting.usage(part.usage), 1000)}", "dim")
        for error in self._errors:
            self._screen.line(f"error: {redact(formatting.error_with_advice(error))}", "red")
        self.close()

    def _footnotes(self) -> None:
        """Print the cited sources by number, then the others."""
        cited = self._citations.sources
        keys = {source.shown_url or source.file_id or source.title for source in cited}
        others = [
            formatting.source(found[0])
            for key, found in self._sources.items()
            if key not in keys and (found[0].file_id not in self._files or found[0].url)
        ]
        known = {source.url for source in cited} | {found[0].url for found in self._sources.values()}
        others += [formatting.link(link) for url, link in self._links.items() if url not in known]
        if cited or others:
            self._screen.line("sources:", "bold")
        for source in cited:
            self._screen.line(f"  [{source.number}] {formatting.cited_source(source)}")
            for passage in formatting.cited_passages(source.passages):
                self._screen.line(f"      {passage}", "dim")
            if checked := formatting.evidence(source):
                is_sure = source.evidence.state in ("quoted", "supported")
                self._screen.line(f"      {checked}", "dim" if is_sure else "yellow")
        shown = others if self._detail.verbose or len(others) <= MAX_UNCITED + 1 else others[:MAX_UNCITED]
        for text in shown:
            self._screen.line(f"  {text}")
        if len(others) > len(shown):
            hint = "; -v lists them" if self._detail.hints else ""
            self._screen.line(f"  … and {len(others) - len(shown)} more that are not cited{hint}", "dim")


def live_clock() -> float:
    """Return the time of a monotonic clock, in seconds."""
    return time.monotonic()
