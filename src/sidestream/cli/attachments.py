"""What goes with a prompt: files, standard input and addresses, as parts of the message."""

import mimetypes
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from sidestream import deliverables
from sidestream.cli.stdio import stdin_bytes
from sidestream.messages.message import DataPart, LinkPart, MessagePart, TextPart

MAX_BYTES = 32_000_000
"""One attachment. Providers refuse requests that are much longer; this says so before anything is sent."""

_TEXTUAL = ("application/json", "application/xml", "application/javascript", "image/svg+xml")


def attached(where: Iterable[str]) -> list[MessagePart]:
    """The parts for these paths and addresses, in order. Raises UsageError for what cannot be attached."""
    given = list(where)
    if given.count("-") > 1:
        raise click.UsageError("standard input can be attached only once")
    return [_part(each) for each in given]


def _part(where: str) -> MessagePart:
    if where.lower().startswith(("http://", "https://")):
        return _link(where)
    if where == "-":
        return _content(stdin_bytes(MAX_BYTES), None, "standard input")
    path = Path(where).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise click.UsageError(f"{where} is a folder; attach the files in it one by one") from None
    except OSError as error:
        raise click.UsageError(f"{where} cannot be attached: {error.strerror}") from None
    except ValueError:
        raise click.UsageError(f"{where!r} is no path") from None
    return _content(data, path.name, where)


def _link(url: str) -> LinkPart:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise click.UsageError(f"{url} is no address") from None
    if not parts.hostname:
        raise click.UsageError(f"{url} names no host")
    name = unquote(parts.path.rpartition("/")[2]) or None
    return LinkPart(url, mimetypes.guess_type(name or "")[0], name)


def _content(data: bytes, name: str | None, where: str) -> MessagePart:
    if not data:
        raise click.UsageError(f"{where} is empty: there is nothing to attach")
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"{where} is too long: at most {MAX_BYTES // 1_000_000} MB can be attached")
    kind = deliverables.sniff(data, name)
    if kind.startswith("text/") or kind in _TEXTUAL:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise click.UsageError(f"{where} looks like text, but it is not UTF-8") from None
        label = f' name="{name}"' if name else ""
        return TextPart(f"<file{label}>\n{text.rstrip()}\n</file>")
    return DataPart(data, kind, name)
