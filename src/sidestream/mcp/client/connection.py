"""Connection to one server, in one event loop, owned by a background task.

The official client holds task groups, so the task that enters it must exit it. Requests may come from any task.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from sidestream.errors import SignInError, ToolServerError
from sidestream.logs import get_logger
from sidestream.mcp.auth.settings import Auth
from sidestream.mcp.client.callbacks import Callbacks
from sidestream.mcp.client.deadlines import Deadlines
from sidestream.mcp.client.failures import describe_failure, failure_cause
from sidestream.mcp.client.server_config import ServerConfig
from sidestream.mcp.client.tool_definitions import MAX_PAGES
from sidestream.mcp.http import HttpDiagnostics, auth_headers, http_transport
from sidestream.mcp.process.process import ServerProcess, child_environment
from sidestream.mcp.process.stdio import StdioTransport

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.session import ClientSession
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import (
        CallToolResult,
        ErrorData,
        InputRequest,
        InputRequiredResult,
        InputResponse,
        InputResponses,
        Request,
        Result,
        Tool as MCPTool,
    )

    from sidestream.mcp.auth.oauth import SignInAuth

log = get_logger(__name__)
_CLOSE_TIMEOUT_S = 4.5
"""Seconds after which closing a connection is cancelled. Stopping a process takes at most 4 seconds."""

IDEMPOTENCY_KEY = "sidestream/idempotencyKey"
"""Field of `_meta` that is the same each time the same call is sent."""

_T = TypeVar("_T")
_ResultT = TypeVar("_ResultT", bound="Result")


class ServerStoppedError(Exception):
    """The server stopped before it responded. The message says why."""


class ToolPage(Struct, frozen=True):
    """A page of the server's tool list."""

    tools: "list[MCPTool]"
    next_cursor: str | None
    ttl_s: float | None
    """Seconds for which the page is valid. None means until the server reports a change or the connection closes."""


