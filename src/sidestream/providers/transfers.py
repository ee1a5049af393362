"""File uploads, metadata, listings and deletions at a provider. Pure.

An operation is a `Transfer`, a generator that yields requests and pauses, receives the responses and returns the
result. `agent/files.py` runs it, and throws the error of a failed request into it.
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
"""Maximum pages that are read of a file list."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file at a provider. Use it directly in a prompt, as in `agent.send(["Summarise this.", file])`.

    `CodeInterpreter(file_ids=[file.id])` copies it to a sandbox. `FileSearch(stores=[file.store])` searches its store.
    """

    id: str
    provider: str
    name: str | None = None
    mime_type: str | None = None
    size_bytes: int | None = None
    container_id: str | None = None
    """Container that holds the file, if any."""
    store: str | None = None
    """Search store that the file was uploaded to, if any."""
    expires_at: float | None = None
    """Expiry time in seconds since the epoch. None means that the file does not expire."""
    is_downloadable: bool | None = None
    """Whether the content can be downloaded. None means that the provider does not say."""
    url: str | None = None
    """URL for a `LinkPart`. None means that the file cannot be model input."""

    @property
    def part(self) -> LinkPart:
        """The file as model input. Raises ConfigurationError if it cannot be model input."""
        if self.url is None:
            raise ConfigurationError(
                f"cannot send {self.id} to a model: it is in a container or a store; use it with a tool, or upload it "
                "without container_id and store"
            )
        return LinkPart(self.url, self.mime_type, self.name)


class FileAddress(Struct, frozen=True, kw_only=True):
    """A file's id, and the container or store that it is in."""

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
    """Random multipart boundary that does not occur in the file."""


class Request(Struct, frozen=True):
    """A request of a transfer. Its response is sent into the generator."""

    call: HttpCall
    is_retried: bool = True
    """Whether failures are retried. False means that the transfer handles them itself."""


class Pause(Struct, frozen=True):
    """A wait before the next request. Waits grow, and their total is limited."""

    waits_for: str
    """Unfinished operation, for the timeout error."""


class TransferResponse(Struct, frozen=True):
    """A response to a transfer's request, with header names in lower case."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        """The body as a JSON object. Raises ProtocolError if it is not one."""
        return response_object(self.body)


Transfer = Generator[Request | Pause, TransferResponse, T]
"""A file operation as a generator that yields requests and pauses, and is sent the responses."""


@runtime_checkable
class TransfersFiles(Protocol):
    """A model whose provider stores files. Unsupported operations raise UnsupportedError before any request."""

    def upload(self, upload: Upload) -> Transfer[StoredFile]:
        """Upload a file and wait until it is usable."""
        ...

    def describe_file(self, address: FileAddress) -> Transfer[StoredFile]:
        """Fetch the metadata of a file."""
        ...

    def list_files(self, container_id: str | None, store: str | None) -> Transfer[list[StoredFile]]:
        """List the stored files, or those of a container or a store."""
        ...

    def delete_file(self, address: FileAddress) -> Transfer[None]:
        """Delete a file."""
        ...

    def create_store(self, name: str, expires_in_s: int | None) -> Transfer[str]:
        """Create a store for file search and return its id."""
        ...

    def delete_store(self, store: str) -> Transfer[None]:
        """Delete a store and its index."""
        ...


@runtime_checkable
class ReadsStores(Protocol):
    """A model whose provider returns the text of files in its search stores."""

    def stored_text(self, store: str, file_id: str) -> HttpCall:
        """Return the request for the text of a file in a store."""
        ...

    def read_stored_text(self, body: bytes) -> str:
        """Parse the text. Raises ProtocolError if it is not one, or not all of it."""
        ...


def multipart(upload: Upload, fields: Mapping[str, str]) -> tuple[FileBody, str]:
    """Build a form with these fields and the file. Returns it with its content type."""
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
    """Check an expiry against the provider's limits. Raises ConfigurationError if it is outside them."""
    if seconds is not None and not shortest <= seconds <= longest:
        raise ConfigurationError(f"expires_in_s must be from {shortest} to {longest} for {what}, not {seconds}")


def unsupported(provider: str, what: str, instead: str) -> UnsupportedError:
    """Return the error for an operation that the provider does not support."""
    return UnsupportedError(f"{provider} {what}; {instead}")


def not_processed(file: str, message: str | None, code: str | None) -> ProviderError:
    """Return the error for a file that was stored but could not be processed."""
    why = message or code or "the provider gives no reason"
    return ProviderError(
        f"the file {file} was uploaded but could not be processed: {why}; "
        f"check its type and content, and delete it with agent.delete_file({file!r})",
        code=code or "processing-failed",
    )


def every_page(
    page_call: Callable[[str | None], HttpCall], read: Callable[[TransferResponse], tuple[list[StoredFile], str | None]]
) -> Transfer[list[StoredFile]]:
    """List the files of all pages. `read` parses one page into its files and the cursor of the next."""
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
    """Convert a number or an ISO 8601 string to seconds since the epoch. Returns None if it is neither."""
    try:
        if isinstance(time, int | float) and not isinstance(time, bool):
            return float(time)
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


def count_of(value: Any) -> int | None:
    """Parse a size from an integer or a decimal string. Returns None if it is neither."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
