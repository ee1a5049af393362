"""Fake file stores of the three providers. They keep what they receive and answer as the vendors' APIs do."""

import re
from typing import Any

from sidestream.jsontext import loads
from sidestream.testing import FakeProvider, Received, Reply, error_reply, json_reply

Form = dict[str, str | tuple[str, str, bytes]]
"""The fields of a form; a file is its name, its type and its bytes."""


def form_of(request: Received) -> Form:
    """The form in the body of a request. Raises ValueError where it is malformed."""
    found = re.fullmatch(r'multipart/form-data; boundary="?([^"]+)"?', request.headers["content-type"])
    if found is None:
        raise ValueError("not a form")
    mark = b"--" + found[1].encode()
    first, *parts, last = request.body.split(mark)
    if first or last.strip() != b"--":
        raise ValueError("a form begins and ends with its boundary")
    fields: Form = {}
    for part in parts:
        head, _, value = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
        headers = head.decode()
        names = dict(re.findall(r'(\w+)="([^"]*)"', headers))
        kind = re.search(r"(?im)^content-type: ([^\r\n]*)", headers)
        is_file = "filename" in names
        fields[names["name"]] = (names["filename"], kind[1] if kind else "", value) if is_file else value.decode()
    return fields


class FileServer:
    """What all of them have: files by id, and the forms and calls that arrived."""

    def __init__(self, fake: FakeProvider) -> None:
        self.fake = fake
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.forms: list[Form] = []

    def keep(self, prefix: str, content: bytes, **facts: Any) -> dict[str, Any]:
        file_id = f"{prefix}{len(self.contents) + 1}"
        self.contents[file_id] = content
        return facts | {"id": file_id}

    def get(self, request: Received) -> Reply:
        return self._known(request, lambda file_id: json_reply(self.files[file_id]))

    def content(self, request: Received) -> Reply:
        return self._known(request, lambda file_id: Reply(body=self.contents[file_id]), at=-2)

    def delete(self, request: Received) -> Reply:
        def gone(file_id: str) -> Reply:
            del self.files[file_id]
            return json_reply({"id": file_id, "object": "file", "type": "file_deleted", "deleted": True})

        return self._known(request, gone)

    def _known(self, request: Received, answer: Any, at: int = -1) -> Reply:
        file_id = request.path.split("/")[at]
        return answer(file_id) if file_id in self.files else error_reply(404, "not_found", f"no file {file_id}")


