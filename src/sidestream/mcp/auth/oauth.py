"""Signs in through the official client's OAuth providers. Imported when a server with `auth` is connected to.

A provider holds its lock while a request is under way, so that a slow call would delay all others. Here only requests
for tokens exclude each other: in this process by a lock, between processes by that of the token store. Whoever waited
finds the new token in the store, and does not use a refresh token twice.
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
"""How often the user is prompted for more scopes. A server that demands more is refused."""
_TIMEOUT = httpx2.Timeout(10.0, read=30.0)
"""Of each request to an authorization server. The client's own timeouts do not apply to them."""
_LOGGERS = ("mcp.client.auth.oauth2", "mcp.client.auth.utils")
"""They log failures as errors, with the bodies of token endpoints. We raise an error that says what happened."""
_MAX_DETAIL = 300
_MAX_SCOPE = 200


class SignInAuth(httpx2.Auth):
    """Adds the access token to each request; gets one, or a new one, when the server demands it."""

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
        """The status of an authorization server that failed."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields the request, and those that it takes to sign in."""
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
        # Outside of `except`: the provider's exceptions hold what the server sent, maybe tokens.
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
                    response = yield request  # with a token that was refreshed, here or by someone else
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
        """Raises SignInFailedError if the demand cannot be met: there is nobody to ask, or it has no end."""
        scope = one_line(extract_scope_from_www_auth(response) or "", _MAX_SCOPE)
        if isinstance(self._auth, OAuth) and not self._auth.is_interactive:
            if response.status_code == 403:
                raise SignInFailedError(f"it demands more scopes ({scope or 'unnamed'}); {self._advice}")
            if self._server_error is not None:
                raise SignInFailedError(
                    f"its authorization server failed to refresh the token (HTTP {self._server_error}); try again later"
                )
            raise SignInFailedError(f"it wants a sign-in; {self._advice}")
        self._step_ups.count += response.status_code == 403
        if self._step_ups.count > MAX_STEP_UPS:
            raise SignInFailedError(
                f"it has demanded more scopes {self._step_ups.count} times, the last time {scope or 'unnamed ones'}; "
                "check what the token may do at the authorization server"
            )

    def _checked(self, request: httpx2.Request) -> httpx2.Request:
        """The request to an authorization server, if it may be sent."""
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
    """What went wrong. Not what a token or registration endpoint sent, which may hold secrets."""
    if isinstance(error, TimeoutError):
        return "nobody signed in within the time limit"
    if isinstance(error, ValidationError):
        return "the authorization server sent invalid metadata"
    if not isinstance(error, OAuthFlowError):
        return type(error).__name__
    text = str(error)
    if isinstance(error, OAuthTokenError | OAuthRegistrationError):
        text = text.partition(": ")[0]
    elif text.startswith("State"):
        text = "the redirect has another state than the request"
    return one_line(redact(text), _MAX_DETAIL)
