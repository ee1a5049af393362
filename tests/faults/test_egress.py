"""Hosts that come from data lead to public addresses only: each spelling, each DNS answer, each hop."""

import ast
import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given, strategies as st

import sidestream
from requirements import requirement
from sidestream import Agent, Limits, MCPServer, ProviderError
from sidestream.errors import ToolServerError
from sidestream.limits import MAX_DATA_SESSIONS
from sidestream.testing import FakeProvider, Reply
from sidestream.transport.calls import HttpCall
from sidestream.wire import HttpTransport
from sidestream.wire.egress import check_url, data_session, parsed_url, public_only, refusal_in
from sidestream.wire.http import close_session
from sidestream.wire.pool import shared_pool
from sidestream.wire.retry import RetryPolicy

AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
LIMITS = Limits(first_byte_timeout_s=20, max_retries=1)
HEADERS = {"Authorization": "Bearer egress-canary-1", "X-Gateway": "egress-canary-2", "User-Agent": "mine"}
PUBLIC = IPv4Address("127.0.0.1")
"""Stands for a public address in tests that need one; the rest of 127.0.0.0/8 stays loopback."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)


def one_is_public(address: IPv4Address | IPv6Address) -> str | None:
    return None if address == PUBLIC else public_only(address)


class Names(AbstractResolver):
    """DNS with answers of our own: for each lookup of a name the next one, the last repeatedly."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {f"{name}.test": given for name, given in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        left = self._answers[host]
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        pass


