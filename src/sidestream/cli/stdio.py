"""Standard streams: prompts and attachments from standard input, safe text, bytes and warnings on output."""

import os
import select
import stat
import sys
from typing import BinaryIO, TextIO

import click

STDIN_NOTICE_S = 2.0
"""Seconds to wait for standard input before printing a notice."""


def text_stream(stream: TextIO | None) -> TextIO:
    """Make the stream write `?` for characters its encoding lacks. Returns the null device if the stream is closed."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return stream


def byte_stream(stream: TextIO | None) -> BinaryIO:
    """Return the stream's binary buffer, or the null device if the stream is closed."""
    return open(os.devnull, "wb") if stream is None else stream.buffer


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is connected to a terminal."""
    return stream is not None and stream.isatty()


def prompt_argument(words: tuple[str, ...]) -> str:
    """Return the prompt given as an argument, or an empty string if standard input provides it."""
    if len(words) > 1:
        raise click.UsageError("the prompt must be one argument: put it in quotes")
    return "" if words == ("-",) else "".join(words).strip()


def read_prompt(argument: str, *, is_stdin_free: bool = True, is_required: bool = True) -> str:
    """Return the prompt argument followed by piped input. Raises UsageError if a required prompt is empty."""
    piped = _read_stdin(is_required=is_required and not argument) if is_stdin_free else ""
    text = "\n\n".join(part for part in (argument, piped.strip("\n")) if part)
    if is_required and not text.strip():
        raise click.UsageError("no prompt: give one in quotes, or pipe it in")
    return text


def stdin_bytes(max_bytes: int) -> bytes:
    """Read standard input, at most `max_bytes` + 1 bytes so that the caller can detect too much."""
    if sys.stdin is None:
        return b""
    _print_wait_notice(sys.stdin)
    return sys.stdin.buffer.read(max_bytes + 1)


def _read_stdin(*, is_required: bool) -> str:
    """Read standard input as text. If it is not required, read only a pipe or a file."""
    stream = sys.stdin
    if stream is None or (not is_required and not _is_piped(stream)):
        return ""
    _print_wait_notice(stream)
    try:
        return stream.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError("standard input is not UTF-8 text") from error


def _print_wait_notice(stream: TextIO) -> None:
    if is_terminal(stream):
        print("Type the prompt, then press Ctrl-D.", file=sys.stderr, flush=True)
    elif not _is_ready(stream):
        print("Waiting for standard input; use </dev/null to skip it.", file=sys.stderr, flush=True)


def _is_piped(stream: TextIO) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _is_ready(stream: TextIO) -> bool:
    try:
        return bool(select.select([stream], [], [], STDIN_NOTICE_S)[0])
    except (OSError, ValueError):  # On Windows, only sockets can be selected.
        return True


VARIABLE = "SIDESTREAM_LOG"


def warn_on_stderr() -> None:
    """Log warnings until the command ends, unless SIDESTREAM_LOG sets a level."""
    if not os.environ.get(VARIABLE, "").strip():
        import logging

        from sidestream.logs import ROOT, log_to_stderr

        handler = log_to_stderr("warning")
        click.get_current_context().call_on_close(lambda: logging.getLogger(ROOT).removeHandler(handler))
