"""The HTTP transport, with one pooled session per event loop. Files are read while they are sent."""

import asyncio
import functools
import io
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver
from msgspec.structs import replace
from yarl import URL

from sidestream import __version__
from sidestream.errors import ConfigurationError, ConnectError, ProviderError, RunError, StreamTimeoutError
from sidestream.limits import Limits
from sidestream.text.redaction import Secret, is_secret_header, register_secret, secrets_in
from sidestream.text.urls import origin_of
from sidestream.transport.calls import FRAMES, FileBody, HttpCall, HttpResponse
from sidestream.wire.aws_frames import FrameSplitter
from sidestream.wire.download import WholeAnswer, download, read_start, read_whole
from sidestream.wire.egress import (
    AddressPolicy,
    AddressRefusedError,
    DataSession,
    check_url,
    parsed_url,
    public_only,
    refusal_in,
)
from sidestream.wire.failures import (
    address_refused,
    broken_upload,
    connect_error,
    error_in_body,
    excerpt,
    first_byte_timeout,
    status_error,
)
from sidestream.wire.pool import Pool, close_session as close_session, shared_pool
from sidestream.wire.retry import Attempts, RetryPolicy, with_retries
from sidestream.wire.stream import EventStream

if TYPE_CHECKING:
    from types import CoroutineType


PIECE_BYTES: Final = 256 * 1024


def check_unchanged(file: FileBody) -> None:
    """Check that a file to upload can still be read.

    Raises ConfigurationError if it cannot, or if it has become shorter since it was measured.
    """
    if isinstance(file.source, bytes):
        return
    try:
        size = file.source.stat().st_size
    except OSError as error:
        raise ConfigurationError(f"cannot read {file.source}: {error.strerror}") from error
    if size < file.end:
        raise ConfigurationError(f"{file.source} became shorter during the upload; upload it again")


async def pieces_of(file: FileBody) -> AsyncGenerator[bytes]:
    """Yield the body in pieces. Raises OSError if the file cannot be read to its end."""
    sent = 0
    async for piece in _pieces(file):
        yield piece
        sent += len(piece)
        if file.sent is not None:
            file.sent(sent)


async def _pieces(file: FileBody) -> AsyncGenerator[bytes]:
    if file.head:
        yield file.head
    for start in range(file.start, file.end, PIECE_BYTES):
        length = min(PIECE_BYTES, file.end - start)
        if isinstance(file.source, bytes):
            yield file.source[start : start + length]
            continue
        # Open the file for each piece, so that an abandoned request leaves no open file.
        piece = await asyncio.to_thread(_read, file.source, start, length)
        if len(piece) < length:
            raise OSError(f"{file.source} became shorter during the upload")
        yield piece
    if file.tail:
        yield file.tail


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


T = TypeVar("T")
_Answer = EventStream | WholeAnswer

USER_AGENT: Final = f"sidestream/{__version__}"
READ_BUFFER_BYTES: Final = 256 * 1024
"""Read buffer per stream. aiohttp buffers up to twice this before it applies backpressure to the server."""

MALLOC_VARIABLE: Final = "SIDESTREAM_MALLOC_BLOCK"
"""Environment variable. Set it to 0 to leave the process's memory allocator alone."""


