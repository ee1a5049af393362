"""Files at the provider, which an agent uploads, downloads, lists and deletes."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, overload

from msgspec.structs import replace

from sidestream.errors import ConfigurationError, LimitError, RunError, UnsupportedError
from sidestream.files import media_types
from sidestream.limits import Limits
from sidestream.messages.message import DataPart
from sidestream.parts import File
from sidestream.providers import transfers
from sidestream.providers.protocol import ChatModel, FileRef
from sidestream.tools.server_side import FileSearch, ServerSideTool
from sidestream.transport.calls import HttpCall, Transport

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Source = str | os.PathLike[str] | bytes | DataPart | File
"""A file to upload, given as its path, as bytes, or as a part that holds bytes."""
Progress = Callable[[int, int], None]
"""Callback that receives the bytes sent so far and the total."""

_MIME_TYPE = r"[\w.+*-]+/[\w.+*-]+(;[ -~]*)?"
_HEAD_BYTES = 4096


class HandlesFiles(ABC):
    """The methods of an agent that handle files at its provider."""

    limits: Limits

    @property
    @abstractmethod
    def model(self) -> ChatModel:
        """Model whose provider has the files."""

    @abstractmethod
    def _carrier(self) -> Transport:
        """Return the transport for requests."""

    async def upload(
        self,
        source: Source,
        *,
        name: str | None = None,
        mime_type: str | None = None,
        container_id: str | None = None,
        store: str | None = None,
        expires_in_s: int | None = None,
        progress: Progress | None = None,
    ) -> transfers.StoredFile:
        """Upload a file, and return once it can be used in a prompt, in a sandbox, or in file search.

        `store` is a vector store or file search store, and `container_id` a code interpreter's container. A path is
        read while it is sent. `progress(sent, total)` counts bytes, and restarts if a request is retried.
        """
        import asyncio

        model = _storing(self.model)
        upload = await asyncio.to_thread(_upload, source, name, mime_type)
        if upload.size_bytes > self.limits.max_upload_bytes:
            raise LimitError(
                f"{upload.name} is {upload.size_bytes} bytes, more than {self.limits.max_upload_bytes}; "
                "if that is expected, raise Limits.max_upload_bytes",
                code="max_upload_bytes",
            )
        upload = replace(upload, container_id=container_id, store=store, expires_in_s=expires_in_s)
        return await self._carry_out(model.upload(upload), progress and _Progress(progress, upload.size_bytes))

    @overload
    async def download(
        self, file: str | transfers.StoredFile, /, *, container_id: str | None = None, store: str | None = None
    ) -> File: ...
    @overload
    async def download(self, container_id: str, file_id: str, /) -> File: ...
    @overload
    async def download(self, *, file_id: str, container_id: str | None = None, store: str | None = None) -> File: ...
    async def download(
        self,
        *place: str | transfers.StoredFile,
        file_id: str | None = None,
        container_id: str | None = None,
        store: str | None = None,
    ) -> File:
        """Download a file with its bytes, name and type, by `download(file_id)` or `download(container_id, file_id)`.

        Most providers let you download only what their tools made, not what you uploaded. With `store`, the file is the
        text that a vector store of OpenAI has of it.
        """
        address = _address(place, file_id, container_id)
        if store is not None:
            return await self._stored_text(store, address.id)
        ref = FileRef(id=address.id, container_id=address.container_id)
        data = await self._carrier().download(self.model.download(ref), self.limits)
        given = next((entry for entry in place if isinstance(entry, transfers.StoredFile)), None)
        known = given if given is not None and given.name else await self._described(address)
        name = os.path.basename(known.name) if known is not None and known.name else None
        return File(address.id, media_types.sniff(data, name), name, data)

    async def describe_file(
        self, file_id: str, *, container_id: str | None = None, store: str | None = None
    ) -> transfers.StoredFile:
        """Return a file that the provider stores, by its id, for a prompt or for its name, size and expiry."""
        address = transfers.FileAddress(id=file_id, container_id=container_id, store=store)
        return await self._carry_out(_storing(self.model).describe_file(address))

    async def list_files(
        self, *, container_id: str | None = None, store: str | None = None
    ) -> list[transfers.StoredFile]:
        """Return the files that the provider stores for you, or those of a container or a store."""
        return await self._carry_out(_storing(self.model).list_files(container_id, store))

    async def delete_file(
        self, file: str | transfers.StoredFile, *, container_id: str | None = None, store: str | None = None
    ) -> bool:
        """Delete a file at the provider, also from its container or store.

        Returns False if the file does not exist.
        """
        address = (
            transfers.FileAddress(id=file, container_id=container_id, store=store)
            if isinstance(file, str)
            else _of(file)
        )
        return await self._is_deleted(_storing(self.model).delete_file(address))

    async def create_store(self, name: str, *, expires_in_s: int | None = None) -> str:
        """Create a store for file search and return its id, for `upload(…, store=id)` and `FileSearch(stores=[id])`."""
        return await self._carry_out(_storing(self.model).create_store(name, expires_in_s))

    async def delete_store(self, store: str) -> bool:
        """Delete a store for file search, or return False if it does not exist."""
        return await self._is_deleted(_storing(self.model).delete_store(store))

    async def _stored_text(self, store: str, file_id: str) -> File:
        model = self.model
        if not isinstance(model, transfers.ReadsStores):
            raise UnsupportedError(f"{model.provider} does not return files of its search stores; leave out store")
        body = await self._carrier().download(model.stored_text(store, file_id), self.limits)
        return File(file_id, "text/plain", None, model.read_stored_text(body).encode("utf-8", "replace"))

    async def _described(self, address: transfers.FileAddress) -> transfers.StoredFile | None:
        """Return what the provider knows about a file, or None. A file is delivered without it, too."""
        if not isinstance(self.model, transfers.TransfersFiles):
            return None
        with suppress(RunError):
            return await self._carry_out(self.model.describe_file(address))
        return None

    async def _is_deleted(self, deletion: transfers.Transfer[None]) -> bool:
        try:
            await self._carry_out(deletion)
        except RunError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _carry_out(self, transfer: transfers.Transfer[T], progress: "_Progress | None" = None) -> T:
        # Not at the top: a program that imports an agent may not use it yet.
        from sidestream.run.transfers import carry_out

        return await carry_out(transfer, self._carrier(), self.limits, progress)


class CitedFileReader:
    """Downloads cited files with an agent: from the stores that its file search uses, or by their ids."""

    def __init__(self, agent: HandlesFiles, tools: Iterable[ServerSideTool]) -> None:
        self._agent = agent
        self._stores = [store for tool in tools if isinstance(tool, FileSearch) for store in tool.stores]

    async def __call__(self, file_id: str) -> File:
        """Return a file. Raises SidestreamError if the provider does not return it."""
        for store in self._stores if isinstance(self._agent.model, transfers.ReadsStores) else ():
            try:
                return await self._agent.download(file_id, store=store)
            except RunError as error:
                if error.status != 404:
                    raise
        return await self._agent.download(file_id)


class _Progress:
    """Reports how much of the content was sent, over all requests of an upload."""

    def __init__(self, report: Progress, total: int) -> None:
        self.error: Exception | None = None
        self._report = report
        self._total = total
        self._sent = -1

    def followed(self, call: HttpCall) -> HttpCall:
        """Return the call, changed to report what it has sent."""
        if call.file is None:
            return call
        file = call.file

        def sent(count: int) -> None:
            self.reach(file.start + min(max(count - len(file.head), 0), file.end - file.start))

        return replace(call, file=replace(file, sent=sent))

    def reach(self, sent: int) -> None:
        """Report the bytes sent. An error of the callback is kept for later, since it must not break the connection."""
        if self.error is not None or sent == self._sent:
            return
        self._sent = sent
        try:
            self._report(sent, self._total)
        except Exception as error:
            self.error = error


def _storing(model: ChatModel) -> transfers.TransfersFiles:
    if not isinstance(model, transfers.TransfersFiles):
        raise UnsupportedError(
            f"{model.provider} does not store files; pass them in the prompt as DataPart(bytes, mime_type)"
        )
    return model


def _upload(source: Source, name: str | None, mime_type: str | None) -> transfers.Upload:
    """Describe the file to upload, with its size. Raises ConfigurationError if it cannot be uploaded."""
    data = source if isinstance(source, bytes) else None
    if isinstance(source, DataPart | File):
        data = source.data
        if data is None:
            raise ConfigurationError(f"the file {source.name or ''} has no bytes, only a URL; download it first")
        name, mime_type = name or source.name, mime_type or source.mime_type
    from pathlib import Path

    path: Path | None = None
    if data is not None:
        size, head = len(data), data[:_HEAD_BYTES]
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        size, head = _measured(path)
        name = name or path.name
    else:
        raise ConfigurationError(f"source must be a path, bytes, a DataPart or a File, not {type(source).__name__}")
    if not size:
        raise ConfigurationError(f"{path or name or 'the file'} is empty; providers do not accept empty files")
    kind = mime_type or media_types.sniff(head, name)
    if not re.fullmatch(_MIME_TYPE, kind):
        raise ConfigurationError(f"{kind!r} is not a MIME type; write it as application/pdf")
    return transfers.Upload(
        source=path if data is None and path is not None else data or b"",
        name=name or f"file.{media_types.extension(kind)}",
        mime_type=kind,
        size_bytes=size,
        boundary=f"sidestream-{os.urandom(16).hex()}",
    )


def _measured(path: "Path") -> tuple[int, bytes]:
    """Return the size of a file and its first bytes."""
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist" if not path.exists() else "is not a plain file"
            raise ConfigurationError(f"{path} {what}; pass the path of a file")
        with path.open("rb") as file:
            return path.stat().st_size, file.read(_HEAD_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _of(file: transfers.StoredFile) -> transfers.FileAddress:
    return transfers.FileAddress(id=file.id, container_id=file.container_id, store=file.store)


def _address(
    place: tuple[str | transfers.StoredFile, ...], file_id: str | None, container_id: str | None
) -> transfers.FileAddress:
    match place:
        case (transfers.StoredFile() as file,) if file_id is None and container_id is None:
            return _of(file)
        case (str() as found,) if file_id is None:
            return transfers.FileAddress(id=found, container_id=container_id)
        case (str() as container, str() as found) if file_id is None and container_id is None:
            return transfers.FileAddress(id=found, container_id=container)
        case () if file_id is not None:
            return transfers.FileAddress(id=file_id, container_id=container_id)
        case _:
            raise ConfigurationError("invalid arguments; write download(file_id) or download(container_id, file_id)")
