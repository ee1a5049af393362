"""MCPServer: a local or remote MCP server whose tools this process calls."""

import asyncio
import importlib.util
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from sidestream.errors import ConfigurationError, MissingExtraError, ToolServerError, UnsupportedError
from sidestream.mcp.callbacks import Callbacks, OnElicitation, OnSampling, Roots
from sidestream.mcp.calls import bind, run_call
from sidestream.mcp.connection import Connection, StoppedError
from sidestream.mcp.failures import what_is_wrong
from sidestream.mcp.permissions import Approval, check_approval, is_allowed, policy_for, unmatched
from sidestream.mcp.server_config import ServerConfig
from sidestream.mcp.tool_definitions import MAX_PAGES, MAX_TOOLS, ToolDefinition, read_listing
from sidestream.redaction import is_secret_header, redact, register_secret
from sidestream.tools.approvals import Policy
from sidestream.tools.server_side import RemoteMCP, ToolFilter
from sidestream.tools.signature import ToolContext
from sidestream.tools.tool import Tool

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

_MIN_TTL_S = 5.0
"""A server that tells no changes is asked for its tools at most so often: the steps of a run follow each other fast."""
_STEADY_S = 60.0
"""A server that crashes after it has run for so long is started again as if for the first time."""
_MAX_LABEL = 64
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


class _Listing(Struct, frozen=True):
    connection: Connection
    changes: int
    until_s: float | None
    tools: tuple[Tool, ...]


