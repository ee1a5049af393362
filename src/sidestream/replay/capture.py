"""A transport that records live traffic, with keys redacted."""

from typing import cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from sidestream.errors import RunError
from sidestream.jsontext import as_object, dumps, loads
from sidestream.limits import Limits
from sidestream.parts import Json
from sidestream.replay.recording import (
    EVENT_STREAM,
    Exchange,
    RecordedRequest,
    RecordedResponse,
    Recording,
    essence,
    splitter_for,
    to_value,
)
from sidestream.text.redaction import REDACTED, is_secret_header, redact, register_secret, secrets_in
from sidestream.transport.calls import FRAMES, HttpCall, HttpResponse, SentSteer, Transport, WrappedResponse

STEERS = "steers"
"""Field of a recorded request for a response that the server started on its own: the messages it answers."""


class RecordingTransport:
    """A transport that forwards calls to another one and records the exchanges.

    ```python
    transport = RecordingTransport(HttpTransport())
    await Agent("openai-responses", transport=transport).send("Hello")
    transport.recording.save("hello.json")
    ```

    The recording includes `source`, `licence` and `exercises` (its purpose), but no headers. Anything that looks like
    a key, or is sent as one, is redacted in every exchange.
    """

    def __init__(self, inner: Transport, *, source: str = "", licence: str = "", exercises: str = "") -> None:
        self._inner = inner
        self._about = {"source": source, "licence": licence, "exercises": exercises}
        self._captures: list[Capture] = []

    @property
    def recording(self) -> Recording:
        """The exchanges so far, including what has been read of the current response."""
        return Recording(tuple(capture.exchange() for capture in self._captures), **self._about)

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Forward the call and record its response, even one with an error status."""
        try:
            response = await self._inner.open(call, limits)
        except RunError as error:
            self._record_error(call, error)
            raise
        return _CapturedResponse(response, call, self._captures)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Forward the call and record the bytes."""
        try:
            data = await self._inner.download(call, limits)
        except RunError as error:
            self._record_error(call, error)
            raise
        self._captures.append(Capture(call, 200, "application/octet-stream", data))
        return data

    def _record_error(self, call: HttpCall, error: RunError) -> None:
        if error.status is not None and error.status >= 400:
            # The message starts with the provider's name, which a replay adds again.
            message = error.message.partition(": ")[2] or error.message
            body = dumps({"error": {"code": error.code, "message": message}})
            self._captures.append(Capture(call, error.status, "application/json", body))


class Capture:
    """An exchange that is being recorded."""

    def __init__(self, call: HttpCall, status: int, content_type: str, data: bytes = b"") -> None:
        self.call = call
        self.status = status
        self.content_type = content_type
        self.data = data
        self.events: list[bytes] = []
        # Register this call's keys, so that they are redacted in every exchange.
        for secret in secrets_in(call.headers):
            register_secret(secret)
        _redacted(to_value(call.body or b"", is_json=True))

    def split_events(self) -> None:
        """Split the stream in `data` into events, so that each is redacted separately."""
        splitter = splitter_for(self.content_type, len(self.data) + 1)
        try:
            self.events = splitter.feed(self.data)
            self.events += splitter.flush()
        except RunError as error:  # reported by the last frame
            self.events.append(dumps({"type": "error", "error": {"type": error.code, "message": error.message}}))

    def exchange(self) -> Exchange:
        """Return the exchange, without secrets."""
        url = urlsplit(self.call.url)
        path = redact(f"{url.path}?{url.query}" if url.query else url.path)
        request_body = _redacted(to_value(self.call.body or b"", is_json=True))
        kind = essence(self.content_type)
        is_json = kind == "application/json"
        body = "".join(map(_redacted_frame, self.events)) or _redacted(to_value(self.data, is_json=is_json))
        return Exchange(
            request=RecordedRequest(self.call.method, path, request_body),
            # Events are written as server-sent events, whatever their frames were.
            response=RecordedResponse(self.status, EVENT_STREAM if kind == FRAMES else self.content_type, body),
        )


class _CapturedResponse(WrappedResponse):
    """A response that is recorded as it is read."""

    def __init__(self, inner: HttpResponse, call: HttpCall, captures: list[Capture]) -> None:
        super().__init__(inner)
        fallback = EVENT_STREAM if inner.is_stream else "application/json"
        self._capture = Capture(call, inner.status, inner.headers.get("content-type", fallback))
        self._captures = captures
        self._steers: list[Json] = []
        captures.append(self._capture)

    async def steer(self, response_id: str, message: bytes) -> SentSteer:
        self._steers.append(to_value(message, is_json=True))
        return await super().steer(response_id, message)

    async def successor(self) -> HttpResponse | None:
        """Record the successor as a separate exchange, with the request's settings and the messages."""
        successor = await super().successor()
        if successor is None:
            return None
        call = self._capture.call
        body = {**as_object(to_value(call.body or b"", is_json=True)), STEERS: self._steers}
        return _CapturedResponse(successor, replace(call, body=dumps(body)), self._captures)

    async def proceed(self, call: HttpCall) -> HttpResponse:
        return _CapturedResponse(await super().proceed(call), call, self._captures)

    async def events(self) -> list[bytes]:
        batch = await self._inner.events()
        self._capture.events += batch
        return batch

    async def body(self) -> bytes:
        self._capture.data = await self._inner.body()
        return self._capture.data


def _redacted(value: Json, name: str = "") -> Json:
    """Redact the keys in a JSON value, string by string so that it stays valid."""
    if isinstance(value, dict):
        fields = cast("dict[str, Json]", value)
        # Leave bytes unchanged: a key cannot be recognised in base64.
        return fields if fields.keys() == {"base64"} else {key: _redacted(fields[key], key) for key in fields}
    if isinstance(value, list):
        return [_redacted(inner, name) for inner in cast("list[Json]", value)]
    if isinstance(value, str) and is_secret_header(name.replace("_", "-")):
        register_secret(value.rpartition(" ")[2])  # `Bearer KEY`
        return REDACTED
    return redact(value) if isinstance(value, str) else value


def _redacted_frame(event: bytes) -> str:
    try:
        value = loads(event)
        clean = _redacted(value)
    except (ValueError, RecursionError):
        text = redact(event.decode("utf-8", "replace"))
    else:
        text = event.decode("utf-8", "replace") if clean == value else dumps(clean).decode()
    return "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"
