"""One connection to one server, in one event loop: made, kept and ended by a task of its own.

The official client holds task groups, so the task that enters it must leave it. Requests may come from any task.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from sidestream.errors import ToolServerError
from sidestream.mcp.callbacks import Callbacks
from sidestream.mcp.failures import cause, explain
from sidestream.mcp.http import HttpFacts, auth_headers, http_transport
from sidestream.mcp.process import ServerProcess, child_environment
from sidestream.mcp.server_config import ServerConfig
from sidestream.mcp.stdio import StdioTransport

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool as ListedTool

log = logging.getLogger("sidestream.mcp")
_CLOSE_S = 4.5
"""After it a connection that is being closed is cut off; the ladder of a process takes 4."""

_T = TypeVar("_T")


class StoppedError(Exception):
    """The server went away before it answered; the message says why."""


class Page(Struct, frozen=True):
    """A part of the server's list."""

    tools: "list[ListedTool]"
    next_cursor: str | None
    ttl_s: float | None
    """How long it holds, where the server says so."""


class Connection:
    """Starts when it is made. `ready` waits for it; `aclose` ends it."""

    def __init__(self, address: ServerConfig, callbacks: Callbacks) -> None:
        self.address = address
        self.loop = asyncio.get_running_loop()
        self.changes = 0
        """Grows when the server says that its tools have changed."""
        self.is_subscribed = False
        """Whether the server tells of changes. Those of the older protocol generation do so unasked."""
        self.checked: frozenset[str] = frozenset()
        """Tools whose results are checked against their output schema."""
        self.restarts = 0
        """How many servers crashed soon after their start before this one."""
        self.has_crashed = False
        self._callbacks = callbacks
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._over = asyncio.Event()
        self._is_asked_to_end = False
        self._reason = ""
        self._failure: str | None = None
        self._facts = HttpFacts()
        self._stdio: StdioTransport | None = None
        self._began_s = self._ended_s = 0.0
        self._task = self.loop.create_task(self._own(), name=f"mcp-{address.label}")

    @property
    def is_over(self) -> bool:
        return self._over.is_set() or self._task.done()

    @property
    def uptime_s(self) -> float:
        return self._ended_s - self._began_s

    @property
    def stderr(self) -> str:
        process = self._stdio.process if self._stdio else None
        return process.stderr if process else ""

    @property
    def reason(self) -> str:
        """Why it is over."""
        return self._reason or "it closed the connection"

    async def ready(self) -> "Client":
        """The client, once it has shaken hands. Raises ToolServerError."""
        await self._settled.wait()
        if self._client is None:
            raise ToolServerError(self._failure or self.reason, server=self.address.label)
        return self._client

    async def call(self, name: str, arguments: dict[str, Any], on_progress: "ProgressFnT") -> "CallToolResult":
        """Calls a tool, once. Raises StoppedError, and what the official client raises."""
        client = await self.ready()
        return await self._asked(client.call_tool(name, arguments, progress_callback=on_progress))

    async def page(self, cursor: str | None) -> Page:
        """A page of the list of tools; empty where the server has none. Raises like `call`."""
        from mcp import MCPError
        from mcp_types import METHOD_NOT_FOUND

        client = await self.ready()
        try:
            result = await self._asked(client.list_tools(cursor=cursor))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return Page([], None, None)
        # Without a promise to tell of changes, and without a time to live, a list holds as long as the connection.
        holds = self.is_subscribed or not (result.ttl_ms or self._needs_subscription(client))
        return Page(result.tools, result.next_cursor, None if holds else result.ttl_ms / 1000)

    async def _asked(self, request: Awaitable[_T]) -> _T:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

        try:
            return await request
        except MCPError as error:
            is_lost = error.code == CONNECTION_CLOSED or (
                error.code == INVALID_REQUEST and error.message == "Session terminated"
            )
            if not is_lost:
                raise
        except RuntimeError:
            if not self.is_over:  # the client's way to say that it has been left
                raise
        self._over.set()
        await self._wait()
        raise StoppedError(self.reason)

    def end(self, reason: str) -> None:
        """Lets the owner leave. The first reason counts."""
        self._reason = self._reason or reason
        self._over.set()

    async def aclose(self) -> None:
        """Ends it and waits until nothing is left of it."""
        self._is_asked_to_end = True
        self.end("it was closed")
        await self._wait()

    def abandon(self) -> None:
        """Ends its process at once; for a loop that runs no more, or in another thread."""
        self._is_asked_to_end = True
        if self._stdio is not None and self._stdio.process is not None:
            self._stdio.process.kill()
        with suppress(RuntimeError):  # the loop is closed: there is no owner to tell
            self.loop.call_soon_threadsafe(self.end, "it was closed")

    async def _wait(self) -> None:
        if asyncio.current_task() is not self._task:
            await asyncio.wait({self._task}, timeout=2 * _CLOSE_S)

    async def _own(self) -> None:
        error: BaseException | None = None
        has_expired = False
        watchdog: asyncio.TimerHandle | None = None
        try:
            if "mcp" not in sys.modules:
                await asyncio.to_thread(import_module, "mcp")  # it takes a second, which others need not wait
            async with asyncio.timeout(self.address.start_timeout_s) as timer:
                try:
                    async with self._new_client() as client:
                        timer.reschedule(None)
                        try:
                            await self._serve(client)
                        finally:
                            watchdog = self._close_in_time()
                finally:
                    has_expired = timer.expired()
        except (Exception, BaseExceptionGroup) as failure:
            error = failure
        finally:
            if watchdog is not None:
                watchdog.cancel()
            self._leave(error, has_expired)

    def _leave(self, error: BaseException | None, has_expired: bool) -> None:
        self._ended_s = self.loop.time()
        if self._client is not None:
            self.has_crashed = not self._is_asked_to_end
            if not self._reason and error is not None:
                self._reason = cause(self.address, error, self._facts.status)
            if self.has_crashed:
                log.info("the MCP server %s stopped: %s", self.address.label, self._reason)
        else:
            self._failure = explain(
                self.address,
                error,
                self._facts.status,
                reason=self._reason,
                has_expired=has_expired,
                stderr=self.stderr,
                noise=self._stdio.noise if self._stdio else "",
            )
        self._over.set()
        self._settled.set()

    def _new_client(self) -> "Client":
        from mcp import Client
        from mcp_types import Implementation, ServerNotification, ToolListChangedNotification

        from sidestream.version import __version__

        async def on_message(message: "ServerNotification | Exception") -> None:
            if isinstance(message, ToolListChangedNotification):
                self.changes += 1

        return Client(
            self._transport(),
            client_info=Implementation(name="sidestream", version=__version__),
            message_handler=on_message,
            log_level="debug" if log.isEnabledFor(logging.DEBUG) else None,
            cache=None,  # the list is kept by us, with what was made of it
            **self._callbacks.offered(),
        )

    def _transport(self) -> Any:
        address = self.address
        if address.url is not None:
            headers = auth_headers(address.headers, address.authorization)
            return http_transport(address.url, address.transport, headers, self._facts)

        async def start() -> ServerProcess:
            assert address.command is not None
            env = child_environment(address.env_allow, address.env)
            return await ServerProcess.start(address.command, address.args, env=env, cwd=address.cwd)

        self._stdio = StdioTransport(start, self.end)
        return self._stdio

    async def _serve(self, client: "Client") -> None:
        check = client.session.validate_tool_result

        async def check_result(name: str, result: "CallToolResult") -> None:
            if name in self.checked:
                await check(name, result)

        # The client would check every result, whatever a stranger's schema costs, and list again for unknown tools.
        setattr(client.session, "validate_tool_result", check_result)  # noqa: B010
        self._client = client
        self._facts.status = None  # the handshake may have tried what the server does not know
        self._began_s = self.loop.time()
        listening = asyncio.create_task(self._listen(client), name=f"mcp-listen-{self.address.label}")
        self._settled.set()
        try:
            await self._over.wait()
        finally:
            if self._stdio is not None:
                self._stdio.stop_sending()
            listening.cancel()
            await asyncio.wait({listening})

    def _close_in_time(self) -> asyncio.TimerHandle:
        return self.loop.call_later(_CLOSE_S, self._task.cancel)

    def _needs_subscription(self, client: "Client") -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        tools = client.server_capabilities.tools
        return client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)

    async def _listen(self, client: "Client") -> None:
        """Follows changes where the protocol generation wants that to be asked for."""
        if not self._needs_subscription(client):
            return
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                self.is_subscribed = bool(subscription.honored.tools_list_changed)
                async for _ in subscription:
                    self.changes += 1
        except Exception as error:
            log.debug("%s tells of no changes: %s", self.address.label, type(error).__name__)
        finally:
            if self.is_subscribed:
                self.is_subscribed = False
                self.changes += 1
