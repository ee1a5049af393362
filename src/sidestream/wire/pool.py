"""Resources that all transports of an event loop share: sessions, proxies from the environment, and WebSockets."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from sidestream.errors import ConfigurationError
from sidestream.wire.egress import DataSessions, configured_session

if TYPE_CHECKING:
    from sidestream.wire.socket.pool import Sockets


def proxy_of(url: URL) -> str | None:
    """Return the proxy for a URL, or None. aiohttp's own lookup would add credentials from ~/.netrc."""
    proxy = _named_for(url.scheme)
    if not proxy or proxy_bypass(url.host or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the proxy for {url.scheme} must be an http or https URL; change the variable, "
            "or pass an aiohttp session whose connector supports its protocol"
        )
    return proxy


def _named_for(scheme: str) -> str | None:
    if sys.platform in ("darwin", "win32"):
        proxies = getproxies()
        return proxies.get(scheme) or proxies.get("all")
    # As in getproxies, without a loop over the whole environment: lowercase names win, even if empty.
    for name in (f"{scheme}_proxy", "all_proxy"):
        is_forged = (
            name == "http_proxy" and "REQUEST_METHOD" in os.environ
        )  # in a CGI program, a client's header sets it
        value = os.environ.get(name, "" if is_forged else os.environ.get(name.upper(), ""))
        if value:
            return value
    return None


class Pool:
    """The session and other resources of an event loop's transports. Proxies are looked up once per host."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.session = configured_session()
        self.lifetime = _lifetime(self, loop)
        self.sockets: Sockets | None = None
        """WebSocket connections, created on first use."""
        self._proxies: dict[tuple[str, str | None], str | None] = {}
        self.data_sessions = DataSessions()

    def proxy_of(self, url: URL) -> str | None:
        """Return the proxy from the environment for a host, or None."""
        key = url.scheme, url.host
        if key not in self._proxies:
            self._proxies[key] = proxy_of(url)
        return self._proxies[key]

    async def close(self) -> None:
        if self.sockets is not None:
            await self.sockets.close()
        await self.session.close()
        await self.data_sessions.close()


_pools: dict[asyncio.AbstractEventLoop, Pool] = {}


async def close_session() -> None:
    """Close the shared session of this event loop before the loop ends. The next call opens a new one."""
    if known := _pools.get(asyncio.get_running_loop()):
        await known.lifetime.aclose()


async def shared_pool() -> Pool:
    """Return the pool of this event loop, creating it if needed."""
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
    """Close the pool when the event loop shuts down its async generators."""
    try:
        yield
    finally:
        _pools.pop(loop, None)
        await pool.close()
