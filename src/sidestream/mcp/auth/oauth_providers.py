"""The official client's OAuth providers with our configuration and token store, and token revocation."""

import asyncio
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from sidestream.errors import ConfigurationError
from sidestream.mcp.auth.settings import (
    LOOPBACK_HOSTS,
    Auth,
    ClientCredentials,
    IdentityAssertion,
    OAuth,
    PrivateKeyJWT,
    SignInFailedError,
)
from sidestream.mcp.auth.token_store import SignIn, TokenStore
from sidestream.mcp.http import SIGN_IN, HttpDiagnostics, http_client
from sidestream.text.redaction import redact, register_secret

Paused = Callable[[], AbstractContextManager[None]]
"""Suspends the connection's timeouts while the user signs in."""


def check_address(url: httpx2.URL, server_host: str) -> None:
    """Raise SignInFailedError unless the URL uses HTTPS, or both it and the server are on this machine."""
    is_local = url.host in LOOPBACK_HOSTS and server_host in LOOPBACK_HOSTS
    if url.scheme != "https" and not is_local:
        raise SignInFailedError(
            f"the sign-in was stopped: the server named an unencrypted URL, {url.scheme}://{url.host}"
        )


class _Storage:
    """Adapter from our token store to the official client's storage.

    Client and tokens are saved together, once both are known.
    """

    def __init__(self, auth: Auth, server_url: str) -> None:
        self._tokens: TokenStore = auth.tokens
        self._server_url = server_url
        self._client: OAuthClientInformationFull | None = None
        self.provider: OAuthClientProvider | None = None

    async def get_tokens(self) -> OAuthToken | None:
        saved = await self._tokens.load(self._server_url)
        return None if saved is None or saved.is_expired else _token(saved)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = None if self.provider is None else self.provider.context
        client = None if context is None else context.client_info
        await self._tokens.save(
            self._server_url,
            SignIn(
                access_token=tokens.access_token,
                refresh_token=tokens.refresh_token,
                expires_at=None if tokens.expires_in is None else time.time() + tokens.expires_in,
                scope=tokens.scope,
                client=_dumped(client),
                authorization_server=_dumped(context and context.oauth_metadata),
                resource=_dumped(context and context.protected_resource_metadata),
            ),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if client_info.client_secret:
            register_secret(client_info.client_secret)
        self._client = client_info


class UserProvider(OAuthClientProvider):
    """The official provider for user sign-ins, able to resume and refresh a stored one."""

    def __init__(self, auth: OAuth, server_url: str, paused: Paused) -> None:
        self.server_url = server_url
        self._tokens = auth.tokens
        self._auth = auth
        storage = _Storage(auth, server_url)

        async def redirect(url: str) -> None:
            assert auth.on_redirect is not None
            check_address(httpx2.URL(url), httpx2.URL(server_url).host)
            with paused():
                await auth.on_redirect(url)

        async def callback() -> AuthorizationCodeResult:
            assert auth.on_callback is not None
            with paused():
                async with asyncio.timeout(auth.timeout_s):
                    answer = await auth.on_callback()
            register_secret(answer.code)
            return AuthorizationCodeResult(code=answer.code, state=answer.state, iss=answer.iss)

        super().__init__(
            server_url,
            OAuthClientMetadata(
                redirect_uris=[AnyUrl(auth.redirect_uri)],
                client_name=auth.client_name,
                token_endpoint_auth_method=None,
                application_type="native" if AnyUrl(auth.redirect_uri).host in LOOPBACK_HOSTS else "web",
            ),
            storage,
            redirect_handler=redirect,
            callback_handler=callback,
            client_metadata_url=auth.client_metadata_url,
        )
        storage.provider = self

    async def needs_refresh(self) -> bool:
        """Load the stored sign-in, and return whether its token has expired and can be refreshed."""
        if not self._initialized:
            await self._initialize()
        return not self.context.is_token_valid() and self.context.can_refresh_token()

    def add_token(self, request: httpx2.Request) -> None:
        """Add the token to the request, unless it is missing or known to have expired."""
        if self.context.is_token_valid():
            self._add_auth_header(request)

    async def reload(self, rejected: str | None = None) -> None:
        """Load what another process may have stored. A token that the server rejected counts as expired."""
        await self._initialize()
        tokens = self.context.current_tokens
        if tokens is not None and tokens.refresh_token and f"Bearer {tokens.access_token}" == rejected:
            self.context.token_expiry_time = 1.0

    def forget_other_redirect(self) -> None:
        """Forget a stored registration if it is for another redirect URI, e.g. another port.

        The client then registers again.
        """
        client = self.context.client_info
        if client is None or self._auth.client_id is not None or client.client_id == self._auth.client_metadata_url:
            return
        if client.redirect_uris and self._auth.redirect_uri not in map(str, client.redirect_uris):
            self.context.client_info = None

    async def _initialize(self) -> None:
        context = self.context
        saved = await self._tokens.load(self.server_url)
        known = context.current_tokens
        if saved is not None and (known is None or known.access_token != saved.access_token):
            context.current_tokens = _token(saved)
            context.token_expiry_time = saved.expires_at
            if saved.client is not None:
                context.client_info = OAuthClientInformationFull.model_validate(saved.client)
            if saved.authorization_server is not None:
                context.oauth_metadata = OAuthMetadata.model_validate(saved.authorization_server)
                context.auth_server_url = saved.issuer
            if saved.resource is not None:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(saved.resource)
        if self._auth.client_id is not None:
            context.client_info = _registered(self._auth)
        self._initialized = True

    async def _perform_authorization(self) -> httpx2.Request:
        wanted = " ".join(self._auth.scopes)
        self.context.client_metadata.scope = union_scopes(self.context.client_metadata.scope, wanted or None)
        return await super()._perform_authorization()


def official_provider(auth: Auth, url: str, paused: Paused) -> Any:
    """Create the official provider.

    Raises ConfigurationError if the settings are invalid.
    """
    if isinstance(auth, OAuth):
        return UserProvider(auth, url, paused)
    storage, scope = _Storage(auth, url), " ".join(auth.scopes) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing issuer, which our settings name explicitly
        try:
            match auth:
                case ClientCredentials():
                    return ClientCredentialsOAuthProvider(
                        url, storage, auth.client_id, auth.client_secret, auth.method, scope, auth.issuer
                    )
                case PrivateKeyJWT():
                    return PrivateKeyJWTOAuthProvider(
                        url, storage, auth.client_id, _assertion(auth), scope, auth.issuer
                    )
                case IdentityAssertion():
                    return IdentityAssertionOAuthProvider(
                        url,
                        storage,
                        auth.client_id,
                        auth.client_secret,
                        auth.issuer,
                        auth.assertion,
                        scope,
                        auth.method,
                    )
        except ValueError as error:
            raise ConfigurationError(f"{type(auth).__name__}: {redact(str(error))}") from None


def _assertion(auth: PrivateKeyJWT) -> Any:
    if auth.assertion is not None:
        return auth.assertion
    assert auth.private_key is not None
    return SignedJWTParameters(
        issuer=auth.client_id,
        subject=auth.client_id,
        signing_key=auth.private_key,
        signing_algorithm=auth.algorithm,
    ).create_assertion_provider()


def _registered(auth: OAuth) -> OAuthClientInformationFull:
    assert auth.client_id is not None
    return OAuthClientInformationFull(
        client_id=auth.client_id,
        client_secret=auth.client_secret,
        redirect_uris=[AnyUrl(auth.redirect_uri)],
        token_endpoint_auth_method="client_secret_basic" if auth.client_secret else "none",
        issuer=auth.issuer,
    )


def _token(saved: SignIn) -> OAuthToken:
    left_s = None if saved.expires_at is None else int(saved.expires_at - time.time())
    return OAuthToken(
        access_token=saved.access_token, refresh_token=saved.refresh_token, scope=saved.scope, expires_in=left_s
    )


def _dumped(model: Any) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


_TIMEOUT_S = 10.0


async def revoke(sign_in: SignIn, server_url: str, tokens: TokenStore) -> bool:
    """Revoke a sign-in's tokens. Return False if the authorization server does not support revocation.

    Raises SignInFailedError if the server refuses, and HTTPError if it cannot be reached.
    """
    endpoint = (sign_in.authorization_server or {}).get("revocation_endpoint")
    if not isinstance(endpoint, str):
        return False
    check_address(httpx2.URL(endpoint), httpx2.URL(server_url).host)
    provider = UserProvider(OAuth(tokens=tokens), server_url, nullcontext)
    await provider.reload()
    async with http_client(server_url, {}, HttpDiagnostics()) as client:
        # The refresh token comes first, since it could get new tokens. Many servers revoke the access token with it.
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
