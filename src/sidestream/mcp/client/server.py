"""`MCPServer`, a local or remote server whose tools this process calls, and its approval policies."""

import asyncio
import importlib.util
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from sidestream.errors import ConfigurationError, MissingExtraError, SidestreamError, ToolServerError, UnsupportedError
from sidestream.mcp.auth.settings import Auth
from sidestream.mcp.client.callbacks import Callbacks, OnElicitation, OnSampling, Roots
from sidestream.mcp.client.connection import Connection, ServerStoppedError
from sidestream.mcp.client.failures import describe_error
from sidestream.mcp.client.server_config import ServerConfig
from sidestream.mcp.client.tool_definitions import MAX_PAGES, MAX_TOOLS, ToolDefinition, parse_tool_list
from sidestream.mcp.display import one_line, visible
from sidestream.text.redaction import hidden, hidden_url, hidden_variables, redact
from sidestream.tools.approvals import REQUIRED_APPROVAL, Policy, check_policy
from sidestream.tools.arguments import ArgumentBinder, InvalidArgumentsError
from sidestream.tools.context import ToolContext
from sidestream.tools.interruption import ServerInterruption, check_server_interruption, server_policy
from sidestream.tools.server_side import MCPApproval, RemoteMCP, ToolFilter
from sidestream.tools.tool import Tool, ToolOutcome

if TYPE_CHECKING:
    from mcp_types import Tool as MCPTool

    from sidestream.mcp.client.accepted import AcceptedDefinitions


_MAX_MESSAGE_CHARACTERS = 2000


def pass_arguments(name: str) -> ArgumentBinder:
    """Return a binder that forwards the model's arguments unchanged, since the server validates them."""

    def bind(arguments: object, context: ToolContext) -> dict[str, Any]:
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidArgumentsError(f"{name} takes a JSON object of arguments, not {type(arguments).__name__}.")
        return {"arguments": cast(dict[str, Any], arguments), "context": context}

    return bind


async def call_tool(
    connect: Callable[[], Connection], label: str, name: str, arguments: dict[str, Any], context: ToolContext
) -> object:
    """Call a server's tool and return the result for the model.

    A call is sent at most once; if the server stops, it is not retried. A server may request more input, and then gets
    the call again with the answers. If the user must give them, the outcome is suspended.
    """
    try:
        await connect().ready()
        # Needs the official client, which is imported by now.
        from sidestream.mcp.client.server_call import ServerCall

        return await ServerCall(connect, label, name, arguments, context).run()
    except ToolServerError as error:
        # The lines after the first are the server's stderr, which is not for the model.
        return ToolOutcome.failure("ToolServerError", error.message.partition("\n")[0], error)
    except ServerStoppedError as error:
        message = (
            f"The MCP server {label} stopped before it answered ({error}). It is unknown whether {name} took effect; "
            "it was not called again."
        )
        return ToolOutcome.failure("ToolServerError", message, error)
    except SidestreamError as error:
        return ToolOutcome.failure(type(error).__name__, str(error), error)
    except Exception as error:
        message = _error_message(label, error)
        # Not the client's exception, which holds what the server sent, unredacted.
        return ToolOutcome.failure("ToolError", message, ToolServerError(message, server=label))


def _error_message(label: str, error: Exception) -> str:
    from mcp import MCPError

    if isinstance(error, MCPError):
        return f"The MCP server {label} returned an error: {visible(redact(error.message), _MAX_MESSAGE_CHARACTERS)}"
    return f"The MCP server {label} returned an invalid result ({describe_error(error)})."


Approval = Policy | dict[str, Policy] | MCPApproval | None
"""One policy for all tools, one per tool name, or lists of always and never. None means the agent's policy, or
`ask` if it has none."""


def check_approval(approval: Approval, label: str) -> None:
    """Raise ConfigurationError if an approval setting is invalid."""
    try:
        for policy in _policies(approval):
            check_policy(policy)
    except ConfigurationError as error:
        raise ConfigurationError(f"MCPServer({label!r}): {error}") from None