class HttpTransport:
    """A transport that sends calls over HTTP.

    Unless a session is passed in, all transports of an event loop share one pool. `address_policy` decides which
    addresses are allowed for a host that came from data, such as a redirect's; the default allows public ones only.
    Such hosts always have a separate session, and `resolver` looks up their names. `retry` sets the waits between
    retries. Without `uses_proxies`, proxies from the environment are ignored.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession | None = None,
        *,
        retry: RetryPolicy | None = None,
        uses_proxies: bool = True,
        address_policy: AddressPolicy = public_only,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._session = session
        self._retry = retry or RetryPolicy()
        self._uses_proxies = uses_proxies
        self._address_policy = address_policy
        self._resolver = resolver
        self._last_headers: _Headers | None = None

    # Await responses in as few coroutines as possible: many streams may open at once, and the garbage collector visits
    # each one.

    def open(self, call: HttpCall, limits: Limits) -> "CoroutineType[Any, Any, HttpResponse]":
        """Send the call, with retries. Returns at the first event of a stream, else at the response's headers."""
        return bare(self._open(call, limits))

    def download(self, call: HttpCall, limits: Limits) -> "CoroutineType[Any, Any, bytes]":
        """Return the body of a deliverable. Follows up to five redirects."""
        return bare(self._download(call, limits))

    async def _open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        headers = self._headers_of(call)
        send = self._send if call.file is None else self._upload
        if call.sign is not None:
            send = partial(_signed, send)
        attempts = Attempts()
        response = await with_retries(partial(send, call, headers, limits), call, limits, self._retry, attempts)
        if attempts.causes:
            response.opening = attempts.opening
        return response

    async def _download(self, call: HttpCall, limits: Limits) -> bytes:
        defaults = {"User-Agent": USER_AGENT, "Accept": "*/*"}

        async def request(hop: HttpCall) -> aiohttp.ClientResponse:
            headers = merged_headers(hop, defaults)
            if hop.sign is not None:
                headers = await signed_headers(hop, headers)
            for secret in secrets_in(hop.headers):
                register_secret(secret)
            return await typed(lambda _: self._request(hop, headers, limits), hop, limits)

        async def fetch() -> bytes:
            return await download(request, replace(call, method="GET", body=None), limits)

        return await with_retries(lambda: typed(lambda _: fetch(), call, limits), call, limits, self._retry)

    def _headers_of(self, call: HttpCall) -> Mapping[str, str]:
        """Return the headers of a model call. They are cached, since consecutive calls mostly share them."""
        last = self._last_headers
        if last is None or not last.fits(call):
            last = self._last_headers = _Headers(call)
        for secret in last.secrets:
            register_secret(secret)
        # All tries share one key, so that the server can tell a retry from a second request.
        return last.all if last.has_key else {**last.all, "Idempotency-Key": os.urandom(16).hex()}

    def _send(self, call: HttpCall, headers: Mapping[str, str], limits: Limits) -> Awaitable[_Answer]:
        return typed(partial(self._try, call, headers, limits), call, limits)

    async def _upload(self, call: HttpCall, headers: Mapping[str, str], limits: Limits) -> _Answer:
        """Try once to send a call with a file. The timeout restarts with each piece that is sent.

        A broken upload is not retried: part of the file has arrived, and the server may have stored it.
        """
        assert call.file is not None
        file, loop, sent_bytes = call.file, asyncio.get_running_loop(), 0
        await asyncio.to_thread(check_unchanged, file)

        async def send(timer: asyncio.Timeout) -> _Answer:
            def sent(count: int) -> None:
                nonlocal sent_bytes
                sent_bytes = count
                with suppress(RuntimeError):  # timed out, or the response came before the whole file was sent
                    timer.reschedule(loop.time() + limits.first_byte_timeout_s)
                if file.sent is not None:
                    file.sent(count)

            watched = replace(call, file=replace(file, sent=sent))
            return await self._try(watched, {**headers, "Content-Length": str(file.size)}, limits, timer)

        try:
            return await typed(send, call, limits)
        except (ConnectError, StreamTimeoutError) as error:
            if not sent_bytes or not limits.max_retries:
                raise
            failed = type(error)
        await asyncio.to_thread(check_unchanged, file)
        raise broken_upload(failed, call, sent_bytes, file.size)

    async def _try(self, call: HttpCall, headers: Mapping[str, str], limits: Limits, timer: asyncio.Timeout) -> _Answer:
        """Try once to send a call and read the start of the response."""
        response = await self._request(call, headers, limits)
        deadline_s = timer.when() or 0.0
        try:
            return await _begin(response, call, limits, deadline_s)
        except BaseException:
            response.close()
            raise

    async def _request(self, call: HttpCall, headers: Mapping[str, str], limits: Limits) -> aiohttp.ClientResponse:
        _raise_malloc_threshold()
        pool = await shared_pool() if self._session is None or call.has_untrusted_host else None
        try:
            url = as_url(call.url)
            proxy = pool.proxy_of(url) if pool is not None and self._uses_proxies else None
            return await self._session_for(call, url, proxy, pool).request(
                call.method,
                url,
                headers=headers,
                data=_payload(call),
                proxy=proxy,
                allow_redirects=False,
                raise_for_status=False,
                auto_decompress=True,
                read_bufsize=READ_BUFFER_BYTES,
                timeout=_timeout(limits.connect_timeout_s, is_pool_ours=pool is not None),
            )
        except (aiohttp.ClientError, AddressRefusedError) as exc:
            if (why := refusal_in(exc)) is None:
                raise
            error = address_refused(call, why)
        except ValueError as exc:
            error = ConfigurationError(f"cannot send the request to {origin_of(call.url)}: {excerpt(str(exc))}")
        # Raise outside `except`, so that the library's exception is not chained.
        raise error

    def _session_for(
        self, call: HttpCall, url: URL, proxy: str | None, pool: Pool | None
    ) -> aiohttp.ClientSession | DataSession:
        if call.has_untrusted_host:
            assert pool is not None
            check_url(url, self._address_policy)
            # A proxy is a configured host, and resolves names itself.
            return pool.data_sessions.get(self._address_policy, self._resolver) if proxy is None else pool.session
        session = self._session if pool is None else pool.session
        if session is None or session.closed:
            raise ConfigurationError("the aiohttp session that was passed in is closed; pass an open one")
        return session


def _payload(call: HttpCall) -> bytes | io.BytesIO | AsyncGenerator[bytes] | None:
    if call.file is not None:
        return pieces_of(call.file)
    # aiohttp writes large bytes at once. A file-like body lets other streams run in between.
    return io.BytesIO(call.body) if call.body is not None and len(call.body) > READ_BUFFER_BYTES else call.body