class Accepted:
    """A server at one loopback address that counts the connections that it gets, and answers each request with 200."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0

    @asynccontextmanager
    async def at(self, address: str, port: int = 0) -> AsyncGenerator["Accepted"]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            await reader.readuntil(b"\r\n\r\n")
            body = address.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(accept, address, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


def redirecting(fake: FakeProvider, location: str, path: str = "/v1/file") -> HttpCall:
    """A call of the configured server, which redirects it."""
    fake.on("GET", path, Reply(status=302, headers={"location": location}))
    return HttpCall(method="GET", url=f"http://127.0.0.1:{fake.port}{path}", headers=HEADERS)


SPELLINGS = [
    "127.0.0.1",
    "127.0.0.2",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[0:0:0:0:0:ffff:10.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[::ffff:0:127.0.0.1]",
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[::]",
    "0.0.0.0",
    "0",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "0177.0.0.1",
    "127.1",
    "127.0.0.1.",
    "%31%32%37.0.0.1",
    "\uff11\uff12\uff17.0.0.1",
    "\u2460\u2461\u2466.0.0.1",
    "u:p@127.0.0.1",
    "u@8.8.8.8",
    "8.8.8.8:80@127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "metadata.google.internal",
    "printer.local",
    "redis",
]


@requirement("F40")
@pytest.mark.parametrize("host", SPELLINGS)
async def test_redirect_to_private_address_is_refused_in_any_spelling(host: str):
    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as private:
        call = redirecting(fake, f"http://{host}:{private.port}/latest/meta-data".encode().decode("latin-1"))
        with pytest.raises(ProviderError) as caught:
            await HttpTransport(retry=AT_ONCE).download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert not caught.value.retryable
        assert "u:p" not in caught.value.message
        assert private.connections == 0
        assert len(fake.requests) == 1


@requirement("F40")
@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"])
def test_public_addresses_are_allowed(address: str):
    assert public_only(ip_address(address)) is None
    check_url(parsed_url(f"https://[{address}]/" if ":" in address else f"https://{address}/"), public_only)
    check_url(parsed_url("https://files.example.com/x?sig=%2F"), public_only)


@requirement("F40")
@given(st.ip_addresses())
def test_addresses_private_to_standard_library_are_refused(address: IPv4Address | IPv6Address):
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert public_only(address) is not None


@requirement("F40")
@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "::", "64:ff9b::", "::ffff:0:0:0"]))
def test_ipv6_forms_of_ipv4_addresses_are_refused(address: IPv4Address, prefix: str):
    assert public_only(IPv6Address(int(IPv6Address(prefix)) | int(address))) is not None
    assert public_only(IPv6Address((0x2002 << 112) | (int(address) << 80))) is not None


@requirement("F40")
async def test_socket_is_checked_when_url_has_literal_address():
    """A literal address never reaches a resolver."""
    async with Accepted().at("127.0.0.1") as private, data_session(public_only) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.get(f"http://127.0.0.1:{private.port}/")
        assert refusal_in(caught.value) == "127.0.0.1 is loopback"
        assert private.connections == 0


@requirement("F40")
@pytest.mark.parametrize(
    "answer",
    [["127.0.0.2"], ["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"], ["127.0.0.1", "::ffff:127.0.0.1"]],
    ids=["private", "private last", "private first", "mapped"],
)
async def test_host_with_any_private_address_is_refused(answer: list[str]):
    names = Names(files=[answer])
    transport = HttpTransport(retry=AT_ONCE, address_policy=one_is_public, resolver=names)
    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as target:
        call = redirecting(fake, f"http://files.test:{target.port}/")
        with pytest.raises(ProviderError) as caught:
            await transport.download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert target.connections == 0
    assert names.asked == ["files.test"]


@requirement("F40")
async def test_checked_address_is_connected_address():
    """DNS that answers with a public address first, and with a private one from then on, gains nothing."""
    names = Names(files=[["127.0.0.1"], ["127.0.0.2"]])
    transport = HttpTransport(retry=AT_ONCE, address_policy=one_is_public, resolver=names)
    async with (
        FakeProvider() as fake,
        Accepted().at("127.0.0.1") as public,
        Accepted().at("127.0.0.2", public.port) as private,
    ):
        call = redirecting(fake, f"http://files.test:{public.port}/")
        assert await transport.download(call, LIMITS) == b"127.0.0.1"
        assert names.asked == ["files.test"]
        # Where the private answer comes first, no connection is made.
        rebound = HttpTransport(retry=AT_ONCE, address_policy=one_is_public, resolver=Names(files=[["127.0.0.2"]]))
        with pytest.raises(ProviderError) as caught:
            await rebound.download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert (public.connections, private.connections) == (1, 0)


@requirement("F40")
async def test_each_redirect_is_checked_and_at_most_five_are_followed():
    names = Names(a=[["127.0.0.1"]], b=[["127.0.0.1"]], c=[["127.0.0.3"]])
    transport = HttpTransport(retry=AT_ONCE, address_policy=one_is_public, resolver=names)
    async with FakeProvider() as fake:
        call = redirecting(fake, f"http://a.test:{fake.port}/v1/1")
        redirecting(fake, f"http://b.test:{fake.port}/v1/2", "/v1/1")
        redirecting(fake, f"http://c.test:{fake.port}/v1/3", "/v1/2")
        with pytest.raises(ProviderError) as caught:
            await transport.download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert "c.test" in caught.value.message
        assert [request.path for request in fake.requests] == ["/v1/file", "/v1/1", "/v1/2"]

        redirecting(fake, f"http://a.test:{fake.port}/v1/1", "/v1/2")
        fake.requests.clear()
        with pytest.raises(ProviderError) as caught:
            await transport.download(call, LIMITS)
        assert caught.value.code == "too-many-redirects"
        assert len(fake.requests) == 6


@requirement("F40")
async def test_credentials_never_leave_configured_origin():
    transport = HttpTransport(retry=AT_ONCE, address_policy=one_is_public, resolver=Names(a=[["127.0.0.1"]]))
    async with FakeProvider() as fake, FakeProvider() as elsewhere:
        call = redirecting(fake, "/v1/again")
        redirecting(fake, f"http://a.test:{elsewhere.port}/v1/there", "/v1/again")
        redirecting(elsewhere, f"{fake.base_url}/back", "/v1/there")
        fake.add_file("/v1/back", b"bytes")
        assert await transport.download(call, LIMITS) == b"bytes"
        seen = [request.headers.get("authorization") for request in fake.requests]
        assert seen == [HEADERS["Authorization"], HEADERS["Authorization"], None]
        assert elsewhere.requests[0].headers["user-agent"] == "mine"
        assert not [value for value in elsewhere.requests[0].headers.values() if "egress-canary" in value]
        assert "x-gateway" not in fake.requests[-1].headers


@requirement("F40")
async def test_configured_local_server_can_redirect_within_its_origin():
    async with FakeProvider() as fake:
        call = redirecting(fake, f"http://127.0.0.1:{fake.port}/v1/next")
        fake.add_file("/v1/next", b"bytes")
        assert await HttpTransport(retry=AT_ONCE).download(call, LIMITS) == b"bytes"

        call = redirecting(fake, f"http://u:p@127.0.0.1:{fake.port}/v1/next", "/v1/with-user")
        with pytest.raises(ProviderError) as caught:
            await HttpTransport(retry=AT_ONCE).download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert [request.path for request in fake.requests] == ["/v1/file", "/v1/next", "/v1/with-user"]


@requirement("F40")
async def test_caller_session_is_not_used_for_hosts_from_data():
    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as private, aiohttp.ClientSession() as session:
        call = redirecting(fake, f"http://127.0.0.1:{private.port}/")
        with pytest.raises(ProviderError) as caught:
            await HttpTransport(session, retry=AT_ONCE).download(call, LIMITS)
        assert caught.value.code == "address-refused"
        assert private.connections == 0


@requirement("F40")
async def test_pooled_connection_is_not_reused_for_hosts_from_data():
    """The configured server is reached first, so an open connection to the same address and port is in the pool."""
    async with FakeProvider() as fake, FakeProvider() as private:
        private.add_file("/v1/secret", b"secret")
        secret = HttpCall(method="GET", url=f"{private.base_url}/secret")
        transport = HttpTransport(retry=AT_ONCE)
        assert await transport.download(secret, LIMITS) == b"secret"
        with pytest.raises(ProviderError) as caught:
            await transport.download(redirecting(fake, secret.url), LIMITS)
        assert caught.value.code == "address-refused"
        assert len(private.requests) == 1


@requirement("F40")
async def test_proxied_host_is_checked_and_resolved_by_proxy(
    monkeypatch: pytest.MonkeyPatch,
):
    async with FakeProvider() as fake, FakeProvider() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        proxy.on("GET", "*", Reply(body=b"through the proxy"))
        transport = HttpTransport(retry=AT_ONCE)
        call = redirecting(fake, "http://files.example.com/x")
        assert await transport.download(call, LIMITS) == b"through the proxy"
        assert not [value for value in proxy.requests[0].headers.values() if "egress-canary" in value]
        with pytest.raises(ProviderError) as caught:
            await transport.download(redirecting(fake, "http://169.254.169.254/x"), LIMITS)
        assert caught.value.code == "address-refused"
        assert len(proxy.requests) == 1


@requirement("F40")
@pytest.mark.parametrize(
    "provider", ["openai-responses", "openai", "anthropic:claude-sonnet-5-5", "google:gemini-3-flash"]
)
async def test_provider_cannot_redirect_download_to_private_address(provider: str):
    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as private:
        fake.on("GET", "*", Reply(status=307, headers={"location": f"http://[::ffff:127.0.0.1]:{private.port}/"}))
        agent = Agent(provider, base_url=fake.base_url, api_key="sk-test-key-0123456789", limits=LIMITS)
        with pytest.raises(ProviderError) as caught:
            await agent.download("file-1")
        assert caught.value.code == "address-refused"
        assert private.connections == 0


@requirement("F40")
async def test_upload_to_private_address_from_provider_is_refused():
    from sidestream.providers.google.provider import PROVIDER
    from sidestream.providers.protocol import Settings
    from sidestream.providers.transfers import Request, TransferResponse, Upload

    model: Any = PROVIDER.chat_model("gemini-3-flash", Settings(api_key="sk-test-key-0123456789"))
    upload = Upload(source=b"x", name="a.txt", mime_type="text/plain", size_bytes=1, boundary="b")

    def sent_to(url: str) -> HttpCall:
        transfer = model.upload(upload)
        next(transfer)
        request = transfer.send(TransferResponse({"x-goog-upload-url": url}, b""))
        assert isinstance(request, Request)
        transfer.close()
        return request.call

    assert not sent_to("https://generativelanguage.googleapis.com/u").has_untrusted_host
    async with Accepted().at("127.0.0.1") as private:
        with pytest.raises(ProviderError) as caught:
            await HttpTransport(retry=AT_ONCE).open(sent_to(f"https://127.0.0.1:{private.port}/u"), LIMITS)
        assert caught.value.code == "address-refused"
        assert private.connections == 0
    # The key would be readable on the way.
    with pytest.raises(sidestream.errors.ProtocolError):
        sent_to("http://generativelanguage.googleapis.com/u")


@requirement("F40")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_mcp_server_cannot_redirect_client_to_other_origin(transport: Any):
    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as private:
        elsewhere = f"http://127.0.0.1:{private.port}/mcp"
        event = f"event: endpoint\ndata: {elsewhere}\n\n".encode()
        fake.on("GET", "*", Reply(body=event, content_type="text/event-stream"))
        fake.on("POST", "*", Reply(status=307, headers={"location": elsewhere}))
        server = MCPServer("docs", url=f"http://127.0.0.1:{fake.port}/mcp", transport=transport, start_timeout_s=5)
        with pytest.raises(ToolServerError):
            await server.list()
        await server.aclose()
        assert fake.requests
        assert private.connections == 0


@requirement("F40")
async def test_mcp_http_client_sends_only_to_its_origin():
    import httpx2

    from sidestream.mcp.http import HttpDiagnostics, http_client

    async with FakeProvider() as fake, Accepted().at("127.0.0.1") as private:
        fake.on("GET", "*", Reply(body=b"{}"))
        async with http_client(fake.base_url, {"X-Key": "egress-canary-3"}, HttpDiagnostics()) as client:
            assert (await client.get(f"{fake.base_url}/other")).status_code == 200
            with pytest.raises(httpx2.RequestError):
                await client.get(f"http://127.0.0.1:{private.port}/.well-known/oauth-protected-resource")
        assert private.connections == 0


# Who may open sockets

SOURCE = Path(sidestream.__file__).parent
_NETWORK = (
    r"_socket|aiohttp|anyio|asyncssh|ftplib|h11|h2|http\.client|http\.server|httpcore|httpcore2|httpx|httpx2|imaplib"
    r"|nntplib|obstore|paramiko|poplib|psycopg|psycopg2|pycurl|requests|select|smtplib|socket|socketserver|ssl|telnetlib"
    r"|temporalio|tornado|trio|urllib\.request|urllib3|uvicorn|websocket|websockets|wsgiref|xmlrpc|zmq"
)
NETWORK_MODULES = re.compile(rf"({_NETWORK})(\.|$)")
NETWORK_WORDS = re.compile(rf"\b(?:{_NETWORK}|http|urllib)\b")
CONNECTING_CALLS = re.compile(
    r"open_connection|open_unix_connection|start_server|start_unix_server|create_connection|create_unix_connection"
    r"|create_server|create_unix_server|create_datagram_endpoint|sock_connect|connect_tcp|connect_unix|socket"
    r"|socketpair|ws_connect|ClientSession|TCPConnector|UnixConnector|AsyncClient|Client|urlopen|urlretrieve|HTTPS?Connection"
)
MODULES: dict[str, set[str]] = {
    "durable/worker/service.py": {"aiohttp"},  # listens, where the user says so: health and metrics of a worker
    "cli/commands/record.py": {"aiohttp"},  # listens on 127.0.0.1, forwards to the configured base URLs
    "agent/agent.py": {"aiohttp"},  # these three for the type of a session that is passed in
    "agent/models.py": {"aiohttp"},
    "agent/settings.py": {"aiohttp"},
    "cli/stdio.py": {"select"},  # on standard input
    "portable/sandbox/inside/kernel.py": {"select"},  # waits for the output of commands
    "durable/engines/temporal/address.py": {"temporalio"},  # to the configured service; the others use its client
    "durable/engines/temporal/driving.py": {"temporalio"},
    "durable/engines/temporal/engine.py": {"temporalio"},
    "durable/engines/temporal/workflow.py": {"temporalio"},
    "mcp/http.py": {"httpx2"},
    "mcp/auth/oauth.py": {"httpx2"},  # this, the providers and sign-ins make requests, which `mcp/http.py` sends
    "mcp/auth/oauth_providers.py": {"httpx2"},
    "mcp/process/process.py": {"socket"},  # a pair of sockets to the supervisor
    "mcp/config/sign_ins.py": {"httpx2"},
    "mcp/process/stdio.py": {"anyio"},  # streams in memory
    "mcp/process/supervisor.py": {"select"},  # on that pair, and on processes
    "portable/documents/child.py": {"select", "socket"},  # a pair of sockets to the caller
    "portable/documents/isolated.py": {"socket"},  # its other end
    "portable/index/postgres.py": {"psycopg"},
    "server/uvicorn_runner.py": {"socket", "uvicorn"},  # listens
    "store/postgres/__init__.py": {"psycopg"},
    "store/blobs/bucket.py": {"obstore"},
    "store/postgres/appends.py": {"psycopg"},
    "store/postgres/blob_table.py": {"psycopg"},
    "store/postgres/store.py": {"psycopg"},
    "store/postgres/serial.py": {"psycopg"},
    "store/postgres/server.py": {"psycopg"},
    "testing/responder.py": {"socket"},  # an option that resets a connection
    "wire/download.py": {"aiohttp"},
    "wire/egress.py": {"aiohttp", "socket"},
    "wire/failures.py": {"aiohttp"},
    "wire/http.py": {"aiohttp"},
    "wire/pages.py": {"aiohttp"},
    "wire/pool.py": {"urllib.request"},  # reads the environment
    "wire/socket/connection.py": {"aiohttp"},
    "wire/socket/pool.py": {"aiohttp"},
    "wire/stream.py": {"aiohttp", "socket"},  # only names of options
}
CALLS: dict[str, set[str]] = {
    "cli/commands/doctor.py": {"open_connection"},  # to model servers on this machine, to see whether they answer
    "mcp/client/connection.py": {"Client"},  # the protocol's, on a transport that it is given
    "mcp/http.py": {"AsyncClient"},  # to the configured server's origin only, and to its authorization server
    "mcp/auth/loopback.py": {"start_server"},  # listens on 127.0.0.1
    "mcp/process/process.py": {"socketpair"},  # to its own child
    "portable/documents/child.py": {"socket"},  # the descriptor that its caller passed on
    "portable/documents/isolated.py": {"socketpair"},  # to its own child
    "server/security.py": {"HTTPConnection"},  # Starlette's, which is a request
    "server/uvicorn_runner.py": {"socket"},  # listens, on 127.0.0.1 unless told otherwise
    "testing/fake.py": {"create_server"},  # listens on 127.0.0.1
    "wire/egress.py": {"ClientSession", "TCPConnector", "socket"},
    "wire/socket/pool.py": {"ws_connect"},  # to the configured server; a redirect is refused
}


def sources(words: re.Pattern[str]) -> Iterator[tuple[str, ast.Module]]:
    """The modules in which one of these words stands; to parse all of them takes seconds."""
    for path in SOURCE.rglob("*.py"):
        if words.search(text := path.read_text("utf-8")):
            yield path.relative_to(SOURCE).as_posix(), ast.parse(text)


def network_modules_in(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return {found[1] for name in names if (found := NETWORK_MODULES.match(name))}


def connecting_calls_in(tree: ast.Module) -> set[str]:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = {getattr(func, "attr", getattr(func, "id", "")) for func in called}
    return {name for name in names if CONNECTING_CALLS.fullmatch(name)}


@requirement("F40")
def test_only_listed_modules_import_socket_libraries():
    assert {name: found for name, tree in sources(NETWORK_WORDS) if (found := network_modules_in(tree))} == MODULES


@requirement("F40")
def test_only_listed_modules_open_connections():
    assert {name: found for name, tree in sources(CONNECTING_CALLS) if (found := connecting_calls_in(tree))} == CALLS


def test_socket_search_finds_hidden_imports_and_calls():
    hidden = ast.parse(
        "def f():\n    from urllib import request\n    import http.client as c\n    x.open_connection('h', 1)"
    )
    assert network_modules_in(hidden) == {"urllib.request", "http.client"}
    assert connecting_calls_in(hidden) == {"open_connection"}


@requirement("F40")
async def test_policy_per_request_leaves_bounded_sessions():
    slow, release = HttpTransport(retry=AT_ONCE, address_policy=lambda _: None), asyncio.Event()
    async with FakeProvider() as fake, FakeProvider() as elsewhere:
        waiting = redirecting(fake, f"http://127.0.0.1:{elsewhere.port}/v1/slow", "/v1/waits")
        elsewhere.on("GET", "/v1/slow", Reply(body=b"late", gate=release))
        elsewhere.add_file("/v1/quick", b"quick")
        call = redirecting(fake, f"http://127.0.0.1:{elsewhere.port}/v1/quick")
        running = asyncio.create_task(slow.download(waiting, LIMITS))
        for _ in range(3 * MAX_DATA_SESSIONS):
            transport = HttpTransport(retry=AT_ONCE, address_policy=lambda _: None)
            assert await transport.download(call, LIMITS) == b"quick"
        assert len((await shared_pool()).data_sessions) == MAX_DATA_SESSIONS
        # The one that is in use was not closed, although it was used least recently.
        release.set()
        assert await running == b"late"
    await close_session()
