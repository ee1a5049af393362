"""Calls carried out over HTTP, with one pooled session per event loop."""

import asyncio
import functools
import importlib.metadata
import io
import math
import os
import re
import sys
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from msgspec.structs import replace
from yarl import URL

from sidestream.calls import Exchange, HttpCall
from sidestream.errors import (
    ConfigurationError,
    ProviderError,
    RunError,
)
from sidestream.limits import Limits
from sidestream.redaction import is_secret_header, register_secret
from sidestream.wire.download import WholeAnswer, download, read_start, read_whole, too_large
from sidestream.wire.retry import (
    RetryPolicy,
    cut,
    error_in_body,
    excerpt,
    failure,
    idle,
    late,
    origin_of,
    refusal,
    with_retries,
)
from sidestream.wire.sse import Splitter

T = TypeVar("T")

LOOK_INTERVAL_S: Final = 1.0
"""How often a waiting stream looks after its connection."""
READ_BUFFER_BYTES: Final = 256 * 1024
"""What aiohttp may hold of a stream whose consumer is slow, before it lets the server wait: twice this."""

_sessions: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None]]] = {}


class HttpTransport:
    """Carries calls out over HTTP. Without a session of yours, all transports of a loop share one pool."""

    def __init__(
        self,
        session: aiohttp.ClientSession | None = None,
        *,
        retry: RetryPolicy | None = None,
        uses_proxies: bool = True,
    ) -> None:
        self._session = session
        self._retry = retry or RetryPolicy()
        self._uses_proxies = uses_proxies

    async def open(self, call: HttpCall, limits: Limits) -> Exchange:
        """Sends the call, again where the rules allow it; returns at the first event or an answer's head."""
        # A key for the whole opening: the server can tell a retry from a second request.
        defaults = {
            "User-Agent": _user_agent(),
            "Accept": "text/event-stream" if call.stream else "application/json",
            "Idempotency-Key": str(uuid.uuid4()),
        }
        if call.body is not None:
            defaults["Content-Type"] = "application/json"
        headers = _headers(call, defaults)

        async def begin() -> Exchange:
            deadline_s = asyncio.get_running_loop().time() + limits.first_byte_timeout_s
            response = await self._request(call, headers, limits)
            try:
                return await _begin(response, call, limits, deadline_s)
            except BaseException:
                response.close()
                raise

        return await with_retries(lambda: _typed(begin, call, limits), call, limits, self._retry)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """The body of a deliverable, over at most five redirects."""
        defaults = {"User-Agent": _user_agent(), "Accept": "*/*"}

        async def request(hop: HttpCall) -> aiohttp.ClientResponse:
            headers = _headers(hop, defaults)
            return await _typed(lambda: self._request(hop, headers, limits), hop, limits)

        async def fetch() -> bytes:
            return await download(request, replace(call, method="GET", body=None), limits)

        return await with_retries(lambda: _typed(fetch, call, limits), call, limits, self._retry)

    async def _request(self, call: HttpCall, headers: Mapping[str, str], limits: Limits) -> aiohttp.ClientResponse:
        session = self._session or await _shared_session()
        is_own = session is not self._session
        if session.closed:
            raise ConfigurationError("The aiohttp session that was handed in is closed.")
        body = call.body
        try:
            return await session.request(
                call.method,
                # What is quoted stays as it is, byte for byte: signed URLs depend on it.
                URL(call.url, encoded=re.fullmatch(r"[!-~]+", call.url) is not None),
                headers=headers,
                # aiohttp writes large bytes in one go; a file-like body leaves room for other streams.
                data=io.BytesIO(body) if body is not None and len(body) > READ_BUFFER_BYTES else body,
                proxy=_proxy(call.url) if is_own and self._uses_proxies else None,
                allow_redirects=False,
                raise_for_status=False,
                auto_decompress=True,
                read_bufsize=READ_BUFFER_BYTES,
                # `connect` includes finding the host, but also the wait for a place in a pool; ours has no end.
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=limits.connect_timeout_s if is_own else None,
                    sock_connect=limits.connect_timeout_s,
                ),
            )
        except aiohttp.ClientError:
            raise
        except ValueError as exc:
            problem = excerpt(str(exc))
        raise ConfigurationError(f"The request to {origin_of(call.url)} cannot be sent: {problem}")


