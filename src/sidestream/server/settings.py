"""The settings of a server."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.durable.engines.protocol import Engine
from sidestream.durable.log.approval_deadlines import OnExpiry
from sidestream.durable.worker.worker import INTERVAL_S
from sidestream.errors import ConfigurationError
from sidestream.limits import MIB, MIN_TOKEN_CHARS
from sidestream.providers.model_settings import ModelSettings
from sidestream.text.redaction import Secret
from sidestream.tools.server_side import TOOLS

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

Dialect = Literal["openai", "open-responses"]
Disconnect = Literal["detach", "cancel"]
_HOST = re.compile(r"[^\s:/\[\]]+|\[?[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*\]?", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/*]+/?", re.IGNORECASE)
_TOKEN = re.compile(r"[!-~]+")
MAX_BODY_BYTES = 64 * MIB
DEFAULT_MODEL = "local"
"""The embedded model, which needs no key."""
OUTPUT = "output"
"""Name of the answer's schema among the settings of a request."""
REQUEST_SETTINGS = (*(name for name in ModelSettings.__struct_fields__ if name != "unsupported"), OUTPUT)
"""Settings that requests may have: the portable ones, and the schema of the answer."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


Auth = Callable[["HTTPConnection"], str | Awaitable[str | None] | None]
"""Returns the name of the user who sent a request, or None. May be async."""
Admin = Callable[["HTTPConnection"], bool | Awaitable[bool]]
"""Returns whether the sender of a request may administer the server. May be async."""
Allowed = bool | tuple[str, ...]
"""Whether requests may add something, or the names of what they may add."""


class Caps(Struct, frozen=True, kw_only=True):
    """Quotas for one token, or for the whole server if it has no tokens. None means no limit."""

    requests_per_minute: int | None = None
    """Requests that start or resume a run, per minute."""
    max_concurrent_runs: int | None = 64
    max_open_streams: int | None = 1000
    """Streams open at the same time, WebSocket streams included."""
    max_cost_per_day: float | None = None
    """US dollars spent in the last 24 hours by finished runs and runs in progress, as far as prices are known.

    Runs already admitted may exceed it; an agent's `Limits.max_cost` bounds each run.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"Caps.{name} must be more than 0, or None for no limit, not {value!r}")


