"""Files and links in messages, for encoders: their types and content, and uploads for containers. Pure."""

import mimetypes
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from msgspec.structs import replace

from sidestream.files import media_types
from sidestream.jsontext import JsonObject, as_list, as_object, is_object
from sidestream.messages.container_files import container_files_in
from sidestream.messages.message import ChatMessage, DataPart, LinkPart
from sidestream.messages.sessions import FORKED
from sidestream.providers.protocol import UPLOADS, FileUpload, ModelRequest

PAGES = frozenset({"text/html", "application/xhtml+xml"})
"""MIME types of links to web pages rather than files."""

_TEXTUAL = ("application/json", "application/xml", "application/javascript")


def link_type(part: LinkPart) -> str | None:
    """Return the MIME type of a link's target, as given, from its `data:` URL, or guessed from its path."""
    if part.mime_type:
        return part.mime_type
    if part.url.startswith("data:"):
        return part.url[5:].split(",", 1)[0].split(";", 1)[0] or "text/plain"
    try:
        return mimetypes.guess_type(urlsplit(part.url).path)[0]
    except ValueError:
        return None


def stored_id(part: LinkPart, scheme: str) -> str | None:
    """Return the id of an uploaded file, or None if the link does not have this scheme."""
    found, _, file_id = part.url.partition(":")
    return file_id or None if found == scheme else None


def is_elsewhere(part: LinkPart) -> bool:
    """Return whether a link is a file at a provider, which no other provider can read."""
    return part.url.partition(":")[0].endswith("-file")


def elsewhere(messages: Iterable[ChatMessage], scheme: str) -> tuple[str, ...]:
    """Return warnings for the files of a history that are stored at a provider with another scheme."""
    return tuple(
        f"the file {part.name or part.url} is stored at another provider; only its name is sent"
        for message in messages
        for part in message.parts
        if type(part) is LinkPart and is_elsewhere(part) and stored_id(part, scheme) is None
    )


def link_text(part: LinkPart) -> str:
    """Format a link as text, for APIs that do not open links."""
    if is_elsewhere(part):
        return f"[A file that cannot be shown: {part.name or 'unnamed'}, {part.mime_type or 'of unknown type'}]"
    return f"{part.name}: {part.url}" if part.name else part.url


def as_base64(part: DataPart) -> str:
    """Encode the bytes of a file as base64."""
    return media_types.to_base64(part.data)


def data_url(part: DataPart) -> str:
    """Encode a file as a `data:` URL."""
    return media_types.data_url(part.data, part.mime_type)


def is_image(mime_type: str) -> bool:
    """Return whether a MIME type is an image that models can see. SVG is not, since the APIs do not render it."""
    kind = mime_type.lower()
    return kind.startswith("image/") and not kind.startswith("image/svg")


def text_of(part: DataPart, mime_type: str) -> str | None:
    """Decode a file of a textual type. Returns None for other types, and for bytes that are not UTF-8."""
    if not mime_type.startswith("text/") and mime_type not in _TEXTUAL and not mime_type.endswith(("+json", "+xml")):
        return None
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        return None


_IDS = "uploads"
"""Session field for the ids of uploaded files, by digest."""
_PLACED = "placed"
"""Session field for the digests of files that were uploaded into a container itself, by its id."""
NEW_CONTAINER = "The container of the earlier turns no longer exists. This is a new one, without its variables"


class ContainerFiles:
    """The files that the container of one request needs."""

    def __init__(self, request: ModelRequest, keys: Sequence[str], base_url: str, *, is_left: bool = False) -> None:
        """`keys` are those of the sessions that the provider may read.

        `is_left` says that the container of the conversation is not used because this one was forked from it.
        """
        self.missing: list[FileUpload] = []
        """Files to upload first."""
        self._request = request
        self._sessions = [_sessions(message, keys, base_url) for message in request.messages]
        # The first answer of a fork has been told, and later requests have it.
        has_own = any(not session.get(FORKED) for sessions in self._sessions for session in sessions)
        self._is_new = "container" in request.without or (is_left and not has_own)
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
