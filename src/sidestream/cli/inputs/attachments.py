"""Attachments of a prompt, from files, URLs, standard input and the clipboard."""

import mimetypes
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from sidestream.cli.stdio import stdin_bytes
from sidestream.files import media_types
from sidestream.messages.container_files import is_for_code
from sidestream.messages.message import DataPart, LinkPart, MessagePart, TextPart

NAME = "clipboard"
TIMEOUT_S = 10.0
IMAGE = "image/png"

_PROGRAMS: tuple[tuple[str, list[str], list[str], list[str]], ...] = (
    ("wl-paste", ["--list-types"], ["--type", IMAGE], ["--no-newline"]),
    (
        "xclip",
        ["-selection", NAME, "-t", "TARGETS", "-o"],
        ["-selection", NAME, "-t", IMAGE, "-o"],
        ["-selection", NAME, "-o"],
    ),
    ("pbpaste", [], [], []),
)
"""Clipboard programs, with their arguments to list types, read an image and read text."""


def read_clipboard() -> bytes:
    """Read an image from the clipboard, or else its text. Raises UsageError if that fails."""
    if sys.platform == "win32":
        return _run(["powershell", "-NoProfile", "-Command", "Get-Clipboard -Raw"])
    for program, types, image, text in _PROGRAMS:
        if shutil.which(program):
            has_image = bool(types) and IMAGE.encode() in _run([program, *types], is_checked=False)
            return _run([program, *(image if has_image else text)])
    programs = ", ".join(program for program, *_ in _PROGRAMS)
    raise click.UsageError(f"cannot read the clipboard: install one of {programs}")


def _run(command: list[str], *, is_checked: bool = True) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise click.UsageError(f"{command[0]} could not read the clipboard") from None
    if is_checked and done.returncode != 0:
        raise click.UsageError(f"{command[0]} could not read the clipboard; is it empty?")
    return done.stdout


MAX_BYTES = 32_000_000
"""Maximum attachment size, in bytes. Providers reject larger requests, so fail before sending one."""

_TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "image/svg+xml")


def load_attachments(sources: Iterable[str], *, runs_code: bool = False) -> list[MessagePart]:
    """Return the message parts for these paths and URLs, in order. Raises UsageError if one cannot be attached.

    With `runs_code`, a tool runs code: files then go to its container only, except those that models see or hear.
    """
    sources = list(sources)
    if sources.count("-") > 1:
        raise click.UsageError("standard input can be attached only once")
    return [_part(source, runs_code) for source in sources]


def _part(source: str, runs_code: bool) -> MessagePart:
    if source.lower().startswith(("http://", "https://")):
        return _link(source)
    if source == "-":
        return _content(stdin_bytes(MAX_BYTES), None, "standard input")
    path = Path(source).expanduser()
    if source == NAME and not path.exists():
        return _content(read_clipboard(), None, "the clipboard")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise click.UsageError(f"{source} is a folder; attach its files one by one") from None
    except OSError as error:
        raise click.UsageError(f"cannot attach {source}: {error.strerror}") from None
    except ValueError:
        raise click.UsageError(f"{source!r} is not a valid path") from None
    return _content(data, path.name, source, runs_code=runs_code)


def _link(url: str) -> LinkPart:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise click.UsageError(f"{url} is not a valid URL") from None
    if not parts.hostname:
        raise click.UsageError(f"{url} has no host")
    name = unquote(parts.path.rpartition("/")[2]) or None
    return LinkPart(url, mimetypes.guess_type(name or "")[0], name)


def _content(data: bytes, name: str | None, source: str, *, runs_code: bool = False) -> MessagePart:
    if not data:
        raise click.UsageError(f"{source} is empty: there is nothing to attach")
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"{source} is too large: attachments are limited to {MAX_BYTES // 1_000_000} MB")
    mime_type = media_types.sniff(data, name)
    if runs_code and is_for_code(mime_type):
        return DataPart(data, mime_type, name, to="container")
    if mime_type.startswith("text/") or mime_type in _TEXT_TYPES:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise click.UsageError(f"{source} looks like text, but is not UTF-8") from None
        label = f' name="{name}"' if name else ""
        return TextPart(f"<file{label}>\n{text.rstrip()}\n</file>")
    return DataPart(data, mime_type, name)
