"""Access control by host, origin and token, which every request passes before it reaches a route."""

import hmac
from collections.abc import Callable, Iterable
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from inspect import isawaitable
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidestream.limits import MIN_TOKEN_CHARS
from sidestream.server.errors import RequestError
from sidestream.server.file_links import SignedFiles
from sidestream.server.http.requests import json_response
from sidestream.server.runs.quotas import TokenGuesses
from sidestream.server.settings import ServerSettings
from sidestream.text.redaction import Secret, register_secret

COOKIE = "sidestream"
"""Prefix of the cookie with the web UI's token, set when the web UI is opened with `#token=…` or `?token=…`.

The full name ends with the port: browsers send a host's cookies to all its ports, and servers must not replace each
other's cookies.
"""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of every response."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Middleware that refuses wrong hosts, origins and tokens, and records the tenant of accepted requests."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, links: SignedFiles | None = None) -> None:
        self._app = app
        self._settings = settings
        self._links = links or SignedFiles(settings)
        self._hosts = {_in_header(host) for host in settings.hosts}
        self._origins = {origin.lower().rstrip("/") for origin in settings.origins}
        self._guesses = TokenGuesses()
        self._tokens = (*settings.tokens, *settings.owner_tokens)
        for token in self._tokens:
            register_secret(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin: str | None = None
        try:
            self._check_host(headers)
            origin = self._checked_origin(scope, headers)
            if scope["type"] == "http" and scope["method"] == "OPTIONS" and origin:
                await self._preflight(origin, scope, receive, send)
                return
            if (redirect := self._sign_in(scope)) is not None:
                await redirect(scope, receive, _with_headers(send))
                return
            scope.setdefault("state", {})["origin"] = origin
            await self._note_sender(scope, headers)
        except RequestError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": error.close_reason})
                return
            refusal = json_response(error.body(), error.status, error.headers)
            await refusal(scope, receive, _with_headers(send, origin))
            return
        await self._app(scope, receive, _with_headers(send, origin) if scope["type"] == "http" else send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if "*" not in self._hosts and name not in self._hosts:
            message = f"host {name!r} is not allowed; add it with --allow-host or create_app(hosts=…)"
            raise RequestError(421, message, code="wrong_host")

    def _checked_origin(self, scope: Scope, headers: Headers) -> str | None:
        """Return the allowed foreign origin of the request, or None if it is same-origin.

        Raises RequestError if the origin is not allowed.
        """
        origin = headers.get("origin", "").lower()
        if not origin:
            is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
            if headers.get("sec-fetch-site") == "cross-site" and not is_safe:
                raise _wrong_origin("another site")
            return None
        if origin in (f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")):
            return None
        if origin.rstrip("/") not in self._origins:
            raise _wrong_origin(origin)
        return origin

    async def _note_sender(self, scope: Scope, headers: Headers) -> None:
        """Record the tenant and whether it may administer. Raises RequestError if the request is not authenticated."""
        state, is_owner = scope["state"], False
        state["owner"], state["is_admin"], state["user"] = "", False, None
        state["is_signed"] = False
        if not is_guarded(path := path_of(scope)):
            return
        if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
            signed = self._links.owner(path, scope["query_string"])
            if signed is not None:
                state["owner"], state["is_signed"] = signed, True
                return
        if self._settings.needs_auth:
            state["owner"], is_owner = await self._owner(scope, headers)
        allows = self._settings.allows_admin
        state["is_admin"] = is_owner or (await _answer(allows, scope) is True if callable(allows) else allows)

    async def _owner(self, scope: Scope, headers: Headers) -> tuple[str, bool]:
        """Return the tenant, and whether it is the server's owner. Raises RequestError(401) if it is unknown."""
        settings = self._settings
        given = _given(headers)
        if not given and scope["type"] == "websocket":  # Pages of other sites have no other way to send it.
            given = _query(scope).get("token", [""])[0]
        token = _known(given, self._tokens)
        if token not in settings.owner_tokens:
            if settings.auth is not None and (user := await _answer(settings.auth, scope)):
                scope["state"]["user"] = str(user)
                return user_name(user), False
            token = self._slowed(given, token, scope)
        if token is None:
            has_tokens = bool(self._tokens)
            raise RequestError(
                401,
                "this server requires a token; send Authorization: Bearer TOKEN" if has_tokens else "not signed in",
                type="authentication_error",
                code="invalid_token" if has_tokens else "not_signed_in",
                headers={"WWW-Authenticate": "Bearer"} if has_tokens else None,
            )
        scope["state"]["page_token"] = self._page_token(token)
        # The owner's token changes with each start, so stored ids must not depend on it.
        return ("", True) if token in settings.owner_tokens else (owner_name(token), False)

    def _page_token(self, token: Secret) -> Secret:
        """Return the value that the web UI stores in its cookie for this token."""
        cookie = self._settings.owner_cookie
        return cookie if cookie is not None and token == self._settings.owner_token else token

    def _slowed(self, given: str, token: Secret | None, scope: Scope) -> Secret | None:
        """Return the token unchanged. Raises RequestError(429) if its IP address guesses tokens.

        Long tokens cannot be guessed at any rate, so they are never slowed. Short ones are slowed like wrong ones.
        """
        if given and self._tokens and (token is None or len(token) < MIN_TOKEN_CHARS):
            address = (scope.get("client") or ("", 0))[0]
            self._guesses.admit(address)
            if token is None:
                self._guesses.failed(address)
        return token

    def _sign_in(self, scope: Scope) -> Any:
        """Return a redirect that moves the token from the URL to a cookie, or None if the URL has no token."""
        if scope["type"] != "http" or scope["method"] != "GET" or not self._tokens:
            return None
        query = _query(scope)
        if is_guarded(path_of(scope)) or "token" not in query:
            return None
        given = query.pop("token")[0]
        token = self._slowed(given, _known(given, self._tokens), scope)
        if token is None:
            raise RequestError(401, "the token in the URL is not valid", type="authentication_error")
        rest = urlencode(query, doseq=True)
        # Quoted and with a single leading slash: a path must not become a header or another site.
        path = "/" + quote(scope["path"].lstrip("/"))
        headers = {
            "Location": path + (f"?{rest}" if rest else ""),
            "Set-Cookie": _page_cookie(self._page_token(token), scope),
        }
        return json_response({}, 303, headers)

    async def _preflight(self, origin: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
            # Allow whatever the client asks for: each vendor's SDK has its own headers.
            "Access-Control-Allow-Headers": Headers(scope=scope).get("access-control-request-headers", ""),
            "Access-Control-Max-Age": "600",
        }
        await json_response({}, 200, headers)(scope, receive, _with_headers(send, origin))


async def sign_in(request: Request) -> Response:
    """Give a page a cookie in place of the token that it sent, unless none is needed."""
    token: str | None = getattr(request.state, "page_token", None)
    cookie = {"Set-Cookie": _page_cookie(token, request.scope)} if token else None
    return Response(status_code=204, headers=cookie)


def _page_cookie(token: str, scope: Scope) -> str:
    place = quote(scope.get("root_path", "").rstrip("/")) or "/"
    secure = "; Secure" if scope["scheme"] == "https" else ""
    name = _cookie_name(Headers(scope=scope))
    return f"{name}={quote(token, safe='')}; HttpOnly; SameSite=Strict; Path={place}{secure}"


def _given(headers: Headers) -> str:
    """Return the token of a request, or an empty string without one."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or _cookie(headers)


def _in_header(host: str) -> str:
    """Return a host in the form of the `Host` header, with IPv6 addresses in brackets."""
    host = host.lower()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_guarded(path: str) -> bool:
    """Return whether a path needs a token where tokens are required. `path` is relative to the mount point."""
    return path.startswith(("/api/", "/v1/"))


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def path_of(scope: Scope) -> str:
    """Return the path of a request, relative to the mount point."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def owner_name(token: str) -> str:
    """Return a short tenant name for a token, from which the token cannot be derived."""
    return sha256(b"sidestream-owner:" + token.encode()).hexdigest()[:16]


def user_name(user: str) -> str:
    """Return a short tenant name for a user of the app's own auth. It never equals that of a token."""
    return sha256(b"sidestream-user:" + user.encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def _answer(function: Callable[[HTTPConnection], Any], scope: Scope) -> Any:
    """Call the app's own function for a request. Raises RequestError if it raises HTTPException."""
    try:
        found = function(HTTPConnection(scope))
        return await found if isawaitable(found) else found
    except HTTPException as error:
        raise RequestError(
            error.status_code, error.detail, type="authentication_error", headers=dict(error.headers or {})
        ) from None


def _known(given: str, tokens: Iterable[Secret]) -> Secret | None:
    """Return the token that was sent, if it is known, in constant time."""
    found: Secret | None = None
    for token in tokens:
        if hmac.compare_digest(given.encode(), token.encode()):
            found = token
    return found


def _cookie_name(headers: Headers) -> str:
    port = headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() and port.isascii() else COOKIE


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(headers))
    except CookieError:
        return ""
    return unquote(morsel.value) if morsel is not None else ""


def _wrong_origin(origin: str) -> RequestError:
    return RequestError(
        403, f"pages from {origin} may not call this server", type="permission_error", code="wrong_origin"
    )


def _with_headers(send: Send, origin: str | None = None) -> Send:
    """Return a `send` that adds the headers of every response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = "*"
                headers.add_vary_header("Origin")
        await send(message)

    return sending
