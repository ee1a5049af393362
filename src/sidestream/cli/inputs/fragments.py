"""Prompt fragments: text from files, URLs and standard input that precedes the prompt."""

from collections.abc import Iterable
from pathlib import Path

import click

from sidestream.cli.stdio import stdin_bytes

MAX_BYTES = 8_000_000
"""Maximum fragment size, in bytes. More text than any context window holds."""


def load_fragments(sources: Iterable[str]) -> list[str]:
    """Load the fragments' text, in order. Raises UsageError if one cannot be read or is not text."""
    return [_text(source) for source in sources]


def _text(source: str) -> str:
    if source.lower().startswith(("http://", "https://")):
        data = _fetched(source)
    elif source == "-":
        data = stdin_bytes(MAX_BYTES)
    else:
        try:
            with Path(source).expanduser().open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a valid path"
            raise click.UsageError(f"cannot read the fragment {source}: {reason}") from None
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"the fragment {source} is too large: fragments are limited to {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig").strip("\n")
    except UnicodeDecodeError:
        raise click.UsageError(f"the fragment {source} is not UTF-8 text; attach it with -a") from None


def _fetched(url: str) -> bytes:
    from sidestream.cli.interrupts import run_async
    from sidestream.errors import RunError
    from sidestream.limits import Limits
    from sidestream.transport.calls import HttpCall
    from sidestream.wire.http import HttpTransport

    async def fetch() -> bytes:
        return await HttpTransport().download(HttpCall(method="GET", url=url), Limits(max_download_bytes=MAX_BYTES))

    try:
        return run_async(fetch())
    except RunError as error:
        raise click.UsageError(f"cannot fetch the fragment {url}: {error}") from None
