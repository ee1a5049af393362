"""Recordings of provider traffic: the values, and the format of their file.

A recording is one JSON file:

    {"source": "...", "licence": "...", "exercises": "...",
     "exchanges": [{"request":  {"method": "POST", "path": "/v1/responses", "body": ...},
                    "response": {"status": 200, "content_type": "text/event-stream", "body": ...}}, ...]}

A body that is a string is the text as received, also for a stream; an object or a list is JSON; null is an empty
body, or one that was not recorded; `{"base64": "..."}` holds bytes that are not UTF-8. Headers are not recorded.
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
    """A recorded request; `path` includes the query."""

    method: str = "POST"
    path: str = ""
    body: Json = None


class RecordedResponse(Struct, frozen=True):
    """A recorded response."""

    status: int = 200
    content_type: str = "application/json"
    body: Json = None


class Exchange(Struct, frozen=True):
    """One request and its response."""

    response: RecordedResponse
    request: RecordedRequest = RecordedRequest()

    @property
    def is_stream(self) -> bool:
        """True if the response is a stream of server-sent events."""
        return essence(self.response.content_type) == EVENT_STREAM

    def body_bytes(self) -> bytes:
        """The body of the response as bytes."""
        return to_bytes(self.response.body)


class Recording(Struct, frozen=True):
    """The exchanges of one conversation, in order, and their origin.

    ```python
    recording = Recording.load("search.json")  # by `sidestream record search.json -- COMMAND`
    agent = Agent("openai-responses", transport=ReplayTransport(recording), api_key="none")
    ```
    """

    exchanges: tuple[Exchange, ...]
    source: str = ""
    licence: str = ""
    exercises: str = ""

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """Reads a recording from a file. Raises ConfigurationError if it cannot."""
        try:
            return msgspec.convert(loads(Path(path).read_bytes()), Recording)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is not a recording: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the recording to a file, for `load`."""
        Path(path).write_text(self.to_json(), "ascii")

    def to_json(self) -> str:
        """The text of its file."""
        return json.dumps(msgspec.to_builtins(self), indent=1) + "\n"


def to_bytes(body: Json) -> bytes:
    """The bytes of a body in the file."""
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
    """The body as it is written to the file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
    with suppress(ValueError):
        # Other JSON values would be read back as text, as an empty body or as bytes.
        if is_json and isinstance(value := loads(text), dict | list) and "base64" not in value:
            return cast("Json", value)
    return text or None


def essence(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.split(";")[0].strip().lower()
