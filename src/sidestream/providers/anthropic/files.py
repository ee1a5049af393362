"""The Files API and the list of models: request bodies and responses. Pure."""

import re
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from sidestream.errors import ProtocolError
from sidestream.jsontext import JsonObject, is_object, objects, text_in
from sidestream.providers.endpoints import response_object
from sidestream.providers.modalities import abilities
from sidestream.providers.protocol import ModelInfo


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file that the provider stores."""

    id: str
    name: str
    mime_type: str
    size_bytes: int
    is_downloadable: bool | None = None
    expires_at: str | None = None


def read_file(body: bytes) -> StoredFile:
    """A file's metadata. Raises ProtocolError."""
    found = response_object(body)
    name, kind, size = text_in(found, "filename"), text_in(found, "mime_type"), found.get("size_bytes")
    file_id = text_in(found, "id")
    if file_id is None or name is None:
        raise ProtocolError("the response describes no file")
    return StoredFile(
        id=file_id,
        name=name,
        mime_type=kind or "application/octet-stream",
        size_bytes=size if isinstance(size, int) else 0,
        is_downloadable=found.get("downloadable") if isinstance(found.get("downloadable"), bool) else None,
        expires_at=text_in(found, "expires_at"),
    )


def upload_form(name: str, data: bytes, mime_type: str, expires_in_s: int | None = None) -> tuple[bytes, str]:
    """The body of an upload and its content type."""
    boundary = f"sidestream-{blake2b(data, digest_size=12).hexdigest()}"
    while boundary.encode() in data:
        boundary += "-"
    quoted = re.sub(r'[\r\n"]', "_", name)
    head = f'Content-Disposition: form-data; name="file"; filename="{quoted}"\r\nContent-Type: {mime_type}\r\n\r\n'
    parts = [f"--{boundary}\r\n{head}".encode(), data]
    if expires_in_s is not None:
        field = 'Content-Disposition: form-data; name="expires_in_seconds"'
        parts.append(f"\r\n--{boundary}\r\n{field}\r\n\r\n{expires_in_s}".encode())
    return b"".join([*parts, f"\r\n--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def read_models(body: bytes) -> tuple[list[ModelInfo], str | None]:
    """The models of one page, and the id after which the next page begins. Raises ProtocolError."""
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
