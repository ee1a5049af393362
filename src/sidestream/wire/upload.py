"""Bodies that are read while they are sent, so that a file is never held whole."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from sidestream.errors import ConfigurationError
from sidestream.transport.calls import FileBody

PIECE_BYTES: Final = 256 * 1024


def check_unchanged(file: FileBody) -> None:
    """Raises ConfigurationError for a file that cannot be read, or has become shorter since it was measured."""
    if isinstance(file.source, bytes):
        return
    try:
        size = file.source.stat().st_size
    except OSError as error:
        raise ConfigurationError(f"{file.source} cannot be read: {error.strerror}") from error
    if size < file.end:
        raise ConfigurationError(f"{file.source} became shorter while it was uploaded; upload it again")


async def pieces_of(file: FileBody) -> AsyncGenerator[bytes]:
    """The body, piece by piece. Raises OSError if the file cannot be read to its end."""
    sent = 0
    async for piece in _pieces(file):
        yield piece
        sent += len(piece)
        if file.sent is not None:
            file.sent(sent)


async def _pieces(file: FileBody) -> AsyncGenerator[bytes]:
    if file.head:
        yield file.head
    for start in range(file.start, file.end, PIECE_BYTES):
        length = min(PIECE_BYTES, file.end - start)
        if isinstance(file.source, bytes):
            yield file.source[start : start + length]
            continue
        # The file is opened for each piece: nothing is left open if the request is given up.
        piece = await asyncio.to_thread(_read, file.source, start, length)
        if len(piece) < length:
            raise OSError(f"{file.source} became shorter while it was uploaded")
        yield piece
    if file.tail:
        yield file.tail


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)
