"""Input of messages and answers from a terminal or a pipe, including keys typed while the model answers."""

import asyncio
import atexit
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from sidestream.cli.display.screen import strip_controls, write
from sidestream.cli.interrupts import UserInterruptError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document


_KEYS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")
"""Escape sequences of arrow keys and other keys, which are ignored."""
_ERASE = "\x7f\b"
_ERASE_ALL = "\x15"


class TypedLines:
    """Collects keys into lines. `draft` is the current, unfinished line."""

    def __init__(self) -> None:
        self.draft = ""
        self._lines: deque[str] = deque()

    def feed(self, keys: str) -> None:
        """Process typed text, Enter, Backspace and Ctrl-U."""
        for key in _KEYS.sub("", keys):
            if key in "\r\n":
                self._lines.append(self.draft)
                self.draft = ""
            elif key in _ERASE:
                self.draft = self.draft[:-1]
            elif key == _ERASE_ALL:
                self.draft = ""
            else:
                self.draft += strip_controls(key)

    def next_line(self) -> str | None:
        """Return the next complete line, or None if there is none yet."""
        return self._lines.popleft() if self._lines else None

    def take_draft(self) -> str:
        """Return and clear the unfinished line, for a prompt to continue."""
        draft, self.draft = self.draft, ""
        return draft


_CHUNK = 64 * 1024
HISTORY = "history"
Completions = Callable[[str], list[str]]
"""Maps the text before the cursor to its completions."""


class LineReader(Protocol):
    """A source of input. Both methods return None at its end and raise UserInterruptError on Ctrl-C."""

    async def message(self) -> str | None:
        """Read the next message."""
        ...

    async def answer(self, question: str) -> str | None:
        """Print a question and read the answer."""
        ...


def open_reader(history: Path | None, completions: Completions | None = None) -> LineReader:
    """Return a line editor if standard input is a terminal, else a reader of its lines."""
    if sys.stdin is not None and sys.stdin.isatty():
        return TerminalReader(history, completions)
    return PipeReader(None if sys.stdin is None else sys.stdin.fileno())


class PipeReader:
    """Reads the lines of a pipe or a file as they arrive."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._at_end = descriptor is None

    async def message(self) -> str | None:
        """Read the next line that is not blank."""
        while (line := await self._read_line()) is not None:
            if line.strip():
                return line.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """Print the question to standard error and read the next line."""
        write(sys.stderr, question + "\n")
        return await self._read_line()

    async def _read_line(self) -> str | None:
        while b"\n" not in self._buffer and not self._at_end:
            await self._fill()
        if self._at_end and not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.UsageError("standard input is not UTF-8 text") from error

    async def _fill(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        await _wait_readable(descriptor)
        data = os.read(descriptor, _CHUNK)
        self._buffer += data
        self._at_end = not data


async def _wait_readable(descriptor: int, *, is_file: bool = True) -> None:
    """Wait until the descriptor is readable. With `is_file`, regular files are allowed and always readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except (PermissionError, NotImplementedError):
        if is_file:
            return
        raise
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class TerminalReader:
    """A line editor with history. Enter sends, Esc Enter inserts a newline, Tab completes."""

    def __init__(self, history: Path | None, completions: Completions | None = None) -> None:
        self.echo: Callable[[str], None] | None = None
        """Function that shows keys typed while the model answers. None means that the terminal echoes them."""
        self._history = history
        self._completions = completions
        self._typed = TypedLines()
        self._prompt: PromptSession[str] | None = None
        self._next: deque[str] = deque()

    async def message(self) -> str | None:
        """Prompt until something other than whitespace is entered."""
        if self._next:
            return self._next.popleft()
        self._prompt = self._prompt or _prompt_session(self._history, self._completions)
        while (text := await _prompt(self._prompt, "> ", self._typed.take_draft())) is not None:
            if text.strip():
                return text.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """Prompt for an answer, without adding it to the history."""
        return await _prompt(_prompt_session(None), question)

    async def interjection(self) -> str | None:
        """Read a line entered while the model answers, or return None if the terminal cannot be read.

        An unfinished line is kept for the next prompt.
        """
        descriptor = sys.stdin.fileno()
        if self.echo is None:
            return await _typed_data(descriptor)
        with _unechoed(descriptor):
            while (line := self._typed.next_line()) is None:
                data = await _typed_data(descriptor)
                if data is None:
                    return None
                self._typed.feed(data)
                self.echo(self._typed.draft)
        return line

    def put_back(self, text: str) -> None:
        """Make `text` the next message, returned without prompting."""
        self._next.append(text)


async def _typed_data(descriptor: int) -> str | None:
    try:
        await _wait_readable(descriptor, is_file=False)
        # The terminal would stop a background job that reads.
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return None
        data = os.read(descriptor, _CHUNK)
    except (OSError, NotImplementedError):
        return None
    return data.decode("utf-8", "replace") if data else None


async def _prompt(session: "PromptSession[str]", question: str, draft: str = "") -> str | None:
    try:
        # While the prompt is shown, Ctrl-C is a key press; a SIGINT from elsewhere is handled as usual.
        return await session.prompt_async(question, handle_sigint=False, default=draft)
    except EOFError:
        return None
    except KeyboardInterrupt:
        raise UserInterruptError from None


def _prompt_session(history: Path | None, completions: Completions | None = None) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def newline(event: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text("\n")

    saved = FileHistory(str(history)) if history is not None and _ensure_writable(history) else InMemoryHistory()
    # Standard output may be redirected; the prompt must stay on the terminal.
    return PromptSession(
        history=saved,
        key_bindings=keys,
        output=create_output(stdout=sys.stderr),
        completer=None if completions is None else _completer(completions),
        complete_while_typing=False,
    )


def _completer(completions: Completions) -> "Completer":
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):
        """Completes the whole text before the cursor."""

        def get_completions(self, document: "Document", complete_event: object) -> Iterator[Completion]:
            text = document.text_before_cursor
            for found in completions(text):
                yield Completion(found, start_position=-len(text), display=found.rpartition(" ")[2] or found)

    return Words()


def _ensure_writable(file: Path) -> bool:
    """Create the file, private to the user, and return whether that succeeded."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return True
    return False


@contextmanager
def _unechoed(descriptor: int) -> Generator[None]:
    """Turn off echo and line buffering inside the context. Ctrl-C still sends a signal."""
    try:
        import termios

        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):  # Not a POSIX terminal.
        yield
        return
    changed = [*before]
    changed[3] &= ~(termios.ICANON | termios.ECHO)

    def restore() -> None:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    atexit.register(restore)  # A second Ctrl-C skips the `finally`.
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield
    finally:
        restore()
        atexit.unregister(restore)
