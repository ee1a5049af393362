"""References to content that is stored once, such as files and the replay fields of sessions.

`{"$file": id, "sha256": digest}` replaces bytes in the provider's JSON. `id` is that of the `file` part, and the digest
identifies the file among the parts of a message.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import Json, JsonObject, as_object, is_array, is_object, objects
from sidestream.messages.message import ChatMessage
from sidestream.parts import File, StepOutcome

FILE = "$file"
MIN_CHARACTERS = 64
"""Minimum length of a string to replace, in characters. A reference would not be shorter."""

FileIds = Mapping[str, str]
"""SHA-256 digest of a file's bytes → id of the `file` part."""


def file_ids(files: Iterable[File]) -> FileIds:
    """Return the files that values may refer to. Pass those of the step that the values come from."""
    known: dict[str, str] = {}
    for file in files:
        if file.data:
            known.setdefault(media_types.digest(file.data), file.id)
    return known


def with_file_references(value: Json, files: FileIds) -> Json:
    """Replace the bytes of files in a value, given as base64, data URLs or text, with references.

    The value is never modified, and is returned itself if nothing is replaced. Existing references are kept.
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
    """Return the reference to a file."""
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
"""Session field that lists the kinds of items that the message's own parts cannot replace."""
INLINE_BYTES = 256
"""Maximum size of a field that stays inline, in bytes of JSON. A blob would cost more than it saves."""

LoadedReplays = Mapping[str, Json]
"""Digest → content of the reference, or None if the log does not have it."""


def blob_of(value: object) -> str | None:
    """Return the digest in a reference, or None if the value is not a reference."""
    digest = value.get(BLOB) if is_object(value) and len(value) == 1 else None
    return digest if isinstance(digest, str) else None


def blobs_of(message: ChatMessage) -> list[str]:
    """Return the digests that the message's sessions refer to."""
    sessions = [as_object(value) for key, value in message.metadata.items() if key.startswith("_")]
    return [digest for session in sessions for value in session.values() if (digest := blob_of(value)) is not None]


def kept_metadata(outcome: StepOutcome, *, is_logged: bool) -> JsonObject:
    """Return the metadata for the model's message, without the replay fields that are stored elsewhere."""
    if is_logged:
        return dict(for_log(outcome)[0].message_metadata)
    metadata = dict(outcome.message_metadata)
    if outcome.is_held:
        for key, field in outcome.replay.items():
            if key in metadata and field in metadata[key]:
                metadata[key] = dict(metadata[key])
                del metadata[key][field]
    return metadata


def for_log(outcome: StepOutcome) -> tuple[StepOutcome, dict[str, bytes]]:
    """Return the outcome to record in the log, and the blobs it refers to. Either form folds to the same message."""
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
    """A reader of sessions for one request, which collects the references to load and notes missing ones."""

    def __init__(self, loaded: LoadedReplays) -> None:
        self.needed: dict[str, None] = {}
        """Digests to load before the request is encoded again."""
        self.is_reduced = False
        """Whether items of hosted tools are missing, so that the answer is replayed from its parts without them."""
        self._loaded = loaded

    def read(self, session: Mapping[str, Any], field: str) -> list[JsonObject] | None:
        """Return the items of an answer, or None if they are missing or not loaded."""
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
