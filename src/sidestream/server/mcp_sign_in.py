"""MCP sign-ins started in the web UI. The browser is redirected back to this server, not to a separate port."""

import asyncio
from urllib.parse import parse_qs, urlsplit

from sidestream.errors import SidestreamError
from sidestream.mcp.auth.settings import AuthorizationCode, OAuth, SignInFailedError
from sidestream.mcp.auth.token_store import MemoryTokens, TokenFiles
from sidestream.mcp.client.server import MCPServer
from sidestream.mcp.http import without_user
from sidestream.text.redaction import redact
from sidestream.tools.server_side import RemoteMCP

MAX_PENDING = 16
"""Maximum pending sign-ins. A new one cancels the oldest."""


class PendingSignIn:
    """One MCP sign-in, from its start until the user returns or it times out."""

    def __init__(self, server: RemoteMCP, redirect_uri: str) -> None:
        loop = asyncio.get_running_loop()
        self.label = server.label
        self.url: asyncio.Future[str | None] = loop.create_future()
        """Sign-in URL for the user. None means the server does not require a sign-in."""
        self.answer: asyncio.Future[AuthorizationCode] = loop.create_future()
        self.error: str | None = None
        self._server = server
        self._redirect_uri = redirect_uri
        self.task = asyncio.create_task(self._run(), name=f"mcp-sign-in-{server.label}")

    @property
    def state(self) -> str | None:
        """The unguessable value that the redirect must carry."""
        if not self.url.done() or self.url.cancelled() or (url := self.url.result()) is None:
            return None
        return parse_qs(urlsplit(url).query).get("state", [None])[0]

    async def aclose(self) -> None:
        """Cancel the sign-in."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _run(self) -> None:
        try:
            await self._sign_in()
        except SidestreamError as error:
            self.error = redact(str(error))
        except TimeoutError:
            self.error = "the sign-in timed out"
        finally:
            self.answer.cancel()
            if not self.url.done():
                self.url.set_result(None)

    async def _sign_in(self) -> None:
        # In memory first, so that an aborted sign-in leaves the stored tokens untouched.
        fresh, files = MemoryTokens(), TokenFiles()
        auth = OAuth(
            on_redirect=self._show, on_callback=self._wait, redirect_uri=self._redirect_uri, tokens=fresh, timeout_s=300
        )
        async with MCPServer.from_remote(self._server, auth=auth) as connected:
            await connected.list()
        url = without_user(self._server.url or "", {})[0]
        if (sign_in := await fresh.load(url)) is not None:
            async with files.lock(url):
                await files.save(url, sign_in)

    async def _show(self, url: str) -> None:
        if self.url.done():
            raise SignInFailedError("the server requires a second sign-in; start it again")
        self.url.set_result(url)

    async def _wait(self) -> AuthorizationCode:
        return await asyncio.shield(self.answer)


class SignIns:
    """Pending MCP sign-ins, by server label."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingSignIn] = {}
        """Latest sign-in of each server, by its label."""

    def __getitem__(self, label: str) -> PendingSignIn | None:
        return self._pending.get(label)

    async def start(self, server: RemoteMCP, redirect_uri: str) -> PendingSignIn:
        """Start a sign-in, cancelling an earlier one at the same server."""
        if (old := self._pending.pop(server.label, None)) is not None:
            await old.aclose()
        while len(self._pending) >= MAX_PENDING:
            await self._pending.pop(next(iter(self._pending))).aclose()
        started = self._pending[server.label] = PendingSignIn(server, redirect_uri)
        await asyncio.shield(started.url)
        return started

    def returned(self, query: dict[str, str]) -> PendingSignIn | None:
        """Resume the sign-in that a redirect belongs to and return it, or None if the state is unknown."""
        state = query.get("state")
        waiting = (pending for pending in self._pending.values() if not pending.answer.done())
        found = next((pending for pending in waiting if state and pending.state == state), None)
        if found is None:
            return None
        if "code" in query:
            found.answer.set_result(AuthorizationCode(code=query["code"], state=state, iss=query.get("iss")))
        else:
            reason = query.get("error", "no code")[:80]
            found.answer.set_exception(SignInFailedError(f"the authorization server refused the sign-in: {reason}"))
        return found

    async def aclose(self) -> None:
        """Cancel all sign-ins."""
        pending, self._pending = self._pending, {}
        for each in pending.values():
            await each.aclose()
