"""The Files API and model listing. Pure."""

from typing import Any
from urllib.parse import urlencode

from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_object, objects, text_in
from sidestream.providers import transfers
from sidestream.providers.anthropic.context import PROVIDER_NAME
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.endpoints import EndpointModel, as_segment
from sidestream.providers.shared.modalities import abilities
from sidestream.transport.calls import HttpCall, response_object

FILE_SCHEME = "anthropic-file"
"""URL scheme of files in the Files API, as in `LinkPart("anthropic-file:file_…")`."""


class AnthropicFiles(EndpointModel):
    """A model whose endpoint has Anthropic's Files API."""

    file_scheme = FILE_SCHEME

    def upload(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        """Upload a file to the Files API."""
        if upload.container_id is not None:
            raise transfers.unsupported(
                "Anthropic",
                "copies files into a container by their ids",
                "leave out container_id, and pass CodeInterpreter(file_ids=[file.id])",
            )
        if upload.store is not None:
            raise transfers.unsupported("Anthropic", _NO_STORES[0], _NO_STORES[1])
        transfers.check_expiry(upload.expires_in_s, 3600, 7_776_000, "Anthropic's files (an hour to 90 days)")
        return self._upload(upload)

    def describe_file(self, address: transfers.FileAddress) -> transfers.Transfer[transfers.StoredFile]:
        """Describe a file of the Files API, which also holds files written by code."""
        answer = yield transfers.Request(self._endpoint.call(f"files/{as_segment(address.id)}", method="GET"))
        return read_file(answer.json)

    def list_files(self, container_id: str | None, store: str | None) -> transfers.Transfer[list[transfers.StoredFile]]:
        """List all files."""
        if container_id is not None or store is not None:
            raise transfers.unsupported("Anthropic", "lists all files only", "leave out container_id and store")

        def page_call(after: str | None) -> HttpCall:
            query = urlencode({"limit": 1000, **({"page": after} if after else {})})
            return self._endpoint.call(f"files?{query}", method="GET")

        return transfers.every_page(page_call, _read_page)

    def delete_file(self, address: transfers.FileAddress) -> transfers.Transfer[None]:
        """Delete a file from the Files API."""
        yield transfers.Request(self._endpoint.call(f"files/{as_segment(address.id)}", method="DELETE"))

    def create_store(self, name: str, expires_in_s: int | None) -> transfers.Transfer[str]:
        """Raise UnsupportedError, since the API has no stores."""
        raise transfers.unsupported("Anthropic", _NO_STORES[0], _NO_STORES[1])

    def delete_store(self, store: str) -> transfers.Transfer[None]:
        """Raise UnsupportedError, since the API has no stores."""
        raise transfers.unsupported("Anthropic", _NO_STORES[0], _NO_STORES[1])

    def _upload(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        expiry = {} if upload.expires_in_s is None else {"expires_in_seconds": str(upload.expires_in_s)}
        body, content_type = transfers.multipart(upload, expiry)
        answer = yield transfers.Request(self._endpoint.call("files", file=body, content_type=content_type))
        return read_file(answer.json)


_NO_STORES = ("has no stores for file search", "pass the file in the prompt")


def read_file(found: JsonObject) -> transfers.StoredFile:
    """Convert a file's metadata. Raises ProtocolError if the id or name is missing."""
    file_id, name, downloadable = text_in(found, "id"), text_in(found, "filename"), found.get("downloadable")
    if not file_id or name is None:
        raise ProtocolError("the response does not describe a file")
    return transfers.StoredFile(
        id=file_id,
        provider=PROVIDER_NAME,
        name=name,
        mime_type=text_in(found, "mime_type"),
        size_bytes=transfers.count_of(found.get("size_bytes")),
        is_downloadable=downloadable if isinstance(downloadable, bool) else None,
        expires_at=transfers.seconds_of(found.get("expires_at")),
        url=f"{FILE_SCHEME}:{file_id}",
    )


def _read_page(answer: transfers.TransferResponse) -> tuple[list[transfers.StoredFile], str | None]:
    page = answer.json
    return [read_file(entry) for entry in objects(page.get("data"))], text_in(page, "next_page")


def read_models(body: bytes) -> tuple[list[ModelInfo], str | None]:
    """Return the models of one page, and the id after which the next page begins.

    Raises ProtocolError if the body is not an object.
    """
    page = response_object(body)
    models = [_model(entry) for entry in objects(page.get("data")) if text_in(entry, "id")]
    last = text_in(page, "last_id") if page.get("has_more") is True else None
    return models, last


def _model(entry: JsonObject) -> ModelInfo:
    capabilities: Any = entry.get("capabilities")
    known: JsonObject = dict(capabilities) if is_object(capabilities) else {}
    for fact in ("lifecycle", "line", "deprecated_at", "retires_at"):
        if entry.get(fact) is not None:
            known[fact] = entry[fact]
    return ModelInfo(
        name=str(entry["id"]),
        display_name=text_in(entry, "display_name"),
        max_input_tokens=_count(entry, "max_input_tokens"),
        max_output_tokens=_count(entry, "max_tokens"),
        **abilities(entry),
        capabilities=known,
    )


def _count(entry: JsonObject, key: str) -> int | None:
    value = entry.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