def policy_for(approval: Approval, name: str, is_read_only: bool) -> Policy | None:
    """Return the policy for one tool. None defers to the agent's policy."""
    if isinstance(approval, dict):
        return cast(dict[str, Policy], approval).get(name)
    if not isinstance(approval, MCPApproval):
        return approval
    if _matches(approval.always, name, is_read_only):
        return "ask"
    # A tool in neither list needs approval, as with providers.
    return "run" if _matches(approval.never, name, is_read_only) else "ask"


def _policies(approval: Approval) -> Iterable[Policy]:
    if isinstance(approval, MCPApproval | None):
        return ()
    return cast(dict[str, Policy], approval).values() if isinstance(approval, dict) else (approval,)


def is_allowed(allowed: ToolFilter | None, name: str, is_read_only: bool) -> bool:
    """Return whether the tool may be used."""
    return allowed is None or _matches(allowed, name, is_read_only)


def unmatched(allowed: ToolFilter | None, names: Iterable[str]) -> list[str]:
    """Return allowed names that the server does not list."""
    return sorted(set(allowed.names if allowed else ()) - set(names))


def _matches(selection: Sequence[str] | ToolFilter, name: str, is_read_only: bool) -> bool:
    if not isinstance(selection, ToolFilter):
        return name in selection
    matches_kind = selection.read_only is None or selection.read_only == is_read_only
    # An empty filter matches nothing.
    is_empty = not selection.names and selection.read_only is None
    return not is_empty and matches_kind and (not selection.names or name in selection.names)


_MIN_TTL_S = 5.0
"""Minimum seconds for which a tool list is cached, since the steps of a run follow each other quickly."""
_STABLE_UPTIME_S = 60.0
"""Uptime in seconds after which a crash resets the restart count."""
_MAX_LABEL_CHARACTERS = 64


class _CachedTools(Struct, frozen=True):
    connection: Connection
    changes: int
    expires_s: float | None
    tools: tuple[Tool, ...]


