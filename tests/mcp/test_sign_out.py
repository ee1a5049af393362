"""Signing out: tokens are revoked where that is possible, and gone from here in any case."""

import logging
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from requirements import requirement
from sidestream import ConfigurationError, MCPServer
from sidestream.errors import SignInError
from sidestream.mcp import KeyringTokens, MemoryTokens, SignIn, TokenFiles, sign_out
from support.mcp_servers.signed_in import Browser, SignInServer


@pytest.fixture
async def remote() -> AsyncGenerator[SignInServer]:
    async with SignInServer().running() as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> TokenFiles:
    return TokenFiles(tmp_path / "tokens")


async def signed_in(remote: SignInServer, **settings: Any) -> None:
    async with MCPServer("docs", url=remote.url, auth=Browser().auth(**settings)) as server:
        await server.list()


@requirement("R80")
async def test_both_tokens_are_revoked_by_their_client(remote: SignInServer, files: TokenFiles):
    await signed_in(remote, tokens=files)
    assert await sign_out(remote.url, files) == "revoked"
    assert [(form["token_type_hint"], form["client_id"]) for form in remote.revoked] == [
        ("refresh_token", "client-1"),
        ("access_token", "client-1"),
    ]
    assert not remote.valid
    assert not remote.refresh_tokens
    assert not files.path(remote.url).exists()
    with pytest.raises(SignInError):
        await sign_out(remote.url, files)


@requirement("R80")
async def test_client_with_secret_authenticates_revocation(remote: SignInServer):
    tokens = MemoryTokens()
    await signed_in(remote, tokens=tokens, client_id="mine", client_secret="secret-canary-3", issuer=remote.origin)
    assert await sign_out(remote.url, tokens) == "revoked"
    assert remote.seen_headers[-1]["Authorization"].startswith("Basic ")


@requirement("R80")
async def test_sign_in_is_only_removed_without_revocation_endpoint(remote: SignInServer, files: TokenFiles):
    remote.revokes = False
    await signed_in(remote, tokens=files)
    assert await sign_out(remote.url, files) == "kept"
    assert not remote.revoked
    assert not files.path(remote.url).exists()


@requirement("R80")
@pytest.mark.parametrize("kind", ["error", "redirect", "unencrypted", "closed"])
async def test_failed_revocation_removes_sign_in_and_shows_no_token(
    remote: SignInServer, files: TokenFiles, kind: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    reached: list[str] = []

    async def misbehave(request: web.Request) -> web.Response:
        reached.append(request.query_string)
        if kind == "error":
            return web.Response(status=503, text="body-canary-1")
        if kind == "redirect":
            return web.Response(status=307, headers={"Location": f"http://localhost:{remote.port}/revoke?elsewhere"})
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def lead_away(_: web.Request) -> web.Response:
        return web.json_response(remote.metadata() | {"revocation_endpoint": "http://elsewhere.test/revoke"})

    if kind == "unencrypted":
        remote.overrides["/.well-known/oauth-authorization-server"] = lead_away
    remote.overrides["/revoke"] = misbehave
    await signed_in(remote, tokens=files)
    assert await sign_out(remote.url, files) == "failed"
    assert "elsewhere" not in str(reached)
    assert not files.path(remote.url).exists()
    # Not the code of the sign-in, which the server's own log has.
    assert not [kind for kind in ("access", "refresh", "body") if f"{kind}-canary-" in caplog.text]


@requirement("R80")
async def test_failing_keyring_is_clear_error_without_tokens():
    keyring = pytest.importorskip("keyring")
    from keyring.backends import fail

    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    try:
        with pytest.raises(ConfigurationError) as failure:
            await KeyringTokens().save("https://a.test/mcp", SignIn(access_token="access-canary-1"))
    finally:
        keyring.set_keyring(before)
    assert "canary" not in f"{failure.value} {failure.value.__context__} {failure.value.__cause__}"


@requirement("R80")
def test_keyring_without_package_names_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigurationError) as failure:
        KeyringTokens()
    assert "sidestream[keyring]" in str(failure.value)