Panel = Literal["models", "thinking", "tools", "settings", "mcp", "indexes", "keys", "runs"]
"""A part of the web UI that an operator can leave out. `settings` is the sheet with all panels."""
PANELS: tuple[Panel, ...] = get_args(Panel)
ICON_TYPES = {".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".webp": "image/webp"}
"""MIME types of icons, by extension."""
_PATH_OR_URL = re.compile(r"(/(?![/\\])|https?://)[^\s\x00-\x1f]*", re.IGNORECASE)


class Page(Struct, frozen=True, kw_only=True):
    """How the web UI presents itself, and which parts of it exist.

    ```python
    page = Page(title="Acme help", greeting="What can we help with?", panels=["settings"])
    app = create_app({"support": agent}, page=page)
    ```
    """

    title: str = "Sidestream"
    """Name in the window title and above the list of conversations."""
    icon: str | None = None
    """Path of an SVG, PNG, ICO or WebP file. None means the built-in icon."""
    greeting: str = ""
    """Heading of an empty chat. Empty means the name of the model or agent."""
    examples: Sequence[str] = ()
    """Prompts that an empty chat offers."""
    panels: Sequence[Panel] | None = None
    """Parts that exist. None means all. Users of a shared server never have `keys`."""
    sign_in_url: str | None = None
    """URL or path that the web UI offers to users who are not signed in."""
    sign_out_url: str | None = None
    """URL or path that the web UI offers to users who are signed in."""
    title_model: str | None = None
    """Model string that makes a title from the first question. None means that the question is the title."""

    def __post_init__(self) -> None:
        unknown = sorted({*(self.panels or ())} - {*PANELS})
        if isinstance(self.panels, str) or unknown:
            wrong = self.panels if isinstance(self.panels, str) else unknown[0]
            raise ConfigurationError(f"Page.panels must be a list of {', '.join(PANELS)}, not {wrong!r}")
        if isinstance(self.examples, str):
            raise ConfigurationError(f"Page.examples must be a list of strings, not {self.examples!r}")
        if not self.title.strip():
            raise ConfigurationError("Page.title must not be empty")
        for name in ("sign_in_url", "sign_out_url"):
            value = getattr(self, name)
            if value is not None and not _PATH_OR_URL.fullmatch(value):
                raise ConfigurationError(f"Page.{name} must be an http or https URL or a path, not {value!r}")
        if self.icon is not None and (
            Path(self.icon).suffix.lower() not in ICON_TYPES or not Path(self.icon).is_file()
        ):
            raise ConfigurationError(
                f"Page.icon must be a file that ends in {', '.join(ICON_TYPES)}, not {self.icon!r}"
            )

    @property
    def shown_panels(self) -> tuple[Panel, ...]:
        """The panels that exist, in a fixed order."""
        return PANELS if self.panels is None else tuple(panel for panel in PANELS if panel in self.panels)


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The settings of a server, which `create_app` builds from its arguments."""

    agents: Mapping[str, Agent[Any]]
    """Agents by name."""
    default: str
    """Agent name or model string for requests that name neither."""
    allows_models: bool = True
    """Whether a request may name any model string instead of an agent."""
    allows_tools: Allowed | None = None
    """Server-side tools that requests may add. None means none to an agent, and any to a model string."""
    allows_functions: Allowed | None = None
    """Client functions that requests may add. None is that of `allows_tools`."""
    allows_instructions: bool | None = None
    """Whether requests may add instructions. None means not to an agent, but to a model string."""
    allows_settings: Allowed | None = None
    """Names of `REQUEST_SETTINGS` that requests may have. None is that of `allows_tools`."""
    tokens: tuple[Secret, ...] = ()
    """Bearer tokens, one of which each request must send. Without any, all requests belong to one tenant."""
    owner_token: Secret | None = None
    """Token of the server's owner. It may administer, and its conversations are those of a server without tokens, so
    they outlive the token.
    """
    owner_cookie: Secret | None = None
    """Cookie value that the owner's browser keeps instead of the token, to stay signed in after a server restart."""
    allows_weak_tokens: bool = False
    """Whether tokens shorter than 22 characters are accepted, on a server that only this machine can reach."""
    auth: Auth | None = None
    """The app's own authentication. Requests that it does not recognise need a token."""
    allows_admin: bool | Admin = False
    """Whether requests without the owner's token may administer: change MCP servers, test keys, index folders.

    Anyone who may administer can run programs on this machine.
    """
    hosts: Sequence[str] = LOOPBACK
    """Accepted values of the `Host` header, without the port."""
    origins: Sequence[str] = ()
    """Origins of other sites whose pages may call this server."""
    dialect: Dialect = "openai"
    on_disconnect: Disconnect = "detach"
    """Whether a run continues or is stopped when its last subscriber leaves."""
    caps: Caps = Caps()
    max_body_bytes: int = MAX_BODY_BYTES
    """Maximum request size, including base64 attachments."""
    interval_s: float = INTERVAL_S
    """Seconds to collect parts before appending them to the log. Subscribers see them after that."""
    retention_s: float | None = None
    """Seconds to keep a conversation after its last change. None means until it is deleted."""
    approval_s: float | None = 86_400.0
    """Seconds that a call waits for approval. None means until it is decided."""
    on_expiry: OnExpiry = "deny"
    """Handling of calls whose approval timed out. They are denied and the run continues, they keep waiting until they
    are denied, or the run is stopped.
    """
    answer_s: float | None = 86_400.0
    """Seconds that a call to a client's function waits for its result. None means until it comes."""
    engine: str | Engine | None = None
    """Engine whose workers execute the runs, or its name or URL. None means the embedded engine, with a worker in this
    process.
    """
    mcp_hosts: Sequence[str] = ()
    """Hosts of MCP servers that a request may name. Others must be configured on the server."""
    mcp_file: str | None = None
    """Path of the `mcp.json` that the web UI edits."""
    models: Sequence[str] = ()
    """Model strings to offer besides each provider's default model."""
    index_folders: Sequence[str] = ()
    """Folders that the web UI may index, including their subfolders. Empty means the web UI has no file index."""
    page: Page = Page()
    """Name, icon and parts of the web UI."""

    @property
    def needs_auth(self) -> bool:
        """Whether requests must authenticate."""
        return bool(self.tokens or self.owner_tokens) or self.auth is not None

    @property
    def owner_tokens(self) -> tuple[Secret, ...]:
        """Secrets that identify the server's owner."""
        return tuple(token for token in (self.owner_token, self.owner_cookie) if token is not None)

    @property
    def has_guests(self) -> bool:
        """Whether people other than its owner use the server."""
        return self.is_shared or (self.owner_token is not None and bool(self.tokens))

    @property
    def is_embedded(self) -> bool:
        """Whether the embedded model answers requests that name no model."""
        return not self.agents and self.default.partition(":")[0] == DEFAULT_MODEL

    @property
    def is_shared(self) -> bool:
        """Whether several people use the server, in which case they cannot access the files of its machine."""
        return len(self.tokens) > 1 or self.auth is not None

    def __post_init__(self) -> None:
        if self.approval_s is not None and not self.approval_s > 0:
            raise ConfigurationError(f"approval_s must be more than 0, or None for no limit, not {self.approval_s!r}")
        if self.answer_s is not None and not self.answer_s > 0:
            raise ConfigurationError(f"answer_s must be more than 0, or None for no limit, not {self.answer_s!r}")
        if self.retention_s is not None and not self.retention_s > 0:
            raise ConfigurationError(f"retention_s must be more than 0, or None to keep all, not {self.retention_s!r}")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ConfigurationError(f"hosts must be names without a scheme, port or path, not {host!r}")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(f"origins must be written like https://app.example.com, not {origin!r}")
        _check_names("allows_tools", self.allows_tools, tuple(TOOLS))
        _check_names("allows_settings", self.allows_settings, REQUEST_SETTINGS)
        self._check_tokens()

    def _check_tokens(self) -> None:
        given = (*self.tokens, *self.owner_tokens)
        if not all(_TOKEN.fullmatch(token) for token in given):
            raise ConfigurationError(
                "a server token is empty or cannot be sent in a header; use visible ASCII characters"
            )
        shortest = min(map(len, given), default=MIN_TOKEN_CHARS)
        if shortest >= MIN_TOKEN_CHARS or (self.allows_weak_tokens and all(map(is_loopback, self.hosts))):
            return
        advice = "on a server that only this machine can reach, --weak-token or allows_weak_tokens=True accepts it"
        raise ConfigurationError(
            f"a token must have at least {MIN_TOKEN_CHARS} characters, not {shortest}: make one with "
            f'`python -c "import secrets; print(secrets.token_urlsafe(24))"`; {advice}'
        )


def _check_names(option: str, given: Allowed | None, known: Sequence[str]) -> None:
    for name in given if isinstance(given, tuple) else ():
        if name not in known:
            raise ConfigurationError(f"{option} must name some of {', '.join(known)}, not {name!r}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def offers_index(settings: ServerSettings) -> bool:
    """Return whether requests may use this machine's file index, which a shared server does not allow."""
    return bool(settings.index_folders) and not settings.is_shared
