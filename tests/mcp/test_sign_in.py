"""Servers that want a sign-in: tokens are requested, stored, refreshed and never shown."""

import asyncio
import json
import logging
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from requirements import requirement
from sidestream import ConfigurationError, MCPServer
from sidestream.errors import SignInError
from sidestream.mcp import AuthorizationCode, ClientCredentials, MemoryTokens, OAuth, TokenFiles
from sidestream.mcp.auth.loopback import LoopbackRedirect
from sidestream.mcp.auth.oauth import MAX_STEP_UPS
from sidestream.mcp.client.deadlines import Deadlines
from sidestream.tools.tool import Tool, ToolContext, ToolOutcome
from support.mcp_servers.peers import call
from support.mcp_servers.signed_in import Browser, SignInServer, expired


@pytest.fixture
async def remote() -> AsyncGenerator[SignInServer]:
    async with SignInServer().running() as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> TokenFiles:
    return TokenFiles(tmp_path / "tokens")


async def names_of(remote: SignInServer, auth: Any, **settings: Any) -> list[str]:
    async with MCPServer("docs", url=remote.url, auth=auth, **settings) as server:
        return [tool.name for tool in await server.list()]


async def refused(remote: SignInServer, auth: Any) -> SignInError:
    with pytest.raises(SignInError) as failure:
        await names_of(remote, auth)
    assert failure.value.server == "docs"
    return failure.value


@requirement("R80")
async def test_user_signs_in_once_and_stored_token_is_reused(remote: SignInServer, files: TokenFiles):
    browser = Browser()
    assert await names_of(remote, browser.auth(tokens=files)) == ["whoami"]
    assert len(browser.urls) == 1
    assert await names_of(remote, OAuth(tokens=files)) == ["whoami"]
    assert remote.counts["authorization_code"] == 1
    file = files.path(remote.url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["access_token"].startswith("access-canary-")


@requirement("R80")
async def test_server_headers_do_not_reach_authorization_server(remote: SignInServer):
    auth = Browser().auth(tokens=MemoryTokens())
    assert await names_of(remote, auth, headers={"X-Team-Key": "header-canary-1"}) == ["whoami"]
    assert remote.seen_headers
    assert "header-canary-1" not in str(remote.seen_headers)


@requirement("R80")
async def test_missing_sign_in_error_names_login_command(remote: SignInServer, files: TokenFiles):
    error = await refused(remote, OAuth(tokens=files))
    assert "sidestream mcp login docs" in str(error)
    assert "/register" not in remote.counts


@requirement("R80")
async def test_expired_token_is_refreshed_after_restart_without_user(remote: SignInServer, files: TokenFiles):
    await names_of(remote, Browser().auth(tokens=files))
    saved = await files.load(remote.url)
    assert saved is not None
    await files.save(remote.url, expired(saved))
    assert await names_of(remote, OAuth(tokens=files)) == ["whoami"]
    assert remote.counts["refresh_token"] == 1
    now = await files.load(remote.url)
    assert now is not None
    assert now.refresh_token != saved.refresh_token
    assert not now.is_expired


@requirement("R80")
async def test_rejected_token_is_refreshed_during_run(remote: SignInServer, files: TokenFiles):
    remote.expires_in = None
    async with MCPServer("docs", url=remote.url, auth=Browser().auth(tokens=files)) as server:
        assert (await call(server, "whoami")).result == "it is you"
        remote.valid.clear()
        assert (await call(server, "whoami")).result == "it is you"
    assert remote.counts["refresh_token"] == 1
    assert remote.counts["authorization_code"] == 1


@requirement("R80")
async def test_revoked_refresh_token_asks_for_new_sign_in(remote: SignInServer, files: TokenFiles):
    await names_of(remote, Browser().auth(tokens=files))
    async with MCPServer("docs", url=remote.url, auth=OAuth(tokens=files)) as server:
        tools = await server.list()
        remote.valid.clear()
        remote.refresh_tokens.clear()
        outcome = await use(tools[0])
        assert outcome.is_error
        assert "sidestream mcp login docs" in str(outcome.result)
        with pytest.raises(SignInError):
            await server.list()


@requirement("R80")
async def test_temporary_refresh_failure_keeps_sign_in(remote: SignInServer, files: TokenFiles):
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=503)

    await names_of(remote, Browser().auth(tokens=files))
    saved = await files.load(remote.url)
    assert saved is not None
    await files.save(remote.url, expired(saved))
    remote.overrides["/token"] = fail
    assert "try again later" in str(await refused(remote, OAuth(tokens=files)))
    remote.overrides.clear()
    assert await names_of(remote, OAuth(tokens=files)) == ["whoami"]


