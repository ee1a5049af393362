"""The configuration of one MCP server."""

from msgspec import Struct


class ServerConfig(Struct, frozen=True, kw_only=True):
    """How to start a server (`command`) or connect to it (`url`)."""

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