class Connection:
    """A connection to a server, opened on creation. `ready` waits for the handshake."""

    def __init__(self, config: ServerConfig, callbacks: Callbacks) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.changes = 0
        """Number of notifications that the server's tools have changed."""
        self.is_subscribed = False
        """Whether we are subscribed to changes. Older protocol versions send them without a subscription."""
        self.validated_tools: frozenset[str] = frozenset()
        """Tools whose results are validated against their output schema."""
        self.restarts = 0
        """Consecutive crashes of the server shortly after a start, before this connection."""
        self.has_crashed = False
        self.deadlines = Deadlines()
        self._callbacks = callbacks
        self._client: Client | None = None
        self._start_done = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_closing = False
        self._reason = ""
        self._failure: str | None = None
        self._diagnostics = HttpDiagnostics()
        self._stdio: StdioTransport | None = None
        self._started_s = self._ended_s = 0.0
        self.launched_s: float | None = None
        """Loop time at which the process of a server with a command was running."""
        self._task = self.loop.create_task(self._run(), name=f"mcp-{config.label}")

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set() or self._task.done()

    @property
    def uptime_s(self) -> float:
        return self._ended_s - self._started_s

    @property
    def stderr(self) -> str:
        process = self._stdio.process if self._stdio else None
        return process.stderr if process else ""

    @property
    def reason(self) -> str:
        """Reason for which the connection was closed."""
        return self._reason or "it closed the connection"

    async def ready(self) -> "Client":
        """Wait for the handshake and return the client.

        Raises ToolServerError if the server cannot be used.
        """
        self.config.register_secrets()
        await self._start_done.wait()
        if self._client is None:
            kind = ToolServerError if self._diagnostics.sign_in is None else SignInError
            raise kind(self._failure or self.reason, server=self.config.label)
        return self._client

    @property
    def answers_questions(self) -> bool:
        """Whether `on_elicitation` answers the server's questions. Otherwise the user does, later."""
        return self._callbacks.on_elicitation is not None

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        on_progress: "ProgressFnT",
        answers: "InputResponses | None" = None,
        request_state: str | None = None,
        key: str = "",
    ) -> "CallToolResult | InputRequiredResult | Result":
        """Call a tool once.

        `key` is the call's idempotency key, which the server may read. Raises ServerStoppedError if the server stops,
        and the official client's errors.
        """
        from mcp import MCPError
        from mcp_types import HEADER_MISMATCH

        client = await self.ready()

        def send() -> "Awaitable[CallToolResult | InputRequiredResult | Result]":
            return self._request(
                client.session.call_tool(
                    name,
                    arguments,
                    progress_callback=on_progress,
                    input_responses=answers,
                    request_state=request_state,
                    meta={IDEMPOTENCY_KEY: key} if key else None,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            )

        try:
            return await send()
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
        # The call was not made: some of its headers depend on the tool list, which has changed.
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.list_page(cursor)
            cursor = page.next_cursor
            if cursor is None or any(tool.name == name for tool in page.tools):
                break
        return await send()

    async def request(self, request: "Request[Any, Any]", result_type: "type[_ResultT]") -> "_ResultT":
        """Send a request of a protocol extension. Raises the same errors as `call`."""
        client = await self.ready()
        return await self._request(client.session.send_request(request, result_type))

    async def answer(self, key: str, request: "InputRequest") -> "InputResponse | ErrorData":
        """Answer a request of the server with the callbacks."""
        from mcp.client.session import ClientRequestContext

        session = (await self.ready()).session
        return await session.dispatch_input_request(ClientRequestContext(session=session, request_id=key), request)

    async def validated(self, name: str, result: "CallToolResult") -> "CallToolResult":
        """Return the result of a call after checking it against the tool's output schema.

        Raises RuntimeError if it does not fit.
        """
        if not result.is_error:
            await (await self.ready()).session.validate_tool_result(name, result)
        return result

    async def list_page(self, cursor: str | None) -> ToolPage:
        """Request a page of the tool list, empty if the server has no tools. Raises the same errors as `call`."""
        from mcp import MCPError
        from mcp_types import METHOD_NOT_FOUND

        client = await self.ready()
        try:
            result = await self._request(client.list_tools(cursor=cursor))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return ToolPage([], None, None)
        # Without a time to live and without change notifications, a list is valid as long as the connection.
        is_lasting = self.is_subscribed or not (result.ttl_ms or self._needs_subscription(client))
        return ToolPage(result.tools, result.next_cursor, None if is_lasting else result.ttl_ms / 1000)

    async def _request(self, request: Awaitable[_T]) -> _T:
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
            if not self.is_closed:  # raised by a client that was exited
                raise
        self._closed.set()
        await self._wait_closed()
        raise ServerStoppedError(self.reason)

    def close(self, reason: str) -> None:
        """Make the owner task exit. The first reason is kept."""
        self._reason = self._reason or reason
        self._closed.set()

    async def aclose(self) -> None:
        """Close the connection and wait until its process and tasks have ended."""
        self._is_closing = True
        self.close("it was closed")
        if not self._start_done.is_set():
            self._task.cancel()  # Do not wait for the timeout of a server that hangs at its start.
        await self._wait_closed()

    def kill(self) -> None:
        """Kill the process immediately. Use it if the loop is closed or runs in another thread."""
        self._is_closing = True
        if self._stdio is not None and self._stdio.process is not None:
            self._stdio.process.kill()
        with suppress(RuntimeError):  # the loop is closed, and so is the owner task
            self.loop.call_soon_threadsafe(self.close, "it was closed")

    async def _wait_closed(self) -> None:
        if asyncio.current_task() is not self._task:
            await asyncio.wait({self._task}, timeout=2 * _CLOSE_TIMEOUT_S)

    async def _run(self) -> None:
        error: BaseException | None = None
        has_expired = False
        watchdog: asyncio.TimerHandle | None = None
        try:
            if "mcp" not in sys.modules:
                await asyncio.to_thread(import_module, "mcp")  # the import takes a second; do not block the loop
            async with self.deadlines.within(self.config.start_timeout_s) as timer:
                try:
                    async with self._new_client() as client:
                        self.deadlines.stop(timer)
                        try:
                            await self._serve(client)
                        finally:
                            watchdog = self._start_watchdog()
                finally:
                    has_expired = timer.expired()
        except (Exception, BaseExceptionGroup) as failure:
            error = failure
        finally:
            if watchdog is not None:
                watchdog.cancel()
            self._finish(error, has_expired)

    def _finish(self, error: BaseException | None, has_expired: bool) -> None:
        self._ended_s = self.loop.time()
        if self._client is not None:
            self.has_crashed = not self._is_closing
            if not self._reason and error is not None:
                self._reason = failure_cause(
                    self.config, error, self._diagnostics.status, sign_in=self._diagnostics.sign_in
                )
            if self.has_crashed:
                log.info("MCP server %s: stopped: %s", self.config.label, self._reason)
        else:
            self._failure = describe_failure(
                self.config,
                error,
                self._diagnostics.status,
                sign_in=self._diagnostics.sign_in,
                reason=self._reason,
                has_expired=has_expired,
                stderr=self.stderr,
                noise=self._stdio.noise if self._stdio else "",
            )
        self._closed.set()
        self._start_done.set()

    def _new_client(self) -> "Client":
        from mcp import Client
        from mcp_types import Implementation, ServerNotification, ToolListChangedNotification

        from sidestream import __version__
        from sidestream.mcp.client.tasks import TasksExtension

        async def on_message(message: "ServerNotification | Exception") -> None:
            if isinstance(message, ToolListChangedNotification):
                self.changes += 1

        return Client(
            self._transport(),
            client_info=Implementation(name="sidestream", version=__version__),
            message_handler=on_message,
            log_level="debug" if log.isEnabledFor(logging.DEBUG) else None,
            cache=None,  # we cache the tools built from the list
            extensions=[TasksExtension()],
            **self._callbacks.client_arguments(),
        )

    def _transport(self) -> Any:
        config = self.config
        if config.url is not None:
            headers = auth_headers(config.headers, config.authorization)
            new_auth = None if config.auth is None else partial(self._new_auth, config.auth)
            return http_transport(config.url, config.transport, headers, self._diagnostics, new_auth)

        async def start() -> ServerProcess:
            assert config.command is not None
            env = child_environment(config.env_allow, config.env)
            process = await ServerProcess.start(config.command, config.args, env=env, cwd=config.cwd)
            self.launched_s = self.loop.time()
            return process

        self._stdio = StdioTransport(start, self.close)
        return self._stdio

    def _new_auth(self, auth: Auth, url: str) -> "SignInAuth":
        from sidestream.mcp.auth.oauth import SignInAuth

        return SignInAuth(
            auth,
            self.config.label,
            url,
            paused=self.deadlines.paused,
            report=self._diagnostics.report_sign_in,
            step_ups=self.config.step_ups,
        )

    async def _serve(self, client: "Client") -> None:
        validate = client.session.validate_tool_result

        async def validate_result(name: str, result: "CallToolResult") -> None:
            if name in self.validated_tools:
                await validate(name, result)

        # The client would validate every result, however costly the schema, and list again for unknown tools.
        vars(client.session)["validate_tool_result"] = validate_result
        self._offer_questions(client.session)
        self._client = client
        self._diagnostics.status = None  # the handshake may have tried unsupported requests
        self._started_s = self.loop.time()
        listener = asyncio.create_task(self._listen(client), name=f"mcp-listen-{self.config.label}")
        self._start_done.set()
        try:
            await self._closed.wait()
        finally:
            if self._stdio is not None:
                self._stdio.stop_sending()
            listener.cancel()
            await asyncio.wait({listener})

    def _offer_questions(self, session: "ClientSession") -> None:
        """Declare to a modern server that it may ask the user, for whom a run can wait.

        An older server asks while it holds the call open, which only `on_elicitation` can answer.
        """
        discovered = session.discover_result
        if discovered is not None and not self.answers_questions:
            vars(session)["_elicitation_callback"] = self._callbacks.decline
            session.adopt(discovered)

    def _start_watchdog(self) -> asyncio.TimerHandle:
        return self.loop.call_later(_CLOSE_TIMEOUT_S, self._task.cancel)

    def _needs_subscription(self, client: "Client") -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        tools = client.server_capabilities.tools
        return client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)

    async def _listen(self, client: "Client") -> None:
        """Subscribe to tool list changes, if the protocol version requires a subscription."""
        if not self._needs_subscription(client):
            return
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                self.is_subscribed = bool(subscription.honored.tools_list_changed)
                async for _ in subscription:
                    self.changes += 1
        except Exception as error:
            log.debug("MCP server %s: does not report changes: %s", self.config.label, type(error).__name__)
        finally:
            if self.is_subscribed:
                self.is_subscribed = False
                self.changes += 1
