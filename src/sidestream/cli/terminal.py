"""Two streams that people read: text on one, progress on the other, and nothing in either that steers a terminal."""

import os
import re
import sys
from typing import IO, AnyStr, Literal, TextIO

MAX_SEQUENCE = 4096
"""The longest escape sequence that is waited for; of a longer one the text is shown, without what makes it one."""

_STRING = r"[^\x07\x1b\x9c\n]*"
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
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BIDI = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_MARGIN = "  │ "
_CODES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}


class OutputClosedError(Exception):
    """Nobody reads what is written, as after `| head`."""


class ControlStripper:
    """Takes control characters and escape sequences out of a text that comes in pieces; line ends and tabs stay."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be shown by now; the beginning of a sequence waits for its end."""
        text = self._held + text
        self._held = ""
        if _CONTROL.search(text) is None:
            return text
        tail = _INCOMPLETE.search(text)
        if tail is not None and len(tail[0]) <= MAX_SEQUENCE:
            self._held = tail[0]
            text = text[: tail.start()]
        return _cleaned(text)

    def flush(self) -> str:
        """What was waiting."""
        held, self._held = self._held, ""
        return _cleaned(held)


def _cleaned(text: str) -> str:
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def strip_controls(text: str) -> str:
    """The whole text, harmless."""
    return _cleaned(text)


def one_line(text: str, limit: int = 200) -> str:
    """A title, a name, an argument: on one line, cut where it is long, in the order in which it is written."""
    line = " ".join(_BIDI.sub("", _cleaned(text.replace("\r", "\n"))).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def write(stream: IO[AnyStr], data: AnyStr) -> None:
    """Writes at once. Raises OutputClosedError where nobody reads any more."""
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error


def discard_output() -> None:
    """Lets the interpreter's last flush go nowhere, where writing has failed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (AttributeError, OSError, ValueError):  # Closed from the start, or no file.
            continue


def has_colour(stream: TextIO) -> bool:
    """True for a terminal, unless NO_COLOR or TERM say otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Screen:
    """Text to `out`, progress to `err`; where both are one place, neither runs into the other's line."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_shared = out is err or _is_same(out, err)
        self._colour = has_colour(err)
        self._text = ControlStripper()
        self._block = ControlStripper()
        self._in_text_line = False
        self._in_block_line = False
        self._last: Literal["text", "progress"] | None = None

    def text(self, piece: str) -> None:
        """More of the answer."""
        self._write_text(self._text.feed(piece))

    def end_text(self) -> None:
        """Ends the line of the answer, if it is open."""
        self._write_text(self._text.flush())
        if self._in_text_line:
            write(self._out, "\n")
            self._in_text_line = False

    def line(self, text: str, *styles: str) -> None:
        """One line of progress; `text` is harmless already."""
        self.end_block()
        self._turn_to("progress")
        write(self._err, self.styled(text, *styles) + "\n")

    def gap(self) -> None:
        """An empty line before what comes next; after text it comes by itself."""
        if self._last == "progress" or (self._last == "text" and not self._is_shared):
            self.line("")

    def block(self, piece: str, *styles: str) -> None:
        """A piece of something longer, e.g. of code, set off by a margin."""
        self._write_block(self._block.feed(piece), *styles)

    def end_block(self) -> None:
        """Ends the line of a block, if it is open."""
        self._write_block(self._block.flush())
        if self._in_block_line:
            self._in_block_line = False
            write(self._err, "\n")

    def styled(self, text: str, *styles: str) -> str:
        """The text in colour, where that is seen."""
        if not self._colour or not styles or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def _write_text(self, text: str) -> None:
        if not text:
            return
        self.end_block()
        self._turn_to("text")
        write(self._out, text)
        self._in_text_line = not text.endswith("\n")

    def _write_block(self, text: str, *styles: str) -> None:
        if not text:
            return
        self._turn_to("progress")
        shown: list[str] = []
        *lines, last = text.split("\n")
        for line in lines:
            shown += [self._margin(), self.styled(line, *styles), "\n"]
            self._in_block_line = False
        if last:
            shown += [self._margin(), self.styled(last, *styles)]
            self._in_block_line = True
        write(self._err, "".join(shown))

    def _margin(self) -> str:
        return "" if self._in_block_line else self.styled(_MARGIN, "dim")

    def _turn_to(self, kind: Literal["text", "progress"]) -> None:
        """Where both share a place, sets text and progress apart by an empty line."""
        if self._is_shared and self._last not in (None, kind):
            write(self._err, "\n\n" if self._in_text_line else "\n")
        self._last = kind


def _is_same(out: TextIO, err: TextIO) -> bool:
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):
        return False
