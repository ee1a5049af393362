"""Files for containers: those that a tool's settings name, and those of a conversation."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from sidestream.errors import ConfigurationError
from sidestream.files import media_types
from sidestream.jsontext import as_object, is_array
from sidestream.messages.message import ChatMessage, DataPart, MessagePart, ToolResultPart, content_of_result

FOLDER = "/mnt/data"
"""Working folder of local containers, where files are put and written files are found, as in hosted ones."""
_READ_BY_MODELS = ("image/", "audio/", "video/", "application/pdf")


def is_for_code(mime_type: str) -> bool:
    """Return whether an attachment of this type is for code only, if a tool runs code: models do not see or hear it."""
    return not mime_type.startswith(_READ_BY_MODELS)


def for_code(message: ChatMessage) -> ChatMessage:
    """Return a user's message whose files for code go to the container of the tool that runs it, not to the model."""
    if message.role != "user" or not any(isinstance(part, DataPart) for part in message.parts):
        return message
    return replace(message, parts=tuple(_for_code(part) for part in message.parts))


def _for_code(part: MessagePart) -> MessagePart:
    if not isinstance(part, DataPart) or part.to == "container":
        return part
    is_unknown = part.mime_type == "application/octet-stream"
    mime_type = media_types.sniff(part.data, part.name) if is_unknown else part.mime_type
    return DataPart(part.data, mime_type, part.name, to="container") if is_for_code(mime_type) else part


def load_files(files: Sequence[str | DataPart]) -> tuple[DataPart, ...]:
    """Return the files of a tool's settings, reading those that are paths.

    Raises ConfigurationError if one cannot be read.
    """
    return tuple(_load(file) if isinstance(file, str) else file for file in files)


def check_files(files: Sequence[str | DataPart]) -> None:
    """Raise ConfigurationError if a path is not that of a readable file."""
    for file in files:
        if isinstance(file, str) and not os.path.isfile(path := os.path.expanduser(file)):
            what = "is a folder" if os.path.isdir(path) else "does not exist"
            raise ConfigurationError(f"files: {file} cannot be read: it {what}")


def names_of(files: Sequence[str | DataPart]) -> list[str]:
    """Return the names of the files, without reading them."""
    return [os.path.basename(file) if isinstance(file, str) else file.name or "unnamed" for file in files]


def container_files_in(part: MessagePart) -> list[DataPart]:
    """Return the file that a part is, or those that a tool's result holds, if they are for containers only."""
    if isinstance(part, DataPart):
        return [part] if part.to == "container" else []
    if not isinstance(part, ToolResultPart) or not is_array(part.result):
        return []
    if not any(as_object(entry).get("to") == "container" for entry in part.result):
        return []
    content = content_of_result(part.result)
    return [entry for entry in content if isinstance(entry, DataPart) and entry.to == "container"]


def has_container_files(messages: Iterable[ChatMessage]) -> bool:
    """Return whether the user attached a file for containers only."""
    return any(
        type(part) is DataPart and part.to == "container"
        for message in messages
        if message.role == "user"
        for part in message.parts
    )


def _load(file: str) -> DataPart:
    path = Path(file).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"files: {file} cannot be read: {error.strerror}") from error
    return DataPart(data, media_types.sniff(data, path.name), path.name, to="container")
