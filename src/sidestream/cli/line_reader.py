"""What a person types, and what a script pipes in: one input at a time."""

import asyncio
import os
import sys
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
    """Where inputs come from. Both methods give None at the end and raise UserInterruptError for Ctrl-C."""

    is_person: bool

    async def line(self) -> str | None:
        """The next message."""
        ...

    async def answer(self, question: str) -> str | None:
        """The answer to a question."""
        ...


def reader(history: Path | None) -> LineReader:
    """A prompt where a person sits at the terminal, else the lines of standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        return TerminalReader(history)
    return PipeReader(None if sys.stdin is None else sys.stdin.fileno())


class PipeReader:
    """The lines of a pipe or a file, read as they come."""

    is_person = False

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._is_over = descriptor is None

    async def line(self) -> str | None:
        """The next line that is not empty."""
        while (line := await self._next()) is not None:
            if line.strip():
                return line.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """The next line; the question is written to standard error."""
        write(sys.stderr, question + "\n")
        return await self._next()

    async def _next(self) -> str | None:
        while b"\n" not in self._rest and not self._is_over:
            await self._more()
        if self._is_over and not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.UsageError("standard input is not UTF-8 text") from error

    async def _more(self) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        await _readable(descriptor)
        data = os.read(descriptor, _CHUNK)
        self._rest += data
        self._is_over = not data


async def _readable(descriptor: int) -> None:
    """Waits until there is something to read; a file always has, if only its end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except (PermissionError, NotImplementedError):
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class TerminalReader:
    """A line editor with history. Enter sends, Esc Enter makes a new line."""

    is_person = True

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._prompt: PromptSession[str] | None = None

    async def line(self) -> str | None:
        """What was typed; empty inputs are asked for again."""
        self._prompt = self._prompt or _session(self._history)
        while (text := await _typed(self._prompt, "> ")) is not None:
            if text.strip():
                return text.strip()
        return None

    async def answer(self, question: str) -> str | None:
        """What was typed; it does not join the history."""
        return await _typed(_session(None), question)


async def _typed(session: "PromptSession[str]", question: str) -> str | None:
    try:
        # Ctrl-C comes as a key while the prompt is shown; a signal is handled as at any other time.
        return await session.prompt_async(question, handle_sigint=False)
    except EOFError:
        return None
    except KeyboardInterrupt:
        raise UserInterruptError from None


def _session(history: Path | None) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def newline(event: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.insert_text("\n")

    kept = FileHistory(str(history)) if history is not None and _is_writable(history) else InMemoryHistory()
    # The answer may go elsewhere; the prompt belongs to the person.
    return PromptSession(history=kept, key_bindings=keys, output=create_output(stdout=sys.stderr))


def _is_writable(file: Path) -> bool:
    """Makes the file, for its user only."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return True
    return False
