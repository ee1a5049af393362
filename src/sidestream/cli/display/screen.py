"""Terminal output: text on one stream, progress on the other, with control sequences stripped from both."""

import os
import re
import sys
from typing import IO, TYPE_CHECKING, AnyStr, Literal, TextIO

if TYPE_CHECKING:
    from sidestream.results.tool_runs import ToolRun

MAX_SEQUENCE = 4096
"""Characters of the longest buffered escape sequence. A longer one is printed without its control characters."""

_STRING = r"[^\x07\x1b\x90\x98\x9c-\x9f\n]*"
"""Content of a string sequence. It ends where another begins, which keeps the search linear."""
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
"""Control characters, including bidirectional overrides, which could disguise a command in an answer."""
_BIDI = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_MARGIN = "  │ "
_STYLE_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class OutputClosedError(Exception):
    """The reader closed the pipe, as after `| head`."""


class ControlStripper:
    """Strips control characters and escape sequences from streamed text, except newlines and tabs."""

    def __init__(self) -> None:
        self._buffer = ""

    def feed(self, text: str) -> str:
        """Return the text that is safe to print, and buffer an incomplete escape sequence."""
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
        """Return the buffered text, stripped."""
        buffered, self._buffer = self._buffer, ""
        return strip_controls(buffered)


def strip_controls(text: str) -> str:
    """Strip control characters, escape sequences and bidirectional overrides, except newlines and tabs."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = 200) -> str:
    """Put text on one line of at most `limit` characters, without control and bidirectional characters."""
    line = " ".join(_BIDI.sub("", strip_controls(text.replace("\r", "\n"))).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def write(stream: IO[AnyStr], data: AnyStr) -> None:
    """Write and flush. Raises OutputClosedError if the reader closed the pipe."""
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error


def discard_output() -> None:
    """Redirect both output streams to the null device, so that the flush at exit cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(null, stream.fileno())
        except (AttributeError, OSError, ValueError):  # Already closed, or not backed by a file.
            continue


def has_colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal and neither NO_COLOR nor TERM=dumb disables colour."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Screen:
    """Writes text to `out` and progress to `err`. If both are the same terminal, they are kept on separate lines."""

    is_live = False
    """Whether status lines at the bottom are redrawn while a run is in progress."""

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
        """Write a delta of the answer."""
        self._write_text(self._text.feed(delta))

    def replace_text(self, text: str) -> bool:
        """Replace the answer of this run and return True, or return False if the changed text is already final."""
        return False

    def end_text(self) -> None:
        """Finish the answer's current line, if there is one."""
        self._write_text(self._text.flush())
        if self._in_text_line:
            write(self._out, "\n")
            self._in_text_line = False

    def line(self, text: str, *styles: str) -> None:
        """Write one line of progress. `text` must be free of control characters."""
        self.end_block()
        self._switch_to("progress")
        write(self._err, self.styled(text, *styles) + "\n")

    def gap(self) -> None:
        """Write an empty line, unless switching from text to progress adds one."""
        if self._last == "progress" or (self._last == "text" and not self._is_shared):
            self.line("")

    def begin(self, model: str = "") -> None:
        """Handle the start of a run."""

    def status(self, **facts: str) -> None:
        """Update the run's model, step or cost in the status line."""

    def running(self, run: "ToolRun") -> None:
        """Show a running call."""

    def over(self, run: "ToolRun") -> None:
        """Stop showing a call as running."""

    def thinking(self, is_thinking: bool) -> None:
        """Show whether the model is reasoning."""

    def waiting(self, message: str, label: str, left_s: float | None) -> None:
        """Show that the run waits for `left_s` seconds. An empty message ends the wait.

        A live screen counts down beside the label; others print the message.
        """
        if message:
            self.line(f"note: {message}", "yellow")

    def image(self, data: bytes, mime_type: str, *, is_preview: bool) -> None:
        """Draw an image, if the terminal can."""

    def code(self, call: str, delta: str, title: str, language: str) -> None:
        """Write a delta of a call's code, with a margin, under its title."""
        if self._code_call != call:
            self.end_code()
            self.line(title, "cyan")
            self._code_call = call
        self.block(delta)

    def end_code(self) -> None:
        """Finish the current code, if there is any."""
        if self._code_call is not None:
            self._code_call = None
            self.end_block()

    def typed(self, text: str) -> None:
        """Show what the user is typing, on screens that replace the terminal's echo."""

    def close(self) -> None:
        """Finish open lines. The screen can be used again."""
        self.end_text()
        self.end_code()
        self.end_block()

    @property
    def shows_text(self) -> bool:
        """Whether the answer goes to the terminal, not to a file or another program."""
        return self._out.isatty()

    def block(self, delta: str, *styles: str) -> None:
        """Write a delta of a longer text, e.g. code, with a margin."""
        self._write_block(self._block.feed(delta), *styles)

    def end_block(self) -> None:
        """Finish the block's current line, if there is one."""
        self._write_block(self._block.flush())
        if self._in_block_line:
            self._in_block_line = False
            write(self._err, "\n")

    def styled(self, text: str, *styles: str) -> str:
        """Return the text with these styles, if the terminal has colour."""
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
        """Separate text and progress with an empty line if both go to the same terminal."""
        if self._is_shared and self._last not in (None, kind):
            write(self._err, "\n\n" if self._in_text_line else "\n")
        self._last = kind


def _is_same_file(out: TextIO, err: TextIO) -> bool:
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):
        return False