class OpenAIFileServer(FileServer):
    """Files, containers and vector stores. A file is indexed after `polls` polls, with this outcome."""

    def __init__(self, fake: FakeProvider, *, polls: int = 0, outcome: str = "completed") -> None:
        super().__init__(fake)
        self.polls = polls
        self.outcome = outcome
        self.indexed: dict[str, list[str]] = {}
        fake.on("GET", "/v1/files", self.listed)
        fake.on("POST", "/v1/files", self.upload)
        fake.on("GET", "/v1/files/*", self.get)
        fake.on("GET", "/v1/files/*/content", self.content)
        fake.on("DELETE", "/v1/files/*", self.delete)
        fake.on("GET", "/v1/containers/*/files/*", self.get)
        fake.on("POST", "/v1/containers/*/files", self.upload_to_container)
        fake.on("GET", "/v1/containers/*/files/*/content", self.content)
        fake.on("DELETE", "/v1/containers/*/files/*", self.delete)
        fake.on("POST", "/v1/vector_stores", self.create_store)
        fake.on("DELETE", "/v1/vector_stores/*", self.delete_store)
        fake.on("POST", "/v1/vector_stores/*/files", self.index)
        fake.on("GET", "/v1/vector_stores/*/files/*", self.status)
        fake.on("DELETE", "/v1/vector_stores/*/files/*", self.unindex)

    def upload(self, request: Received) -> Reply:
        form = form_of(request)
        self.forms.append(form)
        name, _, content = form["file"]
        expiry = form.get("expires_after[seconds]")
        facts = {"object": "file", "bytes": len(content), "created_at": 1000, "filename": name, "status": "processed"}
        made = self.keep("file-", content if isinstance(content, bytes) else b"", **facts, purpose=form["purpose"])
        made["expires_at"] = 1000 + int(str(expiry)) if expiry else None
        self.files[made["id"]] = made
        return json_reply(made)

    def upload_to_container(self, request: Received) -> Reply:
        form = form_of(request)
        self.forms.append(form)
        name, _, content = form["file"]
        facts = {"object": "container.file", "bytes": len(content), "created_at": 1000, "source": "user"}
        where = {"container_id": request.path.split("/")[3], "path": f"/mnt/data/{name}"}
        made = self.keep("cfile_", content if isinstance(content, bytes) else b"", **facts, **where)
        self.files[made["id"]] = made
        return json_reply(made)

    def listed(self, request: Received) -> Reply:
        """Pages of two files."""
        ids = list(self.files)
        start = ids.index(request.query["after"]) + 1 if "after" in request.query else 0
        page = [self.files[file_id] for file_id in ids[start : start + 2]]
        more = {"has_more": start + 2 < len(ids), "first_id": ids[start], "last_id": page[-1]["id"]} if page else {}
        return json_reply({"object": "list", "data": page, **more})

    def create_store(self, request: Received) -> Reply:
        self.indexed[f"vs_{len(self.indexed) + 1}"] = []
        return json_reply({"id": f"vs_{len(self.indexed)}", "object": "vector_store", **request.json})

    def delete_store(self, request: Received) -> Reply:
        store = request.path.split("/")[-1]
        if self.indexed.pop(store, None) is None:
            return error_reply(404, "not_found", f"no store {store}")
        return json_reply({"id": store, "object": "vector_store.deleted", "deleted": True})

    def index(self, request: Received) -> Reply:
        store = request.path.split("/")[3]
        self.indexed[store].append(request.json["file_id"])
        return self._state(store, request.json["file_id"])

    def status(self, request: Received) -> Reply:
        self.polls -= 1
        return self._state(request.path.split("/")[3], request.path.split("/")[-1])

    def unindex(self, request: Received) -> Reply:
        store, file_id = request.path.split("/")[3], request.path.split("/")[-1]
        if file_id not in self.indexed.get(store, []):
            return error_reply(404, "not_found", "not in the store")
        self.indexed[store].remove(file_id)
        return json_reply({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})

    def _state(self, store: str, file_id: str) -> Reply:
        status = "in_progress" if self.polls > 0 else self.outcome
        error = {"code": "unsupported_file", "message": "The file type is not supported."}
        facts = {"object": "vector_store.file", "created_at": 1000, "usage_bytes": 0, "vector_store_id": store}
        return json_reply(
            {"id": file_id, "status": status, "last_error": error if status == "failed" else None} | facts
        )


class AnthropicFileServer(FileServer):
    """The Files API."""

    def __init__(self, fake: FakeProvider) -> None:
        super().__init__(fake)
        fake.on("POST", "/v1/files", self.upload)
        fake.on("GET", "/v1/files", self.listed)
        fake.on("GET", "/v1/files/*", self.get)
        fake.on("GET", "/v1/files/*/content", self.content)
        fake.on("DELETE", "/v1/files/*", self.delete)

    def upload(self, request: Received) -> Reply:
        form = form_of(request)
        self.forms.append(form)
        name, kind, content = form["file"]
        facts = {"type": "file", "filename": name, "mime_type": kind, "size_bytes": len(content)}
        times = {"created_at": "2026-11-01T00:00:00Z", "downloadable": False}
        made = self.keep("file_", content if isinstance(content, bytes) else b"", **facts, **times)
        made["expires_at"] = "2026-11-02T00:00:00Z" if "expires_in_seconds" in form else None
        self.files[made["id"]] = made
        return json_reply(made)

    def listed(self, request: Received) -> Reply:
        """Pages of two files."""
        start = int(request.query.get("page", "page_0").removeprefix("page_"))
        found = list(self.files.values())
        after = f"page_{start + 2}" if start + 2 < len(found) else None
        return json_reply({"data": found[start : start + 2], "next_page": after})


