"""Downloads of the files that an answer refers to."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from sidestream.errors import RunError
from sidestream.parts import Error, StreamPart
from sidestream.providers.protocol import FileRef, NamesFiles
from sidestream.run.settings import RunSettings
from sidestream.stream.errors import part_of_error
from sidestream.turn.machine import Turn


async def fetch_all(
    refs: Iterable[FileRef], turn: Turn, settings: RunSettings, emit: Callable[[list[StreamPart]], None]
) -> None:
    """Download the files of an answer, and emit them, or the errors, in the order given."""
    for ref, got in await _fetched(refs, settings):
        emit(turn.not_fetched(ref, got) if isinstance(got, Error) else turn.fetched(ref, got))
    emit(turn.all_fetched())


async def _fetched(refs: Iterable[FileRef], settings: RunSettings) -> list[tuple[FileRef, bytes | Error]]:
    """Download files concurrently, within the limit, and return each file or its error."""
    gate = asyncio.Semaphore(settings.limits.max_parallel_downloads)

    async def fetch(ref: FileRef) -> tuple[FileRef, bytes | Error]:
        async with gate:
            try:
                data = await settings.transport.download(settings.model.download(ref), settings.limits)
                return await _named(ref, settings), data
            except RunError as error:
                return ref, part_of_error(error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(ref)) for ref in refs]
    return [task.result() for task in tasks]


async def _named(ref: FileRef, settings: RunSettings) -> FileRef:
    """Add the name of the file, which some providers give only on request.

    If that fails, the file is delivered without one.
    """
    model = settings.model
    if ref.name is not None or not isinstance(model, NamesFiles):
        return ref
    with suppress(RunError):
        body = await settings.transport.download(model.describe(ref), settings.limits)
        return replace(ref, name=model.read_name(body))
    return ref
