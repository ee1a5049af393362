"""An MCP server on 127.0.0.1 that wants a sign-in, with its authorization server, and the ways in which both misbehave."""

import base64
import hashlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from aiohttp import web
from msgspec.structs import replace

from sidestream.mcp import AuthorizationCode, OAuth, SignIn

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SignInServer:
    """Tokens are numbered: `access-canary-1`, `refresh-canary-1`, … A refresh token is valid once."""

    def __init__(self) -> None:
        self.port = 0
        self.expires_in: int | None = 3600
        self.scopes = "tools"
        self.demanded: str | None = None
        """A scope that each call demands with 403; a format with the number of the demand."""
        self.valid: set[str] = set()
        self.refresh_tokens: set[str] = set()
        self.revoked: list[dict[str, str]] = []
        """The forms that the revocation endpoint got."""
        self.revokes = True
        self.codes: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        """Grant type or path → how often it was requested."""
        self.overrides: dict[str, Handler] = {}
        """Path → a handler that misbehaves."""
        self.seen_headers: list[dict[str, str]] = []
        """The headers of the requests to the authorization server."""
        self._numbers = itertools.count(1)
        self._demands = itertools.count(1)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["SignInServer"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.counts[path] = self.counts.get(path, 0) + 1
        if path in self.overrides:
            return await self.overrides[path](request)
        if path == "/mcp":
            return await self._mcp(request)
        self.seen_headers.append(dict(request.headers))
        if path == "/.well-known/oauth-protected-resource/mcp":
            return web.json_response({"resource": self.url, "authorization_servers": [self.origin]})
        if path == "/.well-known/oauth-authorization-server":
            return web.json_response(self.metadata())
        if path == "/register":
            return web.json_response({"client_id": "client-1", **(await request.json())}, status=201)
        if path == "/authorize":
            return self._authorize(request)
        if path == "/token":
            return self._token({name: str(value) for name, value in (await request.post()).items()})
        if path == "/revoke":
            self.revoked.append({name: str(value) for name, value in (await request.post()).items()})
            self.valid.discard(self.revoked[-1]["token"])
            self.refresh_tokens.discard(self.revoked[-1]["token"])
            return web.Response()
        return web.Response(status=404)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **({"revocation_endpoint": f"{self.origin}/revoke"} if self.revokes else {}),
        }

    def _authorize(self, request: web.Request) -> web.Response:
        code = f"code-canary-{next(self._numbers)}"
        self.codes[code] = request.query["code_challenge"]
        answer = urlencode({"code": code, "state": request.query["state"], "iss": self.origin})
        return web.Response(status=302, headers={"Location": f"{request.query['redirect_uri']}?{answer}"})

    def _token(self, form: dict[str, str]) -> web.Response:
        grant = form["grant_type"]
        self.counts[grant] = self.counts.get(grant, 0) + 1
        if grant == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            is_proper = self.codes.pop(form["code"], None) == base64.urlsafe_b64encode(digest).decode().rstrip("=")
        elif grant == "refresh_token":
            is_proper = form["refresh_token"] in self.refresh_tokens
            self.refresh_tokens.discard(form["refresh_token"])
        else:
            is_proper = grant == "client_credentials"
        if not is_proper:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(self.issue())

    def issue(self) -> dict[str, Any]:
        """New tokens, as the token endpoint sends them."""
        number = next(self._numbers)
        access, refresh = f"access-canary-{number}", f"refresh-canary-{number}"
        self.valid.add(access)
        self.refresh_tokens.add(refresh)
        return {
            "access_token": access,
            "token_type": "Bearer",
            "refresh_token": refresh,
            "expires_in": self.expires_in,
            "scope": self.scopes,
        }

    async def _mcp(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.valid:
            resource = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
            challenge = f'Bearer {resource}, scope="{self.scopes}"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if request.method != "POST":
            return web.Response(status=405)
        message = json.loads(await request.read())
        method = message["method"]
        if method == "tools/call" and self.demanded is not None:
            scope = self.demanded.format(next(self._demands))
            challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
            return web.Response(status=403, headers={"WWW-Authenticate": challenge})
        if "id" not in message:
            return web.Response(status=202)
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        result = _RESULTS.get(method)
        return web.json_response(
            answer | ({"result": result} if result else {"error": {"code": -32601, "message": "unknown method"}})
        )


_RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "signed-in", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "whoami", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "it is you"}]},
}


class Browser:
    """A user who agrees at once: the hooks of `OAuth`."""

    def __init__(self, **changes: str) -> None:
        self.urls: list[str] = []
        self.answer: dict[str, str] = {}
        self._changes = changes
        """Parameters of the redirect that arrive with another value."""

    def auth(self, **settings: Any) -> OAuth:
        return OAuth(on_redirect=self.open, on_callback=self.wait, **settings)

    async def open(self, url: str) -> None:
        self.urls.append(url)
        async with httpx2.AsyncClient(timeout=60) as client:
            response = await client.get(url)
        query = parse_qs(urlsplit(response.headers["location"]).query)
        self.answer = {name: values[0] for name, values in query.items()} | self._changes

    async def wait(self) -> AuthorizationCode:
        return AuthorizationCode(**self.answer)


def expired(saved: SignIn) -> SignIn:
    """The same sign-in a while later."""
    return replace(saved, expires_at=time.time() - 60)
