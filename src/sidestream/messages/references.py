"""References from metadata to files, and what only a full replay of an answer needs, each stored once.

`{"$file": id, "sha256": digest}` stands where the provider's JSON held the bytes. `id` is that of the `file` part;
the digest finds the same file among the parts of a message.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import Json, JsonObject, as_object, is_array, is_object, objects
from sidestream.messages.message import ChatMessage
from sidestream.stream.parts import File, StepOutcome

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


BLOB = "$blob"
HOSTED = "hosted"
"""The field of a session that lists the kinds of items that the message's own parts cannot replace."""
INLINE_BYTES = 256
"""A field whose JSON is not longer stays where it is: a file of its own would cost more than it saves."""

LoadedReplays = Mapping[str, Json]
"""Digest → the content of a reference; None if no log has it."""


def blob_of(value: object) -> str | None:
    """The digest that a reference names; None if the value is not a reference."""
    digest = value.get(BLOB) if is_object(value) and len(value) == 1 else None
    return digest if isinstance(digest, str) else None


def blobs_of(message: ChatMessage) -> list[str]:
    """The digests of what the message's sessions refer to."""
    sessions = [as_object(value) for key, value in message.metadata.items() if key.startswith("_")]
    return [digest for session in sessions for value in session.values() if (digest := blob_of(value)) is not None]


def kept_metadata(outcome: StepOutcome, *, is_logged: bool) -> JsonObject:
    """What the model's message keeps."""
    if is_logged:
        return dict(for_log(outcome)[0].message_metadata)
    metadata = dict(outcome.message_metadata)
    if outcome.is_held:
        for key, field in outcome.replay.items():
            if key in metadata:
                metadata[key] = {name: value for name, value in metadata[key].items() if name != field}
    return metadata


def for_log(outcome: StepOutcome) -> tuple[StepOutcome, dict[str, bytes]]:
    """The outcome as the log records it, and the blobs that it refers to. Messages are folded from either form."""
    metadata, blobs = dict(outcome.message_metadata), dict[str, bytes]()
    for key, field in outcome.replay.items():
        session = metadata.get(key, {})
        data = jsontext.dumps(session[field]) if field in session else b""
        if len(data) > INLINE_BYTES:
            digest = media_types.digest(data)
            blobs[digest] = data
            metadata[key] = {**session, field: {BLOB: digest}}
    return replace(outcome, message_metadata=metadata, replay={}, is_held=False), blobs


class Replays:
    """Reads sessions for one request, and collects what it needs of the log and what nobody has."""

    def __init__(self, loaded: LoadedReplays) -> None:
        self.needed: dict[str, None] = {}
        """Digests of what must be loaded before the request is made again."""
        self.is_reduced = False
        """True if items of hosted tools are gone: the answer is replayed from its parts, without them."""
        self._loaded = loaded

    def read(self, session: Mapping[str, Any], field: str) -> list[JsonObject] | None:
        """The items of an answer; None if they are not there."""
        value = session.get(field)
        digest = blob_of(value)
        if digest is not None:
            if digest not in self._loaded:
                self.needed[digest] = None
                return None
            value = self._loaded[digest]
        if is_array(value):
            return objects(value)
        self.is_reduced |= digest is not None or bool(session.get(HOSTED))
        return None
