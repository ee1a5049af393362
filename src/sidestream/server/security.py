"""Who may call the server: hosts, origins, tokens. Everything passes here before it reaches a route."""

import hmac
from collections.abc import Iterable
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

from sidestream.redaction import Secret, register_secret
from sidestream.server.errors import RequestError
from sidestream.server.requests import json_response
from sidestream.server.settings import Auth, ServerSettings

COOKIE = "sidestream"
"""Holds the token of a page; it is set when the page is opened with `#token=…`, or with `?token=…`."""
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
"""What every response has that does not say otherwise."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Refuses requests for other hosts, from other origins, or without a token; notes whose the others are."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {_in_header(host) for host in settings.hosts}
        self._origins = {origin.lower().rstrip("/") for origin in settings.origins}
        for token in settings.tokens:
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
            scope.setdefault("state", {})["owner"] = await self._owner(scope, headers)
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
            message = (
                f"this server does not answer for the host {name!r}; --allow-host, or create_app(hosts=…), adds it"
            )
            raise RequestError(421, message, code="wrong_host")

    def _checked_origin(self, scope: Scope, headers: Headers) -> str | None:
        """The origin of another site whose pages may call this server, if the request comes from one."""
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

    async def _owner(self, scope: Scope, headers: Headers) -> str:
        """Whose request it is. Raises RequestError(401)."""
        if not self._settings.needs_auth or not is_guarded(_path(scope)):
            return ""
        if self._settings.auth is not None and (user := await _user(self._settings.auth, scope)):
            return user_name(user)
        given = _given(headers)
        if not given and scope["type"] == "websocket":  # A page of another site can send it no other way.
            given = _query(scope).get("token", [""])[0]
        if (token := _known(given, self._settings.tokens)) is None:
            has_tokens = bool(self._settings.tokens)
            raise RequestError(
                401,
                "this server needs a token: send Authorization: Bearer TOKEN" if has_tokens else "nobody is signed in",
                type="authentication_error",
                code="invalid_token" if has_tokens else "not_signed_in",
                headers={"WWW-Authenticate": "Bearer"} if has_tokens else None,
            )
        return owner_name(token)

    def _sign_in(self, scope: Scope) -> Any:
        """Opens the page with the token of its address, which then stands in a cookie and no longer in the address."""
        if scope["type"] != "http" or scope["method"] != "GET" or not self._settings.tokens:
            return None
        query = _query(scope)
        if is_guarded(_path(scope)) or "token" not in query:
            return None
        token = _known(query.pop("token")[0], self._settings.tokens)
        if token is None:
            raise RequestError(401, "the token in the address is not valid", type="authentication_error")
        rest = urlencode(query, doseq=True)
        # Quoted, and with one slash at its beginning: a path must not become a header or another site.
        path = "/" + quote(scope["path"].lstrip("/"))
        headers = {"Location": path + (f"?{rest}" if rest else ""), "Set-Cookie": _page_cookie(token, scope)}
        return json_response({}, 303, headers)

    async def _preflight(self, origin: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
            # Whatever the client sends: each vendor's SDK has headers of its own.
            "Access-Control-Allow-Headers": Headers(scope=scope).get("access-control-request-headers", ""),
            "Access-Control-Max-Age": "600",
        }
        await json_response({}, 200, headers)(scope, receive, _with_headers(send, origin))


async def sign_in(request: Request) -> Response:
    """Gives a page a cookie in place of the token that it sends. The guard knows it, unless none is needed."""
    token = _given(request.headers)
    cookie = {"Set-Cookie": _page_cookie(token, request.scope)} if token else None
    return Response(status_code=204, headers=cookie)


def _page_cookie(token: str, scope: Scope) -> str:
    place = quote(scope.get("root_path", "").rstrip("/")) or "/"
    secure = "; Secure" if scope["scheme"] == "https" else ""
    return f"{COOKIE}={quote(token, safe='')}; HttpOnly; SameSite=Strict; Path={place}{secure}"


def _given(headers: Headers) -> str:
    """The token that a request has; empty without one."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or _cookie(headers)


def _in_header(host: str) -> str:
    """A host as `Host` has it: addresses of IPv6 in brackets."""
    host = host.lower()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_guarded(path: str) -> bool:
    """True for what needs a token where tokens are required; the page's own files do not. `path` is below the mount."""
    return path.startswith(("/api/", "/v1/"))


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _path(scope: Scope) -> str:
    """The path of a request below the path where the app is mounted."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def owner_name(token: str) -> str:
    """A short name for the owner of a token, from which the token does not follow."""
    return sha256(b"sidestream-owner:" + token.encode()).hexdigest()[:16]


def user_name(user: str) -> str:
    """A short name for a user of the app's own auth. It is never that of a token."""
    return sha256(b"sidestream-user:" + user.encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def _user(auth: Auth, scope: Scope) -> str | None:
    try:
        found = auth(HTTPConnection(scope))
        return await found if isawaitable(found) else found
    except HTTPException as error:
        raise RequestError(
            error.status_code, error.detail, type="authentication_error", headers=dict(error.headers or {})
        ) from None


def _known(given: str, tokens: Iterable[Secret]) -> Secret | None:
    """The token that was given. Takes as long for a wrong one as for a right one."""
    found: Secret | None = None
    for token in tokens:
        if hmac.compare_digest(given.encode(), token.encode()):
            found = token
    return found


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return unquote(morsel.value) if morsel is not None else ""


def _wrong_origin(origin: str) -> RequestError:
    return RequestError(
        403, f"pages of {origin} may not call this server", type="permission_error", code="wrong_origin"
    )


def _with_headers(send: Send, origin: str | None = None) -> Send:
    """Adds the headers that every response has."""

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
