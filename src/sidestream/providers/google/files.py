"""Model listing and resumable uploads that both of Google's APIs share. Pure.

An upload to the Files API or to a file search store is started, then sent in chunks. After a failure the server reports
how much it has received, and the upload continues from there, so nothing is stored twice.
"""

import re
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit, urlunsplit

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.errors import ProtocolError, RunError
from sidestream.jsontext import JsonObject, as_object, objects
from sidestream.providers import transfers
from sidestream.providers.google.catalog import decode_models, list_models_call
from sidestream.providers.google.context import some_text
from sidestream.providers.google.endpoint import DEFAULT_BASE_URL, model_path
from sidestream.providers.protocol import ModelInfo
from sidestream.providers.shared.endpoints import JSON, EndpointModel
from sidestream.transport.calls import FileBody, HttpCall

CHUNK_BYTES = 8 * 1024 * 1024
"""Chunk size of Google's own clients."""
MAX_BREAKS = 3
"""Maximum consecutive failures before an upload is given up."""
FILE_SCHEME = "google-file"
"""URL scheme of files in the Files API, as in `LinkPart("google-file:https://…/files/abc", "application/pdf")`."""
_STORES = "fileSearchStores/"


class GoogleModel(EndpointModel):
    """A model whose endpoint has Google's Files and Models APIs."""

    file_scheme = FILE_SCHEME

    def list_models(self, after: str | None = None) -> HttpCall:
        """Create the call for a page of models."""
        return list_models_call(self._endpoint, after)

    def read_models(self, body: bytes) -> tuple[list[ModelInfo], str | None]:
        """Return the models of a page, and the token of the next one."""
        return decode_models(body)

    def upload(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        """Upload a file to the Files API, which keeps it for 48 hours, or to a file search store."""
        if upload.container_id is not None:
            raise transfers.unsupported(
                "Google", "has no containers", "leave out container_id, and pass the file in the prompt"
            )
        if upload.expires_in_s is not None:
            raise transfers.unsupported(
                "Google",
                "keeps uploaded files for 48 hours, and those of a store indefinitely",
                "leave out expires_in_s",
            )
        return self._to_files(upload) if upload.store is None else self._to_store(upload, upload.store)

    def describe_file(self, address: transfers.FileAddress) -> transfers.Transfer[transfers.StoredFile]:
        """Describe a file, or a document of a store."""
        answer = yield transfers.Request(self._endpoint.call(_path(address.id, address.store), method="GET"))
        return self._read(answer.json)

    def list_files(self, container_id: str | None, store: str | None) -> transfers.Transfer[list[transfers.StoredFile]]:
        """List all files, or the documents of a store."""
        if container_id is not None:
            raise transfers.unsupported("Google", "does not list the files of a container", "leave out container_id")
        folder = "files" if store is None else f"{model_path(_store_name(store))}/documents"

        def page_call(after: str | None) -> HttpCall:
            query = urlencode({"pageSize": 20 if store else 100, **({"pageToken": after} if after else {})})
            return self._endpoint.call(f"{folder}?{query}", method="GET")

        return transfers.every_page(page_call, self._read_page)

    def delete_file(self, address: transfers.FileAddress) -> transfers.Transfer[None]:
        """Delete a file, or a document of a store together with its index entries."""
        path = _path(address.id, address.store)
        force = "?force=true" if path.startswith(_STORES) else ""
        yield transfers.Request(self._endpoint.call(f"{path}{force}", method="DELETE"))

    def create_store(self, name: str, expires_in_s: int | None) -> transfers.Transfer[str]:
        """Create a file search store."""
        if expires_in_s is not None:
            raise transfers.unsupported("Google", "keeps a store until it is deleted", "leave out expires_in_s")
        body = jsontext.dumps({"displayName": name})
        answer = yield transfers.Request(self._endpoint.call("fileSearchStores", body))
        return _name(answer.json)

    def delete_store(self, store: str) -> transfers.Transfer[None]:
        """Delete a store with its documents."""
        yield transfers.Request(self._endpoint.call(f"{model_path(_store_name(store))}?force=true", method="DELETE"))

    def _to_files(self, upload: transfers.Upload) -> transfers.Transfer[transfers.StoredFile]:
        about = {"displayName": upload.name, "mimeType": upload.mime_type}
        answer = yield from self._send("files", {"file": about}, upload)
        found = as_object(answer.get("file"))
        while found.get("state") == "PROCESSING":
            name = _name(found)
            yield transfers.Pause(f"Google is processing {name}")
            found = (yield transfers.Request(self._endpoint.call(model_path(name), method="GET"))).json
        if found.get("state") == "FAILED":
            error = as_object(found.get("error"))
            raise transfers.not_processed(_name(found), some_text(error, "message"), None)
        return self._read(found)

    def _to_store(self, upload: transfers.Upload, store: str) -> transfers.Transfer[transfers.StoredFile]:
        name = _store_name(store)
        about = {"displayName": upload.name, "mimeType": upload.mime_type}
        operation = yield from self._send(f"{model_path(name)}:uploadToFileSearchStore", about, upload)
        while operation.get("done") is not True and "response" not in operation:
            yield transfers.Pause(f"{name} is indexing {upload.name}")
            path = model_path(_name(operation))
            operation = (yield transfers.Request(self._endpoint.call(path, method="GET"))).json
        if error := as_object(operation.get("error")):
            raise transfers.not_processed(
                _name(operation), some_text(error, "message"), str(error.get("code") or "") or None
            )
        document = some_text(as_object(operation.get("response")), "documentName")
        if document is None:
            raise ProtocolError("the response has no documentName")
        return transfers.StoredFile(
            id=document,
            provider=self.provider,
            name=upload.name,
            mime_type=upload.mime_type,
            size_bytes=upload.size_bytes,
            store=name,
        )

    def _send(self, path: str, about: JsonObject, upload: transfers.Upload) -> transfers.Transfer[JsonObject]:
        """Send the content in chunks, and return the response to the last one."""
        size = upload.size_bytes
        url = self._session_url((yield transfers.Request(self._start_call(path, about, upload))))
        offset = breaks = 0
        while True:
            end = min(offset + CHUNK_BYTES, size)
            body = FileBody(source=upload.source, start=offset, end=end)
            command = "upload, finalize" if end == size else "upload"
            headers = {"X-Goog-Upload-Command": command, "X-Goog-Upload-Offset": str(offset)}
            received: int | None = end if end < size else None
            try:
                answer = yield transfers.Request(self._session_call(url, headers, body), is_retried=False)
                breaks = 0
            except RunError as error:
                breaks += 1
                if not error.retryable or breaks > MAX_BREAKS:
                    raise
                yield transfers.Pause(f"the upload of {upload.name} is being retried")
                answer = yield transfers.Request(self._session_call(url, {"X-Goog-Upload-Command": "query"}))
                received = transfers.count_of(answer.headers.get("x-goog-upload-size-received"))
            status = answer.headers.get("x-goog-upload-status")
            if status == "final":
                return answer.json
            if status != "active" or received is None or received > size:
                raise ProtocolError(f"the upload of {upload.name} was not accepted: its status is {status!r:.40}")
            offset = received

    def _start_call(self, path: str, about: JsonObject, upload: transfers.Upload) -> HttpCall:
        call = self._endpoint.call(
            path,
            jsontext.dumps(about),
            headers={
                "X-Goog-Upload-Protocol": "resumable",
                "X-Goog-Upload-Command": "start",
                "X-Goog-Upload-Header-Content-Length": str(upload.size_bytes),
                "X-Goog-Upload-Header-Content-Type": upload.mime_type,
            },
        )
        parts = urlsplit(call.url)
        upload_path = re.sub(r"/(?=v\d+\w*/)", "/upload/", parts.path, count=1)  # /v1/files → /upload/v1/files
        return replace(call, url=urlunsplit(parts._replace(path=upload_path)))

    def _session_url(self, answer: transfers.TransferResponse) -> str:
        """Return the URL for the content. Like Google's own clients, it keeps the host of a custom base URL."""
        try:
            given = urlsplit(answer.headers.get("x-goog-upload-url", ""))
        except ValueError:
            given = urlsplit("")
        if given.scheme not in ("https", "http") or not given.netloc:
            raise ProtocolError("the response has no valid upload URL")
        base = urlsplit(self.base_url)
        if base.netloc != urlsplit(DEFAULT_BASE_URL).netloc:
            given = given._replace(scheme=base.scheme, netloc=base.netloc)
        if given.scheme != "https" and (given.scheme, given.netloc) != (base.scheme, base.netloc):
            raise ProtocolError("the upload URL must use https")
        return urlunsplit(given)

    def _session_call(self, url: str, headers: Mapping[str, str], file: FileBody | None = None) -> HttpCall:
        """Create a call to the upload's URL, which is its own credential. The key goes only to the provider's host."""
        call = self._endpoint.call("", b"" if file is None else None, file=file, headers=headers)
        if urlsplit(url)[:2] != urlsplit(self.base_url)[:2]:
            return replace(call, url=url, headers={"Accept": JSON, **headers}, has_untrusted_host=True)
        return replace(call, url=url)

    def _read_page(self, answer: transfers.TransferResponse) -> tuple[list[transfers.StoredFile], str | None]:
        page = answer.json
        entries = [*objects(page.get("files")), *objects(page.get("documents"))]
        found = [self._read(entry) for entry in entries if some_text(entry, "name")]
        return found, some_text(page, "nextPageToken")

    def _read(self, found: JsonObject) -> transfers.StoredFile:
        """Decode a file, or a document of a store."""
        name, uri = _name(found), some_text(found, "uri")
        store = re.match(r"fileSearchStores/[^/]+(?=/)", name)
        source = some_text(found, "source")
        return transfers.StoredFile(
            id=name,
            provider=self.provider,
            name=some_text(found, "displayName"),
            mime_type=some_text(found, "mimeType"),
            size_bytes=transfers.count_of(found.get("sizeBytes")),
            store=store[0] if store else None,
            expires_at=transfers.seconds_of(found.get("expirationTime")),
            is_downloadable=source == "GENERATED" if source else None,
            url=f"{FILE_SCHEME}:{uri}" if uri else None,
        )


def _name(found: JsonObject) -> str:
    name = some_text(found, "name")
    if name is None:
        raise ProtocolError("the response has no name field")
    return name


def _store_name(store: str) -> str:
    return store if "/" in store else f"{_STORES}{store}"


def _path(file_id: str, store: str | None) -> str:
    """Return the path of a file, or of a document of a store."""
    if "/" in file_id:
        return model_path(file_id)
    return model_path(f"files/{file_id}" if store is None else f"{_store_name(store)}/documents/{file_id}")