class MCPServer:
    """A server started by `command` and `args`, or reached by `url`, as a toolset for `Agent(mcp=[...])`.

    ```python
    git = MCPServer("git", command="uvx", args=["mcp-server-git", "--repository", "."], approval="ask")
    agent = Agent("openai-responses", mcp=[git])
    ```

    Its calls need approval unless `approval` or the agent's policy says otherwise.
    It starts when its tools are first listed and runs until `aclose`. A command runs in `cwd` with a minimal
    environment: a short allow-list, the variables named in `env_allow`, and those in `env`; it has `start_timeout_s` to
    start. A server with a URL gets `authorization` as that header, or `auth` signs in. The model sees only
    `allowed_tools`. `on_elicitation` answers its questions, else they become approvals; `on_sampling` its requests
    for a model; `roots` are the folders it is told about.
    `on_interruption` is the policy for interrupted calls, for all tools or by name; `"hints"` trusts what
    the server claims. `reads_outside` names its tools that search: `WebFetch` may fetch URLs in their results.
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
        auth: Auth | None = None,
        allowed_tools: Sequence[str] | ToolFilter | None = None,
        approval: Approval = None,
        on_interruption: ServerInterruption = "ask",
        reads_outside: Sequence[str] = (),
        timeout_s: float | None = None,
        start_timeout_s: float = 30.0,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
    ) -> None:
        # Reuse the names: a traceback with locals would show the originals.
        env, headers, url = hidden_variables(env or {}), hidden(headers or {}), url and hidden_url(url)
        authorization = authorization and hidden({"Authorization": authorization})["Authorization"]
        self._config = ServerConfig(
            label=label,
            command=command,
            args=tuple(args),
            env=env,
            env_allow=tuple(env_allow),
            cwd=None if cwd is None else fspath(cwd),
            url=url,
            transport=transport,
            headers=headers,
            authorization=authorization,
            auth=auth,
            start_timeout_s=start_timeout_s,
        )
        _check(self._config, args, timeout_s)
        check_approval(approval, label)
        check_server_interruption(on_interruption, f"MCPServer({label!r})")
        self._allowed = (
            allowed_tools if isinstance(allowed_tools, ToolFilter | None) else ToolFilter(names=allowed_tools)
        )
        self._approval: Approval = approval
        self._on_interruption: ServerInterruption = on_interruption
        if isinstance(reads_outside, str):
            raise ConfigurationError(f"MCPServer({label!r}): reads_outside must be a list of tools, not a string")
        self._reads_outside = frozenset(reads_outside)
        self._timeout_s = timeout_s
        self._callbacks = Callbacks(server=label, on_elicitation=on_elicitation, on_sampling=on_sampling, roots=roots)
        # One connection per event loop, since it is bound to its loop; loops may run in several threads.
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._cached_tools: dict[asyncio.AbstractEventLoop, _CachedTools] = {}
        self._lock = threading.Lock()
        self._first_seen: dict[str, dict[str, str]] = {}
        self._accepted: AcceptedDefinitions | None = None
        self.is_optional = False
        """Whether runs continue without its tools if it cannot be used."""
        self._warnings: tuple[str, ...] = ()
        self._defers_loading = False
        """Whether the model sees its tools only after finding them with a tool search."""
        weakref.finalize(self, _kill_all, self._connections)

    @classmethod
    def from_remote(cls, remote: RemoteMCP, *, auth: Auth | None = None) -> Self:
        """Create a server that this process calls instead of the provider.

        Raises UnsupportedError if the settings need a provider.
        """
        provider_only = ("connector", "tunnel", "allowed_callers")
        if unsupported := [name for name in provider_only if getattr(remote, name)]:
            raise UnsupportedError(
                f"RemoteMCP(label={remote.label!r}): {', '.join(unsupported)} needs a provider that calls the "
                "server itself; use url to call it from this process"
            )
        required = remote.require_approval
        server = cls(
            remote.label,
            url=remote.url,
            transport=remote.transport,
            headers=remote.headers,
            authorization=remote.authorization,
            auth=auth,
            allowed_tools=remote.allowed_tools,
            approval=REQUIRED_APPROVAL[required] if isinstance(required, str) else required,
            on_interruption=remote.on_interruption or "ask",
        )
        server._defers_loading = remote.defer_loading
        return server

    def keep_definitions(self, accepted: "AcceptedDefinitions") -> None:
        """Offer only tools with accepted definitions, accepted by this process or an earlier one."""
        self._accepted = accepted

    @property
    def label(self) -> str:
        """Name in streams and errors."""
        return self._config.label

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the last tool list."""
        return self._warnings

    def __repr__(self) -> str:
        config = self._config
        if config.url is not None:
            return f"MCPServer({self.label!r}, url={redact(config.url)!r})"
        args = [redact(arg) for arg in config.args]
        env = f", env={sorted(config.env)}" if config.env else ""
        return f"MCPServer({self.label!r}, command={config.command!r}, args={args!r}{env})"

    async def list(self) -> Sequence[Tool]:
        """Return the current tools, requesting them only if they may have changed.

        Raises ToolServerError if the server cannot be used. If it is optional, it then has no tools and a warning.
        """
        try:
            return await self._list()
        except ToolServerError as error:
            if not self.is_optional:
                raise
            self._warnings = (f"{error}; its tools are left out",)
            return ()

    async def _list(self) -> Sequence[Tool]:
        connection = self._connection()
        await connection.ready()
        cached = self._cached_tools.get(connection.loop)
        if (
            cached is not None
            and cached.connection is connection
            and cached.changes == connection.changes
            and (cached.expires_s is None or time.monotonic() < cached.expires_s)
        ):
            return cached.tools
        changes = connection.changes
        listed, ttl_s = await self._request_list(connection)
        tools = self._build_tools(connection, listed)
        if self._defers_loading:
            tools = tuple(replace(tool, defer_loading=True) for tool in tools)
        expires_s = None if ttl_s is None else time.monotonic() + max(ttl_s, _MIN_TTL_S)
        self._cached_tools[connection.loop] = _CachedTools(connection, changes, expires_s, tools)
        return tools

    async def aclose(self) -> None:
        """Stop the server and wait until its processes have ended. Listing its tools starts it again."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._cached_tools.clear()
            own = self._connections.pop(loop, None)
            others = list(self._connections.values())
            self._connections.clear()
        for connection in others:
            connection.kill()
        if own is not None:
            await own.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _connection(self) -> Connection:
        """Return the connection of this loop, opening it if necessary.

        A crashed server is restarted once, then only after `aclose`.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            closed_loops = [other for other in self._connections if other.is_closed()]
            orphaned = [self._connections.pop(other) for other in closed_loops]
            for other in closed_loops:
                self._cached_tools.pop(other, None)
        for connection in orphaned:
            connection.kill()
        last = self._connections.get(loop)
        if last is not None and not last.is_closed:
            return last
        if importlib.util.find_spec("mcp") is None:
            raise MissingExtraError("mcp", f"the MCP server {self.label!r}")
        restarts = 0
        if last is not None and last.has_crashed and self._config.command is not None:
            restarts = last.restarts + 1 if last.uptime_s < _STABLE_UPTIME_S else 1
            if restarts > 1:
                raise ToolServerError(_restart_refused(self.label, last), server=self.label)
        self._connections[loop] = connection = Connection(self._config, self._callbacks)
        connection.restarts = restarts
        return connection

    async def _request_list(self, connection: Connection) -> "tuple[list[MCPTool], float | None]":
        listed: list[MCPTool] = []
        ttls: list[float] = []
        cursor: str | None = None
        try:
            async with connection.deadlines.within(self._config.start_timeout_s):
                for _ in range(MAX_PAGES):
                    page = await connection.list_page(cursor)
                    listed += page.tools
                    ttls += [] if page.ttl_s is None else [page.ttl_s]
                    cursor = page.next_cursor
                    if cursor is None or len(listed) > MAX_TOOLS:
                        break
        except ToolServerError:
            raise
        except TimeoutError:
            limit = f"within {self._config.start_timeout_s:g} seconds"
            raise self._error(f"did not list its tools {limit}; raise start_timeout_s if it needs longer") from None
        except ServerStoppedError as error:
            tail = f"\nits last output on stderr:\n{connection.stderr}" if connection.stderr else ""
            raise self._error(f"stopped while its tools were listed: {error}{tail}") from None
        except Exception as error:
            problem = describe_error(error)
        else:
            return listed, min(ttls, default=None)
        # Raised outside of `except`, since the client's exception holds what the server sent, unredacted.
        raise self._error(f"returned an invalid tool list ({problem})")

    def _error(self, text: str) -> ToolServerError:
        return ToolServerError(f"the MCP server {self.label!r} {text}", server=self.label)

    def _build_tools(self, connection: Connection, listed: "list[MCPTool]") -> tuple[Tool, ...]:
        definitions, warnings = parse_tool_list(listed, self.label)
        warnings += [
            f"the tool {name!r} in allowed_tools is not a tool of {self.label}"
            for name in unmatched(self._allowed, [definition.raw_name for definition in definitions])
        ]
        definitions = [d for d in definitions if is_allowed(self._allowed, d.raw_name, d.is_read_only)]
        connection.validated_tools = frozenset(d.raw_name for d in definitions if d.has_validated_output)
        tools: list[Tool] = []
        if self._accepted is not None:
            changed = {change.tool: change for change in self._accepted.review(self.label, definitions)}
            warnings += [
                f"the tool {one_line(name)} of {self.label} is not offered: it has changed since it was accepted "
                f"({', '.join(aspect.name for aspect in change.aspects)}); see the settings of MCP servers"
                for name, change in changed.items()
            ]
            definitions = [definition for definition in definitions if definition.raw_name not in changed]
        for definition in definitions:
            if self._accepted is not None:
                self._first_seen[definition.raw_name] = definition.digests
            first = self._first_seen.setdefault(definition.raw_name, definition.digests)
            changes = definition.changes(first)
            if changes:
                warnings.append(
                    f"the tool {definition.name} of {self.label} has changed since it was first listed "
                    f"({', '.join(changes)}): each call of it now needs approval"
                )
            tools.append(self._tool(definition, has_changed=bool(changes)))
        self._warnings = tuple(warnings)
        return tuple(tools)

    def _tool(self, definition: ToolDefinition, *, has_changed: bool) -> Tool:
        async def call(arguments: dict[str, Any], context: ToolContext) -> object:
            return await call_tool(self._connection, self.label, definition.raw_name, arguments, context)

        policy: Policy | None = policy_for(self._approval, definition.raw_name, definition.is_read_only)
        return Tool(
            name=definition.name,
            description=definition.description,
            parameters=definition.parameters,
            timeout_s=self._timeout_s,
            approval="ask-each" if has_changed and policy != "deny" else policy,
            asks_by_default=True,
            is_sensitive=definition.is_sensitive,
            is_open_world=definition.is_open_world,
            reads_outside=definition.raw_name in self._reads_outside,
            server_label=self.label,
            server_tool=definition.raw_name,
            pin=definition.pin,
            on_interruption=server_policy(
                self._on_interruption, definition.raw_name, is_repeatable=definition.is_repeatable and not has_changed
            ),
            function=call,
            bind=pass_arguments(definition.name),
        )


