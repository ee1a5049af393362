"""Sessions for configured hosts and for hosts from data, and workarounds for broken framing.

A configured host (a base URL, a proxy) is the user's choice and may be anywhere, even on this machine. A host from data
(a redirect's target, a URL named in a response) must be public. The address is checked when the socket is created, so
that no spelling, DNS answer or rebinding gets around the check, and the socket connects to exactly that address.
"""

import asyncio
import functools
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from sidestream.limits import MAX_DATA_SESSIONS

_END = b"\r\n\r\n"


class _HeadFirst(ResponseHandler):
    """A protocol that works around three aiohttp limitations.

    It parses a response's head before its body: aiohttp parses each packet whole, so broken framing in the packet with
    the head would lose the response and its events. It reports broken framing to the body's reader, which would
    otherwise wait for the next timeout. And it resumes reading only if it was paused: aiohttp resumes its parser after
    each piece, which costs as much as parsing one.
    """

    _awaits_head = True

    def set_response_params(self, *args: Any, **options: Any) -> None:
        self._awaits_head = True
        super().set_response_params(*args, **options)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head and (end := data.find(_END)) >= 0:
            self._awaits_head = False
            end += len(_END)
            super().data_received(data[:end])
            data = data[end:]
            if not data:
                return
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: Any, **options: Any) -> None:
        super().set_exception(exc, *cause, **options)
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError())

    def resume_reading(self, *args: Any, **options: Any) -> None:
        if self._reading_paused:
            super().resume_reading(*args, **options)


def head_first(connector: aiohttp.TCPConnector) -> aiohttp.TCPConnector:
    """Make a connector use `_HeadFirst`, and return it. Unchanged if this aiohttp has no such factory."""
    if "_factory" in vars(connector):
        vars(connector)["_factory"] = functools.partial(_HeadFirst, loop=asyncio.get_running_loop())
    return connector


def arrived_messages(socket: Any) -> tuple[Sequence[Any], Callable[[], Awaitable[Any]]]:
    """Return the WebSocket messages that have arrived, each with its size, and a function that takes the next one.

    `receive()` costs more than routing an event. Returns no messages if this aiohttp stores them differently.
    """
    queue = getattr(socket, "_reader", None)
    return getattr(queue, "_buffer", ()), getattr(queue, "read", socket.receive)


IPAddress = IPv4Address | IPv6Address
AddressPolicy = Callable[[IPAddress], str | None]
"""Function that returns why a host from data may not have an address, as in "it is private", or None if it may."""

_REFUSED: Final = tuple(
    (IPv4Network(network), why)
    for network, why in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "private to a carrier",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "a cloud's metadata service",
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved",
        "192.0.2.0/24": "reserved",
        "192.88.99.0/24": "a 6to4 relay",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "reserved",
        "198.51.100.0/24": "reserved",
        "203.0.113.0/24": "reserved",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
    }.items()
)
_REFUSED_V6: Final = tuple(
    (IPv6Network(network), why)
    for network, why in {
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::ffff:0:0/96": "an IPv4-mapped form",
        "::ffff:0:0:0/96": "an IPv4-translated form",
        "::/96": "an IPv4-compatible form",
        "64:ff9b::/96": "a NAT64 form",
        "64:ff9b:1::/48": "a NAT64 form",
        "2001::/32": "a Teredo form",
        "2001::/23": "reserved",
        "2001:db8::/32": "reserved",
        "2002::/16": "a 6to4 form",
        "3fff::/20": "reserved",
        "fc00::/7": "private",
        "fe80::/10": "link-local",
        "fec0::/10": "private",
        "ff00::/8": "multicast",
    }.items()
)
_GLOBAL_V6: Final = IPv6Network("2000::/3")
"""The only range assigned for public use. All other addresses are refused."""

_NAME = r"(?i)[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?"
_LOCAL_NAME = r"(?i)[^.]+|(.+\.)?(localhost|local|internal|home\.arpa)"
_NUMERIC_LABEL = r"(?i)\d+|0x[0-9a-f]*"


