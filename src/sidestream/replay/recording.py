"""Recorded traffic as values, and the file that holds it.

A recording is one JSON file:

    {"source": "...", "licence": "...", "exercises": "...",
     "exchanges": [{"request":  {"method": "POST", "path": "/v1/responses", "body": ...},
                    "response": {"status": 200, "content_type": "text/event-stream", "body": ...}}, ...]}

A body that is a string is text as it came over the wire, that of a stream too; an object or a list is JSON;
null is empty, or was not recorded; `{"base64": "..."}` holds bytes that are no text. Headers are left out.
"""

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.jsontext import dumps, loads
from sidestream.stream.parts import Json

EVENT_STREAM = "text/event-stream"


class RecordedRequest(Struct, frozen=True):
    """What was asked; `path` as it was sent, with its query."""

    method: str = "POST"
    path: str = ""
    body: Json = None


class RecordedResponse(Struct, frozen=True):
    """What was answered."""

    status: int = 200
    content_type: str = "application/json"
    body: Json = None


class Exchange(Struct, frozen=True):
    """One request and its answer."""

    response: RecordedResponse
    request: RecordedRequest = RecordedRequest()

    @property
    def is_stream(self) -> bool:
        """True where the answer is a stream of server-sent events."""
        return essence(self.response.content_type) == EVENT_STREAM

    def body_bytes(self) -> bytes:
        """The answer's body as bytes."""
        return to_bytes(self.response.body)


class Recording(Struct, frozen=True):
    """Exchanges of one conversation, in order, and where they come from."""

    exchanges: tuple[Exchange, ...]
    source: str = ""
    licence: str = ""
    exercises: str = ""

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """The recording in this file. Raises ConfigurationError where it holds none."""
        try:
            return msgspec.convert(loads(Path(path).read_bytes()), Recording)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is not a recording: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the file that `load` reads."""
        Path(path).write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n", "ascii")


def to_bytes(body: Json) -> bytes:
    match body:
        case None:
            return b""
        case str():
            return body.encode("utf-8", "surrogatepass")
        case {"base64": str(text), **rest} if not rest:
            return base64.b64decode(text)
        case _:
            return dumps(body)


def to_value(data: bytes, *, is_json: bool) -> Json:
    """The body as it stands in the file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
    with suppress(ValueError):
        # Other JSON values would be taken for text, or for nothing, when the file is read.
        if is_json and isinstance(value := loads(text), dict | list) and "base64" not in value:
            return cast("Json", value)
    return text or None


def essence(content_type: str) -> str:
    return content_type.split(";")[0].strip().lower()