@requirement("R80")
async def test_parallel_requests_share_one_refresh(remote: SignInServer, files: TokenFiles):
    async with MCPServer("docs", url=remote.url, auth=Browser().auth(tokens=files)) as server:
        tools = await server.list()
        remote.valid.clear()
        outcomes = await asyncio.gather(*(use(tools[0]) for _ in range(8)))
    assert [outcome.result for outcome in outcomes] == ["it is you"] * 8
    assert remote.counts["refresh_token"] == 1


CHILD = """
import asyncio, sys
from sidestream import MCPServer
from sidestream.mcp import OAuth, TokenFiles

async def main():
    async with MCPServer("docs", url=sys.argv[1], auth=OAuth(tokens=TokenFiles(sys.argv[2]))) as server:
        print([tool.name for tool in await server.list()])

asyncio.run(main())
"""


@requirement("R80")
async def test_two_processes_refresh_token_once(remote: SignInServer, files: TokenFiles):
    await names_of(remote, Browser().auth(tokens=files))
    saved = await files.load(remote.url)
    assert saved is not None
    await files.save(remote.url, expired(saved))
    arguments = [sys.executable, "-c", CHILD, remote.url, str(files.path(remote.url).parent)]
    ended = await asyncio.gather(*(asyncio.to_thread(output_of, arguments) for _ in range(2)))
    assert ended == ["['whoami']"] * 2
    # The second use of a refresh token would have been refused.
    assert remote.counts["refresh_token"] == 1
    assert remote.counts["authorization_code"] == 1


@requirement("R80")
async def test_program_signs_in_with_its_own_credentials(remote: SignInServer):
    auth = ClientCredentials(client_id="program", client_secret="secret-canary-1", issuer=remote.origin)
    assert await names_of(remote, auth) == ["whoami"]
    assert remote.counts["client_credentials"] == 1


@requirement("R80")
async def test_credentials_are_not_sent_to_another_issuer(remote: SignInServer):
    auth = ClientCredentials(client_id="program", client_secret="secret-canary-2", issuer="https://other.test")
    await refused(remote, auth)
    assert "/token" not in remote.counts


# Servers that misbehave


@requirement("R80")
@pytest.mark.parametrize("change", [{"state": "another"}, {"iss": "https://evil.test"}], ids=["state", "issuer"])
async def test_redirect_with_wrong_state_or_issuer_gets_no_token(remote: SignInServer, change: dict[str, str]):
    tokens = MemoryTokens()
    await refused(remote, Browser(**change).auth(tokens=tokens))
    assert "/token" not in remote.counts
    assert await tokens.load(remote.url) is None


@requirement("R80")
async def test_metadata_with_wrong_issuer_stops_sign_in(remote: SignInServer):
    async def lie(_: web.Request) -> web.Response:
        return web.json_response(remote.metadata() | {"issuer": "https://evil.test"})

    remote.overrides["/.well-known/oauth-authorization-server"] = lie
    browser = Browser()
    assert "issuer" in str(await refused(remote, browser.auth(tokens=MemoryTokens())))
    assert not browser.urls


@requirement("R80")
async def test_unencrypted_remote_token_endpoint_gets_nothing(remote: SignInServer):
    async def lead_away(_: web.Request) -> web.Response:
        return web.json_response(remote.metadata() | {"token_endpoint": "http://elsewhere.test/token"})

    remote.overrides["/.well-known/oauth-authorization-server"] = lead_away
    assert "unencrypted" in str(await refused(remote, Browser().auth(tokens=MemoryTokens())))