class AddressRefusedError(OSError):
    """A host from data has a disallowed address or form. `why` completes "…, because"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def public_only(address: IPAddress) -> str | None:
    """Allow only public Internet addresses. This is the default policy."""
    rows = _REFUSED if isinstance(address, IPv4Address) else _REFUSED_V6
    for network, why in rows:
        if address in network:
            return f"{address} is {why}"
    if isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return f"{address} is not public"
    return None


def parsed_url(url: str) -> URL:
    """Parse a URL without changing its quoting, since URL signatures depend on every byte."""
    return URL(url, encoded=re.fullmatch(r"[!-~]+", url) is not None)


def is_same_origin(url: URL, other: URL) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return _origin(url) == _origin(other)


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme.lower(), (url.raw_host or "").lower(), url.port


def check_url(url: URL, policy: AddressPolicy) -> None:
    """Check a URL from data.

    Raises AddressRefusedError if it holds credentials, or if its host is refused as written. Names are checked again
    when they are resolved. Behind a proxy, which resolves them itself, this is the only check.
    """
    if url.user is not None or url.password is not None:
        raise AddressRefusedError("the URL contains a user or a password")
    host = url.raw_host or ""
    if (address := _literal(host)) is not None:
        if why := policy(address):
            raise AddressRefusedError(why)
        return
    if not re.fullmatch(_NAME, host):
        raise AddressRefusedError("its host is not a valid name")
    name = host.rstrip(".")
    # Many programs read 2130706433, 0x7f.1 and 0177.0.0.1 as IPv4 addresses.
    if re.fullmatch(_NUMERIC_LABEL, name.rpartition(".")[2]):
        raise AddressRefusedError("its host is a number, but not an IP address as it is usually written")
    if re.fullmatch(_LOCAL_NAME, name):
        raise AddressRefusedError("its host is a name of the local network")


def configured_session(middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()) -> aiohttp.ClientSession:
    """Create a session for configured hosts."""
    # No limit: each run has its own limits, and a full pool would delay a stream silently.
    return aiohttp.ClientSession(
        connector=head_first(aiohttp.TCPConnector(limit=0)),
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=middlewares,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def data_session(policy: AddressPolicy, resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """Create a session for hosts from data. Each address is checked before a socket to it exists."""

    def create_socket(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        _check_address(str(address[0]), policy)
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        limit=0, resolver=_CheckedResolver(policy, resolver or aiohttp.ThreadedResolver()), socket_factory=create_socket
    )
    return aiohttp.ClientSession(connector=head_first(connector), cookie_jar=aiohttp.DummyCookieJar())


class DataSession:
    """A session for hosts from data that tracks whether it is in use."""

    def __init__(self, policy: AddressPolicy, resolver: AbstractResolver | None) -> None:
        self._session = data_session(policy, resolver)
        self._opening = 0
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self.replaces: DataSession | None = None
        """An unused session to close before the next request."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being sent and no response is being read."""
        return not self._opening and all(response.connection is None for response in self._responses)

    async def request(self, method: str, url: URL, **fields: Any) -> aiohttp.ClientResponse:
        """Send a request, as `ClientSession.request` does."""
        self._opening += 1
        try:
            replaced, self.replaces = self.replaces, None
            if replaced is not None:
                await replaced.close()
            response = await self._session.request(method, url, **fields)
        finally:
            self._opening -= 1
        self._responses.add(response)
        return response

    async def close(self) -> None:
        if self.replaces is not None:
            await self.replaces.close()
        await self._session.close()


class DataSessions:
    """One session per policy and resolver.

    Programs may create a policy per request, so the least recently used idle session is closed when there are many.
    """

    def __init__(self) -> None:
        self._sessions: dict[tuple[AddressPolicy, AbstractResolver | None], DataSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, policy: AddressPolicy, resolver: AbstractResolver | None) -> DataSession:
        """Return the session for a policy, creating it if needed. The request must be sent at once.

        A new session replaces an idle one if there are many.
        """
        key = policy, resolver
        session = self._sessions.pop(key, None)
        if session is None:
            session = DataSession(*key)
            idle = next((old for old, found in self._sessions.items() if found.is_idle), None)
            if len(self._sessions) >= MAX_DATA_SESSIONS and idle is not None:
                session.replaces = self._sessions.pop(idle)
        self._sessions[key] = session
        return session

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


def refusal_in(error: BaseException) -> str | None:
    """Return why the address was refused, or None if the request failed for another reason."""
    cause = getattr(error, "os_error", error)
    return cause.why if isinstance(cause, AddressRefusedError) else None


class _CheckedResolver(AbstractResolver):
    """A resolver that refuses a name if any of its addresses is refused: a mixed answer is an attack or a mistake."""

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answers = await self._inner.resolve(host, port, family)
        for answer in answers:
            _check_address(answer["host"], self._policy)
        return answers

    async def close(self) -> None:
        """Do nothing, since the caller owns the inner resolver and this one holds no resources."""


def _check_address(text: str, policy: AddressPolicy) -> None:
    try:
        address = ip_address(text)
    except ValueError:
        raise AddressRefusedError("its address is not an IP address") from None
    if why := policy(address):
        raise AddressRefusedError(why)


def _literal(host: str) -> IPAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
