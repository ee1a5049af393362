"""A transport that sends model calls over WebSocket connections, and everything else over HTTP."""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, cast

from msgspec.structs import replace

from sidestream.limits import Limits
from sidestream.logs import get_logger
from sidestream.text.redaction import register_secret, secrets_in
from sidestream.text.urls import origin_of
from sidestream.transport.calls import HttpCall, HttpResponse, Opening, SocketCodec
from sidestream.wire.failures import status_error
from sidestream.wire.http import USER_AGENT, HttpTransport, as_url, bare, merged_headers, typed
from sidestream.wire.pool import shared_pool
from sidestream.wire.retry import RETRIED_STATUSES, Attempts, RetryPolicy, with_retries
from sidestream.wire.socket.connection import SocketTarget
from sidestream.wire.socket.pool import Sockets, UpgradeRefusedError
from sidestream.wire.socket.stream import SocketStream

FALLBACK_S: Final = 3600.0
"""Seconds before a server that refused a WebSocket is asked again. Until then it is used over HTTP."""

_TEMPORARY: Final = RETRIED_STATUSES | {401, 500, 502, 503, 504}
"""Refusals that are unrelated to WebSockets. They raise the same errors as over HTTP."""

log = get_logger(__name__)


class WebSocketTransport:
    """A transport for the calls that `codec` supports, with one WebSocket per server and set of headers.

    All other calls go over HTTP, and so do these if the server refuses the upgrade: `opening.fallback` of the first
    response gives the reason. `retry` and `uses_proxies` are as for `HttpTransport`.
    """

    def __init__(
        self,
        codec: SocketCodec,
        http: HttpTransport | None = None,
        *,
        retry: RetryPolicy | None = None,
        uses_proxies: bool = True,
    ) -> None:
        self._codec = codec
        self._retry = retry or RetryPolicy()
        self._http = http or HttpTransport(retry=self._retry, uses_proxies=uses_proxies)
        self._uses_proxies = uses_proxies
        self._refused_s: dict[str, float] = {}
        """Time of the last refused upgrade, by URL."""

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        """Send the call, with retries. Returns at the first event."""
        refused_s = self._refused_s.get(call.url)
        is_refused = refused_s is not None and monotonic() < refused_s + FALLBACK_S
        needs_http = is_refused or call.has_untrusted_host or call.sign is not None
        message_for = None if needs_http else self._codec.request(call)
        if message_for is None:
            return await self._http.open(call, limits)
        try:
            return await bare(self._open(message_for, call, limits))
        except UpgradeRefusedError as error:
            status = error.status
        is_first = call.url not in self._refused_s
        self._refused_s[call.url] = monotonic()
        response = await self._http.open(call, limits)
        if is_first:
            why = f"{origin_of(call.url)} refused a WebSocket ({status}), so requests are sent over HTTP."
            log.warning("%s", why)
            given = cast("Any", response)
            given.opening = replace(getattr(given, "opening", Opening()), fallback=why)
        return response

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        """Return the body of a deliverable, over HTTP."""
        return await self._http.download(call, limits)

    async def _open(self, message_for: Callable[[str], bytes], call: HttpCall, limits: Limits) -> SocketStream:
        for secret in secrets_in(call.headers):
            register_secret(secret)
        headers = merged_headers(call, {"User-Agent": USER_AGENT})
        attempts = Attempts()

        async def send() -> SocketStream:
            return await typed(lambda _: self._try(message_for, call, headers, limits), call, limits)

        response = await with_retries(send, call, limits, self._retry, attempts)
        if attempts.causes:
            response.opening = replace(attempts.opening, limiter_wait_s=response.opening.limiter_wait_s)
        return response

    async def _try(
        self, message_for: Callable[[str], bytes], call: HttpCall, headers: dict[str, str], limits: Limits
    ) -> SocketStream:
        """Try once to open a stream. Waiting for a turn on a full connection counts as waiting for the first event."""
        pool = await shared_pool()
        pool.sockets = sockets = pool.sockets or Sockets()
        proxy = pool.proxy_of(as_url(call.url)) if self._uses_proxies else None
        target = SocketTarget(call.url, tuple(headers.items()), proxy, limits.max_event_bytes, self._codec)
        try:
            while True:
                connection = await sockets.connection(target, limits)
                stream = await connection.open(message_for, call, limits)
                if stream is not None:
                    return stream
        except UpgradeRefusedError as refusal:
            if refusal.status not in _TEMPORARY:
                raise
            error = status_error(call, refusal.status, refusal.headers, refusal.body)
        raise error
