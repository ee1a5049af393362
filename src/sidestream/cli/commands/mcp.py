"""The `sidestream mcp` commands, which list and check MCP servers and sign in to them."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from sidestream.cli import exit_codes
from sidestream.cli.display.formatting import duration
from sidestream.cli.display.screen import one_line
from sidestream.errors import ConfigurationError, SidestreamError
from sidestream.mcp import MCPConfig, MCPServer
from sidestream.results.tool_labels import things
from sidestream.text.redaction import redact

if TYPE_CHECKING:
    from sidestream.mcp.auth.token_store import SignIn
    from sidestream.mcp.config.sign_ins import SignedOut
    from sidestream.tools.server_side import RemoteMCP


_SIGNED_OUT: "dict[SignedOut, str]" = {
    "revoked": "signed out; its tokens were revoked",
    "kept": "signed out on this machine; its tokens stay valid until they expire, as its server cannot revoke them",
    "failed": "signed out on this machine; its tokens could not be revoked and stay valid until they expire",
}

F = TypeVar("F", bound=Callable[..., Any])


def _file_option(command: F) -> F:
    return click.option(
        "--mcp", "file", metavar="FILE", help="File that lists the servers. Defaults to the mcp.json in this folder."
    )(command)


@click.group()
def mcp() -> None:
    """List, check and sign in to the MCP servers in an mcp.json, by their labels.

    Sign-ins are stored in a file that only you can read, or in the system's keyring with SIDESTREAM_MCP_TOKENS=keyring.
    They are refreshed when they are used. No command prints a token.
    """


@mcp.command("list")
@_file_option
def list_servers(file: str | None) -> int:
    """List the servers, where each is called from, and its command or URL. Starts no server."""
    from sidestream.cli.display.screen import one_line, write
    from sidestream.mcp import load_mcp_config
    from sidestream.text.redaction import redact, redact_url

    config = load_mcp_config(file)
    width = max(map(len, config.labels), default=0)
    for server in config.toolsets:
        write(sys.stdout, f"{one_line(server.label):<{width}}  here      {one_line(redact(repr(server)), 200)}\n")
    for remote in config.remote_servers:
        address = redact_url(remote.url) if remote.url else remote.connector or remote.tunnel or ""
        write(sys.stdout, f"{one_line(remote.label):<{width}}  {remote.execution:<8}  {one_line(address, 200)}\n")
    if not config.labels:
        click.echo("The file lists no servers.", err=True)
    return exit_codes.OK


@mcp.command()
@click.argument("label", required=False)
@_file_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait for each server.",
)
def check(label: str | None, file: str | None, timeout: float) -> int:
    """Connect to the servers, or to the one with LABEL, and list their tools.

    Exits with code 1 if a server does not answer.
    """

    from sidestream.cli.display.screen import one_line, write
    from sidestream.cli.interrupts import run_async
    from sidestream.mcp import load_mcp_config, use_sign_ins

    async def work() -> int:
        config = await use_sign_ins(load_mcp_config(file))
        if label is not None and label not in config.labels:
            raise ConfigurationError(
                f"no server has the label {label!r}; available: {', '.join(config.labels) or 'none'}"
            )
        code = exit_codes.OK
        async for result in check_servers(config, timeout, label):
            write(sys.stdout, f"{one_line(result.label)}: {'' if result.is_ok else 'failed: '}{result.text}\n")
            for name in result.tools if label is not None else ():
                write(sys.stdout, f"  {one_line(name)}\n")
            code = code if result.is_ok else exit_codes.FAILED
        return code

    return run_async(work())


@mcp.command()
@click.argument("label")
@_file_option
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Request this scope too. Can be repeated.")
@click.option("--no-browser", is_flag=True, help="Print the URL instead of opening a browser.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait for you to sign in.",
)
def login(label: str, file: str | None, scopes: tuple[str, ...], no_browser: bool, timeout: float) -> int:
    """Sign in to the server LABEL in a browser."""
    from sidestream.cli.interrupts import run_async

    server = _server(label, file)
    sign_in = run_async(_sign_in(server, scopes, timeout, opens_browser=not no_browser))
    if sign_in is None:
        click.echo(f"{label} needs no sign-in", err=True)
    else:
        click.echo(f"{label}: {_describe(sign_in)}", err=True)
    return exit_codes.OK


@mcp.command()
@click.argument("label")
@_file_option
def logout(label: str, file: str | None) -> int:
    """Sign out of the server LABEL, and revoke its tokens if possible."""
    from sidestream.cli.interrupts import run_async
    from sidestream.mcp.auth.token_store import default_tokens
    from sidestream.mcp.config.sign_ins import sign_out

    server, tokens = _server(label, file), default_tokens()
    assert server.url is not None
    if run_async(tokens.load(server.url)) is None:
        raise click.UsageError(f"you are not signed in to {label}")
    click.echo(f"{label}: {_SIGNED_OUT[run_async(sign_out(server.url, tokens))]}", err=True)
    return exit_codes.OK


@mcp.command()
@click.argument("label", required=False)
@_file_option
def status(label: str | None, file: str | None) -> int:
    """List the servers with a URL and their sign-ins. With LABEL, exits with code 1 if you are not signed in."""
    from sidestream.cli.interrupts import run_async
    from sidestream.mcp.auth.token_store import default_tokens

    servers = _servers(file) if label is None else [_server(label, file)]
    tokens, code = default_tokens(), exit_codes.OK
    width = max((len(server.label) for server in servers), default=0)
    for server in servers:
        assert server.url is not None
        sign_in = run_async(tokens.load(server.url))
        click.echo(f"{server.label:<{width}}  {'not signed in' if sign_in is None else _describe(sign_in)}")
        if sign_in is None and label is not None:
            code = exit_codes.FAILED
    return code


async def _sign_in(
    server: "RemoteMCP", scopes: tuple[str, ...], timeout_s: float, *, opens_browser: bool
) -> "SignIn | None":
    from sidestream.mcp import MCPServer
    from sidestream.mcp.auth.loopback import LoopbackRedirect
    from sidestream.mcp.auth.settings import OAuth
    from sidestream.mcp.auth.token_store import MemoryTokens, default_tokens
    from sidestream.mcp.http import without_user

    async def show(url: str) -> None:
        if opens_browser and await asyncio.to_thread(_open_browser, url):
            click.echo("Sign in in your browser. If none has opened, open this URL:", err=True)
        else:
            click.echo("Open this URL in a browser on this machine:", err=True)
        click.echo(url, err=True)

    assert server.url is not None
    # In memory first, so that an aborted sign-in does not change the stored one.
    fresh, stored = MemoryTokens(), default_tokens()
    async with LoopbackRedirect(show) as redirect:
        auth = OAuth(
            on_redirect=redirect.on_redirect,
            on_callback=redirect.on_callback,
            redirect_uri=redirect.uri,
            scopes=scopes,
            tokens=fresh,
            timeout_s=timeout_s,
        )
        async with MCPServer.from_remote(server, auth=auth) as connected:
            await connected.list()
    url = without_user(server.url, {})[0]
    sign_in = await fresh.load(url)
    if sign_in is not None:
        async with stored.lock(url):
            await stored.save(url, sign_in)
    return sign_in


def _open_browser(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False


def _servers(file: str | None) -> "list[RemoteMCP]":
    from sidestream.mcp import load_mcp_config

    return [server for server in load_mcp_config(file).remote_servers if server.url is not None]


def _server(label: str, file: str | None) -> "RemoteMCP":
    servers = {server.label: server for server in _servers(file)}
    if label not in servers:
        known = ", ".join(servers) or "none"
        raise ConfigurationError(f"no server with a URL has the label {label!r}; available: {known}")
    if servers[label].authorization:
        raise ConfigurationError(f"{label} has an authorization in the file; remove it to sign in instead")
    return servers[label]


def _describe(sign_in: "SignIn") -> str:
    words = ["signed in"]
    if sign_in.issuer is not None:
        words.append(f"at {sign_in.issuer}")
    if sign_in.scope:
        words.append(f"for {sign_in.scope}")
    if sign_in.expires_at is not None:
        minutes = int((sign_in.expires_at - time.time()) / 60)
        renewed = ", then refreshed" if sign_in.refresh_token else ""
        words.append(f"(expires in {minutes} min{renewed})" if minutes >= 0 else f"(expired{renewed})")
    return " ".join(words)


TIMEOUT_S = 30.0


class ServerCheck(Struct, frozen=True):
    """Result of connecting to a server."""

    label: str
    is_ok: bool
    text: str
    tools: tuple[str, ...] = ()


async def check_servers(
    config: MCPConfig, timeout_s: float = TIMEOUT_S, label: str | None = None
) -> AsyncIterator[ServerCheck]:
    """Connect to each server in turn, or only to the one with this label, and yield the results."""
    for server in config.toolsets:
        if label in (None, server.label):
            yield await _check(server, timeout_s)
    for remote in config.remote_servers:
        if label not in (None, remote.label):
            continue
        if remote.url is None:
            yield ServerCheck(remote.label, True, "not checked, because only the provider can reach it")
        else:
            yield await _check(MCPServer.from_remote(remote), timeout_s)


async def _check(server: MCPServer, timeout_s: float) -> ServerCheck:
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s), server:
            names = tuple(tool.name for tool in await server.list())
    except TimeoutError:
        return ServerCheck(server.label, False, f"did not answer within {timeout_s:g} s")
    except (SidestreamError, OSError) as error:
        return ServerCheck(server.label, False, redact(one_line(str(error) or type(error).__name__, 400)))
    took = duration(time.monotonic() - began)
    return ServerCheck(server.label, True, f"{things(len(names), 'tool')} · {took}", names)