class GoogleFileServer(FileServer):
    """Resumable uploads to files and to file search stores. A file is processed after `polls` polls."""

    def __init__(
        self,
        fake: FakeProvider,
        *,
        polls: int = 0,
        outcome: str = "ACTIVE",
        origin: str = "https://generativelanguage.googleapis.com",
    ) -> None:
        super().__init__(fake)
        self.origin = origin
        """The host of the upload's address. The real one names itself; behind another base URL nobody may go there."""
        self.polls = polls
        self.outcome = outcome
        self.about: dict[str, Any] = {}
        self.store: str | None = None
        self.size = 0
        self.received = b""
        self.commands: list[tuple[str, int | None, int]] = []
        """Command, offset and bytes of each request of the upload."""
        fake.on("POST", "/upload/v1/files", self.start)
        fake.on("POST", "/upload/v1/fileSearchStores/*", self.start)
        fake.on("POST", "/upload-here", self.proceed)
        fake.on("GET", "/v1/files", self.listed)
        fake.on("GET", "/v1/files/*", self.state)
        fake.on("GET", "/v1/files/*:download", Reply(body=b"generated"))
        fake.on("DELETE", "/v1/files/*", self.delete)
        fake.on("POST", "/v1/fileSearchStores", json_reply({"name": "fileSearchStores/s-1"}))
        fake.on("DELETE", "/v1/fileSearchStores/*", json_reply({}))
        fake.on("GET", "/v1/fileSearchStores/*", self.operation)

    def start(self, request: Received) -> Reply:
        assert request.headers["x-goog-upload-protocol"] == "resumable"
        assert request.headers["x-goog-upload-command"] == "start"
        # The API accepts both spellings of a name; Google's client uses both.
        about = loads(re.sub(rb'(?<=[a-z])_([a-z])(?=\w*":)', lambda found: found[1].upper(), request.body))
        self.about = {**about, "type": request.headers["x-goog-upload-header-content-type"]}
        self.size = int(request.headers["x-goog-upload-header-content-length"])
        found = re.search(r"(fileSearchStores/[^/:]+):uploadToFileSearchStore$", request.path)
        self.store = found[1] if found else None
        self.received = b""
        url = f"{self.origin}/upload-here?upload_id=u1&upload_protocol=resumable"
        return json_reply({}, headers={"x-goog-upload-url": url, "x-goog-upload-status": "active"})

    def proceed(self, request: Received) -> Reply:
        command, offset = request.headers["x-goog-upload-command"], request.headers.get("x-goog-upload-offset")
        self.commands.append((command, int(offset) if offset else None, len(request.body)))
        if command == "query":
            head = {"x-goog-upload-status": "active", "x-goog-upload-size-received": str(len(self.received))}
            return json_reply({}, headers=head)
        if offset != str(len(self.received)):
            return error_reply(400, "INVALID_ARGUMENT", "wrong offset", {"x-goog-upload-status": "final"})
        self.received += request.body
        if "finalize" not in command:
            return json_reply({}, headers={"x-goog-upload-status": "active"})
        if len(self.received) != self.size:
            return error_reply(400, "INVALID_ARGUMENT", "wrong size")
        return json_reply(self._finished(), headers={"x-goog-upload-status": "final"})

    def _finished(self) -> dict[str, Any]:
        if self.store is not None:
            return {"name": f"{self.store}/upload/operations/op-1", **self._done()}
        about = self.about["file"]
        made = self.keep("f-", self.received, displayName=about["displayName"], mimeType=about["mimeType"])
        name = made.pop("id")
        uri = f"https://generativelanguage.googleapis.com/v1/files/{name}"
        more = {"name": f"files/{name}", "uri": uri, "sizeBytes": str(self.size), "source": "UPLOADED"}
        self.files[name] = made | more | {"expirationTime": "2026-11-02T00:00:00.5Z", "state": self._state()}
        return {"file": self.files[name]}

    def state(self, request: Received) -> Reply:
        name = request.path.split("/")[-1]
        if name not in self.files:
            return error_reply(404, "NOT_FOUND", f"no file {name}")
        self.polls -= 1
        failure = {"error": {"code": 3, "message": "The video is broken."}} if self.outcome == "FAILED" else {}
        return json_reply(self.files[name] | {"state": self._state()} | failure)

    def _state(self) -> str:
        return "PROCESSING" if self.polls > 0 else self.outcome

    def operation(self, request: Received) -> Reply:
        if "/documents" in request.path:
            return json_reply({"documents": [{"name": f"{self.store}/documents/d-1", "displayName": "notes.md"}]})
        self.polls -= 1
        return json_reply({"name": request.path.removeprefix("/v1/"), **self._done()})

    def _done(self) -> dict[str, Any]:
        if self.polls > 0:
            return {}
        if self.outcome == "FAILED":
            return {"done": True, "error": {"code": 3, "message": "The file cannot be read."}}
        return {"done": True, "response": {"parent": self.store, "documentName": f"{self.store}/documents/d-1"}}

    def listed(self, request: Received) -> Reply:
        """Pages of two files."""
        start = int(request.query.get("pageToken", "0"))
        found = list(self.files.values())
        after = {"nextPageToken": str(start + 2)} if start + 2 < len(found) else {}
        return json_reply({"files": found[start : start + 2], **after})


def multipart_files(form: Form) -> list[tuple[str, str, bytes]]:
    """The files of a form."""
    return [value for value in form.values() if isinstance(value, tuple)]
