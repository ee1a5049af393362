"""Files at a provider: uploading, describing, listing and deleting them. Pure.

What takes several requests is a `Transfer`: a generator that yields requests and pauses, receives the answers, and
returns the result. `agent/files.py` carries it out. A request that fails is thrown into the generator.
"""

import re
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from sidestream.errors import ConfigurationError, ProviderError, UnsupportedError
from sidestream.jsontext import JsonObject
from sidestream.messages.message import LinkPart
from sidestream.transport.calls import FileBody, HttpCall, response_object

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
MAX_PAGES = 100
"""The most pages of a list of files that are read."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file at a provider. In a prompt it stands as it is: `agent.send(["Summarise this.", file])`.

    `CodeInterpreter(file_ids=[file.id])` puts it into a sandbox, `FileSearch(stores=[file.store])` searches its store.
    """

    id: str
    provider: str
    name: str | None = None
    mime_type: str | None = None
    size_bytes: int | None = None
    container_id: str | None = None
    """The container that holds it, if one does."""
    store: str | None = None
    """The store that it can be searched in, if it was uploaded to one."""
    expires_at: float | None = None
    """When the provider deletes it, in seconds since the epoch; None if it does not."""
    is_downloadable: bool | None = None
    """Whether its content can be downloaded; None if the provider does not say."""
    url: str | None = None
    """Its address as a `LinkPart`; None for a file that cannot be an input of a model."""

    @property
    def part(self) -> LinkPart:
        """The file as an input of a model. Raises ConfigurationError for one that cannot be one."""
        if self.url is None:
            raise ConfigurationError(
                f"{self.id} cannot be an input: it is in a container or a store. Use it by a tool, or upload it without"
            )
        return LinkPart(self.url, self.mime_type, self.name)


class FileAddress(Struct, frozen=True, kw_only=True):
    """Which file: its id, and the container or store that it is in."""

    id: str
    container_id: str | None = None
    store: str | None = None


class Upload(Struct, frozen=True, kw_only=True):
    """A file to upload."""

    source: "Path | bytes"
    name: str
    mime_type: str
    size_bytes: int
    container_id: str | None = None
    store: str | None = None
    expires_in_s: int | None = None
    boundary: str
    """A random text that does not occur in the file."""


class Request(Struct, frozen=True):
    """A request of a transfer; its answer is sent into the generator."""

    call: HttpCall
    is_retried: bool = True
    """False: the transfer handles failures itself."""


class Pause(Struct, frozen=True):
    """A wait before the next request. They become longer, and the time for all of them is limited."""

    waits_for: str
    """What is not done yet, for the error if it takes too long."""


class TransferResponse(Struct, frozen=True):
    """What came back: header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        """The body as a JSON object. Raises ProtocolError."""
        return response_object(self.body)


Transfer = Generator[Request | Pause, TransferResponse, T]
"""Work with files at a provider, as a generator: it yields requests and pauses, and is sent the answers."""


@runtime_checkable
class TransfersFiles(Protocol):
    """A model whose provider stores files. What it does not support raises UnsupportedError before any request."""

    def upload(self, upload: Upload) -> Transfer[StoredFile]:
        """Uploads a file, and waits until it can be used."""
        ...

    def describe_file(self, address: FileAddress) -> Transfer[StoredFile]:
        """What the provider knows about a file."""
        ...

    def list_files(self, container_id: str | None, store: str | None) -> Transfer[list[StoredFile]]:
        """The stored files, or those of a container or a store."""
        ...

    def delete_file(self, address: FileAddress) -> Transfer[None]:
        """Deletes a file."""
        ...

    def create_store(self, name: str, expires_in_s: int | None) -> Transfer[str]:
        """Creates a store for file search; returns its id."""
        ...

    def delete_store(self, store: str) -> Transfer[None]:
        """Deletes a store with what it has indexed."""
        ...


def multipart(upload: Upload, fields: Mapping[str, str]) -> tuple[FileBody, str]:
    """A form with these fields and the file, and its content type."""
    quoted = re.sub(r'[\r\n"\x00]', "_", upload.name)
    texts = [f'name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    texts.append(f'name="file"; filename="{quoted}"\r\nContent-Type: {upload.mime_type}\r\n\r\n')
    head = "".join(f"--{upload.boundary}\r\nContent-Disposition: form-data; {text}" for text in texts)
    body = FileBody(
        source=upload.source,
        start=0,
        end=upload.size_bytes,
        head=head.encode(),
        tail=f"\r\n--{upload.boundary}--\r\n".encode(),
    )
    return body, f"multipart/form-data; boundary={upload.boundary}"


def check_expiry(seconds: int | None, shortest: int, longest: int, what: str) -> None:
    """Raises ConfigurationError for an expiry that the provider would refuse."""
    if seconds is not None and not shortest <= seconds <= longest:
        raise ConfigurationError(f"expires_in_s must be from {shortest} to {longest} for {what}, not {seconds}")


def unsupported(provider: str, what: str, instead: str) -> UnsupportedError:
    """The error for a kind of transfer that the provider does not have."""
    return UnsupportedError(f"{provider} {what}; {instead}")


def not_processed(file: str, message: str | None, code: str | None) -> ProviderError:
    """The error for a file that was stored, but could not be processed."""
    why = message or code or "the provider gives no reason"
    return ProviderError(
        f"The file {file} was uploaded, but could not be processed: {why}. "
        f"Check its type and content; agent.delete_file({file!r}) deletes it.",
        code=code or "processing-failed",
    )


def every_page(
    page_call: Callable[[str | None], HttpCall], read: Callable[[TransferResponse], tuple[list[StoredFile], str | None]]
) -> Transfer[list[StoredFile]]:
    """The files of all pages; `read` returns those of one, and what the next begins after."""
    found: list[StoredFile] = []
    after: str | None = None
    for _ in range(MAX_PAGES):
        answer = yield Request(page_call(after))
        files, after = read(answer)
        found += files
        if not after:
            break
    return found


def seconds_of(time: Any) -> float | None:
    """A time in seconds since the epoch, from a number or such as `2026-01-31T00:00:00Z`; None if it is not one."""
    try:
        if isinstance(time, int | float) and not isinstance(time, bool):
            return float(time)
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


def count_of(value: Any) -> int | None:
    """A size, which may be written as text; None if it is not one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