@functools.cache
def _raise_malloc_threshold() -> None:
    """Speed up socket reads, once per process.

    asyncio allocates 256 KiB for each read. glibc's malloc maps and unmaps that memory each time, at several times the
    cost of the read, until the program has freed a larger block. This function frees one.
    """
    if os.environ.get(MALLOC_VARIABLE) != "0":
        bytearray(512 * 1024)


as_url = functools.lru_cache(maxsize=64)(parsed_url)


@functools.lru_cache(maxsize=16)
def _timeout(connect_s: float, *, is_pool_ours: bool) -> aiohttp.ClientTimeout:
    # `connect` includes the DNS lookup, but also the wait for a free connection. Our own pool never makes requests
    # wait.
    return aiohttp.ClientTimeout(total=None, connect=connect_s if is_pool_ours else None, sock_connect=connect_s)


async def bare(sending: Awaitable[T]) -> T:
    """Await `sending`, and raise its errors without lower frames, whose locals hold headers and server data."""
    try:
        return await sending
    except RunError as exc:
        error = exc.with_traceback(None)
    raise error


async def typed(action: Callable[[asyncio.Timeout], Awaitable[T]], call: HttpCall, limits: Limits) -> T:
    """Try once to send a call, under the first-byte timeout.

    Library exceptions become typed errors and are not chained, since they may contain secrets.
    """
    timer = asyncio.timeout(limits.first_byte_timeout_s)
    try:
        async with timer:
            return await action(timer)
    except (aiohttp.ClientError, OSError) as exc:
        error = first_byte_timeout(call, limits) if timer.expired() else connect_error(exc, call.url)
    raise error


async def _begin(response: aiohttp.ClientResponse, call: HttpCall, limits: Limits, deadline_s: float) -> _Answer:
    """Check a response's status and headers, and start reading it.

    Raises ProviderError for an error status, a redirect, or an unexpected content type.
    """
    status = response.status
    if status >= 400:
        raise status_error(call, status, response.headers, await read_start(response.content, limits))
    if status >= 300:
        target = origin_of(response.headers.get("location", ""), call.url)
        raise ProviderError(
            f"{origin_of(call.url)} redirects ({status}) to {target}; "
            "redirects of model calls are not followed, so change the base URL if this is the right server",
            code="redirect",
            status=status,
        )
    kind = response.content_type
    if call.stream and kind in ("text/event-stream", FRAMES):
        frames = FrameSplitter(limits.max_event_bytes, partial(status_error, call)) if kind == FRAMES else None
        stream = EventStream(response, call, limits, frames)
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
            f"{origin_of(call.url)} answered {status} with {excerpt(kind)} instead of a model response; "
            f"check the base URL (the body begins: {excerpt(text)})",
            code="content-type",
            status=status,
        )
    return WholeAnswer(response, call, limits, deadline_s)


class _Headers:
    """Headers of a model call: the call's own, over the defaults."""

    def __init__(self, call: HttpCall) -> None:
        self._kind = (call.stream, call.body is None)
        self._given = dict(call.headers)
        defaults = {"User-Agent": USER_AGENT, "Accept": "text/event-stream" if call.stream else "application/json"}
        if call.body is not None:
            defaults["Content-Type"] = "application/json"
        self.all = merged_headers(call, defaults)
        self.secrets = tuple(secrets_in(call.headers))
        self.has_key = any(name.lower() == "idempotency-key" for name in call.headers)

    def fits(self, call: HttpCall) -> bool:
        """Return whether another call has the same headers."""
        return self._kind == (call.stream, call.body is None) and self._given == call.headers


async def signed_headers(call: HttpCall, headers: Mapping[str, str]) -> dict[str, str]:
    """Add the headers that the call's `sign` returns for it. It gets all other headers and the URL as sent."""
    assert call.sign is not None
    made = await asyncio.to_thread(call.sign, replace(call, url=str(as_url(call.url)), headers=dict(headers)))
    added = {name: Secret(value) for name, value in made.items()}
    for name, value in added.items():
        if is_secret_header(name):
            register_secret(value)
    return merged_headers(replace(call, headers=added), headers)


async def _signed(
    send: Callable[[HttpCall, Mapping[str, str], Limits], Awaitable[_Answer]],
    call: HttpCall,
    headers: Mapping[str, str],
    limits: Limits,
) -> _Answer:
    """Sign a call and send it. Each try has its own signature, since signatures hold the time."""
    return await send(call, await signed_headers(call, headers), limits)


def merged_headers(call: HttpCall, defaults: Mapping[str, str]) -> dict[str, str]:
    """Merge the call's headers over the defaults. Raises ConfigurationError if one contains a line break."""
    given = {name.lower() for name in call.headers}
    headers = {name: value for name, value in defaults.items() if name.lower() not in given}
    for name, value in call.headers.items():
        if re.search(r"[\r\n\x00]", name + value):
            hint = f"; check {call.key_variable}" if call.key_variable and is_secret_header(name) else ""
            raise ConfigurationError(f"the header {name!r} contains a line break{hint}")
        headers[name] = value
    return headers
