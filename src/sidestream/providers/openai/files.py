"""Base class of OpenAI's models, with files, containers, vector stores, model lists and embeddings. Pure."""

import mimetypes
import posixpath
from collections.abc import Sequence
from math import ceil
from typing import Any
from urllib.parse import urlencode

from sidestream import jsontext
from sidestream.errors import ProtocolError, RunError
from sidestream.jsontext import JsonObject, as_object, objects, text_in
from sidestream.providers import transfers
from sidestream.providers.embedding import EmbeddingCall, EmbeddingsResult
from sidestream.providers.openai.account import FILE_SCHEME, decode_embeddings, embedding_calls
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.endpoints import JSON, EndpointModel, as_segment
from sidestream.transport.calls import HttpCall, response_object

_STORES = {"OpenAI-Beta": "assistants=v2"}
_DAY_S = 86_400


class CatalogModel(EndpointModel):
    """A model whose endpoint has OpenAI's Models API."""

    def list_models(self, after: str | None = None) -> HttpCall:
        """Return the request for all models, which are on one page."""
        return self._endpoint.call("models", method="GET")

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """Parse the models of the only page."""
        from sidestream.providers.openai.model_families import read_models

        return read_models(body), None


class OpenAIModel(CatalogModel):
    """A model whose endpoint has OpenAI's Files, Models and Embeddings APIs."""

    file_scheme = FILE_SCHEME

    def embedding_calls(self, texts: Sequence[str], options: Any) -> Sequence[EmbeddingCall]:
        """Return one call per batch."""
        return embedding_calls(self._endpoint.call("embeddings", content_type=JSON), self.name, texts, options)

    def read_embeddings(self, body: bytes, count: int) -> EmbeddingsResult:
        """Parse the vectors of a batch."""
        return decode_embeddings(body, count, self.name)

    def upload(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        """Upload a file to a container, or to the Files API and from there to a vector store if one is given."""
        if upload.container_id is not None:
            return self._to_container(upload, upload.container_id)
        transfers.check_expiry(upload.expires_in_s, 3600, 2_592_000, "OpenAI's files (an hour to 30 days)")
        return self._to_files(upload)

    def describe_file(self, address: transfers.FileAddress) -> transfers.Transfer[transfers.StoredFile]:
        """Fetch the metadata of a file in the Files API or in a container."""
        answer = yield transfers.Request(self._file_call(address, "GET"))
        return self._read(answer.json)

    def list_files(self, container_id: str | None, store: str | None) -> transfers.Transfer[list[transfers.StoredFile]]:
        """List all files, or those of a container or a vector store. A store lists ids and sizes only."""
        folder, headers = "files", {}
        if container_id is not None:
            folder = f"containers/{as_segment(container_id)}/files"
        elif store is not None:
            folder, headers = f"vector_stores/{as_segment(store)}/files", _STORES

        def page_call(after: str | None) -> HttpCall:
            query = urlencode({"limit": 100, **({"after": after} if after else {})})
            return self._endpoint.call(f"{folder}?{query}", method="GET", headers=headers)

        return transfers.every_page(page_call, self._read_page)

    def delete_file(self, address: transfers.FileAddress) -> transfers.Transfer[None]:
        """Delete a file from its container, or from its vector store and the Files API."""
        if address.store is not None:
            try:
                yield transfers.Request(self._store_call(address.store, address.id, "DELETE"))
            except RunError as error:
                if error.status != 404:
                    raise
        yield transfers.Request(self._file_call(address, "DELETE"))

    def stored_text(self, store: str, file_id: str) -> HttpCall:
        """Return the request for the text that a vector store has of a file."""
        path = f"vector_stores/{as_segment(store)}/files/{as_segment(file_id)}/content"
        return self._endpoint.call(path, method="GET", headers=_STORES)

    def read_stored_text(self, body: bytes) -> str:
        """Parse the text of a file in a vector store."""
        page = response_object(body)
        if page.get("has_more") is True:
            raise ProtocolError("the vector store returned only a part of the file")
        return "\n".join(text for entry in objects(page.get("data")) if (text := text_in(entry, "text")))

    def create_store(self, name: str, expires_in_s: int | None) -> transfers.Transfer[str]:
        """Create a vector store. It expires in whole days since it was last used."""
        transfers.check_expiry(expires_in_s, 1, 365 * _DAY_S, "OpenAI's vector stores (up to 365 days)")
        body: JsonObject = {"name": name}
        if expires_in_s is not None:
            body["expires_after"] = {"anchor": "last_active_at", "days": ceil(expires_in_s / _DAY_S)}
        answer = yield transfers.Request(self._endpoint.call("vector_stores", jsontext.dumps(body), headers=_STORES))
        return _id(answer.json)

    def delete_store(self, store: str) -> transfers.Transfer[None]:
        """Delete a vector store. Its files stay in the Files API."""
        path = f"vector_stores/{as_segment(store)}"
        yield transfers.Request(self._endpoint.call(path, method="DELETE", headers=_STORES))

    def _to_files(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        fields = {"purpose": "user_data" if upload.store is None else "assistants"}
        if upload.expires_in_s is not None:
            fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(upload.expires_in_s)}
        answer = yield transfers.Request(self._form_call("files", upload, fields))
        file = self._read(answer.json, upload)
        if upload.store is not None:
            try:
                yield from self._index(upload.store, file.id)
            except RunError as error:
                error.add_note(f"The file {file.id} was uploaded; delete it with agent.delete_file({file.id!r}).")
                raise
        return file

    def _to_container(self, upload: transfers.Upload, container_id: str) -> transfers.Transfer[transfers.StoredFile]:
        if upload.expires_in_s is not None:
            raise transfers.unsupported(
                "OpenAI", "deletes container files with their container", "leave out expires_in_s"
            )
        if upload.store is not None:
            raise transfers.unsupported(
                "OpenAI", "stores a file in a container or a store, not both", "upload it twice"
            )
        answer = yield transfers.Request(self._form_call(f"containers/{as_segment(container_id)}/files", upload, {}))
        return self._read(answer.json, upload)

    def _index(self, store: str, file_id: str) -> transfers.Transfer[None]:
        """Add a file to a vector store and wait until it can be searched."""
        body = jsontext.dumps({"file_id": file_id})
        path = f"vector_stores/{as_segment(store)}/files"
        answer = yield transfers.Request(self._endpoint.call(path, body, headers=_STORES))
        while (state := answer.json).get("status") == "in_progress":
            yield transfers.Pause(f"indexing {file_id} in {store}")
            answer = yield transfers.Request(self._store_call(store, file_id, "GET"))
        if state.get("status") != "completed":
            error = as_object(state.get("last_error"))
            raise transfers.not_processed(file_id, text_in(error, "message"), text_in(error, "code"))

    def _form_call(self, path: str, upload: transfers.Upload, fields: dict[str, str]) -> HttpCall:
        body, content_type = transfers.multipart(upload, fields)
        return self._endpoint.call(path, file=body, content_type=content_type)

    def _file_call(self, address: transfers.FileAddress, method: str) -> HttpCall:
        container = f"containers/{as_segment(address.container_id)}/" if address.container_id is not None else ""
        return self._endpoint.call(f"{container}files/{as_segment(address.id)}", method=method)

    def _store_call(self, store: str, file_id: str, method: str) -> HttpCall:
        path = f"vector_stores/{as_segment(store)}/files/{as_segment(file_id)}"
        return self._endpoint.call(path, method=method, headers=_STORES)

    def _read_page(self, answer: transfers.TransferResponse) -> tuple[list[transfers.StoredFile], str | None]:
        page = answer.json
        entries = [entry for entry in objects(page.get("data")) if text_in(entry, "id")]
        after = text_in(page, "last_id") or (str(entries[-1]["id"]) if entries else None)
        return [self._read(entry) for entry in entries], after if page.get("has_more") is True else None

    def _read(self, found: JsonObject, upload: transfers.Upload | None = None) -> transfers.StoredFile:
        """Parse a file from the Files API, a container or a vector store."""
        file_id, container = _id(found), text_in(found, "container_id")
        path = text_in(found, "path")
        name = text_in(found, "filename") or (posixpath.basename(path) if path else None)
        return transfers.StoredFile(
            id=file_id,
            provider=self.provider,
            name=name,
            # The API does not report it, but the encoder must know which files are images.
            mime_type=upload.mime_type if upload is not None else mimetypes.guess_type(name or "")[0],
            size_bytes=transfers.count_of(found.get("bytes")),
            container_id=container,
            store=upload.store if upload is not None else text_in(found, "vector_store_id"),
            expires_at=transfers.seconds_of(found.get("expires_at")),
            url=f"{FILE_SCHEME}:{file_id}" if container is None else None,
        )


def _id(found: JsonObject) -> str:
    found_id = text_in(found, "id")
    if not found_id:
        raise ProtocolError("the response has no id")
    return found_id
