"""Reads messages and answers: typed at the terminal, or from a pipe."""

import asyncio
import os
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from sidestream.cli.process import UserInterruptError
from sidestream.cli.terminal import write

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_CHUNK = 64 * 1024
HISTORY = "history"


class LineReader(Protocol):
    """A source of input. Both methods return None at its end and raise UserInterruptError on Ctrl-C."""

    async def message(self) -> str | None:
        """Reads the next message."""
        ...

    async def answer(self, question: str) -> str | None:
        """Prints a question and reads the answer."""
        ...


def open_reader(history: Path | None) -> LineReader:
    """A line editor if standard input is a terminal, else a reader of its lines."""
    if sys.stdin is not None and sys.stdin.isatty():
        return TerminalReader(history)
    return PipeReader(None if sys.stdin is None else sys.stdin.fileno())


class PipeReader:
    """Reads the lines of a pipe or a file as they arrive."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._at_end = descriptor is None

    async def message(self) -> str | None:
        """Reads the next line that is not blank."""
        while (line := await self._read_line()) is not None:
            if line.strip():
                return line.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """Prints the question to standard error and reads the next line."""
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
    """Waits until the descriptor is readable; a regular file always is, if it may be one."""
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
    """A line editor with history. Enter sends, Esc Enter inserts a newline."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._prompt: PromptSession[str] | None = None
        self._next: deque[str] = deque()

    async def message(self) -> str | None:
        """Prompts until something other than whitespace is entered."""
        if self._next:
            return self._next.popleft()
        self._prompt = self._prompt or _prompt_session(self._history)
        while (text := await _prompt(self._prompt, "> ")) is not None:
            if text.strip():
                return text.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """Prompts for an answer, which is not added to the history."""
        return await _prompt(_prompt_session(None), question)

    async def interjection(self) -> str | None:
        """Reads a line that is entered while the model answers; None if that is not, or no longer, possible.

        The terminal itself edits it; what is typed without Enter is left for the next prompt.
        """
        descriptor = sys.stdin.fileno()
        try:
            await _wait_readable(descriptor, is_file=False)
            # A job in the background must not read: the terminal would stop it.
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                return None
            data = os.read(descriptor, _CHUNK)
        except (OSError, NotImplementedError):
            return None
        return data.decode("utf-8", "replace") if data else None

    def put_back(self, text: str) -> None:
        """Makes this the next message, before the prompt is shown again."""
        self._next.append(text)


async def _prompt(session: "PromptSession[str]", question: str) -> str | None:
    try:
        # While the prompt is shown, Ctrl-C arrives as a key press. A SIGINT is handled as at any other time.
        return await session.prompt_async(question, handle_sigint=False)
    except EOFError:
        return None
    except KeyboardInterrupt:
        raise UserInterruptError from None


def _prompt_session(history: Path | None) -> "PromptSession[str]":
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
    return PromptSession(history=saved, key_bindings=keys, output=create_output(stdout=sys.stderr))


def _ensure_writable(file: Path) -> bool:
    """Creates the file, private to the user; False if that fails."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return True
    return False
