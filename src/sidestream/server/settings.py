"""The settings of a server."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.approval_deadlines import OnExpiry
from sidestream.durable.worker.worker import INTERVAL_S
from sidestream.errors import ConfigurationError
from sidestream.limits import MIB, MIN_TOKEN_CHARS
from sidestream.text.redaction import Secret

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

Dialect = Literal["openai", "open-responses"]
Disconnect = Literal["detach", "cancel"]
_HOST = re.compile(r"[^\s:/\[\]]+|\[?[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*\]?", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/*]+/?", re.IGNORECASE)
_TOKEN = re.compile(r"[!-~]+")
MAX_BODY_BYTES = 64 * MIB
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


Auth = Callable[["HTTPConnection"], str | Awaitable[str | None] | None]
"""A request → the name of the user who sent it, or None. Async or not."""
Admin = Callable[["HTTPConnection"], bool | Awaitable[bool]]
"""A request → whether its sender may administer the server. Async or not."""


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
    owner_token: Secret | None = None
    """The token of whoever runs the server. It may administer, and its conversations are those of a server without
    tokens, so that they outlive the token."""
    owner_cookie: Secret | None = None
    """What the owner's pages keep in place of the token, so that they stay signed in when the server is restarted."""
    allows_weak_tokens: bool = False
    """Whether tokens of fewer than 22 characters are accepted, on a server that only this machine can reach."""
    auth: Auth | None = None
    """Whose request it is, by the app's own means; those that it does not know need a token."""
    allows_admin: bool | Admin = False
    """Whether requests without the owner's token may administer: change MCP servers, test keys, index folders. Whoever
    may do that can run programs on this machine."""
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
    """The engine whose workers execute the runs, or its name or URL. None means the embedded engine, with a worker in
    this process."""
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
        return bool(self.tokens or self.owner_tokens) or self.auth is not None

    @property
    def owner_tokens(self) -> tuple[Secret, ...]:
        """The values by which the owner is known."""
        return tuple(token for token in (self.owner_token, self.owner_cookie) if token is not None)

    @property
    def is_shared(self) -> bool:
        """Whether several people use the server: the files of its machine are closed to them."""
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
        self._check_tokens()

    def _check_tokens(self) -> None:
        given = (*self.tokens, *self.owner_tokens)
        if not all(_TOKEN.fullmatch(token) for token in given):
            raise ConfigurationError("a token of the server is empty, or cannot be sent in a header: use visible ASCII")
        shortest = min(map(len, given), default=MIN_TOKEN_CHARS)
        if shortest >= MIN_TOKEN_CHARS or (self.allows_weak_tokens and all(map(is_loopback, self.hosts))):
            return
        advice = "on a server that only this machine can reach, --weak-token or allows_weak_tokens=True accepts it"
        raise ConfigurationError(
            f"a token must have at least {MIN_TOKEN_CHARS} characters, not {shortest}: make one with "
            f'`python -c "import secrets; print(secrets.token_urlsafe(24))"`; {advice}'
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def offers_index(settings: ServerSettings) -> bool:
    """Whether requests may use the file index of this machine: not where several people use the server."""
    return bool(settings.index_folders) and not settings.is_shared