class MCPServer:
    """A server by command (`command`, `args`) or by address (`url`), as a source of tools for `Agent(tools=[...])`.

    It starts when its tools are first asked for and runs until `aclose`. A command runs with a clean environment: a
    short allow-list, the names in `env_allow`, and what `env` holds.
    """

    def __init__(
        self,
        label: str,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        env_allow: Sequence[str] = (),
        cwd: str | PathLike[str] | None = None,
        url: str | None = None,
        transport: Literal["http", "sse"] = "http",
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        allowed_tools: Sequence[str] | ToolFilter | None = None,
        approval: Approval = None,
        timeout_s: float | None = None,
        start_timeout_s: float = 30.0,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
    ) -> None:
        self._config = ServerConfig(
            label=label,
            command=command,
            args=tuple(args),
            env=dict(env or {}),
            env_allow=tuple(env_allow),
            cwd=None if cwd is None else fspath(cwd),
            url=url,
            transport=transport,
            headers=dict(headers or {}),
            authorization=authorization,
            start_timeout_s=start_timeout_s,
        )
        _check(self._config, args, timeout_s)
        check_approval(approval, label)
        self._allowed = (
            allowed_tools if isinstance(allowed_tools, ToolFilter | None) else ToolFilter(names=allowed_tools)
        )
        self._approval: Approval = approval
        self._timeout_s = timeout_s
        self._callbacks = Callbacks(server=label, on_elicitation=on_elicitation, on_sampling=on_sampling, roots=roots)
        # Each event loop has its own, since a connection cannot be used from another; loops may run in many threads.
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._listings: dict[asyncio.AbstractEventLoop, _Listing] = {}
        self._lock = threading.Lock()
        self._first_seen: dict[str, dict[str, str]] = {}
        self._warnings: tuple[str, ...] = ()
        weakref.finalize(self, _abandon, self._connections)
        _register_secrets(self._config)

    @classmethod
    def from_remote(cls, remote: RemoteMCP) -> Self:
        """The same server, called by this process in place of the provider. Raises UnsupportedError."""
        only_there = ("connector", "tunnel", "defer_loading", "allowed_callers")
        if asked := [name for name in only_there if getattr(remote, name)]:
            raise UnsupportedError(
                f"RemoteMCP(label={remote.label!r}): {', '.join(asked)} needs a provider that calls the server itself; "
                "give a url to call it from here"
            )
        return cls(
            remote.label,
            url=remote.url,
            headers=remote.headers,
            authorization=remote.authorization,
            allowed_tools=remote.allowed_tools,
            approval=remote.require_approval,
        )

    @property
    def label(self) -> str:
        """Its name in streams and errors."""
        return self._config.label

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the last list of tools gave reason to say."""
        return self._warnings

    def __repr__(self) -> str:
        address = self._config
        if address.url is not None:
            return f"MCPServer({self.label!r}, url={redact(address.url)!r})"
        args = [redact(arg) for arg in address.args]
        env = f", env={sorted(address.env)}" if address.env else ""
        return f"MCPServer({self.label!r}, command={address.command!r}, args={args!r}{env})"

    async def list(self) -> Sequence[Tool]:
        """Its tools as they are now; asks the server only if something has changed. Raises ToolServerError."""
        connection = self._connection()
        await connection.ready()
        known = self._listings.get(connection.loop)
        if (
            known is not None
            and known.connection is connection
            and known.changes == connection.changes
            and (known.until_s is None or time.monotonic() < known.until_s)
        ):
            return known.tools
        changes = connection.changes
        listed, ttl_s = await self._fetch(connection)
        tools = self._take_over(connection, listed)
        until_s = None if ttl_s is None else time.monotonic() + max(ttl_s, _MIN_TTL_S)
        self._listings[connection.loop] = _Listing(connection, changes, until_s, tools)
        return tools

    async def aclose(self) -> None:
        """Stops it and waits until nothing of it is left. It starts again when its tools are asked for again."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._listings.clear()
            own = self._connections.pop(loop, None)
            others = list(self._connections.values())
            self._connections.clear()
        for connection in others:
            connection.abandon()
        if own is not None:
            await own.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _connection(self) -> Connection:
        """The connection of this loop. A crashed server is started again once, then only after `aclose`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            gone = [other for other in self._connections if other.is_closed()]
            dead = [self._connections.pop(other) for other in gone]
            for other in gone:
                self._listings.pop(other, None)
        for connection in dead:
            connection.abandon()
        last = self._connections.get(loop)
        if last is not None and not last.is_over:
            return last
        if importlib.util.find_spec("mcp") is None:
            raise MissingExtraError("mcp", f"the MCP server {self.label!r}")
        restarts = 0
        if last is not None and last.has_crashed and self._config.command is not None:
            restarts = last.restarts + 1 if last.uptime_s < _STEADY_S else 1
            if restarts > 1:
                raise ToolServerError(_gave_up(self.label, last), server=self.label)
        self._connections[loop] = connection = Connection(self._config, self._callbacks)
        connection.restarts = restarts
        return connection

    async def _fetch(self, connection: Connection) -> "tuple[list[ListedTool], float | None]":
        listed: list[ListedTool] = []
        ttls: list[float] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                for _ in range(MAX_PAGES):
                    page = await connection.page(cursor)
                    listed += page.tools
                    ttls += [] if page.ttl_s is None else [page.ttl_s]
                    cursor = page.next_cursor
                    if cursor is None or len(listed) > MAX_TOOLS:
                        break
        except ToolServerError:
            raise
        except TimeoutError:
            limit = f"within {self._config.start_timeout_s:g} seconds"
            raise self._error(f"gave no list of its tools {limit}; raise start_timeout_s if it needs longer") from None
        except StoppedError as error:
            tail = f"\nits last output on stderr:\n{connection.stderr}" if connection.stderr else ""
            raise self._error(f"stopped while its tools were listed: {error}{tail}") from None
        except Exception as error:
            raise self._error(f"gave no proper list of its tools ({what_is_wrong(error)})") from error
        return listed, min(ttls, default=None)

    def _error(self, text: str) -> ToolServerError:
        return ToolServerError(f"the MCP server {self.label!r} {text}", server=self.label)

    def _take_over(self, connection: Connection, listed: "list[ListedTool]") -> tuple[Tool, ...]:
        definitions, warnings = read_listing(listed, self.label)
        warnings += [
            f"the tool {name!r}, which allowed_tools names, is not among those of {self.label}"
            for name in unmatched(self._allowed, [definition.raw_name for definition in definitions])
        ]
        definitions = [d for d in definitions if is_allowed(self._allowed, d.raw_name, d.is_read_only)]
        connection.checked = frozenset(d.raw_name for d in definitions if d.is_checked)
        tools: list[Tool] = []
        for definition in definitions:
            before = self._first_seen.setdefault(definition.raw_name, definition.digests)
            changes = definition.changes(before)
            if changes:
                warnings.append(
                    f"the tool {definition.name} of {self.label} has changed since it was first listed "
                    f"({', '.join(changes)}): each call of it now needs an approval"
                )
            tools.append(self._tool(definition, has_changed=bool(changes)))
        self._warnings = tuple(warnings)
        return tuple(tools)

    def _tool(self, definition: ToolDefinition, *, has_changed: bool) -> Tool:
        async def call(arguments: dict[str, Any], context: ToolContext) -> object:
            return await run_call(self._connection, self.label, definition.raw_name, arguments, context)

        policy: Policy | None = policy_for(self._approval, definition.raw_name, definition.is_read_only)
        return Tool(
            name=definition.name,
            description=definition.description,
            parameters=definition.parameters,
            timeout_s=self._timeout_s,
            approval="always" if has_changed else policy,
            is_sensitive=definition.is_sensitive,
            is_open_world=definition.is_open_world,
            server_label=self.label,
            pin=definition.pin,
            function=call,
            bind=bind(definition.name),
        )


def _check(address: ServerConfig, args: Sequence[str], timeout_s: float | None) -> None:
    label = address.label
    if not label.strip() or not label.isprintable() or len(label) > _MAX_LABEL:
        raise ConfigurationError(f"MCPServer: the label must be 1 to {_MAX_LABEL} visible characters, not {label!r}")
    where = f"MCPServer({label!r})"
    if (address.command is None) == (address.url is None):
        raise ConfigurationError(f"{where} needs one of command and url")
    if isinstance(args, str):
        raise ConfigurationError(f"{where}: args is a list of strings, e.g. args=['-m', 'my_server']")
    idle = ("args", "env", "env_allow", "cwd") if address.url is not None else ("headers", "authorization")
    if useless := [name for name in idle if getattr(address, name)]:
        beside = "url" if address.url is not None else "command"
        raise ConfigurationError(f"{where}: {', '.join(useless)} would do nothing beside {beside}")
    if address.url is not None and not address.url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{where}: the url must begin with http:// or https://")
    if address.transport not in ("http", "sse"):
        raise ConfigurationError(f"{where}: transport must be 'http' or 'sse', not {address.transport!r}")
    for name, value in (("timeout_s", timeout_s), ("start_timeout_s", address.start_timeout_s)):
        if value is not None and not value > 0:
            raise ConfigurationError(f"{where}: {name} must be more than 0, not {value}")


def _register_secrets(address: ServerConfig) -> None:
    if address.authorization is not None:
        register_secret(address.authorization.rpartition(" ")[2])
    for name, value in address.headers.items():
        if is_secret_header(name):
            register_secret(value.rpartition(" ")[2])
    for name, value in address.env.items():
        if any(word in name.upper() for word in _SECRET_WORDS):
            register_secret(value)


def _gave_up(label: str, last: Connection) -> str:
    text = (
        f"the MCP server {label!r} stopped again soon after it was started anew ({last.reason}), "
        "so it is not started a third time; close it with aclose() to try again"
    )
    return f"{text}\nits last output on stderr:\n{last.stderr}" if last.stderr else text


def _abandon(connections: dict[asyncio.AbstractEventLoop, Connection]) -> None:
    for connection in list(connections.values()):
        connection.abandon()
