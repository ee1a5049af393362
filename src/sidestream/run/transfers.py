"""Transfers of files at a provider: the uploads that a request needs, and the downloads of an answer."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from sidestream.errors import ConfigurationError, LimitError, RunError, UnsupportedError
from sidestream.files import media_types
from sidestream.limits import Limits
from sidestream.parts import Custom, Error, StreamPart
from sidestream.providers import transfers
from sidestream.providers.protocol import FileRef, FileUpload, NamesFiles
from sidestream.run.settings import RunSettings
from sidestream.stream.errors import part_of_error
from sidestream.transport.calls import HttpCall, Transport
from sidestream.turn.machine import Turn

T = TypeVar("T")
FILES_UPLOADED: Final = "sidestream.files-uploaded"
"""Kind of the custom part that reports files uploaded for the container of a hosted tool."""
_GROWTH = 1.5
_EXPIRY_S = 2_592_000
"""Time after which the provider deletes an uploaded file: 30 days."""


class FollowsUpload(Protocol):
    """Observes how much of an upload was sent."""

    error: Exception | None

    def followed(self, call: HttpCall) -> HttpCall:
        """Return the call, changed to report what it has sent."""
        ...

    def reach(self, sent: int) -> None:
        """Report the bytes sent."""
        ...


async def upload_files(uploads: Sequence[FileUpload], settings: RunSettings) -> tuple[dict[str, str], Custom]:
    """Upload files for a container, within the limits. Returns their ids by key, and a notice for the stream.

    Raises RunError if a required file cannot be uploaded. Another one then has an empty id.
    """
    model = settings.model
    if not isinstance(model, transfers.TransfersFiles):
        raise UnsupportedError(f"{model.provider} does not store files")
    uploads = list({upload.key: upload for upload in uploads}.values())
    gate = asyncio.Semaphore(settings.limits.max_parallel_downloads)

    async def send(upload: FileUpload) -> tuple[str, str]:
        async with gate:
            try:
                transfer = model.upload(_described(upload, settings.limits))
                return upload.key, (await carry_out(transfer, settings.transport, settings.limits)).id
            except (RunError, ConfigurationError):
                if upload.is_required:
                    raise
                return upload.key, ""

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(upload)) for upload in uploads]
    except ExceptionGroup as errors:  # In `except*`, early versions of Python 3.11 raise a group again.
        raise errors.exceptions[0] from None
    ids = dict(task.result() for task in tasks)
    files = [{"name": _name(upload), "file_id": ids[upload.key]} for upload in uploads if ids[upload.key]]
    failed = [_name(upload) for upload in uploads if not ids[upload.key]]
    said = [f"Uploaded for the container: {', '.join(file['name'] for file in files)}."] if files else []
    said += [f"Could not upload for the container: {', '.join(failed)}."] if failed else []
    return ids, Custom(FILES_UPLOADED, {"message": " ".join(said), "files": files, "failed": failed})


def _described(upload: FileUpload, limits: Limits) -> transfers.Upload:
    part, size = upload.part, len(upload.part.data)
    if size > limits.max_upload_bytes:
        raise LimitError(
            f"{_name(upload)} is {size} bytes, more than {limits.max_upload_bytes}; "
            "if that is expected, raise Limits.max_upload_bytes",
            code="max_upload_bytes",
        )
    return transfers.Upload(
        source=part.data,
        name=_name(upload),
        mime_type=part.mime_type,
        size_bytes=size,
        container_id=upload.container_id,
        expires_in_s=_EXPIRY_S if upload.container_id is None else None,
        boundary=f"sidestream-{os.urandom(16).hex()}",
    )


def _name(upload: FileUpload) -> str:
    return upload.part.name or f"file.{media_types.extension(upload.part.mime_type)}"


async def carry_out(
    transfer: transfers.Transfer[T], transport: Transport, limits: Limits, progress: FollowsUpload | None = None
) -> T:
    """Send the requests of a transfer until it is complete.

    Raises RunError if a request fails, and any error of the progress callback.
    """
    wait_s, waited_s = limits.poll_interval_s, 0.0
    try:
        step = next(transfer)
        while True:
            if isinstance(step, transfers.Pause):
                if waited_s >= limits.max_processing_s:
                    raise LimitError(
                        f"{step.waits_for}: not done after {limits.max_processing_s:g} s; "
                        "if that is expected, raise Limits.max_processing_s",
                        code="max_processing_s",
                    )
                pause_s = min(wait_s, limits.max_processing_s - waited_s)
                await asyncio.sleep(pause_s)
                waited_s, wait_s = waited_s + pause_s, min(wait_s * _GROWTH, limits.max_poll_interval_s)
                step = next(transfer)
                continue
            try:
                answer = await _answer(step, transport, limits, progress)
            except RunError as error:
                step = transfer.throw(error)
            else:
                step = transfer.send(answer)
    except StopIteration as done:
        return done.value
    finally:
        transfer.close()


async def _answer(
    request: transfers.Request, transport: Transport, limits: Limits, progress: FollowsUpload | None
) -> transfers.TransferResponse:
    call = request.call if progress is None else progress.followed(request.call)
    response = await transport.open(call, limits if request.is_retried else replace(limits, max_retries=0))
    try:
        if progress is not None and call.file is not None:
            progress.reach(call.file.end)  # The answer may come before the last report.
        if progress is not None and progress.error is not None:
            raise progress.error
        return transfers.TransferResponse(
            {name.lower(): value for name, value in response.headers.items()}, await response.body()
        )
    finally:
        await response.aclose()


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