@requirement("R80")
@pytest.mark.parametrize("kind", ["html", "json", "redirect", "error", "huge"])
async def test_invalid_token_response_is_typed_error_without_its_body(
    remote: SignInServer, kind: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    reached: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        reached.append(request.query_string)
        if kind == "html":
            return web.Response(text="<h1>body-canary-1</h1>", content_type="text/html")
        if kind == "json":
            return web.json_response({"access_token": ["body-canary-1"], "refresh_token": "body-canary-2"})
        if kind == "redirect":
            return web.Response(status=307, headers={"Location": f"http://localhost:{remote.port}/token?elsewhere"})
        if kind == "huge":
            return web.Response(text="x" * (40 * 1024 * 1024))
        return web.Response(status=500, text="body-canary-1")

    remote.overrides["/token"] = answer
    error = await refused(remote, Browser().auth(tokens=MemoryTokens()))
    assert reached == [""]
    shown = f"{error} {error!r} {error.__cause__} {error.__context__} {caplog.text}"
    assert "body-canary" not in shown
    assert "code-canary" not in str(error)


@requirement("R80")
async def test_server_demanding_ever_more_scopes_is_rejected(remote: SignInServer):
    browser = Browser()
    remote.demanded = "scope-{}"
    async with MCPServer("docs", url=remote.url, auth=browser.auth(tokens=MemoryTokens())) as server:
        tools = await server.list()
        outcomes = [await use(tools[0]) for _ in range(8)]
    assert all(outcome.is_error for outcome in outcomes)
    assert "demanded more scopes" in str(outcomes[-1].result)
    # The sign-in itself, and as many demands as there may be, also over new connections.
    assert len(browser.urls) == 1 + MAX_STEP_UPS


@requirement("R80")
@pytest.mark.parametrize(
    "line",
    ["GET /favicon.ico", "POST /callback?code=a", "GET //[", "GET /callback?" + "a=1&" * 99, "G" * 99_999, ""],
    ids=["path", "method", "address", "query", "length", "nothing"],
)
async def test_stray_request_does_not_end_wait_for_redirect(line: str, caplog: pytest.LogCaptureFixture):
    async def show(url: str) -> None: ...

    async with LoopbackRedirect(show) as redirect:
        port, answer = urlsplit(redirect.uri).port, b""
        for sent in (line, "GET /callback?code=code-canary-1&state=b&iss=c"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{sent} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() if sent else b"")
            with suppress(OSError):  # what is refused unread may be reset
                writer.write_eof()
                answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"canary" not in answer
        assert await redirect.on_callback() == AuthorizationCode(code="code-canary-1", state="b", iss="c")
    assert not caplog.records


@requirement("R80")
async def test_user_not_returning_raises_typed_error(remote: SignInServer):
    async def open_nothing(url: str) -> None: ...

    async def wait() -> AuthorizationCode:
        await asyncio.Event().wait()
        raise AssertionError

    auth = OAuth(on_redirect=open_nothing, on_callback=wait, tokens=MemoryTokens(), timeout_s=0.05)
    assert "timed out" in str(await refused(remote, auth))


@requirement("R80")
async def test_start_timeout_pauses_while_user_signs_in(remote: SignInServer):
    browser = Browser()
    during: list[float | None] = []

    async def wait() -> AuthorizationCode:
        during.extend(timer.when() for timer in server._connection().deadlines._limits_s)
        return await browser.wait()

    auth = OAuth(on_redirect=browser.open, on_callback=wait, tokens=MemoryTokens())
    async with MCPServer("docs", url=remote.url, auth=auth) as server:
        await server.list()
    assert during == [None]


@requirement("R80")
async def test_timeout_restarts_after_pause():
    deadlines = Deadlines()
    async with deadlines.within(60) as timer:
        with deadlines.paused():
            assert timer.when() is None
            async with deadlines.within(60) as late:
                assert late.when() is None
        assert timer.when() is not None
        deadlines.stop(timer)
        assert timer.when() is None


@requirement("R80")
async def test_tokens_are_in_no_log_repr_or_error(
    remote: SignInServer, files: TokenFiles, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    auth = Browser().auth(tokens=files)
    async with MCPServer("docs", url=remote.url, auth=auth) as server:
        await call(server, "whoami")
        shown = f"{server!r} {auth!r} {await files.load(remote.url)!r} {vars(server)!r}"
    assert "access-canary-" not in shown + caplog.text
    assert "refresh-canary-" not in shown + caplog.text


@requirement("R80")
async def test_damaged_token_file_is_named_and_not_shown(remote: SignInServer, files: TokenFiles):
    file = files.path(remote.url)
    file.parent.mkdir()
    file.write_text('{"access_token": ["damaged-canary-1"]}')
    error = await refused(remote, OAuth(tokens=files))
    assert str(file) in str(error)
    assert "damaged-canary" not in f"{error} {error.__context__}"


@requirement("R80")
def test_contradictory_settings_are_rejected():
    async def hook(url: str) -> None: ...

    with pytest.raises(ConfigurationError):
        OAuth(on_redirect=hook)
    with pytest.raises(ConfigurationError):
        OAuth(client_id="a", client_secret="b")
    with pytest.raises(ConfigurationError):
        MCPServer("a", url="https://a.test", auth=OAuth(), authorization="b")
    with pytest.raises(ConfigurationError):
        MCPServer("a", command="a", auth=OAuth())


async def use(tool: Tool) -> ToolOutcome:
    return await tool.run({}, ToolContext("call-1", tool.name))


def output_of(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()
