"""The settings of a server."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.durable.expiry import OnExpiry
from sidestream.durable.protocol import Engine
from sidestream.durable.worker import INTERVAL_S
from sidestream.errors import ConfigurationError
from sidestream.limits import MIB
from sidestream.redaction import Secret

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

Dialect = Literal["openai", "open-responses"]
Disconnect = Literal["detach", "cancel"]
_HOST = re.compile(r"[^\s:/\[\]]+|\[?[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*\]?", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/*]+/?", re.IGNORECASE)
MAX_BODY_BYTES = 64 * MIB
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


Auth = Callable[["HTTPConnection"], str | Awaitable[str | None] | None]
"""A request → the name of the user who sent it, or None. Async or not."""


class Caps(Struct, frozen=True, kw_only=True):
    """What one token, or an open server as a whole, may use. None is no cap."""

    requests_per_minute: int | None = None
    """Requests that start or resume a run."""
    max_concurrent_runs: int | None = 64
    max_open_streams: int | None = 1000
    """Streams that clients read at the same time, those of WebSockets included."""
    max_cost_per_day: float | None = None
    """In US dollars, of the runs that ended within the last 24 hours or are in progress, as far as prices are known.
    Runs that were admitted may exceed it: `Limits.max_cost` of an agent bounds each."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"Caps({name}={value!r}): it must be more than 0, or None for no cap")


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How a server behaves; `create_app` makes it of its arguments."""

    agents: Mapping[str, Agent[Any]]
    """By name."""
    default: str
    """The agent, or the model string, of requests that name none."""
    allows_models: bool = True
    """Whether a request may name any model string instead of an agent."""
    tokens: tuple[Secret, ...] = ()
    """A request needs one of them as its bearer token. Without any, all requests belong to one owner."""
    auth: Auth | None = None
    """Whose request it is, by the app's own means; those that it does not know need a token."""
    hosts: Sequence[str] = LOOPBACK
    """Values of the `Host` header that are accepted, without the port."""
    origins: Sequence[str] = ()
    """Origins of other sites whose pages may call this server."""
    dialect: Dialect = "openai"
    on_disconnect: Disconnect = "detach"
    """What becomes of a run whose last reader leaves: it continues, or it is stopped."""
    caps: Caps = Caps()
    max_body_bytes: int = MAX_BODY_BYTES
    """A request. Attachments come in it as base64."""
    interval_s: float = INTERVAL_S
    """How long parts wait to be written to the log together. Readers see them after that."""
    retention_s: float | None = None
    """How long after its last change a conversation is kept. None: until it is deleted."""
    approval_s: float | None = 86_400.0
    """How long a call waits for its approval. None: until it is decided."""
    on_expiry: OnExpiry = "deny"
    """What happens to calls on which nobody decided in time: they are denied and the run continues, they wait on until
    somebody denies them, or the run is stopped."""
    engine: str | Engine | None = None
    """The engine whose workers drive the runs, or its name or URL. None: this process drives them."""
    mcp_hosts: Sequence[str] = ()
    """Hosts of MCP servers that a request may name. Others must be configured here."""
    mcp_file: str | None = None
    """The `mcp.json` that the page edits."""
    index_folders: Sequence[str] = ()
    """Folders that the page may add to the file index, with those in them. None: there is no index on the page."""
    examples: Sequence[str] = ()
    """Prompts that an empty page offers."""

    @property
    def needs_auth(self) -> bool:
        """Whether a request must say whose it is."""
        return bool(self.tokens) or self.auth is not None

    @property
    def is_shared(self) -> bool:
        """Whether several people use the server: what belongs to its machine is closed to them."""
        return len(self.tokens) > 1 or self.auth is not None

    def __post_init__(self) -> None:
        if self.approval_s is not None and not self.approval_s > 0:
            raise ConfigurationError(f"approval_s={self.approval_s!r}: it must be more than 0, or None for no limit")
        if self.retention_s is not None and not self.retention_s > 0:
            raise ConfigurationError(f"retention_s={self.retention_s!r}: it must be more than 0, or None to keep all")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ConfigurationError(f"{host!r} is no host: name it without a scheme, port or path")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(f"{origin!r} is no origin: write it as https://app.example.com")


def offers_index(settings: ServerSettings) -> bool:
    """Whether requests may use the file index of this machine: not where several people use the server."""
    return bool(settings.index_folders) and not settings.is_shared
