"""Request senders and bodies, with limits and validation."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from sidestream import jsontext
from sidestream.errors import SidestreamError
from sidestream.jsontext import JsonObject
from sidestream.limits import MAX_BODY_S
from sidestream.server.errors import RequestError, as_request_error
from sidestream.server.server import Server
from sidestream.server.settings import Panel
from sidestream.store.ids import ConversationId

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

AT_HEADER = "X-Sidestream-At"
"""Header that schedules a message for later."""
MAX_DELAY_S = 366 * 86_400.0
BODY_TIMEOUT_S = 30.0
"""Seconds that the next chunk of a body may take."""
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON = re.compile(r"application/json(\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE)


def with_errors(body: Callable[[Request, RequestError], JsonObject]) -> Callable[[Endpoint], Endpoint]:
    """Decorate endpoints of an API with its own error format, which `body` builds."""

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def answered(request: Request) -> Response:
            try:
                return await endpoint(request)
            except RequestError as error:
                refused = error
            except SidestreamError as error:
                refused = as_request_error(error)
            return json_response(body(request, refused), refused.status, refused.headers)

        return answered

    return decorate


def server_of(connection: HTTPConnection) -> Server:
    """Return the server that handles a request."""
    return connection.app.state.server


def owner_of(connection: HTTPConnection) -> str:
    """Return the tenant of a request, derived from its token. It is empty on a server without tokens."""
    return connection.state.owner


def may_administer(connection: HTTPConnection) -> bool:
    """Return whether the sender may change the server's machine: its MCP servers, keys and indexed folders."""
    return connection.state.is_admin


def is_guest(connection: HTTPConnection) -> bool:
    """Return whether the sender is one of several users of the server, and not the one who runs it."""
    settings = server_of(connection).settings
    return bool(owner_of(connection)) and not may_administer(connection) and settings.has_guests


def check_panel(connection: HTTPConnection, panel: Panel) -> None:
    """Raise RequestError(403) if the web UI has no such panel for the sender, who may not administer either."""
    has_it = panel in server_of(connection).settings.page.shown_panels
    if not may_administer(connection) and (not has_it or (panel == "keys" and is_guest(connection))):
        message = f"this server does not show its {panel} to you"
        raise RequestError(403, message, type="permission_error", code="panel_hidden")


def check_admin(connection: HTTPConnection, what: str) -> None:
    """Raise RequestError(403) unless the sender may administer the server. `what` names the refused action."""
    if not may_administer(connection):
        raise RequestError(
            403,
            f"only the owner of this server may {what}: use the URL that `sidestream serve --list` prints on its "
            "machine; to allow others, use serve --allow-admin or create_app(allows_admin=…)",
            type="permission_error",
            code="owner_only",
        )


def stored_id(connection: HTTPConnection, conversation: str) -> str:
    """Return the store id of the tenant's conversation."""
    return str(ConversationId(owner_of(connection), conversation))


def sent_at(request: Request) -> float | None:
    """Return when to send a message, in seconds since 1970, or None for now.

    Raises RequestError if the header is not a valid time within a year.
    """
    text = request.headers.get(AT_HEADER)
    if text is None:
        return None
    try:
        at = float(text) if _SECONDS.fullmatch(text) else datetime.fromisoformat(text)
    except ValueError:
        at = None
    if isinstance(at, datetime):
        at = at.timestamp() if at.tzinfo is not None else None
    now = time.time()
    if at is None or at > now + MAX_DELAY_S:
        message = f"{AT_HEADER} must be a time within a year, such as 2027-01-31T08:00:00Z, or seconds since 1970"
        raise RequestError(400, message, param=AT_HEADER, code="invalid_time")
    return at if at > now else None


