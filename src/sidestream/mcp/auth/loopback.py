"""Loopback receiver for sign-in redirects, for programs on the user's own machine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self
from urllib.parse import parse_qs, urlsplit

from sidestream.mcp.auth.settings import AuthorizationCode, SignInFailedError
from sidestream.mcp.display import one_line

_PATH = "/callback"
_REQUEST_TIMEOUT_S = 10.0
_MAX_REQUEST_BYTES = 32 * 1024
_PAGE = """<!doctype html><meta charset="utf-8"><title>Sidestream</title>
<body style="font: 1.1rem system-ui; margin: 4rem auto; max-width: 34rem"><p>{text}</p>
"""


class LoopbackRedirect:
    """A listener on a random port of 127.0.0.1 for the one redirect that ends a sign-in."""

    def __init__(self, on_redirect: Callable[[str], Awaitable[None]]) -> None:
        self._show = on_redirect
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[AuthorizationCode] = asyncio.get_running_loop().create_future()

    @property
    def uri(self) -> str:
        """Redirect URI to register."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{_PATH}"

    async def on_redirect(self, url: str) -> None:
        """Show the URL to the user. A second sign-in discards the answer to the first."""
        if self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
        await self._show(url)

    async def on_callback(self) -> AuthorizationCode:
        """Wait for the redirect.

        Raises SignInFailedError if the user or the server refused the sign-in.
        """
        return await asyncio.shield(self._answer)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_REQUEST_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._answer.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._respond(head.partition(b"\r\n")[0].decode("latin-1"))
                body = _PAGE.format(text=text).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
                    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a redirected browser
        finally:
            writer.close()

    def _respond(self, line: str) -> tuple[str, str]:
        """Store the answer, and return the HTTP status and the text for the user."""
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        if method != "GET" or target.path != _PATH:
            return "404 Not Found", "There is nothing here."
        values = {name: given[0] for name, given in parse_qs(target.query, max_num_fields=32).items()}
        if self._answer.done():
            return "409 Conflict", "This sign-in has already ended."
        if "code" not in values:
            reason = one_line(values.get("error", "no code"))
            self._answer.set_exception(SignInFailedError(f"the authorization server refused the sign-in: {reason}"))
            return "400 Bad Request", "The sign-in was refused. You can close this page and look at the program."
        self._answer.set_result(
            AuthorizationCode(code=values["code"], state=values.get("state"), iss=values.get("iss"))
        )
        return "200 OK", "The sign-in came back. You can close this page and return to the program."
