"""Files for the containers of hosted tools: which ones a request needs, and under which ids the provider holds them.

The session of an answer records the ids, so that a file is uploaded once. Pure.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_list, as_object, is_object
from sidestream.messages.container_files import container_files_in
from sidestream.messages.message import ChatMessage, DataPart
from sidestream.providers.protocol import UPLOADS, FileUpload, ModelRequest

_IDS = "uploads"
"""Session field for the ids of uploaded files, by digest."""
_PLACED = "placed"
"""Session field for the digests of files that were uploaded into a container itself, by its id."""
NEW_CONTAINER = "The container of the earlier turns no longer exists. This is a new one, without its variables"


class ContainerFiles:
    """The files that the container of one request needs."""

    def __init__(self, request: ModelRequest, keys: Sequence[str], base_url: str) -> None:
        """`keys` are those of the sessions that the provider may read."""
        self.missing: list[FileUpload] = []
        """Files to upload first."""
        self._request = request
        self._is_new = "container" in request.without
        self._sessions = [_sessions(message, keys, base_url) for message in request.messages]
        self._ids: dict[str, str] = {}
        self._in_container: dict[str, set[str]] = {}
        for session in (session for sessions in self._sessions for session in sessions):
            uploads = as_object(session.get(_IDS))
            if UPLOADS not in request.without:
                self._ids |= {digest: file_id for digest, file_id in uploads.items() if isinstance(file_id, str)}
            self._in_container.setdefault(str(session.get("container_id")), set()).update(uploads)
            for container_id, digests in as_object(session.get(_PLACED)).items():
                self._in_container.setdefault(container_id, set()).update(map(str, as_list(digests)))
        self._used: dict[str, str] = {}
        self._placed: dict[str, list[str]] = {}

    @property
    def is_named(self) -> bool:
        """Whether the request names uploaded files."""
        return bool(self._used)

    def note(self) -> JsonObject:
        """Return the fields for the session of the answer."""
        found: JsonObject = {_IDS: dict(self._used)} if self._used else {}
        return found | ({_PLACED: self._placed} if self._placed else {})

    def ids(self, given: Iterable[DataPart], container_id: str | None = None) -> list[str]:
        """Return the ids of the files that a container needs and does not have. None means a new container.

        These are the files in settings (`given`) and those of the conversation. Files without an id are `missing`.
        """
        held = self._in_container.get(container_id, set()) if container_id is not None else ()
        found: list[str] = []
        for upload in self._wanted(given):
            file_id = self._id_of(upload)
            if upload.digest in held:
                continue
            if file_id is None:
                self.missing.append(upload)
            elif file_id:
                self._used[upload.digest] = file_id
                found.append(file_id)
        return found

    def place(self, container_id: str, given: Iterable[DataPart]) -> None:
        """Note the files that must be uploaded into an existing container."""
        held = self._in_container.get(container_id, set())
        for wanted in self._wanted(given):
            upload = replace(wanted, container_id=container_id)
            if upload.key in self._request.uploads:
                self._placed.setdefault(container_id, []).append(upload.digest)
            elif upload.digest not in held:
                self.missing.append(upload)

    def restored(self, given: Iterable[DataPart]) -> str | None:
        """Return the text that tells the model what a replaced container has, or None if none was replaced."""
        if not self._is_new:
            return None
        names = ", ".join(upload.part.name or "unnamed" for upload in self._wanted(given) if self._id_of(upload))
        return f"{NEW_CONTAINER}. Files of the conversation are there again: {names}." if names else f"{NEW_CONTAINER}."

    def _id_of(self, upload: FileUpload) -> str | None:
        found = self._request.uploads.get(upload.key)
        return self._ids.get(upload.digest) if found is None else found

    def _wanted(self, given: Iterable[DataPart]) -> list[FileUpload]:
        """Return the files by name, a later one in place of an earlier one."""
        files = [*((part, True) for part in given), *self._of_conversation()]
        uploads = [FileUpload(part, media_types.digest(part.data), is_required=needed) for part, needed in files]
        return list({upload.part.name or upload.digest: upload for upload in uploads}.values())

    def _of_conversation(self) -> list[tuple[DataPart, bool]]:
        """Return the files of the messages, each with whether the user gave it."""
        found: list[tuple[DataPart, bool]] = []
        for message, sessions in zip(self._request.messages, self._sessions, strict=True):
            files = [file for part in message.parts for file in container_files_in(part)]
            if message.role == "model" and sessions and not self._is_new:
                # The provider's own container has what ran in it, until it is lost.
                files = [file for file in files if media_types.digest(file.data) in self._ids]
            found += [(file, message.role != "model") for file in files]
        return found


def _sessions(message: ChatMessage, keys: Sequence[str], base_url: str) -> list[JsonObject]:
    found = (message.metadata.get(key) for key in keys) if message.metadata else ()
    return [value for value in found if is_object(value) and value.get("base_url") in (None, base_url)]
