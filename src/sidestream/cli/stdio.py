"""The three streams of a command: what is read from one, and how the other two are written."""

import os
import select
import stat
import sys
from typing import BinaryIO, TextIO

import click

QUIET_STDIN_S = 2.0
"""After this wait for standard input a line says what is waited for."""


def text_stream(stream: TextIO | None) -> TextIO:
    """The stream, which writes `?` for what its encoding lacks; nowhere, where it was closed from the start."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return stream


def byte_stream(stream: TextIO | None) -> BinaryIO:
    """The same for bytes."""
    return open(os.devnull, "wb") if stream is None else stream.buffer


def is_terminal(stream: TextIO | None) -> bool:
    """True where a person sits at it."""
    return stream is not None and stream.isatty()


def argument(words: tuple[str, ...]) -> str:
    """The prompt of the command line; empty where standard input holds it."""
    if len(words) > 1:
        raise click.UsageError("the prompt has several words: put it in quotes")
    return "" if words == ("-",) else "".join(words).strip()


def question(given: str, *, is_stdin_free: bool = True) -> str:
    """The prompt and what was piped in."""
    piped = _piped(is_wanted=not given) if is_stdin_free else ""
    text = "\n\n".join(part for part in (given, piped.strip("\n")) if part)
    if not text.strip():
        raise click.UsageError("there is no prompt: write one in quotes, or pipe it in")
    return text


def stdin_bytes(max_bytes: int) -> bytes:
    """Standard input, of which at most one byte more than allowed is read."""
    if sys.stdin is None:
        return b""
    _say_what_is_waited_for(sys.stdin)
    return sys.stdin.buffer.read(max_bytes + 1)


def _piped(*, is_wanted: bool) -> str:
    """Standard input; without need for it only where a pipe or a file stands there."""
    stream = sys.stdin
    if stream is None or (not is_wanted and not _is_piped(stream)):
        return ""
    _say_what_is_waited_for(stream)
    try:
        return stream.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError("standard input is not UTF-8 text") from error


def _say_what_is_waited_for(stream: TextIO) -> None:
    if is_terminal(stream):
        print("Type the prompt; Ctrl-D ends it.", file=sys.stderr, flush=True)
    elif not _is_ready(stream):
        print("Waiting for standard input; </dev/null goes without it.", file=sys.stderr, flush=True)


def _is_piped(stream: TextIO) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _is_ready(stream: TextIO) -> bool:
    try:
        return bool(select.select([stream], [], [], QUIET_STDIN_S)[0])
    except (OSError, ValueError):  # Where only sockets can be waited for.
        return True
