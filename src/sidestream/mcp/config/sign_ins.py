"""Stored sign-ins for servers configured elsewhere: as a token for a provider, or for a whole `mcp.json`."""

import importlib.util
from typing import Literal

from msgspec.structs import replace

from sidestream.errors import MissingExtraError, SignInError
from sidestream.logs import get_logger
from sidestream.mcp.auth.settings import Auth, OAuth, StepUps
from sidestream.mcp.auth.token_store import SignIn, TokenStore, default_tokens
from sidestream.mcp.client.deadlines import Deadlines
from sidestream.mcp.client.server import MCPServer
from sidestream.mcp.config.file import MCPConfig
from sidestream.mcp.http import HttpDiagnostics, http_client, without_user
from sidestream.tools.server_side import RemoteMCP

log = get_logger(__name__)


async def access_token(url: str, auth: Auth | None = None) -> str:
    """Return the token of a stored sign-in, refreshed if expired, e.g. for `RemoteMCP(authorization=…)`.

    Raises SignInError if there is none, or if it cannot be refreshed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError("mcp", "signing in")
    from httpx2 import HTTPError, Request

    from sidestream.mcp.auth.oauth import SignInAuth
    from sidestream.mcp.auth.settings import SignInFailedError

    url = without_user(url, {})[0]
    diagnostics = HttpDiagnostics()
    sign_in = SignInAuth(
        auth or OAuth(),
        url,
        url,
        paused=Deadlines().paused,
        report=diagnostics.report_sign_in,
        step_ups=StepUps(),
    )
    request = Request("POST", url)
    flow = sign_in.async_auth_flow(request)
    problem = "not signed in, or the sign-in can no longer be refreshed; run `sidestream mcp login`"
    try:
        async with http_client(url, {}, diagnostics) as client:
            outgoing = await anext(flow)
            while outgoing is not request:
                outgoing = await flow.asend(await client.send(outgoing, auth=None))
    except SignInFailedError as error:
        problem = str(error)
    except HTTPError as error:
        problem = f"its authorization server did not answer ({type(error).__name__}); try again later"
    finally:
        await flow.aclose()
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not token:
        raise SignInError(f"no token for the MCP server: {problem}", server=url)
    return token


SignedOut = Literal["revoked", "kept", "failed"]
"""Fate of the tokens. `kept` and `failed` mean that they stay valid until they expire: the server does not revoke
tokens, or it failed to."""


async def sign_out(url: str, tokens: TokenStore | None = None) -> SignedOut:
    """Remove a stored sign-in, revoking its tokens if the authorization server supports that.

    Raises SignInError if there is none.
    """
    tokens = tokens or default_tokens()
    url = without_user(url, {})[0]
    async with tokens.lock(url):
        sign_in = await tokens.load(url)
        if sign_in is None:
            raise SignInError("not signed in at the MCP server", server=url)
        try:
            return await _revoked(sign_in, url, tokens)
        finally:
            await tokens.save(url, None)


async def _revoked(sign_in: SignIn, url: str, tokens: TokenStore) -> SignedOut:
    if importlib.util.find_spec("mcp") is None:
        return "failed"
    from sidestream.mcp.auth.oauth_providers import revoke

    try:
        return "revoked" if await revoke(sign_in, url, tokens) else "kept"
    except Exception as error:
        # The error's text may hold what was sent.
        log.info("could not revoke the tokens: %s", type(error).__name__)
        return "failed"


async def use_sign_ins(config: MCPConfig, tokens: TokenStore | None = None) -> MCPConfig:
    """Return the config with stored sign-ins for its servers that have no credentials of their own.

    A server that this machine calls refreshes its token when needed; a provider gets the current token. Raises
    SignInError if a server's token, needed by a provider, cannot be refreshed.
    """
    tokens = tokens or default_tokens()
    local = list(config.toolsets)
    remote: list[RemoteMCP] = []
    for server in config.remote_servers:
        has_own = server.authorization or any(name.lower() == "authorization" for name in server.headers)
        if server.url is None or has_own or await tokens.load(without_user(server.url, {})[0]) is None:
            remote.append(server)
        elif server.execution == "here":
            local.append(MCPServer.from_remote(server, auth=OAuth(tokens=tokens)))
        else:
            remote.append(replace(server, authorization=await access_token(server.url, OAuth(tokens=tokens))))
    return replace(config, toolsets=tuple(local), remote_servers=tuple(remote))
