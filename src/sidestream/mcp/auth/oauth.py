"""Sign-ins through the official client's OAuth providers. Imported on connecting to a server with `auth`.

An official provider holds its lock during a whole request, so that a slow call delays all others. Here only token
requests exclude each other: within this process by a lock, between processes by the token store's. A request that has
waited finds the new token in the store, so that no refresh token is used twice.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from pydantic import ValidationError

from sidestream.errors import ConfigurationError
from sidestream.logs import demote_logger, get_logger
from sidestream.mcp.auth.oauth_providers import Paused, UserProvider, check_address, official_provider
from sidestream.mcp.auth.settings import Auth, OAuth, SignInFailedError, StepUps
from sidestream.mcp.display import one_line
from sidestream.mcp.http import SIGN_IN
from sidestream.text.redaction import redact

log = get_logger(__name__)
MAX_STEP_UPS = 5
"""Maximum prompts for more scopes. A server that demands more is refused."""
_TIMEOUT = httpx2.Timeout(10.0, read=30.0)
"""Timeout of each request to an authorization server. The client's own timeouts do not apply to these."""
_LOGGERS = ("mcp.client.auth.oauth2", "mcp.client.auth.utils")
"""Loggers that report failures as errors, with the bodies of token endpoints. We raise a descriptive error instead."""
_MAX_DETAIL = 300
_MAX_SCOPE = 200


class SignInAuth(httpx2.Auth):
    """Adds the access token to each request, and gets a new one when the server demands it."""

    def __init__(
        self,
        auth: Auth,
        label: str,
        server_url: str,
        *,
        paused: Paused,
        report: Callable[[str], None],
        step_ups: StepUps,
    ) -> None:
        for name in _LOGGERS:
            demote_logger(name, log)
        self._auth = auth
        self._label = label
        self._key = server_url
        self._host = httpx2.URL(server_url).host
        self._report = report
        self._provider = official_provider(auth, server_url, paused)
        self._tokens = auth.tokens
        self._lock = asyncio.Lock()
        self._step_ups = step_ups
        self._server_error: int | None = None
        """Status of the last response of an authorization server, if it was a server error."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield the request, and the requests needed to sign in.

        Raises SignInFailedError if the sign-in fails.
        """
        flow = self._flow(request)
        problem = ""
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (SignInFailedError, ConfigurationError) as error:
            problem = str(error)
        except Exception as error:
            problem = f"the sign-in failed: {_describe(error)}; {self._advice}"
        finally:
            await flow.aclose()
        # Raised outside of `except`, since the provider's exceptions hold what the server sent, maybe tokens.
        self._report(problem)
        raise SignInFailedError(problem)

    async def _flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if isinstance(self._provider, UserProvider) and await self._provider.needs_refresh():
            async with self._lock, self._tokens.lock(self._key):
                await self._provider.reload()
                flow = self._provider.async_auth_flow(request)
                try:
                    outgoing = await anext(flow)
                    while outgoing is not request:
                        outgoing = await flow.asend(self._noted((yield self._checked(outgoing))))
                finally:
                    await flow.aclose()
        await self._add_token(request)
        used = request.headers.get("Authorization")
        response = yield request
        if not _demands_token(response):
            return
        async with self._lock, self._tokens.lock(self._key):
            if isinstance(self._provider, UserProvider):
                await self._provider.reload(rejected=used if response.status_code == 401 else None)
            flow = self._provider.async_auth_flow(request)
            try:
                outgoing = await anext(flow)
                while outgoing is not request:
                    outgoing = await flow.asend(self._noted((yield self._checked(outgoing))))
                if request.headers.get("Authorization") != used:
                    response = yield request  # with a token refreshed by this or another process
                    if not _demands_token(response):
                        return
                self._check_demand(response)
                if isinstance(self._provider, UserProvider):
                    self._provider.forget_other_redirect()
                outgoing = await flow.asend(response)
                while outgoing is not request:
                    outgoing = await flow.asend(self._noted((yield self._checked(outgoing))))
            finally:
                await flow.aclose()
        yield request

    async def _add_token(self, request: httpx2.Request) -> None:
        if isinstance(self._provider, UserProvider):
            self._provider.add_token(request)
            return
        flow = self._provider.async_auth_flow(request)
        await anext(flow)
        await flow.aclose()

    def _check_demand(self, response: httpx2.Response) -> None:
        """Raise SignInFailedError if the demand cannot be met.

        It cannot if there is no user to ask, or if the server keeps demanding more scopes.
        """
        scope = one_line(extract_scope_from_www_auth(response) or "", _MAX_SCOPE)
        if isinstance(self._auth, OAuth) and not self._auth.is_interactive:
            if response.status_code == 403:
                raise SignInFailedError(f"it demands more scopes ({scope or 'unnamed'}); {self._advice}")
            if self._server_error is not None:
                raise SignInFailedError(
                    f"its authorization server failed to refresh the token (HTTP {self._server_error}); try again later"
                )
            raise SignInFailedError(f"it requires a sign-in; {self._advice}")
        self._step_ups.count += response.status_code == 403
        if self._step_ups.count > MAX_STEP_UPS:
            raise SignInFailedError(
                f"it has demanded more scopes {self._step_ups.count} times, the last time {scope or 'unnamed ones'}; "
                "check the token's permissions at the authorization server"
            )

    def _checked(self, request: httpx2.Request) -> httpx2.Request:
        """Prepare a request to an authorization server.

        Raises SignInFailedError if its URL is not allowed.
        """
        check_address(request.url, self._host)
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, "timeout": _TIMEOUT.as_dict(), SIGN_IN: True}
        return request

    def _noted(self, response: httpx2.Response) -> httpx2.Response:
        self._server_error = response.status_code if response.status_code >= 500 else None
        return response

    @property
    def _advice(self) -> str:
        if not isinstance(self._auth, OAuth):
            return f"check the credentials in {type(self._auth).__name__}"
        if self._auth.is_interactive:
            return "sign in again"
        return f"run `sidestream mcp login {self._label}`, or give OAuth on_redirect and on_callback"


def _demands_token(response: httpx2.Response) -> bool:
    return response.status_code == 401 or (
        response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _describe(error: Exception) -> str:
    """Describe an error without the responses of token and registration endpoints, which may hold secrets."""
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, ValidationError):
        return "the authorization server sent invalid metadata"
    if not isinstance(error, OAuthFlowError):
        return type(error).__name__
    text = str(error)
    if isinstance(error, OAuthTokenError | OAuthRegistrationError):
        text = text.partition(": ")[0]
    elif text.startswith("State"):
        text = "the redirect's state differs from the request's"
    return one_line(redact(text), _MAX_DETAIL)
