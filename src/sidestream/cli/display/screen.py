"""Terminal output: text on one stream, progress on the other, with control sequences stripped from both."""

import os
import re
import sys
from typing import IO, TYPE_CHECKING, AnyStr, Literal, TextIO

if TYPE_CHECKING:
    from sidestream.results.tool_runs import ToolRun

MAX_SEQUENCE = 4096
"""The longest escape sequence that is buffered; of a longer one, the text is printed without its escapes."""

_STRING = r"[^\x07\x1b\x90\x98\x9c-\x9f\n]*"
"""Ends where another sequence begins, so that the time to look for its end is linear in the text."""
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]){_STRING}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS …: links, clipboard
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b(?![\[\]PX^_])[0-~]"
)
_INCOMPLETE = re.compile(
    rf"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_]{_STRING}\x1b?|[ -/]*)"
    rf"|\x9b[0-?]*[ -/]*|[\x90\x98\x9d-\x9f]{_STRING}\x1b?|\r)\Z"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that reorder the text around them: an answer could show another command than it has."""
_BIDI = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_MARGIN = "  │ "
_STYLE_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class OutputClosedError(Exception):
    """The reader closed the pipe, as after `| head`."""


class ControlStripper:
    """Strips control characters and escape sequences from streamed text; newlines and tabs stay."""

    def __init__(self) -> None:
        self._buffer = ""

    def feed(self, text: str) -> str:
        """Returns the text that is safe to print; an incomplete escape sequence is buffered."""
        text = self._buffer + text
        self._buffer = ""
        if _CONTROL.search(text) is None:
            return text
        tail = _INCOMPLETE.search(text)
        if tail is not None and len(tail[0]) <= MAX_SEQUENCE:
            self._buffer = tail[0]
            text = text[: tail.start()]
        return strip_controls(text)

    def flush(self) -> str:
        """Returns what is still buffered, stripped."""
        buffered, self._buffer = self._buffer, ""
        return strip_controls(buffered)


def strip_controls(text: str) -> str:
    """The text without control characters, escape sequences and overrides of its direction; newlines and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, truncated to `limit`, without control and bidirectional characters."""
    line = " ".join(_BIDI.sub("", strip_controls(text.replace("\r", "\n"))).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def write(stream: IO[AnyStr], data: AnyStr) -> None:
    """Writes and flushes. Raises OutputClosedError if the reader closed the pipe."""
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error


def discard_output() -> None:
    """Redirects both output streams to the null device, so that the flush at exit cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(null, stream.fileno())
        except (AttributeError, OSError, ValueError):  # Already closed, or not backed by a file.
            continue


def has_colour(stream: TextIO) -> bool:
    """True for a terminal, unless NO_COLOR or TERM=dumb disable colour."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Screen:
    """Writes text to `out` and progress to `err`. If both are the same terminal, they are kept on separate lines."""

    is_live = False
    """True if lines at the bottom are drawn again while a run is in progress."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_shared = out is err or _is_same_file(out, err)
        self._colour = has_colour(err)
        self._text = ControlStripper()
        self._block = ControlStripper()
        self._in_text_line = False
        self._in_block_line = False
        self._last: Literal["text", "progress"] | None = None
        self._code_call: str | None = None

    def text(self, delta: str) -> None:
        """Writes a delta of the answer."""
        self._write_text(self._text.feed(delta))

    def replace_text(self, text: str) -> bool:
        """Replaces the whole answer of this run, if what differs is not final yet; False if it is."""
        return False

    def end_text(self) -> None:
        """Ends the current line of the answer, if there is one."""
        self._write_text(self._text.flush())
        if self._in_text_line:
            write(self._out, "\n")
            self._in_text_line = False

    def line(self, text: str, *styles: str) -> None:
        """Writes one line of progress. `text` must be free of control characters."""
        self.end_block()
        self._switch_to("progress")
        write(self._err, self.styled(text, *styles) + "\n")

    def gap(self) -> None:
        """Writes an empty line, unless switching from text to progress adds one."""
        if self._last == "progress" or (self._last == "text" and not self._is_shared):
            self.line("")

    def begin(self, model: str = "") -> None:
        """A run begins."""

    def status(self, **facts: str) -> None:
        """What is known of the run: its model, step and cost."""

    def running(self, run: "ToolRun") -> None:
        """A call that is in progress."""

    def over(self, run: "ToolRun") -> None:
        """A call that is in progress no more."""

    def thinking(self, is_thinking: bool) -> None:
        """The model reasons, or does no longer."""

    def image(self, data: bytes, mime_type: str, *, is_preview: bool) -> None:
        """A picture, for terminals that can show one."""

    def code(self, call: str, delta: str, title: str, language: str) -> None:
        """Writes a delta of a call's code, with a margin, under its title."""
        if self._code_call != call:
            self.end_code()
            self.line(title, "cyan")
            self._code_call = call
        self.block(delta)

    def end_code(self) -> None:
        """Ends the code that is being written, if any."""
        if self._code_call is not None:
            self._code_call = None
            self.end_block()

    def typed(self, text: str) -> None:
        """What a person is typing meanwhile, for screens that redraw what the terminal would echo."""

    def close(self) -> None:
        """Ends open lines; the screen can be used again."""
        self.end_text()
        self.end_code()
        self.end_block()

    @property
    def shows_text(self) -> bool:
        """True if a person sees the answer here; otherwise it goes to a file or another program."""
        return self._out.isatty()

    def block(self, delta: str, *styles: str) -> None:
        """Writes a delta of a longer text, e.g. code, with a margin."""
        self._write_block(self._block.feed(delta), *styles)

    def end_block(self) -> None:
        """Ends the current line of a block, if there is one."""
        self._write_block(self._block.flush())
        if self._in_block_line:
            self._in_block_line = False
            write(self._err, "\n")

    def styled(self, text: str, *styles: str) -> str:
        """The text with these styles, if the terminal has colour."""
        if not self._colour or not styles or not text:
            return text
        return f"\x1b[{';'.join(_STYLE_CODES[style] for style in styles)}m{text}\x1b[0m"

    def _write_text(self, text: str) -> None:
        if not text:
            return
        self.end_block()
        self._switch_to("text")
        write(self._out, text)
        self._in_text_line = not text.endswith("\n")

    def _write_block(self, text: str, *styles: str) -> None:
        if not text:
            return
        self._switch_to("progress")
        output: list[str] = []
        *lines, last = text.split("\n")
        for line in lines:
            output += [self._margin(), self.styled(line, *styles), "\n"]
            self._in_block_line = False
        if last:
            output += [self._margin(), self.styled(last, *styles)]
            self._in_block_line = True
        write(self._err, "".join(output))

    def _margin(self) -> str:
        return "" if self._in_block_line else self.styled(_MARGIN, "dim")

    def _switch_to(self, kind: Literal["text", "progress"]) -> None:
        """Separates text and progress with an empty line if both are the same terminal."""
        if self._is_shared and self._last not in (None, kind):
            write(self._err, "\n\n" if self._in_text_line else "\n")
        self._last = kind


def _is_same_file(out: TextIO, err: TextIO) -> bool:
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):
        return False
