"""Recordings of provider traffic and their file format.

A recording is one JSON file:

    {"source": "...", "licence": "...", "exercises": "...",
     "exchanges": [{"request":  {"method": "POST", "path": "/v1/responses", "body": ...},
                    "response": {"status": 200, "content_type": "text/event-stream", "body": ...}}, ...]}

A string body is the received text, also for a stream; an object or a list is JSON; null is an empty body, or one that
was not recorded; `{"base64": "..."}` holds bytes that are not UTF-8. Headers are not recorded.
"""

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from sidestream.errors import ConfigurationError, RunError
from sidestream.jsontext import dumps, loads
from sidestream.parts import Json
from sidestream.transport.calls import FRAMES, HttpCall
from sidestream.wire.aws_frames import FrameSplitter
from sidestream.wire.sse import Splitter

EVENT_STREAM = "text/event-stream"
STREAMS = frozenset({EVENT_STREAM, FRAMES})
"""Content types of streams."""


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
        """Whether the response is a stream of events."""
        return essence(self.response.content_type) in STREAMS

    def body_bytes(self) -> bytes:
        """Return the response's body as bytes."""
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
        """Load a recording from a file. Raises ConfigurationError if the file cannot be read or is invalid."""
        try:
            return msgspec.convert(loads(Path(path).read_bytes()), Recording)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is not a recording: {error}") from error

    def save(self, path: str | Path) -> None:
        """Save the recording to a file that `load` can read."""
        Path(path).write_text(self.to_json(), "ascii")

    def to_json(self) -> str:
        """Encode the recording as its file's content."""
        return json.dumps(msgspec.to_builtins(self), indent=1) + "\n"


def to_bytes(body: Json) -> bytes:
    """Convert a body in the file to bytes."""
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
    """Convert a body to the value written to the file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
    with suppress(ValueError):
        # Other JSON values would be read back as text, an empty body or bytes.
        if is_json and isinstance(value := loads(text), dict | list) and "base64" not in value:
            return cast("Json", value)
    return text or None


def splitter_for(content_type: str, max_event_bytes: int) -> Splitter | FrameSplitter:
    """Create the splitter for a recorded stream."""
    if essence(content_type) != FRAMES:
        return Splitter(max_event_bytes)

    def refused(status: int, headers: Mapping[str, str], body: bytes) -> RunError:
        # The same error as for live traffic. Its module imports aiohttp, which a replay needs only here.
        from sidestream.wire.failures import status_error

        return status_error(HttpCall(url="http://recording"), status, headers, body)

    return FrameSplitter(max_event_bytes, refused)


def essence(content_type: str) -> str:
    """Return a content type in lower case, without its parameters."""
    return content_type.split(";")[0].strip().lower()
