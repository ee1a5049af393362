"""WebSocket connections of an event loop, one for each server and set of headers."""

import asyncio
import weakref
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import ClientWSTimeout

from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.wire.download import read_start
from sidestream.wire.egress import configured_session, parsed_url
from sidestream.wire.socket.connection import CLOSE_S, Socket, SocketConnection, SocketTarget

HEARTBEAT_S: Final = 30.0
"""Interval in seconds between checks of an idle connection, so that one the network has dropped is not reused."""
MAX_IDLE: Final = 16
"""Maximum number of idle connections per event loop, e.g. with many keys. Beyond it the oldest is closed."""

_MAX_MESSAGE_BYTES: Final = 2**31 - 1
"""Largest limit that aiohttp accepts."""

_CLOSE_TIMEOUT: Final = ClientWSTimeout(ws_close=CLOSE_S)  # pyright: ignore[reportCallIssue] - made by attrs


class UpgradeRefusedError(Exception):
    """The server answered a WebSocket upgrade with an HTTP response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class Sockets:
    """The WebSocket connections of an event loop."""

    def __init__(self) -> None:
        self._session = configured_session(middlewares=(_refuse_responses,))
        self._connections: dict[SocketTarget, SocketConnection] = {}
        """Connections that accept responses."""
        self._all: set[SocketConnection] = set()
        self._locks: weakref.WeakValueDictionary[SocketTarget, asyncio.Lock] = weakref.WeakValueDictionary()

    async def connection(self, target: SocketTarget, limits: Limits) -> SocketConnection:
        """Return the connection for a target, opening a new one if there is none or it is too old.

        Raises UpgradeRefusedError if the server refuses the upgrade.
        """
        lock = self._locks.setdefault(target, asyncio.Lock())
        async with lock:
            known = self._connections.get(target)
            if known is not None and known.is_open and not known.is_too_old:
                return known
            if known is not None:
                known.retire()
            new = self._connections[target] = SocketConnection(await self._connect(target, limits), target)
        self._all.add(new)
        new.when_closed(lambda: self._forget(target, new))
        idle = [connection for connection in self._connections.values() if connection.is_idle and connection is not new]
        for connection in idle[: max(len(idle) - MAX_IDLE, 0)]:
            connection.close()
        return new

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        connections = [*self._all]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()
        await self._session.close()

    def _forget(self, target: SocketTarget, connection: SocketConnection) -> None:
        self._all.discard(connection)
        if self._connections.get(target) is connection:
            del self._connections[target]

    async def _connect(self, target: SocketTarget, limits: Limits) -> Socket:
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                return await self._session.ws_connect(
                    parsed_url(target.url),
                    headers=dict(target.headers),
                    proxy=target.proxy,
                    timeout=_CLOSE_TIMEOUT,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=min(target.max_event_bytes, _MAX_MESSAGE_BYTES),
                    decode_text=False,
                )
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None
        except aiohttp.WSServerHandshakeError as error:
            # The server accepted, but with headers that are not valid for a WebSocket.
            status = error.status
        raise UpgradeRefusedError(status, {}, b"")


async def _refuse_responses(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise UpgradeRefusedError for any response but an upgrade, redirects included."""
    response = await handler(request)
    if response.status == 101:
        return response
    try:
        body = await read_start(response.content, DEFAULT_LIMITS)
    finally:
        response.close()
    raise UpgradeRefusedError(response.status, response.headers, body)
