"""What all transports of an event loop share: sessions, proxies, and WebSocket connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from yarl import URL

from sidestream.wire.egress import DataSessions, configured_session
from sidestream.wire.proxies import proxy_of

if TYPE_CHECKING:
    from sidestream.wire.socket.pool import Sockets


class Pool:
    """The session that all transports of an event loop share. Proxies are looked up once per host."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.session = configured_session()
        self.lifetime = _lifetime(self, loop)
        self.sockets: Sockets | None = None
        """The WebSocket connections, once there are any."""
        self._proxies: dict[tuple[str, str | None], str | None] = {}
        self.data_sessions = DataSessions()

    def proxy_of(self, url: URL) -> str | None:
        """The proxy that the environment names for a host."""
        key = url.scheme, url.host
        if key not in self._proxies:
            self._proxies[key] = proxy_of(url)
        return self._proxies[key]

    async def close(self) -> None:
        """Closes everything."""
        if self.sockets is not None:
            await self.sockets.close()
        await self.session.close()
        await self.data_sessions.close()


_pools: dict[asyncio.AbstractEventLoop, Pool] = {}


async def close_session() -> None:
    """Closes the shared session of this event loop before the loop ends. The next call opens a new one."""
    if known := _pools.get(asyncio.get_running_loop()):
        await known.lifetime.aclose()


async def shared_pool() -> Pool:
    """The pool of this event loop."""
    loop = asyncio.get_running_loop()
    if known := _pools.get(loop):
        return known
    for other in list(_pools):
        if other.is_closed():
            _pools.pop(other, None)
    pool = _pools[loop] = Pool(loop)
    await anext(pool.lifetime)
    return pool


async def _lifetime(pool: Pool, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    """Closes the pool with the event loop, whose shutdown closes its async generators."""
    try:
        yield
    finally:
        _pools.pop(loop, None)
        await pool.close()
