"""The state that the APIs of a server share: its agents, its store and its runs."""

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.durable.engines import open_engine
from sidestream.errors import ConfigurationError, SidestreamError, StoreError
from sidestream.logs import get_logger
from sidestream.providers.registry import is_of_this_machine
from sidestream.server.errors import RequestError
from sidestream.server.file_indexes import FileIndexes
from sidestream.server.file_links import SignedFiles
from sidestream.server.mcp_sign_in import SignIns
from sidestream.server.request_policy import RequestPolicy
from sidestream.server.runs.execution import Execution
from sidestream.server.runs.quotas import Bodies, CapKeeper
from sidestream.server.runs.service import Readers, Runs
from sidestream.server.settings import ServerSettings
from sidestream.server.titles import Titles
from sidestream.store.expiry import expired_chats
from sidestream.store.log.follow import PublishedStore
from sidestream.store.log.writer import LogDetail
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.text.redaction import redact

if TYPE_CHECKING:
    from sidestream.mcp import MCPConfig


MAX_INTERVAL_S = 3600.0
MIN_INTERVAL_S = 1.0
BATCH = 100
"""Chats deleted together. No run can start in them meanwhile."""


class Retention:
    """Deletes expired chats periodically."""

    def __init__(
        self, store: PublishedStore, runs: Runs, retention_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._runs = runs
        self._retention_s = retention_s
        self._now = now

    async def sweep(self) -> int:
        """Delete expired chats without a run in progress and return how many were deleted."""
        count = 0
        before = self._now() - self._retention_s
        batch: list[list[ConversationInfo]] = []
        async for chat in expired_chats(self._store, before):
            batch.append(chat)
            if len(batch) == BATCH:
                count += await self._runs.delete_expired(batch, before)
                batch = []
        count += await self._runs.delete_expired(batch, before)
        if count:
            _log.info("deleted %d expired chats", count)
        return count

    async def run(self) -> None:
        """Sweep periodically until cancelled."""
        interval_s = min(max(self._retention_s / 24, MIN_INTERVAL_S), MAX_INTERVAL_S)
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                _log.warning("could not delete expired chats: %s", redact(str(error)))
            await asyncio.sleep(interval_s)


_log = get_logger(__name__)

NEEDED_BY_RUNS = (
    "sidestream.agent.setup",
    "sidestream.run.driver",
    "sidestream.run.background",
    "sidestream.wire.http",
)
"""Modules that the first run would otherwise import."""
MAX_MODELS = 64
"""Maximum cached agents built from model strings."""


class Server:
    """The shared state of one app, at `app.state.server`."""

    def __init__(self, settings: ServerSettings, store: Store) -> None:
        self.settings = settings
        self.store = PublishedStore(store)
        engine = open_engine(settings.engine, self.store) if isinstance(settings.engine, str) else settings.engine
        detail = LogDetail(interval_s=settings.interval_s, previews=True, inputs=True)
        execution = Execution(
            self.store,
            engine,
            self._known_agent,
            settings.agents,
            # The default may be a model string; then this process executes no other one.
            only=None if settings.allows_models else {*settings.agents, settings.default},
            detail=detail,
            approval_s=settings.approval_s,
            on_expiry=settings.on_expiry,
            answer_s=settings.answer_s,
        )
        self.runs = Runs(
            self.store,
            execution,
            policy=RequestPolicy(settings),
            detail=detail,
            caps=CapKeeper(settings.caps, self.store, is_shared=not execution.is_worker),
            approval_s=settings.approval_s,
            readers=Readers(settings.caps.max_open_streams),
            on_disconnect=settings.on_disconnect,
        )
        self._opening: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._made: dict[str, Agent[Any]] = {}
        """Agents built from model strings, by model string."""
        self._retired: list[Agent[Any]] = []
        """Agents with outdated MCP servers, which active runs may still use."""
        self.sign_ins = SignIns()
        self.titles = Titles(self.store, settings.page.title_model)
        self.bodies = Bodies()
        self.links = SignedFiles(settings)
        self.indexes = FileIndexes(settings.index_folders)
        self.servers: MCPConfig | None = None
        """MCP servers for agents built from model strings."""

    def agent(self, name: str | None = None) -> Agent[Any]:
        """Return the agent of this name, or one for this model string. Without a name, return the default.

        Raises RequestError if there is no such agent or model, or if requests may not use it.
        """
        name = name or self.settings.default
        if (found := self.settings.agents.get(name) or self._made.get(name)) is not None:
            return found
        if not self.settings.allows_models and name != self.settings.default:
            known = ", ".join(sorted(self.settings.agents))
            raise _unknown(name, f"use one of {known}")
        try:
            if name != self.settings.default and is_of_this_machine(name):  # Check before reading any file.
                message = "model must not be a file of this machine; name the file with `sidestream local add`"
                raise RequestError(403, message, type="permission_error", param="model", code="owner_only")
            made = (
                Agent(name, mcp=(*self.servers.toolsets, *self.servers.remote_servers)) if self.servers else Agent(name)
            )
            made.check()
        except (ConfigurationError, SidestreamError) as error:
            raise _unknown(name, redact(str(error))) from None
        if len(self._made) >= MAX_MODELS:
            self._made.pop(next(iter(self._made)))
        self._made[name] = made
        return made

    def _known_agent(self, name: str) -> Agent[Any]:
        """Return the agent of a stored run. Raises ConfigurationError if it is unknown."""
        try:
            return self.agent(name)
        except RequestError as error:
            raise ConfigurationError(error.message) from None

    async def open(self) -> None:
        """Open the store, and start to execute unfinished runs and to delete expired conversations.

        Later calls do nothing. Raises StoreError if the store cannot be opened or written.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)  # Several requests may wait for it.
        except SidestreamError:
            self._opening = None  # Let the next request retry.
            raise

    async def _open(self) -> None:
        # Fail at start-up, not in the first request, if the log cannot be used.
        await self.store.prepare()
        if self.runs.execution.is_worker:
            # Importing these in the first request would block it and all concurrent streams.
            for module in NEEDED_BY_RUNS:
                import_module(module)
        await self.load_servers()
        await self.runs.execution.open()
        if self.settings.retention_s is not None:
            self._sweeping = asyncio.create_task(Retention(self.store, self.runs, self.settings.retention_s).run())

    async def load_servers(self) -> None:
        """Reload the MCP servers from the file, for runs that start from now on."""
        if self.settings.mcp_file is None:
            return
        from sidestream.mcp import use_sign_ins

        try:
            self.servers = _guarded(await use_sign_ins(_read_servers(self.settings.mcp_file)), self.settings.mcp_file)
        except SidestreamError as error:  # The web UI shows which server is misconfigured.
            _log.warning("could not load the MCP servers: %s", redact(str(error)))
            self.servers = None
        self._retired += self._made.values()
        self._made = {}
        if not self.runs.live:
            await self._close_retired()

    async def _close_retired(self) -> None:
        retired, self._retired = self._retired, []
        for agent in retired:
            await agent.aclose()

    async def aclose(self) -> None:
        """Detach from the runs and close everything that the server opened."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.sign_ins.aclose()
        await self.titles.aclose()
        await self.indexes.aclose()
        await self.runs.aclose()
        self._retired += self._made.values()
        await self._close_retired()
        await self.store.aclose()


def _read_servers(file: str) -> "MCPConfig":
    from sidestream.mcp import MCPConfig, load_mcp_config

    def report(error: ConfigurationError) -> None:
        _log.warning("left out an MCP server: %s", redact(str(error)))

    return load_mcp_config(file, on_invalid=report) if Path(file).exists() else MCPConfig()


def _guarded(config: "MCPConfig", file: str) -> "MCPConfig":
    """Restrict the locally called servers to the tool definitions that the user accepted."""
    from sidestream.mcp import MCPServer
    from sidestream.mcp.client.accepted import AcceptedDefinitions

    here = [server for server in config.remote_servers if server.execution == "here"]
    local = (*config.toolsets, *map(MCPServer.from_remote, here))
    for server in local:
        server.keep_definitions(AcceptedDefinitions.of_config(file))
    remote = tuple(server for server in config.remote_servers if server not in here)
    return replace(config, toolsets=local, remote_servers=remote)


def _unknown(name: str, reason: str) -> RequestError:
    return RequestError(
        404, f"model {name!r:.100} is not available: {reason}", type="not_found", param="model", code="model_not_found"
    )