async def read_body(request: Request) -> bytes:
    """Read the body of a JSON request.

    Raises RequestError if it has another type, is too large, or stops halfway.
    """
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise RequestError(415, "Content-Type must be application/json", code="unsupported_media_type")
    server = server_of(request)
    limit = server.settings.max_body_bytes
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    try:
        with closing(server.bodies.body(owner_of(request))) as body:
            body.reserve(int(length) if length.isdecimal() else 0)
            # Not one outer timeout: `wait_for` may lose a cancellation while chunks arrive.
            end_s = time.monotonic() + MAX_BODY_S
            while (chunk := await asyncio.wait_for(anext(stream, None), BODY_TIMEOUT_S)) is not None:
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                if time.monotonic() > end_s:
                    raise TimeoutError
                body.reserve(size)
                chunks.append(chunk)
            return b"".join(chunks)
    except TimeoutError:
        raise RequestError(408, "timed out waiting for the rest of the body", code="request_timeout") from None
    except ClientDisconnect:
        raise RequestError(400, "client disconnected before sending the whole body", code="incomplete_body") from None


async def read_json(request: Request) -> jsontext.JsonObject:
    """Parse the body of a request as a JSON object. Raises RequestError if it is not one."""
    body = await read_body(request)
    try:
        value = jsontext.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not jsontext.is_object(value):
        raise RequestError(400, "the body must be a JSON object", code="invalid_json")
    return value


def read_frame(data: str | bytes, max_bytes: int) -> jsontext.JsonObject:
    """Parse a WebSocket message as a JSON object. Raises RequestError if it is not one or is too large."""
    if len(data) > max_bytes:
        raise RequestError(413, f"the frame is larger than {max_bytes} bytes", code="request_too_large")
    if (frame := jsontext.object_in(data)) is None:
        raise RequestError(400, "the frame must be a JSON object", code="invalid_json")
    return frame


def query_number(query: Mapping[str, str], name: str) -> int | None:
    """Parse a non-negative integer query parameter, or return None if it is missing.

    Raises RequestError if it is not such a number.
    """
    text = query.get(name)
    if text is not None and (not text.isdecimal() or len(text) > 15):
        raise RequestError(400, f"{name} must be a non-negative integer", param=name)
    return None if text is None else int(text)


def checked(value: Any, shape: type[T]) -> T:
    """Convert a value to this type. Raises RequestError, with the path of the parameter, if it does not match."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        path = found.group(1) if found else ""
        message = _PATH.sub("", text)
        if (missing := _MISSING.fullmatch(message)) is not None:
            path = f"{path}.{missing[1]}" if path else missing[1]
        raise RequestError(400, message, param=path or None) from None
    except UnicodeEncodeError:
        raise RequestError(
            400, "the string is not valid Unicode: it has a lone surrogate", param=_surrogate_in(value)
        ) from None


def _surrogate_in(value: Any) -> str | None:
    """Return the path of the first string or field name with a lone surrogate."""
    places: list[tuple[Any, str]] = [(value, "")]
    while places:
        entry, path = places.pop()
        if _SURROGATE.search(path) or (isinstance(entry, str) and _SURROGATE.search(entry)):
            return path
        if jsontext.is_object(entry):
            places += [(entry[name], f"{path}.{name}" if path else name) for name in reversed(entry)]
        elif jsontext.is_array(entry):
            places += [(entry[index], f"{path}[{index}]") for index in reversed(range(len(entry)))]
    return None


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(jsontext.dumps(value), status, headers, media_type="application/json")


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body is larger than {limit} bytes", code="request_too_large")


def refused(request: Request, error: Exception) -> Response:
    """Return the response to a refused request."""
    assert isinstance(error, RequestError)
    return json_response(error.body(), error.status, error.headers)


def http_error(request: Request, error: Exception) -> Response:
    """Return the response for an unknown route or a wrong method."""
    assert isinstance(error, HTTPException)
    kind = "not_found" if error.status_code == 404 else "invalid_request_error"
    message = f"{request.url.path} not found" if error.status_code == 404 else error.detail
    return refused(request, RequestError(error.status_code, message, type=kind))
