"""Configuration of one MCP server."""

from typing import Any

from msgspec import Struct, field

from sidestream.mcp.auth.settings import Auth, StepUps
from sidestream.text.redaction import hidden_variables, redact_url, register_credentials, register_url


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Settings to start a server (`command`) or connect to it (`url`)."""

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
    auth: Auth | None = None
    step_ups: StepUps = field(default_factory=StepUps)
    start_timeout_s: float = 30.0

    def register_secrets(self) -> None:
        """Register the server's secrets for redaction.

        Called with each use of the server, since the registry drops old ones.
        """
        hidden_variables(self.env)
        register_credentials(self.authorization, self.headers)
        register_url(self.url or "")

    def __repr__(self) -> str:
        target = self.command if self.url is None else redact_url(self.url)
        return f"ServerConfig({self.label!r}, {target!r})"

    def __rich_repr__(self) -> list[Any]:
        return [
            self.label,
            self.command if self.url is None else redact_url(self.url),
        ]  # msgspec's own would show all fields