def _check(config: ServerConfig, args: Sequence[str], timeout_s: float | None) -> None:
    label = config.label
    if not label.strip() or not label.isprintable() or len(label) > _MAX_LABEL_CHARACTERS:
        raise ConfigurationError(
            f"MCPServer: label must be 1 to {_MAX_LABEL_CHARACTERS} printable characters, not {label!r}"
        )
    where = f"MCPServer({label!r})"
    if (config.command is None) == (config.url is None):
        raise ConfigurationError(f"{where} needs either command or url")
    if isinstance(args, str):
        raise ConfigurationError(f"{where}: args must be a list of strings, e.g. args=['-m', 'my_server']")
    unused = ("args", "env", "env_allow", "cwd") if config.url is not None else ("headers", "authorization", "auth")
    if ignored := [name for name in unused if getattr(config, name)]:
        given = "url" if config.url is not None else "command"
        raise ConfigurationError(f"{where}: {', '.join(ignored)} cannot be combined with {given}")
    if config.url is not None and not config.url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{where}: url must start with http:// or https://")
    if config.auth is not None and not isinstance(cast(object, config.auth), Auth):
        raise ConfigurationError(f"{where}: auth must be one of {', '.join(kind.__name__ for kind in get_args(Auth))}")
    if config.auth is not None and config.authorization:
        raise ConfigurationError(f"{where}: authorization cannot be combined with auth")
    if config.transport not in ("http", "sse"):
        raise ConfigurationError(f"{where}: transport must be 'http' or 'sse', not {config.transport!r}")
    for name, value in (("timeout_s", timeout_s), ("start_timeout_s", config.start_timeout_s)):
        if value is not None and not value > 0:
            raise ConfigurationError(f"{where}: {name} must be more than 0, not {value}")


def _restart_refused(label: str, last: Connection) -> str:
    text = (
        f"the MCP server {label!r} stopped again shortly after a restart ({last.reason}), "
        "so it is not started a third time; call aclose() to try again"
    )
    return f"{text}\nits last output on stderr:\n{last.stderr}" if last.stderr else text


def _kill_all(connections: dict[asyncio.AbstractEventLoop, Connection]) -> None:
    for connection in list(connections.values()):
        connection.kill()
