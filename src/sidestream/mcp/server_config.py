"""Where an MCP server is, or how it is started."""

from msgspec import Struct


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Where a server is, or how it is started."""

    label: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    env_allow: tuple[str, ...] = ()
    cwd: str | None = None
    url: str | None = None
    transport: str = "http"
    headers: dict[str, str] = {}
    authorization: str | None = None
    start_timeout_s: float = 30.0
