"""Downloads the files that an answer names."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from sidestream.errors import RunError
from sidestream.providers.protocol import FileRef, NamesFiles
from sidestream.run.settings import RunSettings
from sidestream.stream.errors import part_of_error
from sidestream.stream.parts import Error, StreamPart
from sidestream.turn.machine import Turn


async def fetch_all(
    refs: Iterable[FileRef], turn: Turn, settings: RunSettings, emit: Callable[[list[StreamPart]], None]
) -> None:
    """Downloads the files of an answer; emits them in the order given, and why one could not be downloaded."""
    for ref, got in await _fetched(refs, settings):
        emit(turn.not_fetched(ref, got) if isinstance(got, Error) else turn.fetched(ref, got))
    emit(turn.all_fetched())


async def _fetched(refs: Iterable[FileRef], settings: RunSettings) -> list[tuple[FileRef, bytes | Error]]:
    """Each file, or why there is none. Downloads run concurrently, bounded."""
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
    """The file with its name, which some providers give only on request. A file is delivered without one, too."""
    model = settings.model
    if ref.name is not None or not isinstance(model, NamesFiles):
        return ref
    with suppress(RunError):
        body = await settings.transport.download(model.describe(ref), settings.limits)
        return replace(ref, name=model.read_name(body))
    return ref
