"""The settings of a server."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from sidestream.agent.agent import Agent
from sidestream.limits import MIB
from sidestream.redaction import Secret

Dialect = Literal["openai", "open-responses"]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class Caps(Struct, frozen=True, kw_only=True):
    """What one token, or an open server as a whole, may use. None is no cap."""

    requests_per_minute: int | None = None
    max_concurrent_runs: int | None = 64
    max_cost_per_day: float | None = None
    """In US dollars, of the runs that ended within the last 24 hours, as far as prices are known."""


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
    hosts: Sequence[str] = LOOPBACK
    """Values of the `Host` header that are accepted, without the port."""
    origins: Sequence[str] = ()
    """Origins of other sites whose pages may call this server."""
    dialect: Dialect = "openai"
    caps: Caps = Caps()
    max_body_bytes: int = 64 * MIB
    """A request. Attachments come in it as base64."""
    interval_s: float = 0.03
    """How long parts wait to be written to the log together. Readers see them after that."""
    retention_s: float | None = None
    """How long after its last change a conversation is kept. None: until it is deleted."""
    mcp_hosts: Sequence[str] = ()
    """Hosts of MCP servers that a request may name. Others must be configured here."""
    mcp_file: str | None = None
    """The `mcp.json` that the page edits."""
    examples: Sequence[str] = ()
    """Prompts that an empty page offers."""
