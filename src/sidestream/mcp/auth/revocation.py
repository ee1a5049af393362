"""Revokes tokens at their authorization server (RFC 7009). Imported at a sign-out: it needs the official client."""

from contextlib import nullcontext

import httpx2

from sidestream.mcp.auth.oauth_providers import UserProvider, check_address
from sidestream.mcp.auth.settings import OAuth, SignInFailedError
from sidestream.mcp.auth.token_store import SignIn, TokenStore
from sidestream.mcp.http import SIGN_IN, HttpDiagnostics, http_client

_TIMEOUT_S = 10.0


async def revoke(sign_in: SignIn, server_url: str, tokens: TokenStore) -> bool:
    """Revokes the tokens of a sign-in. False if the authorization server offers no way to do so.

    Raises SignInFailedError and HTTPError.
    """
    endpoint = (sign_in.authorization_server or {}).get("revocation_endpoint")
    if not isinstance(endpoint, str):
        return False
    check_address(httpx2.URL(endpoint), httpx2.URL(server_url).host)
    provider = UserProvider(OAuth(tokens=tokens), server_url, nullcontext)
    await provider.reload()
    async with http_client(server_url, {}, HttpDiagnostics()) as client:
        # First what would get new tokens. Many servers revoke the access token with it.
        for kind, token in (("refresh_token", sign_in.refresh_token), ("access_token", sign_in.access_token)):
            if token is None:
                continue
            form = {"token": token, "token_type_hint": kind}
            if provider.context.client_info is not None:
                form["client_id"] = provider.context.client_info.client_id
            form, headers = provider.context.prepare_token_auth(form, {})
            request = client.build_request("POST", endpoint, data=form, headers=headers, timeout=_TIMEOUT_S)
            request.extensions = {**request.extensions, SIGN_IN: True}
            response = await client.send(request, auth=None)
            if not response.is_success:
                raise SignInFailedError(f"its authorization server answered with HTTP {response.status_code}")
    return True