async def close_session() -> None:
    """Closes this loop's shared session now rather than at the loop's end. The next call makes a new one."""
    if known := _sessions.get(asyncio.get_running_loop()):
        await known[1].aclose()


async def _shared_session() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    if known := _sessions.get(loop):
        return known[0]
    for other in list(_sessions):
        if other.is_closed():
            _sessions.pop(other, None)
    session = aiohttp.ClientSession(
        # No limit: a run's own limits bound it, and a full pool would let a stream wait without a word.
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    lifetime = _lifetime(session, loop)
    _sessions[loop] = session, lifetime
    await anext(lifetime)
    return session


async def _lifetime(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    """Lives as long as the loop: what shuts a loop down closes its generators, and so the session."""
    try:
        yield
    finally:
        _sessions.pop(loop, None)
        await session.close()


async def _typed(action: Callable[[], Awaitable[T]], call: HttpCall, limits: Limits) -> T:
    """One try under the first-byte timeout. Errors of libraries become ours; they may hold secrets, so no
    trace of them is kept."""
    timer = asyncio.timeout(limits.first_byte_timeout_s)
    try:
        async with timer:
            return await action()
    except (aiohttp.ClientError, OSError) as exc:
        error = late(call, limits) if timer.expired() else failure(exc, call.url)
    raise error


async def _begin(response: aiohttp.ClientResponse, call: HttpCall, limits: Limits, deadline_s: float) -> Exchange:
    """The exchange for an answer whose head is there, or the error that it is."""
    status = response.status
    if status >= 400:
        raise refusal(call, status, response.headers, await read_start(response.content, limits))
    if status >= 300:
        target = origin_of(response.headers.get("location", ""), call.url)
        raise ProviderError(
            f"{origin_of(call.url)} redirects ({status}) to {target}. "
            "Requests are not sent on; change the base URL if that is where it should go.",
            code="redirect",
            status=status,
        )
    kind = response.content_type
    if call.stream and kind == "text/event-stream":
        stream = _Stream(response, call, limits)
        await stream.begin()
        return stream
    if call.stream and (kind == "application/json" or kind.endswith("+json")):
        body = await read_whole(response.content, call, "max_response_bytes", limits.max_response_bytes)
        if error := error_in_body(call, status, body):
            raise error
        return WholeAnswer(response, call, limits, deadline_s, body)
    if call.stream or kind == "text/html":
        text = (await read_start(response.content, limits)).decode("utf-8", "replace")
        raise ProviderError(
            f"{origin_of(call.url)} answered {status}, but with {excerpt(kind)} instead of a model's answer. "
            f"Check the base URL. It begins: {excerpt(text)}",
            code="content-type",
            status=status,
        )
    return WholeAnswer(response, call, limits, deadline_s)


class _Stream:
    """An answer that is a stream of events."""

    is_stream = True

    def __init__(self, response: aiohttp.ClientResponse, call: HttpCall, limits: Limits) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._call = call
        self._limits = limits
        self._splitter = Splitter(limits.max_event_bytes)
        self._received_bytes = 0
        self._ready: list[bytes] = []
        self._has_begun = False
        self._has_ended = False
        self._error: RunError | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._deadline_s = 0.0

    async def begin(self) -> None:
        """Waits for the first events, so that a stream that breaks before them can be tried again."""
        self._watch(math.inf)
        try:
            self._ready = await self._read()
        finally:
            self._unwatch()

    async def events(self) -> list[bytes]:
        if self._ready:
            events, self._ready = self._ready, []
            return events
        if self._error is not None:
            raise self._error
        if self._has_ended:
            return []
        self._watch(self._loop.time() + self._limits.idle_timeout_s)
        try:
            return await self._read()
        except RunError as error:
            self._error = error
            self._close()
            raise
        finally:
            self._is_waiting = False

    async def body(self) -> bytes:
        raise RuntimeError("This answer is a stream: read events().")

    async def aclose(self) -> None:
        self._close()

    def _close(self) -> None:
        self._unwatch()
        # A stream that has ended gave its connection back already; any other connection is of no more use.
        self._response.close()

    async def _read(self) -> list[bytes]:
        """The next events; empty at the end. Keep-alives are read over."""
        while True:
            try:
                chunk = await self._content.readany()
            except RunError:
                raise
            except Exception:
                chunk = None
            if chunk is None:
                return self._broken()
            if not chunk:
                self._has_ended = True
                self._close()
                return self._splitter.flush()
            self._received_bytes += len(chunk)
            if self._received_bytes > self._limits.max_response_bytes:
                raise too_large(self._call, "max_response_bytes", self._limits.max_response_bytes)
            if events := self._splitter.feed(chunk):
                self._has_begun = True
                return events

    def _broken(self) -> list[bytes]:
        """The events that had come before the connection broke; if none had, raises what happened."""
        events = self._splitter.feed(_unread(self._content))
        self._has_begun |= bool(events)
        self._error = cut(self._call) if self._has_begun else failure(ConnectionResetError(), self._call.url)
        self._close()
        if events:
            return events
        raise self._error

    def _watch(self, deadline_s: float) -> None:
        # One timer that looks now and then: a timeout around each read would cost more than the read.
        self._deadline_s = deadline_s
        self._is_waiting = True
        if self._timer is None:
            self._timer = self._loop.call_at(min(deadline_s, self._loop.time() + LOOK_INTERVAL_S), self._look)

    def _unwatch(self) -> None:
        self._is_waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._is_waiting:
            return
        now_s = self._loop.time()
        connection = self._response.connection
        if self._content.total_bytes > self._received_bytes or self._content.is_eof():
            next_s = now_s  # the reader is about to wake up
        elif connection is None or connection.protocol is None or not connection.protocol.is_connected():
            # aiohttp does not wake a reader when the framing of its body breaks.
            self._content.set_exception(aiohttp.ClientPayloadError())
            return
        elif now_s >= self._deadline_s:
            self._content.set_exception(idle(self._call, self._limits))
            return
        else:
            next_s = min(self._deadline_s, now_s + LOOK_INTERVAL_S)
        self._timer = self._loop.call_at(next_s, self._look)


def _unread(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke: aiohttp would raise the break first and lose it."""
    read: Callable[[int], bytes] | None = getattr(content, "_read_nowait", None)
    return read(-1) if read else b""


def _headers(call: HttpCall, defaults: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers over the defaults; their credentials are remembered for redaction."""
    given = {name.lower() for name in call.headers}
    headers = {name: value for name, value in defaults.items() if name.lower() not in given}
    for name, value in call.headers.items():
        if re.search(r"[\r\n\x00]", name + value):
            hint = f" Check {call.key_variable}." if call.key_variable and is_secret_header(name) else ""
            raise ConfigurationError(f"The header {name!r} holds a line break.{hint}")
        if is_secret_header(name):
            register_secret(value.rpartition(" ")[2])
        headers[name] = value
    return headers


def _proxy_for(scheme: str) -> str | None:
    if sys.platform in ("darwin", "win32"):
        proxies = getproxies()
        return proxies.get(scheme) or proxies.get("all")
    # As getproxies does it, without a walk over the whole environment for each request: small letters win, also empty.
    for name in (f"{scheme}_proxy", "all_proxy"):
        is_forged = name == "http_proxy" and "REQUEST_METHOD" in os.environ  # By a client's header, in a CGI program.
        value = os.environ.get(name, "" if is_forged else os.environ.get(name.upper(), ""))
        if value:
            return value
    return None


def _proxy(url: str) -> str | None:
    """The proxy that the environment names; aiohttp's own look-up would add the credentials of ~/.netrc."""
    parts = urlsplit(url)
    proxy = _proxy_for(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"The proxy for {parts.scheme} is neither http nor https. Change the variable, "
            "or hand in an aiohttp session whose connector speaks its protocol."
        )
    return proxy


@functools.cache
def _user_agent() -> str:
    try:
        return f"sidestream/{importlib.metadata.version('sidestream')}"
    except importlib.metadata.PackageNotFoundError:
        return "sidestream/0"
