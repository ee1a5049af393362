"""References from metadata to files: bytes that became a file stand once, in the file.

`{"$file": id, "sha256": digest}` stands where the provider's JSON held the bytes. `id` is that of the `file` part;
the digest finds the same file among the parts of a message.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from sidestream.files import media_types
from sidestream.jsontext import Json, JsonObject
from sidestream.stream.parts import File

FILE = "$file"
MIN_CHARACTERS = 64
"""Shorter texts stay as they are: a reference would not be shorter."""

FileIds = Mapping[str, str]
"""SHA-256 digest of a file's bytes → id of the `file` part."""


def file_ids(files: Iterable[File]) -> FileIds:
    """The files that values may refer to. Pass those of the step that the values come from."""
    known: dict[str, str] = {}
    for file in files:
        if file.data:
            known.setdefault(media_types.digest(file.data), file.id)
    return known


def with_file_references(value: Json, files: FileIds) -> Json:
    """The value with references where it held the bytes of a file: in base64, as a data URL, or as text.

    The value itself is returned if it holds none of them, and is never changed. References are kept as they are.
    """
    if not files:
        return value
    match value:
        case str():
            return value if len(value) < MIN_CHARACTERS else _reference(value, files) or value
        case dict():
            fields = cast(JsonObject, value)
            replaced = {key: with_file_references(inner, files) for key, inner in fields.items()}
            return replaced if any(replaced[key] is not fields[key] for key in fields) else fields
        case list() | tuple():
            entries = cast(list[Any], value)
            new = [with_file_references(inner, files) for inner in entries]
            return new if any(a is not b for a, b in zip(new, entries, strict=True)) else entries
        case _:
            return value


def reference_to(file_id: str, data: bytes) -> JsonObject:
    """Return what refers to a file in place of its bytes."""
    return {FILE: file_id, "sha256": media_types.digest(data)}


def _reference(text: str, files: FileIds) -> JsonObject | None:
    data = media_types.from_data_url(text) if text.startswith("data:") else media_types.from_base64(text)
    for candidate in (data, text.encode("utf-8", "replace")):
        if candidate:
            digest = media_types.digest(candidate)
            if digest in files:
                return {FILE: files[digest], "sha256": digest}
    return None
