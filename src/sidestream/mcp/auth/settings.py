"""Sign-in settings for MCP servers: `MCPServer(label, url=…, auth=OAuth())`, or a program's own credentials."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from sidestream.errors import ConfigurationError
from sidestream.mcp.auth.token_store import MemoryTokens, TokenStore, default_tokens
from sidestream.text.redaction import register_secret

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class SignInFailedError(Exception):
    """A sign-in failed. The message says why and what to do, without secrets. Hooks may raise it."""


class AuthorizationCode(Struct, frozen=True, kw_only=True):
    """Query parameters of the authorization server's redirect."""

    code: str
    state: str | None = None
    iss: str | None = None
    """Issuer. Pass it on if the redirect has it."""

    def __repr__(self) -> str:
        return f"AuthorizationCode(iss={self.iss!r})"

    def __rich_repr__(self) -> list[Any]:
        return [("iss", self.iss)]


OnRedirect = Callable[[str], Awaitable[None]]
"""Sends the user to this URL: opens a browser, or responds with a redirect."""
OnCallback = Callable[[], Awaitable[AuthorizationCode]]
"""Waits until the user has returned from the authorization server."""


class _Auth(Struct, frozen=True, kw_only=True):
    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[Any]:
        return []


class OAuth(_Auth, frozen=True, kw_only=True):
    """A user's sign-in in a browser. Without hooks, uses and refreshes the one stored by `sidestream mcp login`.

    `on_redirect` and `on_callback` make it interactive. The client registers itself at the authorization server, unless
    `client_id` names a registration, or `client_metadata_url` a document that describes this client.
    """

    on_redirect: OnRedirect | None = None
    on_callback: OnCallback | None = None
    redirect_uri: str = "http://127.0.0.1/callback"
    scopes: Sequence[str] = ()
    """Scopes to request in addition to those that the server demands."""
    client_name: str = "Sidestream"
    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    """Authorization server of `client_id`, the only one that gets the secret."""
    client_metadata_url: str | None = None
    tokens: TokenStore = field(default_factory=default_tokens)
    timeout_s: float = 300.0
    """Seconds that the user may take."""

    def __post_init__(self) -> None:
        _register(self.client_secret)
        if (self.on_redirect is None) != (self.on_callback is None):
            raise ConfigurationError("OAuth needs both on_redirect and on_callback, or neither")
        if self.client_secret is not None and (self.client_id is None or self.issuer is None):
            raise ConfigurationError("OAuth: client_secret needs client_id, and issuer, the only server that gets it")
        url = self.client_metadata_url
        if url is not None and not (url.startswith("https://") and urlsplit(url).path.strip("/")):
            raise ConfigurationError("OAuth: client_metadata_url must be an https:// URL with a path")
        if not self.timeout_s > 0:
            raise ConfigurationError(f"OAuth: timeout_s must be more than 0, not {self.timeout_s}")

    @property
    def is_interactive(self) -> bool:
        """Whether a user can be asked to sign in."""
        return self.on_redirect is not None


class ClientCredentials(_Auth, frozen=True, kw_only=True):
    """A program's sign-in with its own secret, which only `issuer` gets."""

    client_id: str
    client_secret: str
    issuer: str | None
    """Authorization server. None leaves the choice to the MCP server, which could name its own."""
    scopes: Sequence[str] = ()
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    tokens: TokenStore = field(default_factory=MemoryTokens)

    def __post_init__(self) -> None:
        _register(self.client_secret)


class PrivateKeyJWT(_Auth, frozen=True, kw_only=True):
    """A program's sign-in with a signed JWT, made from `private_key` (PEM) or returned by `assertion(audience)`."""

    client_id: str
    issuer: str | None
    private_key: str | None = None
    algorithm: str = "RS256"
    assertion: Callable[[str], Awaitable[str]] | None = None
    scopes: Sequence[str] = ()
    tokens: TokenStore = field(default_factory=MemoryTokens)

    def __post_init__(self) -> None:
        _register(self.private_key)
        if (self.private_key is None) == (self.assertion is None):
            raise ConfigurationError("PrivateKeyJWT needs either private_key or assertion")


class IdentityAssertion(_Auth, frozen=True, kw_only=True):
    """A sign-in vouched for by an enterprise identity provider. `assertion(audience, resource)` returns its ID-JAG."""

    client_id: str
    client_secret: str
    issuer: str
    assertion: Callable[[str, str], Awaitable[str]]
    scopes: Sequence[str] = ()
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_post"
    tokens: TokenStore = field(default_factory=MemoryTokens)

    def __post_init__(self) -> None:
        _register(self.client_secret)


class StepUps:
    """Counts how often a server has demanded more scopes, across all of its connections."""

    def __init__(self) -> None:
        self.count = 0


Auth = OAuth | ClientCredentials | PrivateKeyJWT | IdentityAssertion
"""Sign-in settings for a server."""


def _register(secret: str | None) -> None:
    if secret is not None:
        register_secret(secret)
